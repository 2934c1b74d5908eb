"""Reading and writing of wav2vec 2.0 settings in Hugging Face folders (transformers 5.23)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr_jax.audio.presets import wav2vec2
from asr_jax.core.errors import UserError
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.contrastive import Contrastive
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.nn.wav2vec.quantizer import Quantizer
from asr_jax.nn.wav2vec.span_masks import SpanMask
from asr_jax.nn.wav2vec.waveform_convs import WaveformConv
from asr_jax.pretrained import huggingface
from asr_jax.pretrained.base import Description, check_settings
from asr_jax.pretrained.wav2vec2_fairseq import FAIRSEQ_EPS, OF_PRETRAINING, Settings, front_end_of, unknown_of
from asr_jax.text.tokenizers import Tokenizer

MODEL_TYPE = "wav2vec2"
# Settings of `Wav2Vec2`, and transformers' names of the same settings.
ENCODER = {
    "extractor_bias": "conv_bias",
    "dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "feedforward_dim": "intermediate_size",
    "norm_first": "do_stable_layer_norm",
    "position_kernel": "num_conv_pos_embeddings",
    "position_groups": "num_conv_pos_embedding_groups",
    "dropout": "hidden_dropout",
    "attention_dropout": "attention_dropout",
    "activation_dropout": "activation_dropout",
    "input_dropout": "feat_proj_dropout",
    "feature_dropout": "feat_quantizer_dropout",
    "layer_drop": "layerdrop",
}
CONTRASTIVE = {
    "codes_dim": "codevector_dim",
    "dim": "proj_codevector_dim",
    "num_negatives": "num_negatives",
    "temperature": "contrastive_logits_temperature",
    "diversity": "diversity_loss_weight",
}
RATES = {
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
    "feat_proj_dropout": 0.0,
    "feat_quantizer_dropout": 0.0,
    "layerdrop": 0.1,
}
"""Defaults of transformers for settings that files of its first releases lack."""
QUANTIZER = {"groups": "num_codevector_groups", "entries": "num_codevectors_per_group"}
EXTRACTOR = {"channels": "conv_dim", "kernel_size": "conv_kernel", "stride": "conv_stride"}
SAME = {
    "model_type": MODEL_TYPE,
    "feat_extract_activation": "gelu",
    "add_adapter": False,
    "adapter_attn_dim": None,
    "layer_norm_eps": 1e-5,
}
"""Settings for which this is the only supported value."""
CHOICES = {"feat_extract_norm": ("group", "layer"), "hidden_act": tuple(huggingface.ACTIVATIONS)}
"""Supported values of other settings."""
USUAL_TIME_MASK = 0.05
"""Default of `mask_time_prob` in Wav2Vec2Config."""
WITHOUT_EFFECT = (
    r"num_feat_extract_layers|do_.*|gradient_checkpointing|adapter_.*|num_adapter_layers|output_hidden_size"
    r"|feat_extract_dropout|mask_channel_.*|mask_(time|feature)_.*|apply_spec_augment|tokenizer_class"
    r"|tie_word_embeddings|freeze_feat_extract_train|no_mask_.*"
    r"|hidden_dropout_prob"  # wav2vec2-base-960h has it in addition to hidden_dropout
)
"""Settings without effect on the encoder's output, or with a default, that wav2vec 2.0 has."""


def settings_of_folder(folder: Path) -> Settings:
    """Returns the settings of a Hugging Face folder.

    Raises:
        UserError: If the folder does not describe a wav2vec 2.0, or if a setting is not supported.
    """
    found = settings_of_huggingface(huggingface.read_json(folder / huggingface.CONFIG), folder / huggingface.CONFIG)
    extractor = huggingface.front_end_settings(folder)
    expected = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "feature_size": 1, "sampling_rate": 16000}
    check_settings(f"{folder}: feature_extractor", extractor, **expected)
    return found._replace(normalise=extractor.get("do_normalize", True) if extractor else None)  # transformers' default


def settings_of_huggingface(config: Mapping[str, Any], path: Any) -> Settings:
    """Returns the settings for the content of a config.json; `path` is the file, for messages.

    Raises:
        UserError: If a setting is missing, unknown or not supported.
    """
    config = {**RATES, **config}
    check_settings(f"{path}: config", config, **SAME, **CHOICES)
    needed = {*ENCODER.values(), *EXTRACTOR.values(), *CHOICES, "model_type"}
    known = {*CONTRASTIVE.values(), *QUANTIZER.values(), *SAME}
    huggingface.check_names(path, config, needed, known=known, without_effect=WITHOUT_EFFECT)
    layers = zip(*(config[name] for name in EXTRACTOR.values()), strict=True)
    try:
        encoder = Wav2Vec2(
            extractor=tuple(WaveformConv(*layer) for layer in layers),
            extractor_norm=config["feat_extract_norm"],
            activation=huggingface.ACTIVATIONS[config["hidden_act"]],
            extractor_gradient=1.0,
            taps=("features",),
            time_mask=_span_mask(config, huggingface.SPAN_MASKS["time_mask"], Wav2Vec2.time_mask),
            channel_mask=_span_mask(config, huggingface.SPAN_MASKS["channel_mask"], Wav2Vec2.channel_mask),
            **{ours: config[theirs] for ours, theirs in ENCODER.items()},
        )
        contrastive = None
        if {*CONTRASTIVE.values(), *QUANTIZER.values()} <= config.keys():
            quantizer = Quantizer(**{ours: config[theirs] for ours, theirs in QUANTIZER.items()})
            same = {ours: config[theirs] for ours, theirs in CONTRASTIVE.items()}
            contrastive = Contrastive(quantizer=quantizer, penalty=0.0, **same)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: {error}") from error
    return Settings(encoder, contrastive, None)


