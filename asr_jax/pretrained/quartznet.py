"""Weights and settings of NVIDIA's QuartzNet, Jasper and Citrinet: of DeepLearningExamples' checkpoints
(PyTorch/SpeechRecognition/QuartzNet at commit 729963dd) and of NeMo's `.nemo` files (at commit 8cfedd72).
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
from asr_jax.pretrained.nemo_files import nemo_config, nemo_encoder, nemo_front_end

NEVER_USED = r".*\.num_batches_tracked|preprocessor\..*"
"""Names of what is no weight: counts of batches, and the front-end's window and mel filters."""

TIME_CONV = transposed(2, 1, 0)
"""[out in taps] to [taps in out]."""
NORM = (("weight", "params", "gain"), ("bias", "params", "bias"))
RUNNING = (("running_mean", "batch_stats", "mean"), ("running_var", "batch_stats", "variance"))

ACTIVATIONS = {name: name for name in ("relu", "hardtanh", "selu", "silu", "gelu", "identity")} | {"swish": "silu"}


def claims(weights: NamedWeights) -> bool:
    """Whether weights have DeepLearningExamples' names."""
    return any(re.fullmatch(r"encoder\.layers\.\d+\.mconv\..*", name) for name in weights)


def claims_nemo(weights: NamedWeights) -> bool:
    """Whether weights have NeMo's names."""
    return any(re.fullmatch(r"encoder\.encoder\.\d+\.mconv\..*", name) for name in weights)


def find(
    weights: NamedWeights, settings: QuartzNet, *, ctc_head: str | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """As far as a checkpoint of either system has them: weights of a model by our paths, `params/encoder/…`,
    `batch_stats/encoder/…` and those of its CTC head (`ctc_head`, where it has one), and the names of all others,
    without those that are no weights.
    """
    names = {_nvidia(name): name for name in weights}
    found = find_params({ours: weights[name] for ours, name in names.items()}, rows(settings, ctc_head=ctc_head))
    return found.params, sorted(names[name] for name in found.left if not re.fullmatch(NEVER_USED, name))


def export_nvidia(variables: Any, settings: QuartzNet, *, ctc_head: str | None) -> dict[str, np.ndarray]:
    """`{"params": …, "batch_stats": …}` of a model, or one of them (or anything of their structure: gradients), by
    DeepLearningExamples' names.

    Raises: UserError where the model has other weights as well.
    """
    return export_params(variables, rows(settings, ctc_head=ctc_head))


def export_nemo(variables: Any, settings: QuartzNet, *, ctc_head: str | None) -> dict[str, np.ndarray]:
    """`export_nvidia` by NeMo's names."""
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
    """The table for a model of these sizes, by DeepLearningExamples' names."""
    found = [row for number, block in enumerate(settings.every_block()) for row in _block(settings, number, block)]
    if ctc_head:
        found.append(Row("decoder.layers.0.weight", f"params/{ctc_head}/output/kernel", POINTWISE_1D))
        found.append(Row("decoder.layers.0.bias", f"params/{ctc_head}/output/bias"))
    return found


def _block(settings: QuartzNet, number: int, block: ConvBlock) -> Iterator[Row]:
    theirs, ours = f"encoder.layers.{number}", f"encoder/block_{number}"
    # What a layer has there: convolutions, norm, where there are groups their shuffle, activation and dropout.
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
    if block.squeeze:  # in the place of the last layer's activation
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
    """Projections beside the layers of a block."""
    residuals = [block.residual for block in settings.every_block()[: number + 1]]
    if residuals[-1] != "dense":
        return int(residuals[-1] != "none")
    return next((after for after, residual in enumerate(reversed(residuals)) if residual != "dense"), len(residuals))


def _nvidia(name: str) -> str:
    """DeepLearningExamples' name for NeMo's, or for its own."""
    name = re.sub(r"^encoder\.encoder\.", "encoder.layers.", name)
    name = re.sub(r"^decoder\.decoder_layers\.", "decoder.layers.", name)
    return re.sub(r"\.conv\.weight$", ".weight", name)


def settings_of_nemo(config: Mapping[str, Any], **changes: Any) -> QuartzNet:
    """The encoder of a NeMo model by its `model_config.yaml` (`nemo_files.nemo_config`), with `changes`.

    Raises: UserError where it is none of convolutions, or has what is not known here.
    """
    encoder = config.get("encoder")
    if not isinstance(encoder, Mapping) or not isinstance(encoder.get("jasper"), list):
        raise UserError("model_config has no encoder.jasper: expected QuartzNet, Jasper or Citrinet of NeMo")
    return settings_of(encoder, **changes)


def settings_of(encoder: Mapping[str, Any], **changes: Any) -> QuartzNet:
    """The encoder by NeMo's section `encoder` or DeepLearningExamples' `quartznet.encoder`, with `changes`. Keys of
    blocks that neither system reads are passed over, as they do.

    Raises: UserError for what is not known here.
    """
    try:
        blocks = encoder["jasper"] if "jasper" in encoder else encoder["blocks"]
        mode, made = encoder.get("residual_mode", "add"), []
        for block in blocks:
            mode = block.get("residual_mode", mode)  # of NeMo's blocks, each has what the one before said
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
        raise UserError(f"the encoder's settings have no {error}: expected it of NVIDIA's QuartzNet") from error
    except (TypeError, ValueError) as error:
        raise UserError(f"the encoder's settings cannot be used here: {error}") from error


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
    """The norm, which NeMo says once and DeepLearningExamples of each block, and its groups."""
    kinds = {block.get("normalization", "batch") for block in blocks}
    groups = {block.get("norm_groups", 1) for block in blocks}
    if "jasper" in encoder:
        kinds, groups = {encoder.get("normalization_mode", "batch")}, {encoder.get("norm_groups", -1)}
    if len(kinds) > 1 or len(groups) > 1:
        raise UserError(f"blocks have the norms {sorted(kinds)} of {sorted(groups)} groups: expected the same of all")
    (kind,), (num,) = kinds, groups
    if kind == "group" and num == -1:
        return "instance", 1
    return kind, num if kind == "group" else 1


def _one(value: Any) -> int:
    return int(value[0] if isinstance(value, list | tuple) else value)


FORMATS = (
    Format("nemo", "NeMo's of a QuartzNet", QuartzNet, claims_nemo, find, export_nemo),
    Format(
        "deeplearningexamples", "NVIDIA's (DeepLearningExamples') of a QuartzNet", QuartzNet, claims, find,
        export_nvidia,
    ),
)  # fmt: skip

DESCRIPTIONS = (
    Description(
        "ConvASREncoder", lambda path: nemo_encoder(path) == "ConvASREncoder",
        lambda path, **changes: settings_of_nemo(nemo_config(path), **changes), nemo_front_end,
    ),
)  # fmt: skip
