"""Products of matrices in Triton kernels."""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check  # Triton's arguments have no types
def dot(a, b):
    """Product of matrices in float32."""
    return tl.dot(a, b, input_precision="ieee")
