"""Weights of Squeezeformer by the names of NeMo (at commit 8cfedd72) and of the paper's authors (Keras, kssteven418/
Squeezeformer at commit ab49eec5), and the settings that a NeMo model tells of itself."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten
from asr_jax.models.squeezeformer import STACKS, Squeezeformer
from asr_jax.pretrained.keymap import (
    DEPTHWISE,
    LINEAR,
    POINTWISE_1D,
    SAME,
    Layout,
    Row,
    Weights,
    export_params,
    find_params,
    flattened,
    transposed,
)
from asr_jax.pretrained.nemo_files import nemo_subsampling

CONV_1X1 = Layout(lambda x: x[0, 0], lambda x: x[None, None])
"""Keras: [1 1 in out] to [in out]."""
CONV_1 = Layout(lambda x: x[0], lambda x: x[None])
"""Keras: [1 in out] to [in out]."""
DEPTHWISE_TIME = Layout(lambda x: x[:, 0, :, 0], lambda x: x[:, None, :, None])
"""Keras: [taps 1 channels 1] to [taps channels]."""
DEPTHWISE_KERAS = transposed(0, 1, 3, 2)
"""Keras: [time frequency channels 1] to [time frequency 1 channels]."""
STATS = ("mean", "variance")
SKIPPED = r"preprocessor\..*|.*\.num_batches_tracked"
"""NeMo's names of what is no weight."""
UNLEARNED = r".*_scale\.(scale|bias)"
"""The same, where scales are not learned."""

# NeMo's. Linear layers: each has a weight and a bias.
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

# Keras: of a layer; {half} is its first or its second half.
KERAS_HALF = (
    ("ln_mid/gamma",                     "{module}_norm/scale",            SAME),
    ("ln_mid/beta",                      "{module}_norm/bias",             SAME),
    ("ff/{half}_ff_dense_1/kernel",      "{forward}/in/kernel",            SAME),
    ("ff/{half}_ff_dense_1/bias",        "{forward}/in/bias",              SAME),
    ("ff/{half}_ff_dense_2/kernel",      "{forward}/out/kernel",           SAME),
    ("ff/{half}_ff_dense_2/bias",        "{forward}/out/bias",             SAME),
    ("ln/gamma",                         "{forward}_norm/scale",           SAME),
    ("ln/beta",                          "{forward}_norm/bias",            SAME),
)  # fmt: skip
KERAS_CONVOLUTION = (
    ("pw_conv_1/kernel",                 "in/kernel",                      CONV_1X1),
    ("pw_conv_1/bias",                   "in/bias",                        SAME),
    ("dw_conv/depthwise_kernel",         "kernel",                         DEPTHWISE_TIME),
    ("dw_conv/bias",                     "bias",                           SAME),
    ("bn/gamma",                         "norm/gain",                      SAME),
    ("bn/beta",                          "norm/bias",                      SAME),
    ("pw_conv_2/kernel",                 "out/kernel",                     CONV_1X1),
    ("pw_conv_2/bias",                   "out/bias",                       SAME),
)  # fmt: skip
KERAS_EMBED = (
    ("subsampling/{encoder}_subsampling_1/kernel", "subsample/conv_0/kernel", SAME),
    ("subsampling/{encoder}_subsampling_1/bias",   "subsample/conv_0/bias",   SAME),
    ("linear/kernel",                              "out/kernel",              SAME),
    ("linear/bias",                                "out/bias",                SAME),
    ("preln/gamma",                                "norm/scale",              SAME),
    ("preln/beta",                                 "norm/bias",               SAME),
)  # fmt: skip
KERAS_SEPARABLE = (
    ("subsampling/{encoder}_subsampling_2_dw/depthwise_kernel", "subsample/conv_1/kernel",      DEPTHWISE_KERAS),
    ("subsampling/{encoder}_subsampling_2_dw/bias",             "subsample/conv_1/bias",        SAME),
    ("subsampling/{encoder}_subsampling_2_pw/kernel",           "subsample/pointwise_1/kernel", CONV_1X1),
    ("subsampling/{encoder}_subsampling_2_pw/bias",             "subsample/pointwise_1/bias",   SAME),
)  # fmt: skip
KERAS_FULL = (
    ("subsampling/{encoder}_subsampling_2/kernel",  "subsample/conv_1/kernel", SAME),
    ("subsampling/{encoder}_subsampling_2/bias",    "subsample/conv_1/bias",   SAME),
)  # fmt: skip
KERAS_REDUCTION = (
    ("dw_conv/depthwise_kernel",         "kernel",                         DEPTHWISE_TIME),
    ("dw_conv/bias",                     "bias",                           SAME),
    ("pw_conv_2/kernel",                 "pointwise/kernel",               CONV_1X1),
    ("pw_conv_2/bias",                   "pointwise/bias",                 SAME),
)  # fmt: skip
KERAS_ENCODER = "conformer_encoder"
"""What the authors' code calls the encoder."""
DENSE = re.compile(r"/dense(?:_(\d+))?/")
"""A layer without a name of its own."""
KERAS_MARK = "_preln/gamma:0"
"""How the name of a weight ends that the encoder always has."""
KERAS_CTC = (
    Row("conformer_logits/kernel:0", "output/kernel", CONV_1),
    Row("conformer_logits/bias:0",   "output/bias"),
)  # fmt: skip

