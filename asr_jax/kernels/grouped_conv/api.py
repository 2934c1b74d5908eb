"""Convolution over time by groups of channels, with many taps, by the form that is fast on the device at hand."""

from functools import partial
from typing import Literal

import jax
from jaxtyping import Array, Float

from asr_jax.kernels.grouped_conv.reference import grouped_conv_lax
from asr_jax.kernels.grouped_conv.xla import by_frequency

Implementation = Literal["auto", "lax", "by_frequency"]


@partial(jax.jit, static_argnames="implementation")
def grouped_conv(
    x: Float[Array, "B T D"], kernel: Float[Array, "K C E"], *, implementation: Implementation = "auto"
) -> Float[Array, "B T E"]:
    """y[t] = Σ_k x[t + k - K // 2] W[k], x being 0 outside its frames, with D / C groups of channels: each group of C
    gives as large a share of E, by itself.

    `implementation`: "lax" is XLA's convolution, "by_frequency" products of spectra; "auto" takes "by_frequency" on
    CPUs, where the gradient of XLA's takes 14 times as long (BUILD_NOTES.md), and "lax" elsewhere (no other was
    measured there), when the program is compiled.

    Raises:
        ValueError: the channels are not in such groups.
    """
    groups, rest = divmod(x.shape[-1], kernel.shape[1])
    if rest or kernel.shape[2] % max(groups, 1):
        raise ValueError(
            f"x has {x.shape[-1]} channels and the kernel takes {kernel.shape[1]} to {kernel.shape[2]}: expected whole "
            "groups of channels"
        )
    forms = {"lax": partial(grouped_conv_lax, groups=groups), "by_frequency": partial(by_frequency, groups=groups)}
    if implementation == "auto":
        return jax.lax.platform_dependent(x, kernel, cpu=forms["by_frequency"], default=forms["lax"])
    return forms[implementation](x, kernel)
