"""Weight names of W2V-BERT 2.0 in Hugging Face's transformers (5.23)."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from asr_jax.models.w2v_bert import W2VBert
from asr_jax.pretrained.base import Format
from asr_jax.pretrained.keymap import (
    CONV_1D,
    DEPTHWISE,
    LINEAR,
    POINTWISE_1D,
    SAME,
    Layout,
    NamedWeights,
    Row,
    export_params,
    find_params,
)
from asr_jax.pretrained.w2v_bert_settings import folder_files

PREFIX = "wav2vec2_bert."
"""Prefix of all names except the head's, in a model with a head."""
COMPUTED = r"encoder\.embed_positions\.(inv_freq|pe)"
"""Names that are ignored: position encodings, which transformers 4 stored."""

NORMS_OF_LAYER = (
    ("ffn1_layer_norm",                  "feed_forward_1_norm"),
    ("self_attn_layer_norm",             "attention_norm"),
    ("conv_module.layer_norm",           "convolution_norm"),
    ("conv_module.depthwise_layer_norm", "convolution/norm"),
    ("ffn2_layer_norm",                  "feed_forward_2_norm"),
    ("final_layer_norm",                 "norm"),
)  # fmt: skip
ATTENTION = (
    ("self_attn.linear_q",               "attention/query",        LINEAR),
    ("self_attn.linear_k",               "attention/key",          LINEAR),
    ("self_attn.linear_v",               "attention/value",        LINEAR),
    ("self_attn.linear_out",             "attention/out",          LINEAR),
)  # fmt: skip
# Layers with a bias.
PRODUCTS_OF_LAYER = (
    ("ffn1.intermediate_dense",          "feed_forward_1/in",      LINEAR),
    ("ffn1.output_dense",                "feed_forward_1/out",     LINEAR),
    ("ffn2.intermediate_dense",          "feed_forward_2/in",      LINEAR),
    ("ffn2.output_dense",                "feed_forward_2/out",     LINEAR),
    *ATTENTION,
)  # fmt: skip
# Arrays without a bias.
ARRAYS_OF_LAYER = (
    ("conv_module.pointwise_conv1.weight", "convolution/in/kernel",  POINTWISE_1D),
    ("conv_module.depthwise_conv.weight",  "convolution/kernel",     DEPTHWISE),
    ("conv_module.pointwise_conv2.weight", "convolution/out/kernel", POINTWISE_1D),
)  # fmt: skip
POSITIONS = {
    "relative_key": (
        ("self_attn.distance_embedding.weight", "attention/distance_embedding", SAME),
    ),
    "relative": (
        ("self_attn.linear_pos.weight",  "attention/positions/kernel", LINEAR),
        ("self_attn.pos_bias_u",         "attention/content_bias",     SAME),
        ("self_attn.pos_bias_v",         "attention/position_bias",    SAME),
    ),
    "rotary": (),
    "none": (),
}  # fmt: skip
NORMS_OF_ADAPTER = (
    ("residual_layer_norm",              "residual_norm"),
    ("self_attn_layer_norm",             "attention_norm"),
    ("ffn_layer_norm",                   "feed_forward_norm"),
)  # fmt: skip
PRODUCTS_OF_ADAPTER = (
    ("residual_conv",                    "residual_conv",          CONV_1D),
    ("self_attn_conv",                   "attention_conv",         CONV_1D),
    ("ffn.intermediate_dense",           "feed_forward/in",        LINEAR),
    ("ffn.output_dense",                 "feed_forward/out",       LINEAR),
    *ATTENTION,
)  # fmt: skip


def claims(weights: NamedWeights) -> bool:
    """Returns whether the weights have Hugging Face's names of a W2V-BERT."""
    return any(".conv_module." in name for name in weights)


