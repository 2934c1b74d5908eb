"""Weight names of Squeezeformer in the `.safetensors` files that the Rust trainer reads (PositiveLoss).

Source: `squeezeformer_positiveloss_alias` in src/train.rs of RustedBytes/w2v-bert-uk at commit adec09e4. That code has
the layers of the reduction and the recovery of 16 layers alone, 7 and 15; here they are those of the settings.
"""

from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.pretrained.base import Format, Heads, ctc_rows
from asr_jax.pretrained.keymap import (
    BATCH_NORM,
    CONV_2D,
    DEPTHWISE,
    LINEAR,
    NORM,
    POINTWISE,
    POINTWISE_1D,
    Leaf,
    Row,
    Table,
    array,
    attention,
    flattened,
    kernel,
    rows_of,
)

SCALE = (Leaf("scale", "scale"), Leaf("bias", "bias"))
ATTENTION: Table = (
    ("attn.input_transform", "attention_scale", SCALE),
    *attention("attn.attn", "attention", ("query", "key", "value", "out_proj")),
    ("attn.attn.pos_proj", "attention/positions", kernel(LINEAR)),
    ("attn.attn.pos_bias_u", "attention/content_bias", array()),
    ("attn.attn.pos_bias_v", "attention/position_bias", array()),
)
CONVOLUTION: Table = (
    ("conv.input_transform", "convolution_scale", SCALE),
    ("conv.pointwise_in", "convolution/in", POINTWISE_1D),
    ("conv.depthwise", "convolution", DEPTHWISE),
    ("conv.batch_norm", "convolution/norm", BATCH_NORM),
    ("conv.pointwise_out", "convolution/out", POINTWISE_1D),
)


def rows(settings: Squeezeformer, heads: Heads) -> list[Row]:
    """Returns the table of names."""
    first, last = settings.reduced
    table = rows_of(
        [
            ("subsampling.conv1", "embed/subsample/conv_0", CONV_2D),
            ("subsampling.conv2_dw", "embed/subsample/conv_1", CONV_2D),
            ("subsampling.conv2_pw", "embed/subsample/pointwise_1", POINTWISE),
            ("input_projection", "embed/out", flattened(settings.subsampling_channels or settings.dim)),
            ("input_norm", "embed/norm", NORM),
            (f"time_reduce.{first}.depthwise", "reduce", DEPTHWISE),
            (f"time_reduce.{first}.pointwise", "reduce/pointwise", POINTWISE_1D),
            (f"time_recover.{last}.proj", "recover/project", LINEAR),
        ],
        "encoder",
        "encoder",
    )
    halves = (("0", ATTENTION, "attention", "feed_forward_1"), ("2", CONVOLUTION, "convolution", "feed_forward_2"))
    for number, (stack, layer) in enumerate(settings.layer_places):
        for place, module, name, forward in halves:
            others: Table = (
                ("mid_norm", f"{name}_norm", NORM),
                ("ff.input_transform", f"{forward}_scale", SCALE),
                ("ff.linear1", f"{forward}/in", LINEAR),
                ("ff.linear2", f"{forward}/out", LINEAR),
                ("out_norm", f"{forward}_norm", NORM),
            )
            theirs = f"encoder.blocks.{number}.layers.{place}"
            table += rows_of((*module, *others), theirs, f"encoder/{stack}", layer)
    return table + ctc_rows("classifier", heads)


FORMATS = (
    Format(
        "rust",
        "the Rust trainer (Squeezeformer of PositiveLoss)",
        Squeezeformer,
        r"encoder\.blocks\.0\.layers\.0\.attn\.input_transform\.scale$",
        rows,
        unused=r".*\.num_batches_tracked",
        versions=((r"^(module\.)?(model\.){0,2}", ""),),
    ),
)
