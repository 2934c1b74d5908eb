"""Weight names of icefall's zipformer recipe (egs/librispeech/ASR/zipformer at commit 36e0420c)."""

import re
from dataclasses import replace
from typing import Any

import numpy as np

from asr_jax.models.zipformer import Zipformer
from asr_jax.pretrained.base import Format
from asr_jax.pretrained.keymap import (
    CONV_2D,
    DEPTHWISE,
    DEPTHWISE_2D,
    LINEAR,
    POINTWISE,
    SAME,
    NamedWeights,
    Row,
    export_params,
    find_params,
    flattened,
    transposed,
)

NEVER_USED = r"encoder\.encoders\.\d+\.(encoder\.)?layers\.\d+\.bypass_scale"
"""Names of parameters that icefall creates and never uses."""
CTC = (
    Row("ctc_output.1.weight", "output/kernel", LINEAR),
    Row("ctc_output.1.bias",   "output/bias"),
)  # fmt: skip

EMBED = (
    ("conv.0.weight",                    "conv_0/kernel",                  CONV_2D),
    ("conv.0.bias",                      "conv_0/bias",                    SAME),
    ("conv.4.weight",                    "conv_1/kernel",                  CONV_2D),
    ("conv.4.bias",                      "conv_1/bias",                    SAME),
    ("conv.7.weight",                    "conv_2/kernel",                  CONV_2D),
    ("conv.7.bias",                      "conv_2/bias",                    SAME),
    ("convnext.depthwise_conv.weight",   "convnext/kernel",                DEPTHWISE_2D),
    ("convnext.depthwise_conv.bias",     "convnext/bias",                  SAME),
    ("convnext.pointwise_conv1.weight",  "convnext/expand/kernel",         POINTWISE),
    ("convnext.pointwise_conv1.bias",    "convnext/expand/bias",           SAME),
    ("convnext.pointwise_conv2.weight",  "convnext/project/kernel",        POINTWISE),
    ("convnext.pointwise_conv2.bias",    "convnext/project/bias",          SAME),
    ("out.bias",                         "out/bias",                       SAME),
    ("out_norm.bias",                    "norm/bias",                      SAME),
    ("out_norm.log_scale",               "norm/log_scale",                 SAME),
)  # fmt: skip

# Linear layers, each with a weight and a bias.
LAYER_LINEAR = (
    ("self_attn_weights.in_proj",        "attention_weights/in"),
    ("self_attn1.in_proj",               "attention_1/in"),
    ("self_attn1.out_proj",              "attention_1/out"),
    ("self_attn2.in_proj",               "attention_2/in"),
    ("self_attn2.out_proj",              "attention_2/out"),
    ("feed_forward1.in_proj",            "feed_forward_1/in"),
    ("feed_forward1.out_proj",           "feed_forward_1/out"),
    ("feed_forward2.in_proj",            "feed_forward_2/in"),
    ("feed_forward2.out_proj",           "feed_forward_2/out"),
    ("feed_forward3.in_proj",            "feed_forward_3/in"),
    ("feed_forward3.out_proj",           "feed_forward_3/out"),
    ("nonlin_attention.in_proj",         "nonlinear_attention/in"),
    ("nonlin_attention.out_proj",        "nonlinear_attention/out"),
    ("conv_module1.in_proj",             "convolution_1/in"),
    ("conv_module1.out_proj",            "convolution_1/out"),
    ("conv_module2.in_proj",             "convolution_2/in"),
    ("conv_module2.out_proj",            "convolution_2/out"),
)  # fmt: skip

LAYER = (
    *((f"{theirs}.weight", f"{ours}/kernel", LINEAR) for theirs, ours in LAYER_LINEAR),
    *((f"{theirs}.bias", f"{ours}/bias", SAME) for theirs, ours in LAYER_LINEAR),
    ("self_attn_weights.linear_pos.weight", "attention_weights/positions/kernel", LINEAR),
    ("bypass.bypass_scale",                 "bypass/scale",                       SAME),
    ("bypass_mid.bypass_scale",             "bypass_middle/scale",                SAME),
    ("norm.bias",                           "norm/bias",                          SAME),
    ("norm.log_scale",                      "norm/log_scale",                     SAME),
)  # fmt: skip

