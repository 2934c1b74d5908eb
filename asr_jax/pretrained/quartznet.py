"""Weight names and settings of QuartzNet, Jasper and Citrinet in NVIDIA's DeepLearningExamples and NeMo.

Source: DeepLearningExamples' PyTorch/SpeechRecognition/QuartzNet at commit 729963dd; NeMo at commit 8cfedd72.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.models.quartznet import QuartzNet, odd_size
from asr_jax.nn.conv_block import ConvBlock, Residual
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
    transposed,
)
from asr_jax.pretrained.nemo_files import OF_OTHER_HEADS, nemo_config, nemo_encoder, nemo_front_end, nemo_heads
from asr_jax.pretrained.transducers import nemo_rows

NEVER_USED = r".*\.num_batches_tracked|preprocessor\..*"
"""Names that are ignored: batch counters, and the front-end's window and mel filters."""

TIME_CONV = transposed(2, 1, 0)
"""Converts [out in taps] to [taps in out]."""
NORM = (("weight", "params", "gain"), ("bias", "params", "bias"))
RUNNING = (("running_mean", "batch_stats", "mean"), ("running_var", "batch_stats", "variance"))

ACTIVATIONS = {name: name for name in ("relu", "hardtanh", "selu", "silu", "gelu", "identity")} | {"swish": "silu"}


def claims(weights: NamedWeights) -> bool:
    """Returns whether the weights have DeepLearningExamples' names."""
    return any(re.fullmatch(r"encoder\.layers\.\d+\.mconv\..*", name) for name in weights)


def claims_nemo(weights: NamedWeights) -> bool:
    """Returns whether the weights have NeMo's names."""
    return any(re.fullmatch(r"encoder\.encoder\.\d+\.mconv\..*", name) for name in weights)


