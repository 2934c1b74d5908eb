"""Weight names of Squeezeformer in the authors' Keras code (kssteven418/Squeezeformer at commit ab49eec5)."""

import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from asr_jax.heads.ctc import CTC
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.pretrained.base import Format, Heads, first_head
from asr_jax.pretrained.keymap import (
    SAME,
    Kind,
    Leaf,
    NamedWeights,
    Row,
    Table,
    TensorLayout,
    array,
    rows_of,
    transposed,
)

CONV_1X1 = TensorLayout(lambda x: x[0, 0], lambda x: x[None, None])
"""Converts [1 1 in out] to [in out]."""
CONV_1 = TensorLayout(lambda x: x[0], lambda x: x[None])
"""Converts [1 in out] to [in out]."""
DEPTHWISE_TIME = TensorLayout(lambda x: x[:, 0, :, 0], lambda x: x[:, None, :, None])
"""Converts [taps 1 channels 1] to [taps channels]."""
DEPTHWISE_KERAS = transposed(0, 1, 3, 2)
"""Converts [time frequency channels 1] to [time frequency 1 channels]."""


def _layer(layout: TensorLayout = SAME, name: str = "kernel") -> Kind:
    return (Leaf(name, "kernel", layout), Leaf("bias", "bias"))


NORM = (Leaf("gamma", "scale"), Leaf("beta", "bias"))
BATCH_NORM = (
    Leaf("gamma", "gain"),
    Leaf("beta", "bias"),
    Leaf("moving_mean", "mean", collection="batch_stats"),
    Leaf("moving_variance", "variance", collection="batch_stats"),
)
DEPTHWISE = _layer(DEPTHWISE_TIME, "depthwise_kernel")
CONVOLUTION = (
    ("pw_conv_1", "in", _layer(CONV_1X1)),
    ("dw_conv", "", DEPTHWISE),
    ("bn", "norm", BATCH_NORM),
    ("pw_conv_2", "out", _layer(CONV_1X1)),
)
REDUCTION = (
    ("dw_conv", "", DEPTHWISE),
    ("pw_conv_2", "pointwise", _layer(CONV_1X1)),
)
ENCODER = "conformer_encoder"
"""Name of the encoder in the authors' code."""
UNNAMED = re.compile(r"/dense(?:_(\d+))?/")
"""Automatic name of a Keras layer that is created without a name."""
MARK = "_preln/gamma:0"
"""Suffix of a weight that every encoder has."""


def keras_rows(table: Table, theirs: str, ours: str, layer: int | None = None) -> list[Row]:
    """Returns the rows of modules, as `keymap.rows_of` does."""
    return [replace(row, theirs=f"{theirs}{row.theirs.replace('.', '/')}:0") for row in rows_of(table, "", ours, layer)]


def rows(settings: Squeezeformer, heads: Heads) -> list[Row]:
    """Returns the table of the authors' names."""
    table = embed_rows(settings, ENCODER)
    for number, (stack, layer) in enumerate(settings.layer_places):
        ours, block = f"encoder/{stack}", f"{ENCODER}_block_{number}"
        for place, module, short, forward in (
            (1, "attention", "mhsa", "feed_forward_1"),
            (3, "convolution", "conv", "feed_forward_2"),
        ):
            half = f"{block}_layer{place}"
            modules = (
                ("ln_mid", f"{module}_norm", NORM),
                (f"ff/{half}_ff_dense_1", f"{forward}/in", _layer()),
                (f"ff/{half}_ff_dense_2", f"{forward}/out", _layer()),
                ("ln", f"{forward}_norm", NORM),
            )
            scales = [
                (f"{name}_{of}", f"{path}_scale/{of}", array())
                for name, path in ((short, module), ("ff", forward))
                for of in ("scale", "bias")
            ]
            path = f"{ENCODER}/{block}/{half}/{half}_"
            inner = f"{path}{short}/{half}_{short}_"
            table += keras_rows(modules, path, ours, layer) + keras_rows(scales, f"{half}_", ours, layer)
            if module == "convolution":
                table += keras_rows(CONVOLUTION, inner, f"{ours}/convolution", layer)
            else:
                unnamed = 3 * number + int(settings.reduce_time)
                table += attention_rows(f"{inner}mhsa/", f"{ours}/attention", unnamed, layer, settings)
    if settings.reduce_time:
        table += keras_rows(REDUCTION, f"{ENCODER}/{ENCODER}_timereduce/{ENCODER}_timereduce_", "encoder/reduce")
        table += keras_rows([("dense", "recover/project", _layer())], f"{ENCODER}/", "encoder")
    for path, _ in first_head(heads, CTC):
        table += keras_rows([("conformer_logits", "output", _layer(CONV_1))], "", path)
    return table