# Depthwise convolution of each of the two convolution modules of a layer.
DEPTHWISE_CONV = (
    ("weight",                           "kernel",                         DEPTHWISE),
    ("bias",                             "bias",                           SAME),
)  # fmt: skip
DEPTHWISE_CONV_CAUSAL = (
    ("causal_conv.weight",               "causal_kernel",                  DEPTHWISE),
    ("causal_conv.bias",                 "causal_bias",                    SAME),
    ("chunkwise_conv.weight",            "kernel",                         DEPTHWISE),
    ("chunkwise_conv.bias",              "bias",                           SAME),
    ("chunkwise_conv_scale",             "edges",                          transposed(0, 2, 1)),
)  # fmt: skip


def claims(weights: NamedWeights) -> bool:
    """Returns whether the weights have icefall's names."""
    return any(name.startswith(("encoder.encoders.", "encoder_embed.")) for name in weights)


def find(
    weights: NamedWeights, settings: Zipformer, *, ctc_head: str | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the weights of an icefall checkpoint by parameter path, and the names that are left.

    Args:
        weights: Weights by icefall's names; parameters that they lack are not returned.
        settings: Settings of the encoder.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Returns:
        Parameters (`params/encoder/…` and those of the CTC head), and the names of weights that the model does not
        have, except those that icefall never uses.
    """
    found = find_params(weights, rows(settings, ctc_head=ctc_head))
    return found.params, [name for name in found.left if not re.fullmatch(NEVER_USED, name)]


def export(variables: Any, settings: Zipformer, *, ctc_head: str | None) -> dict[str, np.ndarray]:
    """Returns the variables of a model under icefall's names, without parameters that icefall never uses.

    Args:
        variables: `{"params": …}`, or a tree of the same structure.
        settings: Settings of the encoder.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Raises:
        UserError: If a parameter has no name in icefall.
    """
    return export_params(variables, rows(settings, ctc_head=ctc_head))


def rows(settings: Zipformer, *, ctc_head: str | None) -> list[Row]:
    """Returns the table of names for a model; `ctc_head` is the path of its CTC head, or None."""
    table = [replace(row, ours=f"params/encoder/{row.ours}") for row in encoder_rows(settings)]
    return table + [replace(row, ours=f"params/{ctc_head}/{row.ours}") for row in CTC if ctc_head]


def encoder_rows(settings: Zipformer) -> list[Row]:
    """Returns the encoder's rows, with parameter paths relative to `params/encoder/`."""
    rows = [Row(f"encoder_embed.{theirs}", f"embed/{ours}", layout) for theirs, ours, layout in EMBED]
    rows.append(Row("encoder_embed.out.weight", "embed/out/kernel", flattened(settings.embed_channels[-1])))
    depthwise = DEPTHWISE_CONV_CAUSAL if settings.causal else DEPTHWISE_CONV
    layer_rows = [
        *LAYER,
        *(
            (f"conv_module{number}.depthwise_conv.{theirs}", f"convolution_{number}/depthwise/{ours}", layout)
            for number in (1, 2)
            for theirs, ours, layout in depthwise
        ),
    ]
    for number, sizes in enumerate(settings.stacks()):
        stack, layers = f"encoder.encoders.{number}", f"encoder.encoders.{number}.layers"
        if sizes.downsampling > 1:
            layers = f"{stack}.encoder.layers"
            rows.append(Row(f"{stack}.downsample.bias", f"stack_{number}/downsample/logits"))
            rows.append(Row(f"{stack}.out_combiner.bypass_scale", f"stack_{number}/bypass/scale"))
        rows += [
            Row(f"{layers}.{layer}.{theirs}", f"stack_{number}/layers/{ours}", layout, layer)
            for layer in range(sizes.num_layers)
            for theirs, ours, layout in layer_rows
        ]
    if settings.output_downsampling > 1:
        rows.append(Row("encoder.downsample_output.bias", "downsample/logits"))
    return rows


FORMATS = (Format("icefall", "icefall (Zipformer)", Zipformer, claims, find, export),)
