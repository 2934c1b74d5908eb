"""Depthwise convolution over time, or over time and frequency, with an implementation chosen for the device."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import jax
from jaxtyping import Array, Float

from asr_jax.kernels.depthwise_conv.reference import Padding, Pair, depthwise_conv_lax
from asr_jax.kernels.depthwise_conv.xla import shifted, shifted_gradients
from asr_jax.kernels.implementations import KERNELS, check_computes, selected

Implementation = Literal["auto", "lax", "shifted", "mosaic_tpu", "triton"]
INSTEAD = "lax or shifted"


@dataclass(frozen=True)
class Window:
    """Padding, strides and dilations of `depthwise_conv_2d`, for time and frequency."""

    padding: Padding
    """Left and right padding in time, and in frequency. Negative padding crops."""
    strides: Pair
    """Strides in time and frequency."""
    dilations: Pair
    """Dilations in time and frequency."""


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
        implementation: "lax" is XLA's grouped convolution; "shifted" is a sum of shifted products with its own
            derivative; "triton" is a kernel for NVIDIA GPUs, which needs the extra kernels; "mosaic_tpu" is a kernel
            for TPUs, for a stride of 1 and at most 5,120 frames with padding. "auto" is the one that the setting
            training.kernels selects, or the one of `implementations.FASTEST`, if it computes this convolution,
            otherwise "shifted" on CPUs and "lax" on other platforms, chosen when the program is compiled.

    Returns:
        S = (T + sum(padding) - dilation·(K - 1) - 1) // stride + 1 frames.

    Raises:
        ValueError: If the numbers of channels differ, there are fewer padded frames than the filter spans, or the
            implementation cannot run here.
    """
    y = depthwise_conv_2d(
        x[:, :, None], kernel[:, None], padding=(padding, (0, 0)), strides=(stride, 1), dilations=(dilation, 1),
        implementation=implementation,
    )  # fmt: skip
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
        ValueError: If the numbers of channels differ, there are fewer padded frames or bins than the filter spans, or
            the implementation cannot run here.
    """
    if x.shape[-1] not in (1, kernel.shape[-1]):
        raise ValueError(f"x has {x.shape[-1]} channels but the kernel has {kernel.shape[-1]}")
    for frames, pads, taps, dilation in zip(x.shape[1:3], padding, kernel.shape, dilations, strict=False):
        if frames + sum(pads) < dilation * (taps - 1) + 1:
            raise ValueError(
                f"{frames} frames padded by {pads} are fewer than the span of the kernel's {taps} taps"
                + (f" with a dilation of {dilation}" if dilation > 1 else "")
            )
    window = Window(padding, strides, dilations)
    if implementation == "auto":
        found: Any = selected("depthwise_conv", implementation, "auto", x)  # a model also has convolutions of two axes
        implementation = "auto" if _reason_against(found, x, kernel, window) else found
    if implementation not in ("auto", "lax", "shifted"):
        check_computes(implementation, INSTEAD, x, reason_against=lambda name: _reason_against(name, x, kernel, window))
    if x.size == 0:  # the other implementations need at least one row and one frame
        implementation = "lax"
    return _depthwise_conv(x, kernel.astype(x.dtype), window, implementation)


def _reason_against(implementation: str, x: Array, kernel: Array, window: Window) -> str:
    """Returns the reason why a kernel for one axis cannot compute the convolution; empty if there is none."""
    if implementation not in KERNELS:
        return ""
    (_, frames, bins, channels), (taps, bin_taps, width) = x.shape, kernel.shape
    if (bins, bin_taps, window.padding[1], channels) != (1, 1, (0, 0), width):
        return (
            f"x has {bins} bins padded by {window.padding[1]} and {channels} channels, and the kernel has {bin_taps} "
            f"taps in frequency: expected 1 bin without padding, {width} channels and 1 tap"
        )
    if implementation == "triton":
        return ""
    from asr_jax.kernels.depthwise_conv import mosaic_tpu

    if window.strides[0] != 1:
        return f"stride {window.strides[0]}: expected 1"
    padded = frames + max(sum(window.padding[0]), window.dilations[0] * (taps - 1))  # of x, and of dy for the gradient
    most = mosaic_tpu.MOST_FRAMES
    return f"{padded} frames with padding: expected at most {most}" if padded > most else ""


# All implementations share one custom derivative, which saves only `x` and `kernel`.
@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _depthwise_conv(x: Array, kernel: Array, window: Window, implementation: Implementation) -> Array:
    return _value(x, kernel, window, implementation)


def _forward(x: Array, kernel: Array, window: Window, implementation: Implementation) -> tuple[Array, Any]:
    return _value(x, kernel, window, implementation), (x, kernel)


def _backward(window: Window, implementation: Implementation, saved: Any, dy: Array) -> tuple[Array, Array]:
    return _gradients(*saved, dy, window, implementation)


_depthwise_conv.defvjp(_forward, _backward)


# jit, because a model has many convolutions of the same shape: their tens of operations are then traced once.
@partial(jax.jit, static_argnums=(2, 3))
def _value(x: Array, kernel: Array, window: Window, implementation: Implementation) -> Array:
    if implementation in KERNELS:
        return _kernel("conv", implementation, window)(x[:, :, 0], kernel[:, 0])[:, :, None]
    forms = {"lax": partial(depthwise_conv_lax, **vars(window)), "shifted": partial(shifted, **vars(window))}
    return _choose(forms, implementation, x, kernel)


@partial(jax.jit, static_argnums=(3, 4))
def _gradients(
    x: Array, kernel: Array, dy: Array, window: Window, implementation: Implementation
) -> tuple[Array, Array]:
    if implementation in KERNELS:
        dx, dk = _kernel("gradients", implementation, window)(x[:, :, 0], kernel[:, 0], dy[:, :, 0])
        return dx[:, :, None], dk[:, None]

    def gradients_lax(x: Array, kernel: Array, dy: Array) -> tuple[Array, Array]:
        (dx,) = jax.linear_transpose(lambda x: depthwise_conv_lax(x, kernel, **vars(window)), x)(dy)
        (dk,) = jax.linear_transpose(lambda kernel: depthwise_conv_lax(x, kernel, **vars(window)), kernel)(dy)
        return dx, dk

    forms = {"lax": gradients_lax, "shifted": partial(shifted_gradients, **vars(window))}
    return _choose(forms, implementation, x, kernel, dy)


def _kernel(name: str, implementation: Implementation, window: Window) -> Any:
    """Returns a function of the module of a kernel, for the window's first axis."""
    steps = {"padding": window.padding[0], "dilation": window.dilations[0]}
    if implementation == "triton":
        from asr_jax.kernels.depthwise_conv import triton

        return partial(getattr(triton, name), stride=window.strides[0], **steps)
    from asr_jax.kernels.depthwise_conv import mosaic_tpu  # imported late, because Pallas takes a second

    return partial(getattr(mosaic_tpu, name), **steps)


def _choose(forms: dict[str, Any], implementation: Implementation, *arrays: Array) -> Any:
    if implementation == "auto":
        return jax.lax.platform_dependent(*arrays, cpu=forms["shifted"], default=forms["lax"])
    return forms[implementation](*arrays)