def embed_rows(settings: Squeezeformer, encoder: str) -> list[Row]:
    """Returns the rows of the modules before the first layer; `encoder` is the encoder's name in the authors' code."""
    start = f"subsampling/{encoder}_subsampling"
    table = [
        (f"{start}_1", "subsample/conv_0", _layer()),
        ("linear", "out", _layer()),
        ("preln", "norm", NORM),
    ]
    if settings.subsampling == "dw_striding":
        table += [
            (f"{start}_2_dw", "subsample/conv_1", _layer(DEPTHWISE_KERAS, "depthwise_kernel")),
            (f"{start}_2_pw", "subsample/pointwise_1", _layer(CONV_1X1)),
        ]
    else:
        table += [(f"{start}_2", "subsample/conv_1", _layer())]
    return keras_rows(table, f"{encoder}/{encoder}_", "encoder/embed")


def attention_rows(theirs: str, ours: str, unnamed: int, layer: int | None, settings: Squeezeformer) -> list[Row]:
    """Returns the rows of an attention module.

    Args:
        theirs: What the module's names begin with in the authors' code.
        ours: Path of the module, without `params/`.
        unnamed: Number of unnamed Keras layers before the module, which sets the numbers in its automatic names.
        layer: Index of the layer in its stack; None: the parameters are not stacked.
    """
    heads, width = settings.num_heads, settings.dim // settings.num_heads
    by_head = TensorLayout(
        lambda x: x.transpose(1, 0, 2).reshape(x.shape[1], -1), lambda x: x.reshape(-1, heads, width).transpose(1, 0, 2)
    )
    of_heads = TensorLayout(lambda x: x.reshape(-1, x.shape[-1]), lambda x: x.reshape(heads, width, -1))
    table = [
        ("pos_kernel", "positions/kernel", array(by_head)),
        ("pos_bias_u", "content_bias", array()),
        ("pos_bias_v", "position_bias", array()),
        ("projection_kernel", "out/kernel", array(of_heads)),
        ("projection_bias", "out/bias", array()),
        *((_dense(unnamed + place), name, _layer()) for place, name in enumerate(("query", "key", "value"))),
    ]
    return keras_rows(table, theirs, ours, layer)


def _dense(number: int) -> str:
    return f"dense_{number}" if number else "dense"


def readable_names(names: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Returns the encoder's name in a file, and more regular names for the file's names.

    The new names lack path components before the encoder, and number unnamed Keras layers from the first one.
    """
    mark = next(name for name in names if name.endswith(MARK))
    encoder = mark.removesuffix(MARK).split("/")[-1]
    found = {name: UNNAMED.search(name) for name in names}
    numbers = sorted({int(match[1] or 0) for match in found.values() if match})
    renamed = {}
    for name, match in found.items():
        cut = name[name.find(f"{encoder}/") :] if f"{encoder}/" in name else name
        number = numbers.index(int(match[1] or 0)) if match else 0
        renamed[name] = UNNAMED.sub(f"/{_dense(number)}/", cut) if match else cut
    return encoder, renamed


def newest(weights: NamedWeights) -> dict[str, np.ndarray]:
    """Returns the weights under the names of `rows`."""
    encoder, names = readable_names(weights)
    own = re.compile(rf"(?<![^/]){encoder}(?=/|_(?!logits))")
    return {own.sub(ENCODER, name): weights[theirs] for theirs, name in names.items()}


KERAS = Format(
    names="keras",
    of="the authors' Keras code (Squeezeformer)",
    encoder=Squeezeformer,
    mark=f"{MARK}$",
    rows=rows,
    newest=newest,
)
FORMATS = (KERAS,)
