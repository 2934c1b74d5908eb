"""Grouped convolution over time with many taps, with an implementation chosen for the device."""

from functools import partial
from typing import Literal

import jax
from jaxtyping import Array, Float

from asr_jax.core.shapes import is_static
from asr_jax.kernels.grouped_conv import reference, xla

Implementation = Literal["auto", "reference", "xla"]


@partial(jax.jit, static_argnames="implementation")
def grouped_conv(
    x: Float[Array, "B T D"], kernel: Float[Array, "K C E"], *, implementation: Implementation = "auto"
) -> Float[Array, "B T E"]:
    """Computes a grouped convolution over time.

    y[t] = Σ_k x[t + k - K // 2] W[k], where x is 0 outside of its frames. The D / C groups of input channels are
    independent: each group of C input channels has an equal share of the E output channels.

    Args:
        x: Input of T frames and D channels.
        kernel: Filters W of K taps.
        implementation: "reference" is XLA's convolution; "xla" is a product of spectra; "auto" is "xla" on CPUs, where
            the gradient of XLA's convolution takes 14 times as long (BUILD_NOTES.md), and "reference" on other
            platforms (no other implementation was measured there), chosen when the program is compiled.

    Raises:
        ValueError: If D is not a multiple of C, E is not a multiple of the number of groups, or the implementation does
            not exist.
    """
    groups, rest = divmod(x.shape[-1], kernel.shape[1])
    if rest or kernel.shape[2] % max(groups, 1):
        raise ValueError(
            f"x has {x.shape[-1]} channels, and the kernel has {kernel.shape[1]} input channels per group and "
            f"{kernel.shape[2]} output channels: expected whole groups of channels"
        )
    forms = {name: partial(module.conv, groups=groups) for name, module in (("reference", reference), ("xla", xla))}
    if implementation == "auto" and is_static(*x.shape):
        return jax.lax.platform_dependent(x, kernel, cpu=forms["xla"], default=forms["reference"])
    if implementation == "auto":
        return forms["reference"](x, kernel)  # the other one has a list of blocks
    if implementation not in forms:
        raise ValueError(f"implementation is {implementation!r}: expected auto, {' or '.join(forms)}")
    return forms[implementation](x, kernel)
