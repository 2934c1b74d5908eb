"""Weight names and settings of QuartzNet, Jasper and Citrinet in NVIDIA's DeepLearningExamples and NeMo.

Source: DeepLearningExamples' PyTorch/SpeechRecognition/QuartzNet at commit 729963dd; NeMo at commit 8cfedd72.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.models.quartznet import QuartzNet, odd_size
from asr_jax.nn.quartznet.block import ConvBlock, Residual
from asr_jax.pretrained.base import Format, ctc_rows
from asr_jax.pretrained.keymap import (
    BATCH_NORM,
    CONV_1D,
    DEPTHWISE,
    GROUP_NORM,
    LINEAR,
    POINTWISE_1D,
    Kind,
    Row,
    kernel,
    rows_of,
)
from asr_jax.pretrained.nemo import UNUSED, nemo_description, nemo_format
from asr_jax.pretrained.nemo_files import VERSIONS
from asr_jax.pretrained.torch_writer import averaged_checkpoint

ACTIVATIONS: dict[str, Any] = {name: name for name in ("relu", "hardtanh", "selu", "silu", "gelu", "identity")} | {
    "swish": "silu"
}


def rows(settings: QuartzNet, blocks: str, conv: str = "") -> list[Row]:
    """Returns the names of the encoder's weights.

    Args:
        blocks: Name of the list of blocks.
        conv: Name of a convolution within its module.
    """
    norm: Kind = BATCH_NORM if settings.norm.startswith("batch") else GROUP_NORM
    table = list[Row]()
    for number, block in enumerate(settings.every_block()):
        theirs, ours = f"{blocks}.{number}", f"encoder/block_{number}"
        table += _block(block, theirs, ours, conv, norm)
        for side in range(_num_sides(settings, number)):
            modules = ((f"0{conv}", "pointwise", kernel(POINTWISE_1D)), ("1", "norm", norm))
            table += rows_of(modules, f"{theirs}.res.{side}", f"{ours}/residual_{side}")
    return table


def _block(block: ConvBlock, theirs: str, ours: str, conv: str, norm: Kind) -> list[Row]:
    # NVIDIA's modules of a layer: convolutions, norm, channel shuffle (only with groups), activation and dropout.
    convs = [("depthwise", DEPTHWISE), ("pointwise", POINTWISE_1D)] if block.separable else [("conv", CONV_1D)]
    num_modules = len(convs) + 1 + (block.groups > 1) + 2
    num_alike, table = block.strides[1:].count(1), list[Row]()
    for layer in range(block.repeat):
        name = "first" if layer == 0 else "layers" if layer <= num_alike else f"layer_{layer}"
        place = layer * num_modules
        modules = ((f"{place + more}{conv}", path, kernel(layout)) for more, (path, layout) in enumerate(convs))
        table += rows_of(
            [*modules, (f"{place + len(convs)}", "norm", norm)],
            f"{theirs}.mconv",
            f"{ours}/{name}",
            layer - 1 if name == "layers" else None,
        )
    if block.squeeze:  # it has the number of the last layer's activation
        place = block.repeat * num_modules - 2
        linear = (("0", "in", kernel(LINEAR)), ("2", "out", kernel(LINEAR)))
        table += rows_of(linear, f"{theirs}.mconv.{place}.fc", f"{ours}/squeeze")
    return table


def _num_sides(settings: QuartzNet, number: int) -> int:
    """Returns the number of residual projections of a block."""
    residuals = [block.residual for block in settings.every_block()[: number + 1]]
    if residuals[-1] != "dense":
        return int(residuals[-1] != "none")
    return next((after for after, residual in enumerate(reversed(residuals)) if residual != "dense"), len(residuals))


def settings_of(encoder: Mapping[str, Any], path: Path) -> QuartzNet:
    """Returns the encoder settings in an encoder section of either system.

    The section is `encoder` in NeMo and `quartznet.encoder` in DeepLearningExamples. Keys of blocks that neither system
    reads are ignored. `path` is the file that contains the section, for messages.

    Raises:
        UserError: If a setting is missing or not supported.
    """
    try:
        blocks = encoder["jasper"] if "jasper" in encoder else encoder["blocks"]
        mode, made = encoder.get("residual_mode", "add"), []
        for block in blocks:
            mode = block.get("residual_mode", mode)  # in NeMo, blocks without a mode have that of the block before
            made.append(_conv_block(block, mode))
        norm, groups = _norm_of(encoder, blocks)
        activation = encoder["activation"]
        if activation not in ACTIVATIONS:
            raise UserError(f"activation {activation!r}: expected one of {', '.join(ACTIVATIONS)}")
        num_mels = encoder["feat_in"] if "feat_in" in encoder else encoder["in_feats"]
        mask_padding = encoder.get("conv_mask", True) if "jasper" in encoder else encoder.get("use_conv_masks", False)
        return QuartzNet(
            num_mels=num_mels * encoder.get("frame_splicing", 1),
            blocks=tuple(made),
            activation=ACTIVATIONS[activation],
            norm=norm,
            norm_groups=groups,
            mask_padding=mask_padding,
        )
    except KeyError as error:
        raise UserError(
            f"{path}: the encoder's settings have no {error}: expected settings of NVIDIA's QuartzNet"
        ) from error
    except (TypeError, ValueError) as error:
        raise UserError(f"{path}: the encoder's settings are not supported: {error}") from error


def _conv_block(block: Mapping[str, Any], mode: str) -> ConvBlock:
    residual: Residual = "none"
    if block["residual"]:
        residual = "dense" if block.get("residual_dense") else "add" if mode in ("add", "stride_add") else "max"
    size = _one(block["kernel"] if "kernel" in block else block["kernel_size"])
    size = odd_size(size, float(block.get("kernel_size_factor", 1.0)))
    future = block.get("future_context", -1)
    return ConvBlock(
        width=block["filters"],
        kernel_size=size,
        repeat=block["repeat"],
        stride=_one(block["stride"]),
        stride_last=block.get("stride_last", False),
        dilation=_one(block["dilation"]),
        separable=block.get("separable", False),
        residual=residual,
        dropout=block["dropout"],
        groups=block.get("groups", 1),
        heads=max(block.get("heads", -1), 0),
        squeeze=block.get("se_reduction_ratio", 8) if block.get("se") else 0,
        squeeze_frames=max(block.get("se_context_size", -1), 0) if block.get("se") else 0,
        future_frames=future if 0 <= future < size else None,
    )


def _norm_of(encoder: Mapping[str, Any], blocks: list[Mapping[str, Any]]) -> tuple[Any, int]:
    """Returns the kind of norm and its number of groups.

    NeMo sets both once for the encoder, DeepLearningExamples sets them per block.
    """
    kinds = {block.get("normalization", "batch") for block in blocks}
    groups = {block.get("norm_groups", 1) for block in blocks}
    if "jasper" in encoder:
        kinds, groups = {encoder.get("normalization_mode", "batch")}, {encoder.get("norm_groups", -1)}
    if len(kinds) > 1 or len(groups) > 1:
        raise UserError(
            f"blocks have the norms {sorted(kinds)} with {sorted(groups)} groups: expected the same norm in all blocks"
        )
    (kind,), (num,) = kinds, groups
    if kind == "group" and num == -1:
        return "instance", 1
    return kind, num if kind == "group" else 1


def _one(value: Any) -> int:
    return int(value[0] if isinstance(value, list | tuple) else value)


NEMO = nemo_format(
    "QuartzNet",
    QuartzNet,
    r"^encoder\.encoder\.\d+\.mconv\.",
    lambda settings: rows(settings, "encoder.encoder", ".conv" if settings.mask_padding else ""),
)
NVIDIA = Format(
    names="deeplearningexamples",
    of="NVIDIA DeepLearningExamples (QuartzNet)",
    encoder=QuartzNet,
    mark=r"^encoder\.layers\.\d+\.mconv\.",
    rows=lambda settings, heads: rows(settings, "encoder.layers") + ctc_rows("decoder.layers.0", heads, POINTWISE_1D),
    unused=UNUSED,
    versions=VERSIONS,
    checkpoint=averaged_checkpoint,
)
FORMATS = (NEMO, NVIDIA)
DESCRIPTIONS = (nemo_description("ConvASREncoder", settings_of),)
