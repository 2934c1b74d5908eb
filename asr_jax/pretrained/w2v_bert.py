"""Weight names and settings of W2V-BERT 2.0 in Hugging Face's transformers (5.23)."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import w2v_bert
from asr_jax.core.errors import UserError
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.pretrained import huggingface
from asr_jax.pretrained.base import Description, Format, Heads, check_settings, ctc_rows, made
from asr_jax.pretrained.keymap import (
    CONV_1D,
    DEPTHWISE,
    LINEAR,
    NORM,
    POINTWISE_1D,
    Kind,
    Row,
    Table,
    array,
    attention,
    kernel,
    rows_of,
)
from asr_jax.text.tokenizers import Tokenizer

UNUSED = r"encoder\.embed_positions\.(inv_freq|pe)|masked_spec_embed"
"""Names of position encodings, which transformers 4 stored, and of the mask vector, which some models do not use."""

ATTENTION: Table = (
    *attention("self_attn", "attention"),
    ("self_attn_layer_norm", "attention_norm", NORM),
)
LAYER: Table = (
    *ATTENTION,
    ("ffn1_layer_norm", "feed_forward_1_norm", NORM),
    ("ffn1.intermediate_dense", "feed_forward_1/in", LINEAR),
    ("ffn1.output_dense", "feed_forward_1/out", LINEAR),
    ("conv_module.layer_norm", "convolution_norm", NORM),
    ("conv_module.pointwise_conv1", "convolution/in", kernel(POINTWISE_1D)),
    ("conv_module.depthwise_conv", "convolution", kernel(DEPTHWISE)),
    ("conv_module.depthwise_layer_norm", "convolution/norm", NORM),
    ("conv_module.pointwise_conv2", "convolution/out", kernel(POINTWISE_1D)),
    ("ffn2_layer_norm", "feed_forward_2_norm", NORM),
    ("ffn2.intermediate_dense", "feed_forward_2/in", LINEAR),
    ("ffn2.output_dense", "feed_forward_2/out", LINEAR),
    ("final_layer_norm", "norm", NORM),
)
POSITIONS: dict[str, tuple[tuple[str, str, Kind], ...]] = {
    "relative_key": (("self_attn.distance_embedding.weight", "attention/distance_embedding", array()),),
    "relative": (
        ("self_attn.linear_pos", "attention/positions", kernel(LINEAR)),
        ("self_attn.pos_bias_u", "attention/content_bias", array()),
        ("self_attn.pos_bias_v", "attention/position_bias", array()),
    ),
    "rotary": (),
    "none": (),
}
ADAPTER: Table = (
    *ATTENTION,
    ("residual_layer_norm", "residual_norm", NORM),
    ("residual_conv", "residual_conv", CONV_1D),
    ("self_attn_conv", "attention_conv", CONV_1D),
    ("ffn_layer_norm", "feed_forward_norm", NORM),
    ("ffn.intermediate_dense", "feed_forward/in", LINEAR),
    ("ffn.output_dense", "feed_forward/out", LINEAR),
)


def rows(settings: W2VBert, heads: Heads) -> list[Row]:
    """Returns the table of names of Wav2Vec2BertForCTC, or without a CTC head of Wav2Vec2BertModel."""
    ours = "encoder"
    modules: list[tuple[str, str, Kind]] = [
        ("feature_projection.layer_norm", "embed_norm", NORM),
        ("feature_projection.projection", "embed", LINEAR),
    ]
    if settings.masks_anything:
        modules.append(("masked_spec_embed", "mask", array()))
    if settings.intermediate:
        modules.append(("intermediate_ffn.intermediate_dense", "intermediate/in", LINEAR))
        modules.append(("intermediate_ffn.output_dense", "intermediate/out", LINEAR))
    if settings.output_dim != settings.dim:
        modules.append(("adapter.proj_layer_norm", "adapter_embed_norm", NORM))
        modules.append(("adapter.proj", "adapter_embed", LINEAR))
    table = rows_of(modules, ours=ours)
    for layer in range(settings.num_layers):
        theirs = f"encoder.layers.{layer}"
        table += rows_of(LAYER, theirs, f"{ours}/layers", layer)
        table += rows_of(POSITIONS[settings.positions], theirs, f"{ours}/layers", layer)
    for number in range(settings.num_adapters):
        table += rows_of(ADAPTER, f"adapter.layers.{number}", f"{ours}/adapter_{number}")
    head = ctc_rows("lm_head", heads)
    return [row.renamed([("^", "wav2vec2_bert.")]) for row in table] + head if head else table


MODEL_TYPE = "wav2vec2-bert"
# Settings of `W2VBert`, and transformers' names of the same settings.
SETTINGS = {
    "num_mels": "feature_projection_input_dim",
    "dim": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "feedforward_dim": "intermediate_size",
    "kernel_size": "conv_depthwise_kernel_size",
    "norm_eps": "layer_norm_eps",
    "left_distance": "left_max_position_embeddings",
    "right_distance": "right_max_position_embeddings",
    "rotary_base": "rotary_embedding_base",
    "input_dropout": "feat_proj_dropout",
    "dropout": "hidden_dropout",
    "activation_dropout": "activation_dropout",
    "attention_dropout": "attention_dropout",
    "convolution_dropout": "conformer_conv_dropout",
    "layer_drop": "layerdrop",
    "masks": "apply_spec_augment",
    "adapter_kernel_size": "adapter_kernel_size",
    "adapter_stride": "adapter_stride",
}
CHOICES = {"activation": "hidden_act", "adapter_activation": "adapter_act"}
OF_ADAPTERS = ("add_adapter", "num_adapter_layers", "use_intermediate_ffn_before_adapter", "output_hidden_size")
WITHOUT_EFFECT = (
    r"max_source_positions|(num_)?codevector.*|num_negatives|proj_codevector_dim|contrastive_.*|diversity_.*"
    r"|feat_quantizer_dropout"
)
"""Settings of pre-training, which do not affect the output of the encoder."""


def w2v_bert_of(folder: Path) -> W2VBert:
    """Returns the encoder settings of a Hugging Face folder.

    With adapters, `mask_padding` is False: padding enters their convolutions, as in transformers.

    Raises:
        UserError: If the folder does not describe a W2V-BERT, or if a setting is not supported.
    """
    file = folder / huggingface.CONFIG
    config = huggingface.read_json(file)
    needed = {
        *SETTINGS.values(),
        *huggingface.span_masks(W2VBert),
        *OF_ADAPTERS,
        *CHOICES.values(),
        "model_type",
        "position_embeddings_type",
    }
    huggingface.check_names(file, config, needed, known=(), without_effect=WITHOUT_EFFECT)
    check_settings(
        f"{folder}: config",
        config,
        model_type=MODEL_TYPE,
        position_embeddings_type=("relative_key", "relative", "rotary", None),
        **dict.fromkeys(CHOICES.values(), tuple(huggingface.ACTIVATIONS)),
    )
    return made(file, _settings, config)


def _settings(config: Mapping[str, Any]) -> W2VBert:
    ours: dict[str, Any] = {name: config[theirs] for name, theirs in SETTINGS.items()}
    ours |= {name: huggingface.ACTIVATIONS[config[theirs]] for name, theirs in CHOICES.items()}
    for name, axis in huggingface.SPAN_MASKS.items():
        found = {part: config[f"mask_{axis}_{theirs}"] for part, theirs in huggingface.SPANS.items()}
        ours[name] = replace(getattr(W2VBert, name), **found)
    if config["add_adapter"]:
        width = config["output_hidden_size"]
        ours["num_adapters"], ours["intermediate"] = (config[name] for name in OF_ADAPTERS[1:3])
        ours["adapter_dim"] = None if width == config["hidden_size"] else width
        ours["mask_padding"] = False
    return W2VBert(positions=config["position_embeddings_type"] or "none", **ours)


def front_end_of(folder: Path) -> FrontEnd:
    """Returns the preset `w2v_bert`.

    Raises:
        UserError: If the folder's front-end is a different one.
    """
    check_settings(
        f"{folder}: feature_extractor",
        huggingface.front_end_settings(folder),
        feature_extractor_type="SeamlessM4TFeatureExtractor",
        feature_size=80,
        num_mel_bins=80,
        sampling_rate=16000,
        stride=2,
    )
    return w2v_bert()


def folder_files(model: Model, tokenizer: Tokenizer) -> dict[str, str | bytes]:
    """Returns the files of a Wav2Vec2BertForCTC folder: settings of model and front-end, and tokenizer.

    Raises:
        UserError: If transformers does not support the model.
    """
    settings, head = model.encoder, huggingface.only_head(model, (CTC,))
    assert isinstance(settings, W2VBert)
    assert isinstance(head, CTC)
    if model.front_end != w2v_bert():
        raise UserError("the front-end is not the preset w2v_bert: transformers supports no other")
    labels = huggingface.label_ids(tokenizer.symbols)
    return huggingface.as_json(
        {
            huggingface.CONFIG: {**config_of(settings), **labels, "final_dropout": head.dropout},
            huggingface.PREPROCESSOR: {
                "feature_extractor_type": "SeamlessM4TFeatureExtractor",
                "processor_class": "Wav2Vec2BertProcessor",
                "feature_size": 80,
                "num_mel_bins": 80,
                "padding_side": "right",
                "padding_value": model.front_end.padding,
                "return_attention_mask": True,
                "sampling_rate": 16000,
                "stride": 2,
            },
            **huggingface.label_files(tokenizer.symbols, processor="Wav2Vec2BertProcessor"),
        }
    )


def config_of(settings: W2VBert) -> dict[str, Any]:
    """Returns the content of a Wav2Vec2BertForCTC's config.json, without its labels.

    Raises:
        UserError: If transformers does not have one of the activations.
    """
    settings = replace(settings, feedforward_dim=settings.hidden_dim)
    return {
        "architectures": ["Wav2Vec2BertForCTC"],
        "model_type": MODEL_TYPE,
        "dtype": "float32",
        "ctc_zero_infinity": True,  # as in this package's CTC loss
        "ctc_loss_reduction": "mean",
        **{theirs: getattr(settings, ours) for ours, theirs in SETTINGS.items()},
        **{theirs: huggingface.activation(getattr(settings, ours)) for ours, theirs in CHOICES.items()},
        **huggingface.span_masks(settings),
        "position_embeddings_type": None if settings.positions == "none" else settings.positions,
        "add_adapter": settings.num_adapters > 0,
        "num_adapter_layers": max(settings.num_adapters, 1),
        "output_hidden_size": settings.output_dim,
        "use_intermediate_ffn_before_adapter": settings.intermediate,
    }


HUGGINGFACE = Format(
    names="huggingface",
    of="Hugging Face (W2V-BERT)",
    encoder=W2VBert,
    mark=r"\.conv_module\.",
    rows=rows,
    unused=UNUSED,
    versions=((r"^wav2vec2_bert\.", ""),),
    folder=folder_files,
)
FORMATS = (HUGGINGFACE,)
DESCRIPTIONS = (
    Description(
        MODEL_TYPE,
        lambda path: huggingface.model_type(path) == MODEL_TYPE,
        w2v_bert_of,
        front_end_of,
        lambda path: {"ctc": CTC()} if huggingface.recognises(path) else {},
        others=huggingface.OF_OTHER_HEADS,
    ),
)
