"""What a convolution by groups is: XLA's."""

import jax
from jaxtyping import Array, Float


def grouped_conv_lax(x: Float[Array, "B T D"], kernel: Float[Array, "K C E"], *, groups: int) -> Float[Array, "B T E"]:
    """y[t] = Σ_k x[t + k - K // 2] W[k], each group of channels by itself, x being 0 outside its frames."""
    taps = len(kernel)
    return jax.lax.conv_general_dilated(
        x,
        kernel,
        window_strides=(1,),
        padding=((taps // 2, (taps - 1) // 2),),
        dimension_numbers=("NWC", "WIO", "NWC"),
        feature_group_count=groups,
    )
