"""Weight names and settings of Squeezeformer in NeMo (commit 8cfedd72)."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.pretrained.base import Description, Format
from asr_jax.pretrained.keymap import (
    DEPTHWISE,
    LINEAR,
    POINTWISE_1D,
    SAME,
    NamedWeights,
    Row,
    export_params,
    find_params,
    flattened,
)
from asr_jax.pretrained.nemo_files import (
    OF_OTHER_HEADS,
    nemo_config,
    nemo_encoder,
    nemo_front_end,
    nemo_heads,
    nemo_subsampling,
)
from asr_jax.pretrained.transducers import nemo_rows

SKIPPED = r"preprocessor\..*|.*\.num_batches_tracked"
"""Names that are ignored: buffers of the front-end, and batch counters."""
UNLEARNED = r".*_scale\.(scale|bias)"
"""Names that are also ignored if scales are not learned."""


# Linear layers, each with a weight and a bias.
NEMO_LINEAR = (
    ("self_attn.linear_q",               "attention/query"),
    ("self_attn.linear_k",               "attention/key"),
    ("self_attn.linear_v",               "attention/value"),
    ("self_attn.linear_out",             "attention/out"),
    ("feed_forward1.linear1",            "feed_forward_1/in"),
    ("feed_forward1.linear2",            "feed_forward_1/out"),
    ("feed_forward2.linear1",            "feed_forward_2/in"),
    ("feed_forward2.linear2",            "feed_forward_2/out"),
)  # fmt: skip
NEMO_NORM = (
    ("norm_self_att",                    "attention_norm"),
    ("norm_feed_forward1",               "feed_forward_1_norm"),
    ("norm_conv",                        "convolution_norm"),
    ("norm_feed_forward2",               "feed_forward_2_norm"),
)  # fmt: skip
NEMO_SCALE = (
    ("self_attn_scale",                  "attention_scale"),
    ("feed_forward1_scale",              "feed_forward_1_scale"),
    ("conv_scale",                       "convolution_scale"),
    ("feed_forward2_scale",              "feed_forward_2_scale"),
)  # fmt: skip
NEMO_LAYER = (
    *((f"{theirs}.weight", f"{ours}/kernel", LINEAR) for theirs, ours in NEMO_LINEAR),
    *((f"{theirs}.bias", f"{ours}/bias", SAME) for theirs, ours in NEMO_LINEAR),
    *((f"{theirs}.weight", f"{ours}/scale", SAME) for theirs, ours in NEMO_NORM),
    *((f"{theirs}.bias", f"{ours}/bias", SAME) for theirs, ours in NEMO_NORM),
    ("conv.pointwise_conv1.weight",      "convolution/in/kernel",          POINTWISE_1D),
    ("conv.pointwise_conv1.bias",        "convolution/in/bias",            SAME),
    ("conv.depthwise_conv.weight",       "convolution/kernel",             DEPTHWISE),
    ("conv.depthwise_conv.bias",         "convolution/bias",               SAME),
    ("conv.pointwise_conv2.weight",      "convolution/out/kernel",         POINTWISE_1D),
    ("conv.pointwise_conv2.bias",        "convolution/out/bias",           SAME),
    ("conv.batch_norm.bias",             "convolution/norm/bias",          SAME),
)  # fmt: skip
NEMO_RELATIVE = (
    ("self_attn.linear_pos.weight",      "attention/positions/kernel",     LINEAR),
)  # fmt: skip
NEMO_BIASES = (
    ("self_attn.pos_bias_u",             "content_bias"),
    ("self_attn.pos_bias_v",             "position_bias"),
)  # fmt: skip
NEMO_REDUCTION = (
    ("time_reduce_layer.dw_conv.weight", "reduce/kernel",                  DEPTHWISE),
    ("time_reduce_layer.dw_conv.bias",   "reduce/bias",                    SAME),
    ("time_reduce_layer.pw_conv.weight", "reduce/pointwise/kernel",        POINTWISE_1D),
    ("time_reduce_layer.pw_conv.bias",   "reduce/pointwise/bias",          SAME),
    ("time_recovery_layer.weight",       "recover/project/kernel",         LINEAR),
    ("time_recovery_layer.bias",         "recover/project/bias",           SAME),
)  # fmt: skip
NEMO_CTC = (
    ("decoder.decoder_layers.0.weight",  "output/kernel",                  POINTWISE_1D),
    ("decoder.decoder_layers.0.bias",    "output/bias",                    SAME),
)  # fmt: skip


# Choices of NeMo that `Squeezeformer` supports.
NEMO_SUBSAMPLING = ("dw_striding", "striding")
NEMO_NORMS = {"batch_norm": "batch", "layer_norm": "layer"}
NEMO_POSITIONS = ("rel_pos", "abs_pos")


def claims(weights: NamedWeights) -> bool:
    """Returns whether the weights have NeMo's names."""
    return "encoder.pre_ln.weight" in weights


