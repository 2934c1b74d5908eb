"""Weight names of Paraformer-v2 in the `.safetensors` files that the Rust trainer reads (PositiveLoss).

Source: PositiveLoss/paraformer-v2-enhanced at commit 18b1ae9, src/paraformer_v2/model.py and better_model.py;
`paraformer_positiveloss_alias` in src/train.rs of RustedBytes/w2v-bert-uk at commit adec09e4. Differs from: the Rust
trainer, which skips most arrays that only the enhanced model has, and arrays of labels without a row for the blank; the
Python code, whose convolutions read the padding of a batch, and which decodes one query if all frames are blank.
"""

import re

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.heads.paraformer_v2 import ParaformerV2
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.nn.decoders.parallel_decoder import TransformerDecoder
from asr_jax.pretrained.base import Format, Heads, ctc_rows, first_head
from asr_jax.pretrained.keymap import (
    BATCH_NORM,
    CONV_2D,
    DEPTHWISE,
    LINEAR,
    NORM,
    POINTWISE_1D,
    NamedWeights,
    Row,
    Table,
    array,
    flattened,
    fused_attention,
    kernel,
    rows_of,
)

SUBSAMPLING: Table = (("conv.0", "subsample/conv_0", CONV_2D), ("conv.2", "subsample/conv_1", CONV_2D))
LAYER: Table = (
    ("ff1.net.0", "feed_forward_1_norm", NORM),
    ("ff1.net.1", "feed_forward_1/in", LINEAR),
    ("ff1.net.4", "feed_forward_1/out", LINEAR),
    ("self_attn_norm", "attention_norm", NORM),
    ("self_attn", "attention", fused_attention(query=1, key=1, value=1)),
    ("conv_norm", "convolution_norm", NORM),
    ("conv.0", "convolution/in", POINTWISE_1D),
    ("conv.2", "convolution", DEPTHWISE),
    ("conv.3", "convolution/norm", BATCH_NORM),
    ("conv.5", "convolution/out", POINTWISE_1D),
    ("ff2.net.0", "feed_forward_2_norm", NORM),
    ("ff2.net.1", "feed_forward_2/in", LINEAR),
    ("ff2.net.4", "feed_forward_2/out", LINEAR),
    ("final_norm", "norm", NORM),
)
DECODER_LAYER: Table = (
    ("norm1", "attention_norm", NORM),
    ("self_attn", "attention", fused_attention(query=1, key_value=2)),
    ("norm2", "to_encoder_norm", NORM),
    ("multihead_attn", "to_encoder", fused_attention(query=1, key_value=2)),
    ("norm3", "norm", NORM),
    ("linear1", "in", LINEAR),
    ("linear2", "out", LINEAR),
)
PLAIN: Table = (("posterior_embed", "query/linear", kernel(LINEAR)),)
ENHANCED: Table = (
    ("query_projection.0", "query/linear", LINEAR),
    ("query_projection.1", "query/norm", NORM),
    ("boundary_head.0", "boundary/in", LINEAR),
    ("boundary_head.2", "boundary/out", LINEAR),
    ("token_embedding.weight", "draft/embedding", array()),
    ("refinement_projection", "refined_output", LINEAR),
)
BLANK = -100.0
"""Bias of the blank in an output layer that has no row for it in the file, so that the blank is never chosen."""
FIXED_SETTINGS = (
    "subsampling", "subsampling_factor", "positions", "scale_input", "causal", "contexts", "norm", "use_bias",
    "convolution_bias",
)  # fmt: skip
"""Settings of the encoder that must have the values of `Conformer.paraformer`."""


def rows(settings: Conformer, heads: Heads) -> list[Row]:
    """Returns the names of an encoder, of the Paraformer-v2 head and of the CTC heads.

    Raises:
        UserError: If the enhanced head reads another layer than in the Rust trainer.
    """
    project = ("proj", "embed", flattened(settings.subsampling_channels or settings.dim))
    table = rows_of([*SUBSAMPLING, project], "encoder.subsampling", "encoder")
    for layer in range(settings.num_layers):
        table += rows_of(LAYER, f"encoder.layers.{layer}", "encoder/layers", layer)
    for path, head in first_head(heads, ParaformerV2):
        if head.queries == "projection" and isinstance(head.decoder, TransformerDecoder):
            tap = Conformer.paraformer_tap(settings.num_layers)
            if head.enhanced and head.enhanced.tap != tap:
                raise UserError(
                    f"{path}: enhanced.tap is {head.enhanced.tap}, expected {tap} as in the Rust trainer's Paraformer "
                    f"of {settings.num_layers} layers: set it, encoder.taps and heads.{head.enhanced.shallow}.tap"
                )
            return table + _head_rows(path, head)
    return table + ctc_rows("ctc_projection", heads)


def _head_rows(path: str, head: ParaformerV2) -> list[Row]:
    """Returns the names of a Paraformer-v2 head and of the CTC heads that it reads."""
    ctc, decoders = {"ctc_projection": head.ctc}, {"decoder": ("decoder", head.decoder.num_layers)}
    if head.enhanced:
        ctc = {"shallow_ctc_projection": head.enhanced.shallow, "final_ctc_projection": head.ctc}
        decoders["refinement_decoder"] = ("refine", 1)
    table = rows_of([("decoder_projection", "output", LINEAR), *(ENHANCED if head.enhanced else PLAIN)], ours=path)
    for theirs, name in ctc.items():
        table += rows_of([(theirs, f"heads_{name}/output", LINEAR)])
    for theirs, (ours, num_layers) in decoders.items():
        for layer in range(num_layers):
            table += rows_of(DECODER_LAYER, f"{theirs}.layers.{layer}", f"{path}/{ours}/layers", layer)
    return table


def _with_blank(weights: NamedWeights) -> dict[str, np.ndarray]:
    """Returns weights in which the decoder's arrays of labels have as many rows as the CTC heads.

    Without a row for the blank, the last label, they get one that the search never chooses.
    """
    sizes = [len(values) for name, values in weights.items() if name.endswith("ctc_projection.bias")]
    found = dict(weights)
    for name, values in weights.items():
        if re.search(r"(decoder_projection|refinement_projection|token_embedding)\.\w+$", name) and (
            len(values) + 1 in sizes
        ):
            pads = [(0, 1)] + [(0, 0)] * (values.ndim - 1)
            found[name] = np.pad(values, pads, constant_values=BLANK if name.endswith("bias") else 0.0)
    return found


def _check(model: Model) -> None:
    """Raises a UserError if the Rust trainer's Paraformer computes something else with the model's weights."""
    theirs = Conformer.paraformer()
    assert isinstance(model.encoder, Conformer)
    for name in FIXED_SETTINGS:
        ours, expected = getattr(model.encoder, name), getattr(theirs, name)
        if ours != expected:
            raise UserError(f"encoder.{name} is {ours}, expected {expected} as in the Rust trainer's Paraformer")


FORMATS = (
    Format(
        "rust",
        "the Rust trainer (Paraformer-v2 of PositiveLoss)",
        Conformer,
        r"encoder\.layers\.0\.ff1\.net\.0\.weight$",
        rows,
        unused=r".*\.num_batches_tracked",
        versions=((r"^(module\.)?(model\.){0,2}", ""), (r"^final_ctc_projection\.", "ctc_projection.")),
        newest=_with_blank,
        check=_check,
    ),
)
