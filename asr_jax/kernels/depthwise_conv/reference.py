"""What a depthwise convolution is: XLA's grouped convolution with one channel per group."""

import string

import jax
from jaxtyping import Array, Float

Padding = tuple[tuple[int, int], ...]


def depthwise_conv_lax(
    x: Float[Array, "B *spatial D"], kernel: Float[Array, "*taps D"], *, padding: Padding
) -> Float[Array, "B *out D"]:
    """y[b, t, d] = Σ_k kernel[k, d] · x[b, t + k - padding[0][0], d] over one axis of time, likewise over several."""
    axes = string.digits[: kernel.ndim - 1]
    return jax.lax.conv_general_dilated(
        x,
        kernel[..., None, :],
        window_strides=(1,) * len(axes),
        padding=padding,
        dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
        feature_group_count=x.shape[-1],
    )