# What NeMo has and we have, too.
NEMO_SUBSAMPLING = ("dw_striding", "striding")
NEMO_NORMS = {"batch_norm": "batch", "layer_norm": "layer"}
NEMO_POSITIONS = ("rel_pos", "abs_pos")


def nemo_settings(config: Mapping[str, Any], **changes: Any) -> Squeezeformer:
    """The encoder's settings from those of a NeMo model (`nemo_config`), with `changes`.

    Raises: UserError where the model is another, or has what there is none of here.
    """
    given = config.get("encoder")
    if not isinstance(given, Mapping) or not str(given.get("_target_", "")).endswith("SqueezeformerEncoder"):
        target = given.get("_target_") if isinstance(given, Mapping) else given
        raise UserError(f"the model's encoder is {target}: expected NeMo's SqueezeformerEncoder")
    return nemo_encoder({**given, "feat_in": _num_mels(config, given.get("feat_in"))}, **changes)


def nemo_encoder(given: Mapping[str, Any], **changes: Any) -> Squeezeformer:
    """Settings from the arguments of NeMo's SqueezeformerEncoder, with its defaults where they do not say.
    Its dropout of positions is left out.

    Raises: as `nemo_settings`.
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
        raise UserError("NeMo's encoder: " + "; ".join(problems) + ": there is no such Squeezeformer here")
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


def nemo_rows(settings: Squeezeformer, *, ctc_head: str | None) -> list[Row]:
    """NeMo's names of a whole model of these sizes, `encoder.…` and its CTC decoder, with our paths from
    `params/` and `batch_stats/` on."""
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
    rows = []
    for number, (stack, layer) in enumerate(_layers(settings)):
        start = f"encoder.layers.{number}."
        rows += [
            Row(start + name, f"params/encoder/{stack}/{ours}", layout, layer) for name, ours, layout in layer_rows
        ]
        if settings.norm != "layer":
            rows += [
                Row(
                    f"{start}conv.batch_norm.{name}",
                    f"batch_stats/encoder/{stack}/convolution/norm/{ours}",
                    SAME,
                    layer,
                )
                for name, ours in stats
            ]
        if settings.tied_biases:
            rows += [Row(start + name, f"params/encoder/{ours}") for name, ours in NEMO_BIASES]
    channels, ours = settings.subsampling_channels or settings.dim, "params/encoder/embed"
    rows += nemo_subsampling(f"{ours}/subsample", settings.subsampling_factor, settings.subsampling)
    rows.append(Row("encoder.pre_encode.out.weight", f"{ours}/out/kernel", flattened(channels)))
    rows.append(Row("encoder.pre_encode.out.bias", f"{ours}/out/bias"))
    for name, ours in (("weight", "scale"), ("bias", "bias")):
        rows.append(Row(f"encoder.pre_ln.{name}", f"params/encoder/embed/norm/{ours}"))
    if settings.reduce_time:
        rows += [Row(f"encoder.{name}", f"params/encoder/{ours}", layout) for name, ours, layout in NEMO_REDUCTION]
    if ctc_head:
        rows += [Row(name, f"params/{ctc_head}/{ours}", layout) for name, ours, layout in NEMO_CTC]
    return rows


def keras_rows(settings: Squeezeformer, *, encoder: str, ctc_head: str | None) -> list[Row]:
    """The authors' names of a model of these sizes, whose encoder they call `encoder`, with our paths from `params/`
    and `batch_stats/` on."""
    rows = []
    for number, (stack, layer) in enumerate(_layers(settings)):
        block = f"{encoder}_block_{number}"
        for place, module, short, forward in (
            (1, "attention", "mhsa", "feed_forward_1"),
            (3, "convolution", "conv", "feed_forward_2"),
        ):
            half = f"{block}_layer{place}"
            path, ours = f"{encoder}/{block}/{half}/{half}", f"params/encoder/{stack}"
            rows += [
                Row(
                    f"{path}_{name.format(half=half)}:0",
                    f"{ours}/{mine.format(module=module, forward=forward)}",
                    layout,
                    layer,
                )
                for name, mine, layout in KERAS_HALF
            ]
            for name, mine in ((short, module), ("ff", forward)):
                rows += [
                    Row(f"{half}_{name}_{of}:0", f"{ours}/{mine}_scale/{of}", SAME, layer) for of in ("scale", "bias")
                ]
            inner = f"{path}_{short}/{half}_{short}"
            if module == "attention":
                unnamed = 3 * number + int(settings.reduce_time)
                rows += keras_attention(f"{inner}_mhsa/", f"{ours}/attention/", unnamed, layer, settings)
                continue
            rows += [
                Row(f"{inner}_{name}:0", f"{ours}/convolution/{mine}", layout, layer)
                for name, mine, layout in KERAS_CONVOLUTION
            ]
            rows += [
                Row(f"{inner}_bn/moving_{of}:0", f"batch_stats/encoder/{stack}/convolution/norm/{of}", SAME, layer)
                for of in STATS
            ]
    rows += keras_embed(settings, encoder)
    if settings.reduce_time:
        rows += [
            Row(
                f"{encoder}/{encoder}_timereduce/{encoder}_timereduce_{name}:0", f"params/encoder/reduce/{ours}", layout
            )
            for name, ours, layout in KERAS_REDUCTION
        ]
        rows += [Row(f"{encoder}/dense/{of}:0", f"params/encoder/recover/project/{of}") for of in ("kernel", "bias")]
    if ctc_head:
        rows += [Row(row.theirs, f"params/{ctc_head}/{row.ours}", row.layout) for row in KERAS_CTC]
    return rows


def keras_embed(settings: Squeezeformer, encoder: str) -> list[Row]:
    """The part of `keras_rows` before the first layer."""
    names = (*KERAS_EMBED, *(KERAS_SEPARABLE if settings.subsampling == "dw_striding" else KERAS_FULL))
    return [
        Row(f"{encoder}/{encoder}_{name.format(encoder=encoder)}:0", f"params/encoder/embed/{ours}", layout)
        for name, ours, layout in names
    ]


def keras_attention(start: str, ours: str, unnamed: int, layer: int | None, settings: Squeezeformer) -> list[Row]:
    """Rows of an attention module whose paths begin with `start` there and with `ours` here. `unnamed`: how many layers
    without a name of their own Keras has counted before it."""
    heads, width = settings.num_heads, settings.dim // settings.num_heads
    by_head = Layout(
        lambda x: x.transpose(1, 0, 2).reshape(x.shape[1], -1), lambda x: x.reshape(-1, heads, width).transpose(1, 0, 2)
    )
    of_heads = Layout(lambda x: x.reshape(-1, x.shape[-1]), lambda x: x.reshape(heads, width, -1))
    rows = [
        Row(f"{start}pos_kernel:0", f"{ours}positions/kernel", by_head, layer),
        Row(f"{start}pos_bias_u:0", f"{ours}content_bias", SAME, layer),
        Row(f"{start}pos_bias_v:0", f"{ours}position_bias", SAME, layer),
        Row(f"{start}projection_kernel:0", f"{ours}out/kernel", of_heads, layer),
        Row(f"{start}projection_bias:0", f"{ours}out/bias", SAME, layer),
    ]
    for place, name in enumerate(("query", "key", "value")):
        dense = _dense(unnamed + place)
        rows += [Row(f"{start}{dense}/{of}:0", f"{ours}{name}/{of}", SAME, layer) for of in ("kernel", "bias")]
    return rows


def _dense(number: int) -> str:
    return f"dense_{number}" if number else "dense"


def keras_names(names: Iterable[str]) -> tuple[str, dict[str, str]]:
    """What a file calls the encoder, and its names by those of `keras_rows`: without what stands before the encoder,
    and with layers that have no name of their own counted from the first one."""
    mark = next(name for name in names if name.endswith(KERAS_MARK))
    encoder = mark.removesuffix(KERAS_MARK).split("/")[-1]
    found = {name: DENSE.search(name) for name in names}
    numbers = sorted({int(match[1] or 0) for match in found.values() if match})
    renamed = {}
    for name, match in found.items():
        cut = name[name.find(f"{encoder}/") :] if f"{encoder}/" in name else name
        number = numbers.index(int(match[1] or 0)) if match else 0
        renamed[name] = DENSE.sub(f"/{_dense(number)}/", cut) if match else cut
    return encoder, renamed


def claims_nemo(weights: Weights) -> bool:
    """Whether weights have NeMo's names."""
    return "encoder.pre_ln.weight" in weights


