"""Weight names of Squeezeformer in the authors' Keras code (kssteven418/Squeezeformer at commit ab49eec5)."""

import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.pretrained.base import Format
from asr_jax.pretrained.keymap import SAME, Layout, NamedWeights, Row, export_params, find_params, transposed

CONV_1X1 = Layout(lambda x: x[0, 0], lambda x: x[None, None])
"""Converts [1 1 in out] to [in out]."""
CONV_1 = Layout(lambda x: x[0], lambda x: x[None])
"""Converts [1 in out] to [in out]."""
DEPTHWISE_TIME = Layout(lambda x: x[:, 0, :, 0], lambda x: x[:, None, :, None])
"""Converts [taps 1 channels 1] to [taps channels]."""
DEPTHWISE_KERAS = transposed(0, 1, 3, 2)
"""Converts [time frequency channels 1] to [time frequency 1 channels]."""
STATS = ("mean", "variance")

# Names in {half} of a layer: attention and feed-forward in its first half, convolution and feed-forward in its second.
HALF = (
    ("ln_mid/gamma",                     "{module}_norm/scale",            SAME),
    ("ln_mid/beta",                      "{module}_norm/bias",             SAME),
    ("ff/{half}_ff_dense_1/kernel",      "{forward}/in/kernel",            SAME),
    ("ff/{half}_ff_dense_1/bias",        "{forward}/in/bias",              SAME),
    ("ff/{half}_ff_dense_2/kernel",      "{forward}/out/kernel",           SAME),
    ("ff/{half}_ff_dense_2/bias",        "{forward}/out/bias",             SAME),
    ("ln/gamma",                         "{forward}_norm/scale",           SAME),
    ("ln/beta",                          "{forward}_norm/bias",            SAME),
)  # fmt: skip
CONVOLUTION = (
    ("pw_conv_1/kernel",                 "in/kernel",                      CONV_1X1),
    ("pw_conv_1/bias",                   "in/bias",                        SAME),
    ("dw_conv/depthwise_kernel",         "kernel",                         DEPTHWISE_TIME),
    ("dw_conv/bias",                     "bias",                           SAME),
    ("bn/gamma",                         "norm/gain",                      SAME),
    ("bn/beta",                          "norm/bias",                      SAME),
    ("pw_conv_2/kernel",                 "out/kernel",                     CONV_1X1),
    ("pw_conv_2/bias",                   "out/bias",                       SAME),
)  # fmt: skip
EMBED = (
    ("subsampling/{encoder}_subsampling_1/kernel", "subsample/conv_0/kernel", SAME),
    ("subsampling/{encoder}_subsampling_1/bias",   "subsample/conv_0/bias",   SAME),
    ("linear/kernel",                              "out/kernel",              SAME),
    ("linear/bias",                                "out/bias",                SAME),
    ("preln/gamma",                                "norm/scale",              SAME),
    ("preln/beta",                                 "norm/bias",               SAME),
)  # fmt: skip
SEPARABLE = (
    ("subsampling/{encoder}_subsampling_2_dw/depthwise_kernel", "subsample/conv_1/kernel",      DEPTHWISE_KERAS),
    ("subsampling/{encoder}_subsampling_2_dw/bias",             "subsample/conv_1/bias",        SAME),
    ("subsampling/{encoder}_subsampling_2_pw/kernel",           "subsample/pointwise_1/kernel", CONV_1X1),
    ("subsampling/{encoder}_subsampling_2_pw/bias",             "subsample/pointwise_1/bias",   SAME),
)  # fmt: skip
FULL = (
    ("subsampling/{encoder}_subsampling_2/kernel",  "subsample/conv_1/kernel", SAME),
    ("subsampling/{encoder}_subsampling_2/bias",    "subsample/conv_1/bias",   SAME),
)  # fmt: skip
REDUCTION = (
    ("dw_conv/depthwise_kernel",         "kernel",                         DEPTHWISE_TIME),
    ("dw_conv/bias",                     "bias",                           SAME),
    ("pw_conv_2/kernel",                 "pointwise/kernel",               CONV_1X1),
    ("pw_conv_2/bias",                   "pointwise/bias",                 SAME),
)  # fmt: skip
ENCODER = "conformer_encoder"
"""Name of the encoder in the authors' code."""
DENSE = re.compile(r"/dense(?:_(\d+))?/")
"""Automatic name of a Keras layer that is created without a name."""
MARK = "_preln/gamma:0"
"""Suffix of a weight that every encoder has."""
CTC = (
    Row("conformer_logits/kernel:0", "output/kernel", CONV_1),
    Row("conformer_logits/bias:0",   "output/bias"),
)  # fmt: skip


def claims(weights: NamedWeights) -> bool:
    """Returns whether the weights have the authors' names."""
    return any(name.endswith(MARK) for name in weights)


