"""Depthwise convolution over time, or over time and frequency, with an implementation chosen for the device."""

import importlib
from functools import partial
from typing import Any

import jax
from jaxtyping import Array, Float

from asr_jax.core.shapes import is_static
from asr_jax.kernels.depthwise_conv import reference, xla
from asr_jax.kernels.depthwise_conv.reference import Padding, Pair, Window
from asr_jax.kernels.gradients import of_inputs
from asr_jax.kernels.implementations import Implementation, preferred, selected


def depthwise_conv(
    x: Float[Array, "B T D"],
    kernel: Float[Array, "K D"],
    *,
    padding: Pair,
    stride: int = 1,
    dilation: int = 1,
    implementation: Implementation = "auto",
) -> Float[Array, "B S D"]:
    """Computes a depthwise convolution over time.

    y[b, t, d] = Σ_k kernel[k, d] · x[b, stride·t + dilation·k - padding[0], d], where x is 0 outside of its frames.

    Args:
        x: Input of T frames and D channels.
        kernel: Filters of K taps.
        padding: Left and right padding in frames: `((K - 1) // 2, K // 2)` keeps T frames, `(K - 1, 0)` is causal.
        implementation: "reference" is XLA's grouped convolution; "xla" is a sum of shifted products with its own
            derivative; "mosaic_tpu" is for a stride of 1 and at most 5,120 frames with padding. "auto" is a kernel only
            if it computes this convolution, otherwise "xla" on CPUs and "reference" on other platforms, chosen when the
            program is compiled.

    Returns:
        S = (T + sum(padding) - dilation·(K - 1) - 1) // stride + 1 frames.

    Raises:
        ValueError: If the numbers of channels differ, or there are fewer padded frames than the filter spans.
    """
    y = depthwise_conv_2d(
        x[:, :, None],
        kernel[:, None],
        padding=(padding, (0, 0)),
        strides=(stride, 1),
        dilations=(dilation, 1),
        implementation=implementation,
    )
    return y[:, :, 0]


def depthwise_conv_2d(
    x: Float[Array, "B T F C"],
    kernel: Float[Array, "K L D"],
    *,
    padding: Padding,
    strides: Pair = (1, 1),
    dilations: Pair = (1, 1),
    implementation: Implementation = "auto",
) -> Float[Array, "B S G D"]:
    """Computes a depthwise convolution over time and frequency.

    Args:
        x: Input of T frames, F bins and C channels. C is D, or 1: then all filters are applied to the one channel.
        kernel: D filters of K taps in time and L taps in frequency.
        padding: Left and right padding in time, and in frequency. Negative padding crops.
        strides: Strides in time and frequency.
        dilations: Dilations in time and frequency.
        implementation: As for `depthwise_conv`. "triton" and "mosaic_tpu" are for a single bin without padding.

    Raises:
        ValueError: If the numbers of channels differ, or there are fewer padded frames or bins than the filter spans.
    """
    if x.shape[-1] not in (1, kernel.shape[-1]):
        raise ValueError(f"x has {x.shape[-1]} channels but the kernel has {kernel.shape[-1]}")
    for frames, pads, taps, dilation in zip(x.shape[1:3], padding, kernel.shape, dilations, strict=False):
        if is_static(frames) and frames + sum(pads) < dilation * (taps - 1) + 1:
            raise ValueError(
                f"{frames} frames padded by {pads} are fewer than the span of the kernel's {taps} taps"
                + (f" with a dilation of {dilation}" if dilation > 1 else "")
            )
    window = Window(padding, strides, dilations)
    reason_against = partial(_reason_against, x=x, kernel=kernel, window=window)
    name: Any = implementation
    if name == "auto":
        found = preferred("depthwise_conv", x, reason_against=reason_against)
        name = "auto" if not found or reason_against(found) else found  # a model also has convolutions of two axes
    if name != "auto":
        selected("depthwise_conv", name, x, portable=("reference", "xla"), reason_against=reason_against)
    if x.size == 0:  # the other implementations need at least one row and one frame
        name = "reference"
    # All implementations have one derivative, which keeps only `x` and `kernel`.
    forward, backward = (partial(_called, function, name, window) for function in ("conv", "gradients"))
    return of_inputs(forward, backward)(x, kernel.astype(x.dtype))


def _reason_against(implementation: str, x: Array, kernel: Array, window: Window) -> str:
    """Returns the reason why a kernel for one axis cannot compute the convolution; empty if there is none."""
    (_, frames, bins, channels), (taps, bin_taps, width) = x.shape, kernel.shape
    if (bins, bin_taps, window.padding[1], channels) != (1, 1, (0, 0), width):
        return (
            f"x has {bins} bins padded by {window.padding[1]} and {channels} channels, and the kernel has {bin_taps} "
            f"taps in frequency: expected 1 bin without padding, {width} channels and 1 tap"
        )
    if implementation == "triton":
        return ""
    from asr_jax.kernels.depthwise_conv.mosaic_tpu import MOST_FRAMES

    if window.strides[0] != 1:
        return f"stride {window.strides[0]}: expected 1"
    padded = frames + max(sum(window.padding[0]), window.dilations[0] * (taps - 1))  # of x, and of dy for the gradient
    return f"{padded} frames with padding: expected at most {MOST_FRAMES}" if padded > MOST_FRAMES else ""


# jit, because a model has many convolutions of the same shape: their tens of operations are then traced once.
@partial(jax.jit, static_argnums=(0, 1, 2))
def _called(function: str, name: str, window: Window, *arrays: Array) -> Any:
    """Calls a function of an implementation, which all of them have."""

    def of(module: Any) -> Any:
        return partial(getattr(module, function), window=window)

    if name == "auto":
        return jax.lax.platform_dependent(*arrays, cpu=of(xla), default=of(reference))
    return of(importlib.import_module(f"asr_jax.kernels.depthwise_conv.{name}"))(*arrays)  # late, as in `module_of`
