"""Weight names and settings of icefall's zipformer recipe (egs/librispeech/ASR/zipformer at commit 36e0420c)."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from asr_jax.audio.presets import icefall
from asr_jax.core.batch import OUTPUT
from asr_jax.core.errors import UserError
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.label_decoder import LabelDecoder
from asr_jax.pretrained.base import Description, Format, ctc_head
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
from asr_jax.pretrained.torch_files import SUFFIXES, load_torch, state_dict
from asr_jax.pretrained.transducers import icefall_rows, icefall_transducer

NEVER_USED = r"encoder\.encoders\.\d+\.(encoder\.)?layers\.\d+\.bypass_scale"
"""Names of parameters that icefall creates and never uses."""
CTC_ROWS = (
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


DECODER = "attention_decoder.decoder"
DECODER_LINEAR = (
    ("self_attn.linear_q",               "attention/query"),
    ("self_attn.linear_k",               "attention/key"),
    ("self_attn.linear_v",               "attention/value"),
    ("self_attn.out_proj",               "attention/out"),
    ("src_attn.linear_q",                "to_encoder/query"),
    ("src_attn.linear_k",                "to_encoder/key"),
    ("src_attn.linear_v",                "to_encoder/value"),
    ("src_attn.out_proj",                "to_encoder/out"),
    ("feed_forward.0",                   "hidden"),
    ("feed_forward.3",                   "out"),
)  # fmt: skip
DECODER_NORMS = (
    ("norm_self_attn",                   "attention_norm"),
    ("norm_src_attn",                    "to_encoder_norm"),
    ("norm_ff",                          "norm"),
)  # fmt: skip
DECODER_LAYER = (
    *((f"{theirs}.weight", f"{ours}/kernel", LINEAR) for theirs, ours in DECODER_LINEAR),
    *((f"{theirs}.bias", f"{ours}/bias", SAME) for theirs, ours in DECODER_LINEAR),
    *((f"{theirs}.weight", f"{ours}/scale", SAME) for theirs, ours in DECODER_NORMS),
    *((f"{theirs}.bias", f"{ours}/bias", SAME) for theirs, ours in DECODER_NORMS),
)
SOS_EOS = 1
"""Label id of both begin and end in icefall's recipes."""
OF_DECODER_HEAD = 64
"""Width of an attention head of the decoder in all published sizes."""
Decoder = tuple[str, AttentionDecoder]
"""Parameter path of an attention decoder, such as `heads_attention`, and its settings."""


def claims(weights: NamedWeights) -> bool:
    """Returns whether the weights have icefall's names."""
    return any(name.startswith(("encoder.encoders.", "encoder_embed.")) for name in weights)


