"""The reference implementation of grouped convolution: XLA's convolution."""

import jax
from jaxtyping import Array, Float


def conv(x: Float[Array, "B T D"], kernel: Float[Array, "K C E"], *, groups: int) -> Float[Array, "B T E"]:
    """Computes `api.grouped_conv`."""
    taps = len(kernel)
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(1,),
        padding=((taps // 2, (taps - 1) // 2),),
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=groups,
    )