def find(
    weights: NamedWeights, settings: Squeezeformer, *, ctc_head: str | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the weights of a file by parameter path, and the names that are left.

    Args:
        weights: Weights by the authors' names; parameters that they lack are not returned.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Returns:
        Parameters and running statistics (`params/…`, `batch_stats/…`), and the names of weights that the model does
        not have.
    """
    encoder, names = readable_names(weights)
    renamed = {names.get(name, name): array for name, array in weights.items()}
    found = find_params(renamed, rows(settings, encoder=encoder, ctc_head=ctc_head))
    originals = {new: old for old, new in names.items()}
    return found.params, sorted(originals.get(name, name) for name in found.left)


def export(
    variables: Any, settings: Squeezeformer, *, ctc_head: str | None, encoder: str = ENCODER
) -> dict[str, np.ndarray]:
    """Returns the variables of a model under the authors' names.

    Args:
        variables: `{"params": …, "batch_stats": …}`, or a part of it.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.
        encoder: Name of the encoder in the authors' code.

    Raises:
        UserError: If a parameter has no name in the authors' code.
    """
    return export_params(variables, rows(settings, encoder=encoder, ctc_head=ctc_head))


def rows(settings: Squeezeformer, *, encoder: str, ctc_head: str | None) -> list[Row]:
    """Returns the table of the authors' names for a model.

    Args:
        encoder: Name of the encoder in the authors' code.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.
    """
    table = []
    for number, (stack, layer) in enumerate(settings.layer_places):
        block = f"{encoder}_block_{number}"
        for place, module, short, forward in (
            (1, "attention", "mhsa", "feed_forward_1"),
            (3, "convolution", "conv", "feed_forward_2"),
        ):
            half = f"{block}_layer{place}"
            path, ours = f"{encoder}/{block}/{half}/{half}", f"params/encoder/{stack}"
            table += [
                Row(
                    f"{path}_{name.format(half=half)}:0",
                    f"{ours}/{mine.format(module=module, forward=forward)}",
                    layout,
                    layer,
                )
                for name, mine, layout in HALF
            ]
            for name, mine in ((short, module), ("ff", forward)):
                table += [
                    Row(f"{half}_{name}_{of}:0", f"{ours}/{mine}_scale/{of}", SAME, layer) for of in ("scale", "bias")
                ]
            inner = f"{path}_{short}/{half}_{short}"
            if module == "attention":
                unnamed = 3 * number + int(settings.reduce_time)
                table += attention_rows(f"{inner}_mhsa/", f"{ours}/attention/", unnamed, layer, settings)
                continue
            table += [
                Row(f"{inner}_{name}:0", f"{ours}/convolution/{mine}", layout, layer)
                for name, mine, layout in CONVOLUTION
            ]
            table += [
                Row(f"{inner}_bn/moving_{of}:0", f"batch_stats/encoder/{stack}/convolution/norm/{of}", SAME, layer)
                for of in STATS
            ]
    table += embed_rows(settings, encoder)
    if settings.reduce_time:
        table += [
            Row(
                f"{encoder}/{encoder}_timereduce/{encoder}_timereduce_{name}:0", f"params/encoder/reduce/{ours}", layout
            )
            for name, ours, layout in REDUCTION
        ]
        table += [Row(f"{encoder}/dense/{of}:0", f"params/encoder/recover/project/{of}") for of in ("kernel", "bias")]
    if ctc_head:
        table += [Row(row.theirs, f"params/{ctc_head}/{row.ours}", row.layout) for row in CTC]
    return table


def embed_rows(settings: Squeezeformer, encoder: str) -> list[Row]:
    """Returns the rows of the modules before the first layer."""
    names = (*EMBED, *(SEPARABLE if settings.subsampling == "dw_striding" else FULL))
    return [
        Row(f"{encoder}/{encoder}_{name.format(encoder=encoder)}:0", f"params/encoder/embed/{ours}", layout)
        for name, ours, layout in names
    ]


def attention_rows(start: str, ours: str, unnamed: int, layer: int | None, settings: Squeezeformer) -> list[Row]:
    """Returns the rows of an attention module.

    Args:
        start: Prefix of the module's names in the authors' code.
        ours: Prefix of the module's parameter paths.
        unnamed: Number of unnamed Keras layers before the module, which sets the numbers in its automatic names.
        layer: Index of the layer in its stack; None: the parameters are not stacked.
    """
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


def readable_names(names: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Returns the encoder's name in a file, and the names of `rows` for the file's names.

    The new names lack path components before the encoder, and number unnamed Keras layers from the first one.
    """
    mark = next(name for name in names if name.endswith(MARK))
    encoder = mark.removesuffix(MARK).split("/")[-1]
    found = {name: DENSE.search(name) for name in names}
    numbers = sorted({int(match[1] or 0) for match in found.values() if match})
    renamed = {}
    for name, match in found.items():
        cut = name[name.find(f"{encoder}/") :] if f"{encoder}/" in name else name
        number = numbers.index(int(match[1] or 0)) if match else 0
        renamed[name] = DENSE.sub(f"/{_dense(number)}/", cut) if match else cut
    return encoder, renamed


FORMATS = (Format("keras", "the authors' Keras code (Squeezeformer)", Squeezeformer, claims, find, export),)