def find(
    weights: NamedWeights, settings: QuartzNet, *, ctc_head: str | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the weights of a checkpoint of either system by parameter path, and the names that are left.

    Args:
        weights: Weights by NeMo's or DeepLearningExamples' names; parameters that they lack are not returned.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Returns:
        Parameters and running statistics (`params/encoder/…`, `batch_stats/encoder/…` and those of the CTC head), and
        the names of weights that the model does not have, except those that match `NEVER_USED`.
    """
    names = {_nvidia(name): name for name in weights}
    found = find_params({ours: weights[name] for ours, name in names.items()}, rows(settings, ctc_head=ctc_head))
    return found.params, sorted(names[name] for name in found.left if not re.fullmatch(NEVER_USED, name))


def export_nvidia(variables: Any, settings: QuartzNet, *, ctc_head: str | None) -> dict[str, np.ndarray]:
    """Returns the variables of a model under DeepLearningExamples' names.

    Args:
        variables: `{"params": …, "batch_stats": …}`, a part of it, or a tree of the same structure.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Raises:
        UserError: If a parameter has no name in DeepLearningExamples.
    """
    return export_params(variables, rows(settings, ctc_head=ctc_head))


def export_nemo(variables: Any, settings: QuartzNet, *, ctc_head: str | None) -> dict[str, np.ndarray]:
    """Returns the variables of a model under NeMo's names.

    Args:
        variables: `{"params": …, "batch_stats": …}`, a part of it, or a tree of the same structure.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Raises:
        UserError: If a parameter has no name in NeMo.
    """
    infix = ".conv" if settings.mask_padding else ""
    layouts = {row.theirs: row.layout for row in rows(settings, ctc_head=ctc_head)}
    convolutions = (TIME_CONV, DEPTHWISE, POINTWISE_1D)

    def renamed(name: str) -> str:
        if name.startswith("decoder."):
            return name.replace("decoder.layers", "decoder.decoder_layers")
        name = name.replace("encoder.layers", "encoder.encoder")
        in_encoder = layouts[name.replace("encoder.encoder", "encoder.layers")] in convolutions
        return f"{name.removesuffix('.weight')}{infix}.weight" if in_encoder else name

    exported = export_nvidia(variables, settings, ctc_head=ctc_head)
    return {renamed(name): array for name, array in exported.items()}


def rows(settings: QuartzNet, *, ctc_head: str | None) -> list[Row]:
    """Returns the table of DeepLearningExamples' names for a model; `ctc_head` is the path of its CTC head, or None."""
    found = [row for number, block in enumerate(settings.every_block()) for row in _block(settings, number, block)]
    if ctc_head:
        found.append(Row("decoder.layers.0.weight", f"params/{ctc_head}/output/kernel", POINTWISE_1D))
        found.append(Row("decoder.layers.0.bias", f"params/{ctc_head}/output/bias"))
    return found


def _block(settings: QuartzNet, number: int, block: ConvBlock) -> Iterator[Row]:
    theirs, ours = f"encoder.layers.{number}", f"encoder/block_{number}"
    # NVIDIA's modules of a layer: convolutions, norm, channel shuffle (only with groups), activation and dropout.
    place, num_modules = 0, (2 if block.separable else 1) + 1 + (block.groups > 1) + 2
    num_alike = block.strides[1:].count(1)
    for layer in range(block.repeat):
        name = "first" if layer == 0 else "layers" if layer <= num_alike else f"layer_{layer}"
        stacked = layer - 1 if name == "layers" else None
        here = f"{ours}/{name}"
        if block.separable:
            yield Row(f"{theirs}.mconv.{place}.weight", f"params/{here}/depthwise/kernel", DEPTHWISE, stacked)
            yield Row(f"{theirs}.mconv.{place + 1}.weight", f"params/{here}/pointwise/kernel", POINTWISE_1D, stacked)
        else:
            yield Row(f"{theirs}.mconv.{place}.weight", f"params/{here}/conv/kernel", TIME_CONV, stacked)
        norm = place + (2 if block.separable else 1)
        yield from _norm(settings, f"{theirs}.mconv.{norm}", f"{here}/norm", stacked)
        place += num_modules
    if block.squeeze:  # it has the number of the last layer's activation
        for module, name in ((0, "in"), (2, "out")):
            path = f"params/{ours}/squeeze/{name}/kernel"
            yield Row(f"{theirs}.mconv.{place - 2}.fc.{module}.weight", path, LINEAR)
    for side in range(_num_sides(settings, number)):
        there, here = f"{theirs}.res.{side}", f"{ours}/residual_{side}"
        yield Row(f"{there}.0.weight", f"params/{here}/pointwise/kernel", POINTWISE_1D)
        yield from _norm(settings, f"{there}.1", f"{here}/norm", None)


def _norm(settings: QuartzNet, theirs: str, ours: str, layer: int | None) -> Iterator[Row]:
    for name, collection, own in (*NORM, *(RUNNING if settings.norm.startswith("batch") else ())):
        yield Row(f"{theirs}.{name}", f"{collection}/{ours}/{own}", SAME, layer)


def _num_sides(settings: QuartzNet, number: int) -> int:
    """Returns the number of residual projections of a block."""
    residuals = [block.residual for block in settings.every_block()[: number + 1]]
    if residuals[-1] != "dense":
        return int(residuals[-1] != "none")
    return next((after for after, residual in enumerate(reversed(residuals)) if residual != "dense"), len(residuals))


def _nvidia(name: str) -> str:
    """Converts NeMo's name to DeepLearningExamples' name; names of DeepLearningExamples stay the same."""
    name = re.sub(r"^encoder\.encoder\.", "encoder.layers.", name)
    name = re.sub(r"^decoder\.decoder_layers\.", "decoder.layers.", name)
    return re.sub(r"\.conv\.weight$", ".weight", name)


def settings_of_nemo(config: Mapping[str, Any], **changes: Any) -> QuartzNet:
    """Returns the encoder settings in a NeMo model's `model_config.yaml`, with `changes` of their fields.

    Raises:
        UserError: If the encoder is not a QuartzNet, Jasper or Citrinet, or if a setting is not supported.
    """
    encoder = config.get("encoder")
    if not isinstance(encoder, Mapping) or not isinstance(encoder.get("jasper"), list):
        raise UserError("model_config has no list encoder.jasper: expected QuartzNet, Jasper or Citrinet of NeMo")
    return settings_of(encoder, **changes)


def settings_of(encoder: Mapping[str, Any], **changes: Any) -> QuartzNet:
    """Returns the encoder settings in an encoder section of either system, with `changes` of their fields.

    The section is `encoder` in NeMo and `quartznet.encoder` in DeepLearningExamples. Keys of blocks that neither system
    reads are ignored.

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
        given = {
            "num_mels": num_mels * encoder.get("frame_splicing", 1),
            "blocks": tuple(made),
            "activation": ACTIVATIONS[activation],
            "norm": norm,
            "norm_groups": groups,
            "mask_padding": mask_padding,
        }
        return QuartzNet(**{**given, **changes})
    except KeyError as error:
        raise UserError(f"the encoder's settings have no {error}: expected settings of NVIDIA's QuartzNet") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"the encoder's settings are not supported: {error}") from error


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


def _norm_of(encoder: Mapping[str, Any], blocks: list[Mapping[str, Any]]) -> tuple[str, int]:
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


FORMATS = (
    Format("nemo", "NeMo (QuartzNet)", QuartzNet, claims_nemo, find, export_nemo, transducer=nemo_rows),
    Format(
        "deeplearningexamples", "NVIDIA DeepLearningExamples (QuartzNet)", QuartzNet, claims, find,
        export_nvidia,
    ),
)  # fmt: skip

DESCRIPTIONS = (
    Description(
        "ConvASREncoder", lambda path: nemo_encoder(path) == "ConvASREncoder",
        lambda path, **changes: settings_of_nemo(nemo_config(path), **changes), nemo_front_end,
        nemo_heads, others=OF_OTHER_HEADS,
    ),
)  # fmt: skip