def claims_keras(weights: Weights) -> bool:
    """Whether weights have the authors' names."""
    return any(name.endswith(KERAS_MARK) for name in weights)


def find_nemo(
    weights: Weights, settings: Squeezeformer, *, ctc_head: str | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """As far as NeMo's weights have them: variables by our paths from `params/` and `batch_stats/` on, and the names of
    weights that found no place."""
    found = find_params(weights, nemo_rows(settings, ctc_head=ctc_head))
    skipped = SKIPPED if settings.adaptive_scale else f"{SKIPPED}|{UNLEARNED}"
    return found.params, [name for name in found.left if not re.fullmatch(skipped, name)]


def find_keras(
    weights: Weights, settings: Squeezeformer, *, ctc_head: str | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """`find_nemo` for the names of the paper's authors."""
    encoder, names = keras_names(weights)
    renamed = {names.get(name, name): array for name, array in weights.items()}
    found = find_params(renamed, keras_rows(settings, encoder=encoder, ctc_head=ctc_head))
    originals = {new: old for old, new in names.items()}
    return found.params, sorted(originals.get(name, name) for name in found.left)


def export_nemo(variables: Any, settings: Squeezeformer, *, ctc_head: str | None = None) -> dict[str, np.ndarray]:
    """Variables, `{"params": {"encoder": …}, "batch_stats": …}` or parts of them, by NeMo's names;
    without what NeMo keeps beside them: counts of batches, and scales that are not learned."""
    return _exported(variables, nemo_rows(settings, ctc_head=ctc_head))


def export_keras(
    variables: Any, settings: Squeezeformer, *, ctc_head: str | None = None, encoder: str = KERAS_ENCODER
) -> dict[str, np.ndarray]:
    """`export_nemo` for the names of the paper's authors."""
    return _exported(variables, keras_rows(settings, encoder=encoder, ctc_head=ctc_head))


def _exported(variables: Any, rows: list[Row]) -> dict[str, np.ndarray]:
    given = flatten(variables).keys()
    return export_params(variables, [row for row in rows if row.ours in given])


def _layers(settings: Squeezeformer) -> list[tuple[str, int]]:
    """Of each layer the path of its stack, and its place there."""
    return [(f"{stack}/layers", n) for stack, num in zip(STACKS, settings.stack_sizes, strict=True) for n in range(num)]


def _num_mels(config: Mapping[str, Any], given: Any) -> int:
    """NeMo may have written `feat_in` as a reference to the preprocessor's."""
    preprocessor = config.get("preprocessor")
    if isinstance(given, str) and isinstance(preprocessor, Mapping):
        given = preprocessor.get("features")
    try:
        return int(given)
    except (TypeError, ValueError) as error:
        raise UserError(f"NeMo's encoder.feat_in is {given!r}: expected a number") from error