def _span_mask(config: Mapping[str, Any], axis: str, usual: SpanMask) -> SpanMask:
    there = {
        ours: config.get(f"mask_{axis}_{theirs}", getattr(usual, ours)) for ours, theirs in huggingface.SPANS.items()
    }
    mask = replace(usual, same_count=False, draws_last_start=True, **there)
    return mask if config.get("apply_spec_augment", True) else replace(mask, probability=0.0)


def folder_files(model: Model, tokenizer: Tokenizer) -> dict[str, str | bytes]:
    """Returns the files of a Wav2Vec2ForCTC or Wav2Vec2ForPreTraining folder, without the weights.

    These are the settings of model and front-end and, for CTC, of the tokenizer.

    Raises:
        UserError: If the model is neither.
    """
    settings, head = model.encoder, huggingface.only_head(model, (CTC, Contrastive))
    assert isinstance(settings, Wav2Vec2)
    # transformers normalises with another epsilon than fairseq, which changes only recordings that are almost silent.
    normalises = model.front_end in (wav2vec2(normalise=True), wav2vec2(normalise=True, eps=FAIRSEQ_EPS))
    if not normalises and model.front_end != wav2vec2():
        raise UserError("the front-end is not the preset wav2vec2: transformers supports no other")
    labels: dict[str, Any] = {}
    config = config_of(settings, head)
    if isinstance(head, CTC):
        labels = huggingface.label_files(tokenizer.symbols, processor="Wav2Vec2Processor")
        config |= huggingface.label_ids(tokenizer.symbols)
    return huggingface.as_json(
        {
            huggingface.CONFIG: config,
            huggingface.PREPROCESSOR: {
                "feature_extractor_type": "Wav2Vec2FeatureExtractor",
                "processor_class": "Wav2Vec2Processor",
                "feature_size": 1,
                "sampling_rate": 16000,
                "padding_side": "right",
                "padding_value": 0.0,
                "do_normalize": normalises,
                "return_attention_mask": settings.extractor_norm == "layer",
            },
            **labels,
        }
    )


def config_of(settings: Wav2Vec2, head: HeadSettings) -> dict[str, Any]:
    """Returns the content of config.json for an encoder and its head, without labels.

    Raises:
        UserError: If transformers does not support the model.
    """
    settings = replace(settings, feedforward_dim=settings.hidden_dim)
    unsupported = {
        "an hourglass": bool(settings.hourglass),
        "rotary positions": settings.rotary,
        "features instead of samples": not settings.extractor,
        "no projection": not settings.projected,
        "quantised input": settings.quantized_input,
    }
    if others := [name for name, used in unsupported.items() if used]:
        raise UserError(f"the encoder has {', '.join(others)}, which the wav2vec 2.0 of transformers does not support")
    masks = huggingface.span_masks(settings)
    masks_spans = settings.time_mask.probability > 0 or settings.channel_mask.probability > 0
    if not masks_spans:  # with both rates 0 transformers has no mask vector, but the weights contain one
        masks["mask_time_prob"] = USUAL_TIME_MASK
    return {
        **SAME,
        "dtype": "float32",
        "feat_extract_norm": settings.extractor_norm.removesuffix("_padded"),
        "hidden_act": huggingface.activation(settings.activation),
        "num_feat_extract_layers": len(settings.extractor),
        **{theirs: [getattr(layer, ours) for layer in settings.extractor] for ours, theirs in EXTRACTOR.items()},
        **{theirs: getattr(settings, ours) for ours, theirs in ENCODER.items()},
        "apply_spec_augment": masks_spans,
        **masks,
        **_config_of_head(head),
    }


def _config_of_head(head: HeadSettings) -> dict[str, Any]:
    if isinstance(head, CTC):
        loss = {"ctc_loss_reduction": "mean", "ctc_zero_infinity": True}  # This package's CTC loss does the same.
        return {"architectures": ["Wav2Vec2ForCTC"], "final_dropout": head.dropout, **loss}
    if not isinstance(head, Contrastive):
        raise UserError(f"the head is {type(head).__name__}: expected CTC or Contrastive, as in transformers")
    unsupported = {
        "across_negatives": head.across_negatives,
        "codebook_negatives": head.codebook_negatives,
        "from_everywhere": head.from_everywhere,
        "gated_targets": head.gated_targets,
        "depth": head.quantizer.depth > 1,
    }
    if others := [name for name, used in unsupported.items() if used]:
        raise UserError(f"pre-training has {', '.join(others)}, which the wav2vec 2.0 of transformers does not support")
    return {
        "architectures": ["Wav2Vec2ForPreTraining"],
        **{theirs: getattr(head, ours) for ours, theirs in CONTRASTIVE.items()},
        **{theirs: getattr(head.quantizer, ours) for ours, theirs in QUANTIZER.items()},
    }


def _heads_of(path: Path) -> dict[str, HeadSettings]:
    if huggingface.recognises(path):
        return {"ctc": CTC(dropout=0.0)}
    contrastive = settings_of_folder(path).contrastive
    is_for_training = huggingface.architecture(path).endswith("ForPreTraining")
    return {"pretrain": contrastive} if contrastive and is_for_training else {}


DESCRIPTIONS = (
    Description(
        MODEL_TYPE,
        lambda path: huggingface.model_type(path) == MODEL_TYPE,
        lambda path: settings_of_folder(path).encoder,
        lambda path: front_end_of(settings_of_folder(path), eps=1e-7),
        _heads_of,
        unknown=lambda path: unknown_of(settings_of_folder(path)),
        others=f"{OF_PRETRAINING}|{huggingface.OF_OTHER_HEADS}",
    ),
)
