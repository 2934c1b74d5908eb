"""Parts of Triton programs: products of matrices, and frames and channels that programs read and write.

The grid of programs of frames is: blocks of frames, blocks of channels, rows.
"""

from typing import no_type_check

import triton
import triton.language as tl

CHANNELS = tl.constexpr(64)
"""Number of channels of a program, a power of 2."""


@triton.jit
@no_type_check  # Triton's arguments have no types
def dot(a, b):
    """Product of matrices in float32."""
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
@no_type_check
def load_channels(array, width):
    """Loads the values of the program's channels, in float32.

    Args:
        array: Pointer to a vector.
    """
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    return tl.load(array + channel, mask=channel < width, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def store_channels(array, values, row, width):
    """Stores values of the program's channels in a row of a matrix.

    Args:
        array: Pointer to the matrix.
    """
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    tl.store(array + row * width + channel, values, mask=channel < width)


@triton.jit
@no_type_check
def _places(frame, size, width):
    """Places of frames of the program's row and channels, and which of them are in the row: [frames, CHANNELS]."""
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    place = (tl.program_id(2).to(tl.int64) * size + frame[:, None]) * width + channel[None, :]
    return place, ((frame >= 0) & (frame < size))[:, None] & (channel < width)[None, :]


@triton.jit
@no_type_check
def load_frames(array, frame, valid, size, width):
    """Loads frames of the program's row and channels in float32: [frames, CHANNELS]. Invalid ones are zeros.

    Args:
        array: Pointer to rows of frames.
        frame: Numbers of the frames. Those outside of the row are invalid.
        size: Number of frames of a row.
        width: Number of channels.
    """
    place, there = _places(frame, size, width)
    return tl.load(array + place, mask=valid[:, None] & there, other=0.0).to(tl.float32)


@triton.jit
@no_type_check
def store_frames(array, values, frame, size, width):
    """Stores frames of the program's row and channels. Those outside of the row are not stored.

    Args:
        array: Pointer to rows of frames.
        size: Number of frames of a row.
        width: Number of channels.
    """
    place, there = _places(frame, size, width)
    tl.store(array + place, values.to(array.dtype.element_ty), mask=there)