def find(
    weights: NamedWeights, settings: Squeezeformer, *, ctc_head: str | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the weights of a NeMo file by parameter path, and the names that are left.

    Args:
        weights: Weights by NeMo's names; parameters that they lack are not returned.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Returns:
        Parameters and running statistics (`params/…`, `batch_stats/…`), and the names of weights that the model does
        not have, except buffers of the front-end, batch counters and scales that are not learned.
    """
    found = find_params(weights, rows(settings, ctc_head=ctc_head))
    skipped = SKIPPED if settings.adaptive_scale else f"{SKIPPED}|{UNLEARNED}"
    return found.params, [name for name in found.left if not re.fullmatch(skipped, name)]


def export(variables: Any, settings: Squeezeformer, *, ctc_head: str | None) -> dict[str, np.ndarray]:
    """Returns the variables of a model under NeMo's names.

    The result lacks NeMo's batch counters, and its scales if they are not learned.

    Args:
        variables: `{"params": …, "batch_stats": …}`, or a part of it.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Raises:
        UserError: If a parameter has no name in NeMo, or if NeMo does not have a setting.
    """
    if settings.gated_convolution:
        raise UserError("gated_convolution is True: NeMo's Squeezeformer has no gate in its convolution modules")
    return export_params(variables, rows(settings, ctc_head=ctc_head))


def settings_of_nemo(config: Mapping[str, Any], **changes: Any) -> Squeezeformer:
    """Returns the encoder settings of a NeMo configuration (`nemo_config`), with `changes` of their fields.

    Raises:
        UserError: If the encoder is not a Squeezeformer, or if a setting is not supported.
    """
    given = config.get("encoder")
    if not isinstance(given, Mapping) or not str(given.get("_target_", "")).endswith("SqueezeformerEncoder"):
        target = given.get("_target_") if isinstance(given, Mapping) else given
        raise UserError(f"the model's encoder is {target}: expected NeMo's SqueezeformerEncoder")
    return settings_of_encoder({**given, "feat_in": _num_mels(config, given.get("feat_in"))}, **changes)


def settings_of_encoder(given: Mapping[str, Any], **changes: Any) -> Squeezeformer:
    """Returns the encoder settings for arguments of NeMo's SqueezeformerEncoder, with `changes` of their fields.

    Missing arguments have NeMo's defaults. The dropout of position encodings is ignored.

    Raises:
        UserError: If an argument is not supported.
    """
    subsampling, norm = given.get("subsampling", "dw_striding"), given.get("conv_norm_type", "batch_norm")
    attention, context = given.get("self_attention_model", "rel_pos"), given.get("att_context_size") or [-1, -1]
    channels = given.get("subsampling_conv_channels", -1)
    reduces = given.get("time_reduce_idx") is not None
    problems = [
        f"{name} is {value!r}, expected one of {', '.join(map(repr, known))}"
        for name, value, known in (
            ("subsampling", subsampling, NEMO_SUBSAMPLING),
            ("conv_norm_type", norm, NEMO_NORMS),
            ("self_attention_model", attention, NEMO_POSITIONS),
            ("att_context_size", list(context), ([-1, -1],)),
            ("feat_out", given.get("feat_out", -1), (-1, given["d_model"])),
        )
        if value not in known
    ]
    if problems:
        raise UserError("NeMo's encoder is not supported: " + "; ".join(problems))
    settings: dict[str, Any] = {
        "num_mels": int(given["feat_in"]),
        "dim": given["d_model"],
        "num_layers": given["n_layers"],
        "num_heads": given.get("n_heads", 4),
        "feedforward_dim": given.get("ff_expansion_factor", 4) * given["d_model"],
        "kernel_size": given.get("conv_kernel_size", 31),
        "reduce_time": reduces,
        "reduce_at": given.get("time_reduce_idx"),
        "recover_at": given.get("time_recovery_idx") if reduces else None,
        "subsampling": subsampling,
        "subsampling_factor": given.get("subsampling_factor", 4),
        "subsampling_channels": None if channels == -1 else channels,
        "positions": attention,
        "tied_biases": attention == "rel_pos" and not given.get("untie_biases", True),
        "scale_input": given.get("xscaling", True),
        "adaptive_scale": given.get("adaptive_scale", True),
        "norm": NEMO_NORMS[norm],
        "dropout": given.get("dropout", 0.1),
        "attention_dropout": given.get("dropout_att", 0.0),
        "variant": "nemo",
    }
    return Squeezeformer(**{**settings, **changes})


def rows(settings: Squeezeformer, *, ctc_head: str | None) -> list[Row]:
    """Returns the table of NeMo's names for a model; `ctc_head` is the path of its CTC head, or None."""
    stats = (("running_mean", "mean"), ("running_var", "variance"))
    gain = "scale" if settings.norm == "layer" else "gain"
    layer_rows = [*NEMO_LAYER, ("conv.batch_norm.weight", f"convolution/norm/{gain}", SAME)]
    if settings.positions == "rel_pos":
        layer_rows += NEMO_RELATIVE
        if not settings.tied_biases:
            layer_rows += [(theirs, f"attention/{ours}", SAME) for theirs, ours in NEMO_BIASES]
    if settings.adaptive_scale:
        layer_rows += [
            (f"{theirs}.{name}", f"{ours}/{name}", SAME) for theirs, ours in NEMO_SCALE for name in ("scale", "bias")
        ]
    table = []
    for number, (stack, layer) in enumerate(settings.layer_places):
        start = f"encoder.layers.{number}."
        table += [
            Row(start + name, f"params/encoder/{stack}/{ours}", layout, layer) for name, ours, layout in layer_rows
        ]
        if settings.norm != "layer":
            table += [
                Row(
                    f"{start}conv.batch_norm.{name}",
                    f"batch_stats/encoder/{stack}/convolution/norm/{ours}",
                    SAME,
                    layer,
                )
                for name, ours in stats
            ]
        if settings.tied_biases:
            table += [Row(start + name, f"params/encoder/{ours}") for name, ours in NEMO_BIASES]
    channels, ours = settings.subsampling_channels or settings.dim, "params/encoder/embed"
    table += nemo_subsampling(f"{ours}/subsample", settings.subsampling_factor, settings.subsampling)
    table.append(Row("encoder.pre_encode.out.weight", f"{ours}/out/kernel", flattened(channels)))
    table.append(Row("encoder.pre_encode.out.bias", f"{ours}/out/bias"))
    for name, ours in (("weight", "scale"), ("bias", "bias")):
        table.append(Row(f"encoder.pre_ln.{name}", f"params/encoder/embed/norm/{ours}"))
    if settings.reduce_time:
        table += [Row(f"encoder.{name}", f"params/encoder/{ours}", layout) for name, ours, layout in NEMO_REDUCTION]
    if ctc_head:
        table += [Row(name, f"params/{ctc_head}/{ours}", layout) for name, ours, layout in NEMO_CTC]
    return table


def _num_mels(config: Mapping[str, Any], given: Any) -> int:
    """Returns the number of mel bins. NeMo may write `feat_in` as a reference to the preprocessor's `features`."""
    preprocessor = config.get("preprocessor")
    if isinstance(given, str) and isinstance(preprocessor, Mapping):
        given = preprocessor.get("features")
    try:
        return int(given)
    except (TypeError, ValueError) as error:
        raise UserError(f"NeMo's encoder.feat_in is {given!r}: expected a number") from error


FORMATS = (Format("nemo", "NeMo (Squeezeformer)", Squeezeformer, claims, find, export, transducer=nemo_rows),)

DESCRIPTIONS = (
    Description(
        "SqueezeformerEncoder", lambda path: nemo_encoder(path) == "SqueezeformerEncoder",
        lambda path, **changes: settings_of_nemo(nemo_config(path), **changes), nemo_front_end,
        nemo_heads, others=OF_OTHER_HEADS,
    ),
)  # fmt: skip