def find(weights: NamedWeights, settings: W2VBert, *, ctc_head: str | None) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the weights of a file by parameter path, and the names that are left.

    Args:
        weights: Weights by Hugging Face's names; parameters that they lack are not returned.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Returns:
        Parameters (`params/encoder/…` and those of the CTC head), and the names of weights that the model does not
        have, except position encodings and, for a model without masking, the learned mask vector.
    """
    names = {name.removeprefix(PREFIX): name for name in weights}
    found = find_params(
        {name: weights[theirs] for name, theirs in names.items()}, rows(settings, ctc_head=ctc_head, prefix="")
    )
    # A model without masking has no learned mask vector.
    needless = COMPUTED if settings.masks_anything else f"{COMPUTED}|masked_spec_embed"
    return found.params, [names[name] for name in found.left if not re.fullmatch(needless, name)]


def export(variables: Any, settings: W2VBert, *, ctc_head: str | None) -> dict[str, np.ndarray]:
    """Returns the variables of a model under the names of Wav2Vec2BertForCTC, or without a head of Wav2Vec2BertModel.

    Args:
        variables: `{"params": …}`, a part of it, or a tree of the same structure.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Raises:
        UserError: If a parameter has no name in transformers.
    """
    return export_params(variables, rows(settings, ctc_head=ctc_head, prefix=PREFIX if ctc_head else ""))


def rows(settings: W2VBert, *, ctc_head: str | None, prefix: str) -> list[Row]:
    """Returns the table of names for a model.

    Args:
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.
        prefix: Prefix of all names except the head's.
    """
    ours = "params/encoder"
    table = _norms("feature_projection", ours, (("layer_norm", "embed_norm"),))
    table += _products("feature_projection", ours, (("projection", "embed", LINEAR),))
    if settings.masks_anything:
        table.append(Row("masked_spec_embed", f"{ours}/mask"))
    for layer in range(settings.num_layers):
        theirs = f"encoder.layers.{layer}"
        table += _norms(theirs, f"{ours}/layers", NORMS_OF_LAYER, layer)
        table += _products(theirs, f"{ours}/layers", PRODUCTS_OF_LAYER, layer)
        for name, path, layout in (*ARRAYS_OF_LAYER, *POSITIONS[settings.positions]):
            table.append(Row(f"{theirs}.{name}", f"{ours}/layers/{path}", layout, layer))
    if settings.intermediate:
        modules = (("intermediate_dense", "in", LINEAR), ("output_dense", "out", LINEAR))
        table += _products("intermediate_ffn", f"{ours}/intermediate", modules)
    if settings.output_dim != settings.dim:
        table += _norms("adapter", ours, (("proj_layer_norm", "adapter_embed_norm"),))
        table += _products("adapter", ours, (("proj", "adapter_embed", LINEAR),))
    for number in range(settings.num_adapters):
        theirs, adapter = f"adapter.layers.{number}", f"{ours}/adapter_{number}"
        table += _norms(theirs, adapter, NORMS_OF_ADAPTER) + _products(theirs, adapter, PRODUCTS_OF_ADAPTER)
    table = [replace(row, theirs=prefix + row.theirs) for row in table]
    if ctc_head:
        table += [
            Row("lm_head.weight", f"params/{ctc_head}/output/kernel", LINEAR),
            Row("lm_head.bias", f"params/{ctc_head}/output/bias"),
        ]
    return table


def _norms(theirs: str, ours: str, names: Sequence[tuple[str, str]], layer: int | None = None) -> list[Row]:
    leaves = (("weight", "scale"), ("bias", "bias"))
    return [
        Row(f"{theirs}.{name}.{leaf}", f"{ours}/{module}/{our_leaf}", SAME, layer)
        for name, module in names
        for leaf, our_leaf in leaves
    ]


def _products(theirs: str, ours: str, names: Sequence[tuple[str, str, Layout]], layer: int | None = None) -> list[Row]:
    table = [Row(f"{theirs}.{name}.weight", f"{ours}/{module}/kernel", layout, layer) for name, module, layout in names]
    return table + [Row(f"{theirs}.{name}.bias", f"{ours}/{module}/bias", SAME, layer) for name, module, _ in names]


FORMATS = (Format("huggingface", "Hugging Face (W2V-BERT)", W2VBert, claims, find, export, folder_files),)
