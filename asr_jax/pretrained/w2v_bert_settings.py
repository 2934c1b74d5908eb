"""Settings of W2V-BERT 2.0 in folders of Hugging Face's (transformers 5.23), in and out."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import w2v_bert
from asr_jax.core.batch import OUTPUT
from asr_jax.core.errors import UserError
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.nn.activations import ActivationName
from asr_jax.pretrained import huggingface
from asr_jax.pretrained.base import Description
from asr_jax.pretrained.nemo_files import check_settings

MODEL_TYPE = "wav2vec2-bert"
# Settings that are the same there, by ours.
SETTINGS = {
    "num_mels":                "feature_projection_input_dim",
    "dim":                     "hidden_size",
    "num_layers":              "num_hidden_layers",
    "num_heads":               "num_attention_heads",
    "feedforward_dim":         "intermediate_size",
    "kernel_size":             "conv_depthwise_kernel_size",
    "norm_eps":                "layer_norm_eps",
    "left_distance":           "left_max_position_embeddings",
    "right_distance":          "right_max_position_embeddings",
    "rotary_base":             "rotary_embedding_base",
    "input_dropout":           "feat_proj_dropout",
    "dropout":                 "hidden_dropout",
    "activation_dropout":      "activation_dropout",
    "attention_dropout":       "attention_dropout",
    "convolution_dropout":     "conformer_conv_dropout",
    "layer_drop":              "layerdrop",
    "masks":                   "apply_spec_augment",
    "adapter_kernel_size":     "adapter_kernel_size",
    "adapter_stride":          "adapter_stride",
}  # fmt: skip
SPAN_MASKS = {"time_mask": "time", "channel_mask": "feature"}
SPANS = {"probability": "prob", "length": "length", "min_spans": "min_masks"}
CHOICES = {"activation": "hidden_act", "adapter_activation": "adapter_act"}
OF_ADAPTERS = ("add_adapter", "num_adapter_layers", "use_intermediate_ffn_before_adapter", "output_hidden_size")
ACTIVATIONS: dict[str, ActivationName] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu", "selu": "selu",
}  # fmt: skip
WITHOUT_EFFECT = (
    r"_.*|model_type|architectures|(torch_)?dtype|transformers_version|return_dict|output_(attentions|hidden_states)"
    r"|vocab_size|(pad|bos|eos|sep)_token_id|id2label|label2id|problem_type|initializer_range|max_source_positions"
    r"|final_dropout|ctc_.*|use_weighted_layer_sum|classifier_.*|tdnn_.*|xvector_.*"
    r"|(num_)?codevector.*|num_negatives|proj_codevector_dim|contrastive_.*|diversity_.*|feat_quantizer_dropout"
)
"""Settings of labels, losses, other heads and how a model begins: with them an encoder gives the same."""


def w2v_bert_of(path: str | Path, **changes: Any) -> W2VBert:
    """The settings that a folder of Hugging Face's was made with, and `changes`. With adapters, padding enters these,
    as it does there.

    Raises: UserError where it says nothing of a W2V-BERT, or says what is not there here.
    """
    file = Path(path) / huggingface.CONFIG
    said = huggingface.read_json(file)
    expected = {
        "model_type": MODEL_TYPE, "position_embeddings_type": ("relative_key", "relative", "rotary", None),
        **dict.fromkeys(CHOICES.values(), tuple(ACTIVATIONS)),
    }  # fmt: skip
    spans = [f"mask_{axis}_{theirs}" for axis in SPAN_MASKS.values() for theirs in SPANS.values()]
    needed = {*SETTINGS.values(), *spans, *OF_ADAPTERS, *CHOICES.values(), "position_embeddings_type"}
    if missing := sorted((needed | {"model_type"}) - said.keys()):
        raise UserError(f"{file} has no {', '.join(missing)}: expected settings of a {MODEL_TYPE} model")
    check_settings(path, "config", said, expected)
    if unknown := sorted(name for name in said.keys() - needed if not re.fullmatch(WITHOUT_EFFECT, name)):
        raise UserError(
            f"{file} has settings that are not known here: {', '.join(unknown)}; expected those of transformers' "
            "Wav2Vec2BertConfig (take out of the file what changes nothing)"
        )
    try:
        return replace(_settings(said), **changes)
    except (ValueError, TypeError) as error:
        raise UserError(f"{file}: {error}") from error


def _settings(said: Mapping[str, Any]) -> W2VBert:
    ours: dict[str, Any] = {name: said[theirs] for name, theirs in SETTINGS.items()}
    ours |= {name: ACTIVATIONS[said[theirs]] for name, theirs in CHOICES.items()}
    for name, axis in SPAN_MASKS.items():
        found = {part: said[f"mask_{axis}_{theirs}"] for part, theirs in SPANS.items()}
        ours[name] = replace(getattr(W2VBert, name), **found)
    if said["add_adapter"]:
        width = said["output_hidden_size"]
        ours["num_adapters"], ours["intermediate"] = (said[name] for name in OF_ADAPTERS[1:3])
        ours["adapter_dim"] = None if width == said["hidden_size"] else width
        ours["mask_padding"] = False
    return W2VBert(positions=said["position_embeddings_type"] or "none", **ours)


def front_end_of(folder: Path) -> FrontEnd:
    """The preset `w2v_bert`.

    Raises: UserError where the folder's front-end is another.
    """
    expected = {
        "feature_extractor_type": "SeamlessM4TFeatureExtractor", "feature_size": 80, "num_mel_bins": 80,
        "sampling_rate": 16000, "stride": 2,
    }  # fmt: skip
    check_settings(folder, "feature_extractor", huggingface.front_end_settings(folder), expected)
    return w2v_bert()


def folder_files(model: Model, symbols: Sequence[str | None]) -> dict[str, Any]:
    """What lies beside the weights in a folder that transformers reads: settings of a Wav2Vec2BertForCTC, of its
    front-end and of its tokenizer.

    Raises: UserError for a model that is no such one.
    """
    settings, (head, *more) = model.encoder, model.heads.values()
    if not isinstance(settings, W2VBert) or not isinstance(head, CTC) or head.tap != OUTPUT or more:
        raise UserError(f"heads are {', '.join(model.heads)}: expected one, of CTC on the output, as transformers has")
    if model.front_end != w2v_bert():
        raise UserError("the front-end is not the preset w2v_bert, which transformers has; expected that")
    return {
        huggingface.CONFIG: {**config_of(settings), **huggingface.label_ids(symbols), "final_dropout": head.dropout},
        huggingface.PREPROCESSOR: {
            "feature_extractor_type": "SeamlessM4TFeatureExtractor", "processor_class": "Wav2Vec2BertProcessor",
            "feature_size": 80, "num_mel_bins": 80, "padding_side": "right", "padding_value": model.front_end.padding,
            "return_attention_mask": True, "sampling_rate": 16000, "stride": 2,
        },
        **huggingface.label_files(symbols, processor="Wav2Vec2BertProcessor"),
    }  # fmt: skip


def config_of(settings: W2VBert) -> dict[str, Any]:
    """What a config.json says of a Wav2Vec2BertForCTC, but for its labels.

    Raises: UserError for an activation that transformers does not have.
    """
    theirs_of = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())} | {"silu": "swish"}
    if unknown := {settings.activation, settings.adapter_activation} - theirs_of.keys():
        raise UserError(f"activation {', '.join(unknown)}: expected one of {', '.join(theirs_of)}")
    masks = {
        f"mask_{axis}_{theirs}": getattr(getattr(settings, name), part)
        for name, axis in SPAN_MASKS.items()
        for part, theirs in SPANS.items()
    }
    return {
        "architectures": ["Wav2Vec2BertForCTC"],
        "model_type": MODEL_TYPE,
        "dtype": "float32",
        "ctc_zero_infinity": True,  # as CTC here
        "ctc_loss_reduction": "mean",
        **{theirs: getattr(settings, ours) for ours, theirs in SETTINGS.items()},
        **{theirs: theirs_of[getattr(settings, ours)] for ours, theirs in CHOICES.items()},
        **masks,
        "position_embeddings_type": None if settings.positions == "none" else settings.positions,
        "add_adapter": settings.num_adapters > 0,
        "num_adapter_layers": max(settings.num_adapters, 1),
        "output_hidden_size": settings.output_dim,
        "use_intermediate_ffn_before_adapter": settings.intermediate,
    }


DESCRIPTIONS = (
    Description(MODEL_TYPE, lambda path: huggingface.model_type(path) == MODEL_TYPE, w2v_bert_of, front_end_of),
)