def find(
    weights: NamedWeights, settings: Zipformer, *, ctc_head: str | None, decoder: Decoder | None = None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the weights of an icefall checkpoint by parameter path, and the names that are left.

    Args:
        weights: Weights by icefall's names; parameters that they lack are not returned.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.
        decoder: Attention decoder; None if the model has none.

    Returns:
        Parameters (`params/encoder/…` and those of the heads), and the names of weights that the model does not
        have, except those that icefall never uses.
    """
    found = find_params(weights, rows(settings, ctc_head=ctc_head, decoder=decoder))
    return found.params, [name for name in found.left if not re.fullmatch(NEVER_USED, name)]


def export(
    variables: Any, settings: Zipformer, *, ctc_head: str | None, decoder: Decoder | None = None
) -> dict[str, np.ndarray]:
    """Returns the variables of a model under icefall's names, without parameters that icefall never uses.

    Args:
        variables: `{"params": …}`, or a tree of the same structure.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.
        decoder: Attention decoder; None if the model has none.

    Raises:
        UserError: If a parameter has no name in icefall.
    """
    return export_params(variables, rows(settings, ctc_head=ctc_head, decoder=decoder))


def rows(settings: Zipformer, *, ctc_head: str | None, decoder: Decoder | None = None) -> list[Row]:
    """Returns the table of names for a model.

    Args:
        ctc_head: Path of its CTC head, or None.
        decoder: Attention decoder, or None.
    """
    table = [replace(row, ours=f"params/encoder/{row.ours}") for row in encoder_rows(settings)]
    table += [replace(row, ours=f"params/{ctc_head}/{row.ours}") for row in CTC_ROWS if ctc_head]
    return table + (decoder_rows(*decoder) if decoder else [])


def decoder_rows(path: str, head: AttentionDecoder) -> list[Row]:
    """Returns icefall's names of an attention decoder, at a parameter path such as `heads_attention`."""
    ours = f"params/{path}/decoder"
    return [
        Row(f"{DECODER}.embed.weight", f"{ours}/embedding"),
        Row(f"{DECODER}.output_layer.weight", f"{ours}/output/kernel", LINEAR),
        Row(f"{DECODER}.output_layer.bias", f"{ours}/output/bias"),
        *(
            Row(f"{DECODER}.layers.{layer}.{theirs}", f"{ours}/layers/{leaf}", layout, layer)
            for layer in range(head.decoder.num_layers)
            for theirs, leaf, layout in DECODER_LAYER
        ),
    ]


def heads_of_model(model: Model) -> dict[str, Any]:
    """Returns the arguments of `find` and `export` that describe the model's heads.

    The first attention decoder on the encoder's output is icefall's, if there is one.
    """
    found = ((f"heads_{name}", head) for name, head in model.heads.items() if isinstance(head, AttentionDecoder))
    decoder = next(((path, head) for path, head in found if head.tap == OUTPUT), None)
    return {"ctc_head": ctc_head(model), "decoder": decoder}


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


FORMATS = (
    Format(
        "icefall", "icefall (Zipformer)", Zipformer, claims, find, export, heads=heads_of_model, transducer=icefall_rows
    ),
)

# Settings of `Zipformer`, and names of the same settings in checkpoints of icefall's training, such as "2,2,3,4,3,2".
SETTINGS = {
    "downsampling": "downsampling_factor", "dims": "encoder_dim", "num_layers": "num_encoder_layers",
    "unmasked_dims": "encoder_unmasked_dim", "num_heads": "num_heads", "query_dims": "query_head_dim",
    "value_dims": "value_head_dim", "position_dims": "pos_head_dim", "feedforward_dims": "feedforward_dim",
    "kernel_sizes": "cnn_module_kernel",
}  # fmt: skip
HEAD_DIMS = (32, 4, 12)
"""Widths of queries, positions and values of an attention head in all published sizes."""
OF_OTHER_HEADS = r"(decoder|joiner|simple_am_proj|simple_lm_proj|attention_decoder)\..*"
"""Names of weights of an attention decoder, and of a transducer, which models of given settings may lack."""


def zipformer_of(path: str | Path, **changes: Any) -> Zipformer:
    """Returns the encoder settings of a checkpoint of icefall's zipformer recipe, with `changes` of their fields.

    Checkpoints of a training contain the settings. Exported ones contain only weights, whose shapes state all settings
    except the number of attention heads; it follows from the widths of a head in the published sizes.

    Raises:
        UserError: If the file is not such a checkpoint, or the shapes do not fit these widths.
    """
    loaded = load_torch(Path(path))
    try:
        sizes = _sizes_of(state_dict(loaded))
        named = {ours: theirs for ours, theirs in SETTINGS.items() if isinstance(loaded.get(theirs), str)}
        given = {ours: tuple(map(int, loaded[theirs].split(","))) for ours, theirs in named.items()}
        given = {name: values * len(sizes["dims"]) if len(values) == 1 else values for name, values in given.items()}
        heads = {} if "num_heads" in given else _heads_by_width(state_dict(loaded), sizes)
        return Zipformer(**{**sizes, "unmasked_dims": sizes["dims"], **heads, **given, **changes})
    except (KeyError, ValueError) as error:
        raise UserError(f"{path}: {error}; expected a Zipformer of icefall") from error


def _sizes_of(weights: NamedWeights) -> dict[str, Any]:
    """Returns the settings that shapes of weights state.

    Raises:
        KeyError: If an expected weight is missing.
    """
    names = [re.match(r"encoder\.encoders\.(\d+)\.(encoder\.)?layers\.(\d+)\.", name) for name in weights]
    places = {(int(found[1]), found[2] or "", int(found[3])) for found in names if found}
    sizes: dict[str, list[int]] = {
        name: [] for name in ("downsampling", "dims", "num_layers", "feedforward_dims", "kernel_sizes")
    }
    positions_dim, causal = 0, False
    for number in range(1 + max(stack for stack, _, _ in places)):
        inner = next(inner for stack, inner, _ in places if stack == number)
        layer = f"encoder.encoders.{number}.{inner}layers.0"
        hidden, width = weights[f"{layer}.feed_forward2.in_proj.weight"].shape
        positions_dim = weights[f"{layer}.self_attn_weights.linear_pos.weight"].shape[1]
        conv = f"{layer}.conv_module1.depthwise_conv"
        causal = f"{conv}.chunkwise_conv.weight" in weights
        taps = weights[f"{conv}.chunkwise_conv.weight" if causal else f"{conv}.weight"].shape[-1]
        factor = len(weights[f"encoder.encoders.{number}.downsample.bias"]) if inner else 1
        layers = sum(stack == number for stack, _, _ in places)
        for name, value in zip(sizes, (factor, width, layers, hidden, taps), strict=True):
            sizes[name].append(value)
    channels = tuple(len(weights[f"encoder_embed.conv.{place}.bias"]) for place in (0, 4, 7))
    width = weights["encoder_embed.out.weight"].shape[1] // channels[-1]
    return {
        **{name: tuple(values) for name, values in sizes.items()},
        "embed_channels": channels, "positions_dim": positions_dim, "causal": causal,
        "num_mels": 4 * width + 4,  # the only multiple of 4 whose embedding has this width
        "output_downsampling": len(weights.get("encoder.downsample_output.bias", [0])),
    }  # fmt: skip


def _heads_by_width(weights: NamedWeights, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers of heads for the widths of the published sizes.

    Raises:
        ValueError: If the shapes do not fit these widths.
    """
    query, position, value = HEAD_DIMS
    heads = []
    for number, factor in enumerate(sizes["downsampling"]):
        layer = f"encoder.encoders.{number}.{'encoder.' if factor > 1 else ''}layers.0"
        parts = ("self_attn_weights.linear_pos", "self_attn_weights.in_proj", "self_attn1.in_proj")
        rows = [len(weights[f"{layer}.{part}.weight"]) for part in parts]
        heads.append(rows[0] // position)
        if rows != [heads[-1] * width for width in (position, 2 * query + position, value)]:
            raise ValueError(
                f"the attention of stack {number} does not have heads of the published widths (queries {query}, "
                f"positions {position}, values {value}), so their number is unknown: --config FILE with the settings, "
                "such as configs/zipformer.py with --model.encoder.num-heads and others"
            )
    num = len(heads)
    return {
        "num_heads": tuple(heads), "query_dims": (query,) * num, "position_dims": (position,) * num,
        "value_dims": (value,) * num,
    }  # fmt: skip


def _heads_of(path: Path) -> dict[str, HeadSettings]:
    """Returns transducer, attention decoder and CTC head, as far as the checkpoint has them, in this order."""
    loaded = load_torch(path)
    weights = state_dict(loaded)
    found = icefall_transducer(weights)
    heads: dict[str, HeadSettings] = {"transducer": found} if found else {}
    if f"{DECODER}.embed.weight" in weights:
        reads = "ctc" if "ctc_output.1.weight" in weights else ""
        heads["attention"] = attention_of(weights, num_heads=loaded.get("attention_decoder_num_heads"), ctc=reads)
    if "ctc_output.1.weight" in weights:
        heads["ctc"] = CTC()
    if not heads and any(re.fullmatch(OF_OTHER_HEADS, name) for name in weights):
        raise UserError(
            f"{path}: texts come from a head that this package does not have: expected a model of --use-transducer 1 "
            "or --use-ctc 1"
        )
    return heads


def attention_of(weights: NamedWeights, *, num_heads: int | None, ctc: str) -> AttentionDecoder:
    """Returns the settings of the attention decoder that shapes of weights state.

    Args:
        weights: Weights by icefall's names.
        num_heads: Number of attention heads. None: that of heads of the published width.
        ctc: Name of the CTC head; empty if the model has none.

    Raises:
        UserError: If `num_heads` is None and the width is not that of whole heads.
    """
    dim = weights[f"{DECODER}.embed.weight"].shape[1]
    width = len(weights[f"{DECODER}.layers.0.self_attn.linear_q.weight"])
    if not num_heads and width % OF_DECODER_HEAD:
        raise UserError(
            f"the attention decoder's attention is {width} wide: expected a multiple of {OF_DECODER_HEAD}, the width "
            "of a head in all published sizes, or a checkpoint with attention_decoder_num_heads, as training writes it"
        )
    layers = {int(found[1]) for name in weights if (found := re.match(rf"{re.escape(DECODER)}\.layers\.(\d+)\.", name))}
    decoder = LabelDecoder(
        dim=dim, num_layers=len(layers), attention_dim=width, num_heads=num_heads or width // OF_DECODER_HEAD,
        feedforward_dim=len(weights[f"{DECODER}.layers.0.feed_forward.0.weight"]),
    )  # fmt: skip
    return AttentionDecoder(decoder=decoder, ctc=ctc, begin_id=SOS_EOS, end_id=SOS_EOS, scale=0.9 if ctc else 1.0)


def _is_of(path: Path) -> bool:
    if path.suffix not in SUFFIXES or not path.is_file():
        return False
    try:
        return any(name.startswith("encoder_embed.") for name in state_dict(load_torch(path)))
    except UserError:  # the reader that takes the file reports it
        return False


DESCRIPTIONS = (
    Description(
        "icefall's .pt", _is_of, zipformer_of, lambda path: icefall(num_mels=zipformer_of(path).num_mels), _heads_of,
        others=OF_OTHER_HEADS,
    ),
)  # fmt: skip
