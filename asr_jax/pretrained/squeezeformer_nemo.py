"""Weight names and settings of Squeezeformer in NeMo (commit 8cfedd72)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.models.base import Model
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.pretrained.base import made
from asr_jax.pretrained.keymap import DEPTHWISE, LINEAR, NORM, POINTWISE_1D, Leaf, Row, rows_of
from asr_jax.pretrained.nemo import UNUSED, encoder_fields, layer_rows, nemo_description, nemo_format, subsampling_rows

SCALE = (Leaf("scale", "scale"), Leaf("bias", "bias"))
SCALES = (
    ("self_attn_scale", "attention_scale", SCALE),
    ("feed_forward1_scale", "feed_forward_1_scale", SCALE),
    ("conv_scale", "convolution_scale", SCALE),
    ("feed_forward2_scale", "feed_forward_2_scale", SCALE),
)
UNLEARNED = rf"encoder\.layers\.\d+\.({'|'.join(name for name, _, _ in SCALES)})\.(scale|bias)"
"""Names of scales, which NeMo also stores if they are not learned."""
REDUCTION = (
    ("time_reduce_layer.dw_conv", "reduce", DEPTHWISE),
    ("time_reduce_layer.pw_conv", "reduce/pointwise", POINTWISE_1D),
    ("time_recovery_layer", "recover/project", LINEAR),
)


def rows(settings: Squeezeformer) -> list[Row]:
    """Returns NeMo's names of the encoder's weights."""
    table, scales = list[Row](), SCALES if settings.adaptive_scale else ()
    for number, (stack, layer) in enumerate(settings.layer_places):
        table += layer_rows(settings, number, f"encoder/{stack}", layer, more=scales)
    table += subsampling_rows(settings, "embed/subsample", "embed/out")
    table += rows_of(
        [("pre_ln", "embed/norm", NORM), *(REDUCTION if settings.reduce_time else ())], "encoder", "encoder"
    )
    return table


def check(model: Model) -> None:
    """Checks that the model's convolutions are not gated.

    Raises:
        UserError: If they are.
    """
    if isinstance(model.encoder, Squeezeformer) and model.encoder.gated_convolution:
        raise UserError("gated_convolution is True: NeMo's Squeezeformer has no gate in its convolution modules")


def settings_of(given: Mapping[str, Any], path: Path) -> Squeezeformer:
    """Returns the settings of a Squeezeformer from the section `encoder` of a NeMo configuration.

    The dropout of position encodings is ignored.

    Raises:
        UserError: If a setting is missing or not supported.
    """
    fields = encoder_fields(given, path, subsampling="dw_striding")
    reduces = given.get("time_reduce_idx") is not None
    return made(
        path,
        Squeezeformer,
        **fields,
        reduce_time=reduces,
        reduce_at=given.get("time_reduce_idx"),
        recover_at=given.get("time_recovery_idx") if reduces else None,
        adaptive_scale=given.get("adaptive_scale", True),
        variant="nemo",
    )


NEMO = nemo_format(
    "Squeezeformer",
    Squeezeformer,
    r"^encoder\.pre_ln\.weight$",
    rows,
    unused=f"{UNUSED}|{UNLEARNED}",
    check=check,
)
FORMATS = (NEMO,)
DESCRIPTIONS = (nemo_description("SqueezeformerEncoder", settings_of),)
