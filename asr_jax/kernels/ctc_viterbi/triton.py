"""The most probable path of CTC for NVIDIA GPUs: one program per row, whose states stay in registers (Triton)."""

from typing import no_type_check

import jax
import jax.numpy as jnp
import triton
import triton.language as tl
from jaxtyping import Array, Int32, UInt8

from asr_jax.kernels import log_space
from asr_jax.kernels.ctc_viterbi import reference
from asr_jax.kernels.triton_calls import triton_call, warps_of

NEVER = tl.constexpr(log_space.NEVER)
STAY, FROM_BLANK, FROM_LABEL, BLANK_FROM_LABEL = (
    tl.constexpr(each)
    for each in (reference.STAY, reference.FROM_BLANK, reference.FROM_LABEL, reference.BLANK_FROM_LABEL)
)


def forward(
    log_probs: Array, lengths: Array, labels: Array, label_lengths: Array, *, blank_id: int
) -> tuple[reference.Last, UInt8[Array, "B T N"]]:
    """Computes `reference.forward`."""
    rows, frames, vocabulary = log_probs.shape
    columns = labels.shape[1] + 1
    symbols = jnp.pad(labels, ((0, 0), (1, 0)), constant_values=blank_id)
    width = triton.next_power_of_2(columns)
    states = jax.ShapeDtypeStruct((rows, columns), jnp.float32)
    blank, label, pointers = triton_call(
        log_probs,
        symbols,
        lengths,
        label_lengths,
        frames,
        vocabulary,
        columns,
        kernel=_forward_kernel,
        out=(states, states, jax.ShapeDtypeStruct((rows, frames, columns), jnp.uint8)),
        grid=(rows,),
        num_warps=warps_of(width),
        BLANK=blank_id,
        WIDTH=width,
    )
    return (blank, label), pointers


def backward(pointers: UInt8[Array, "B T N"], state: Int32[Array, " B"]) -> Int32[Array, "B T"]:
    """Computes `reference.backward`."""
    rows, frames, columns = pointers.shape
    (states,) = triton_call(
        pointers,
        state,
        frames,
        columns,
        kernel=_backward_kernel,
        out=(jax.ShapeDtypeStruct((rows, frames), jnp.int32),),
        grid=(rows,),
        num_warps=1,
    )
    return states


@triton.jit
@no_type_check  # Triton's arguments have no types
def _forward_kernel(
    log_probs,
    symbols,
    lengths,
    label_lengths,
    frames,
    vocabulary,
    columns,
    last_blank,
    last_label,
    pointers,
    BLANK: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """Computes the frames of one row. Column u has blank u and label u."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH)
    exists = column < columns
    used = (column > 0) & (column <= tl.load(label_lengths + row))
    before = tl.maximum(column - 1, 0)
    symbol = tl.load(symbols + row * columns + column, mask=exists, other=BLANK)
    is_new = (column > 1) & (symbol != tl.load(symbols + row * columns + before, mask=exists, other=BLANK))
    blank = tl.where(column == 0, 0.0, NEVER)
    label = tl.full([WIDTH], NEVER, tl.float32)
    place, out = log_probs + row * frames * vocabulary, pointers + row * frames * columns
    length = tl.load(lengths + row)
    for _ in range(length):
        of_blank = tl.maximum(tl.load(place + BLANK).to(tl.float32), NEVER)
        of_label = tl.maximum(tl.load(place + symbol, mask=used, other=NEVER).to(tl.float32), NEVER)
        step = tl.gather(blank, before, 0)
        skip = tl.where(is_new, tl.gather(label, before, 0), NEVER)
        moved = tl.maximum(step, skip)
        origin = tl.where(moved > label, tl.where(skip > step, FROM_LABEL, FROM_BLANK), STAY)
        pointer = tl.where(column > 0, origin, STAY) + tl.where(label > blank, BLANK_FROM_LABEL, STAY)
        tl.store(out + column, pointer.to(tl.uint8), mask=exists)
        entered = tl.where(column > 0, tl.maximum(label, moved), NEVER)
        blank = tl.maximum(blank, label) + of_blank
        label = entered + of_label
        best = tl.max(tl.maximum(blank, label), 0)
        blank = tl.maximum(blank - best, NEVER)
        label = tl.maximum(label - best, NEVER)
        place += vocabulary
        out += columns
    for _ in range(length, frames):
        tl.store(out + column, tl.full([WIDTH], STAY, tl.uint8), mask=exists)
        out += columns
    tl.store(last_blank + row * columns + column, blank, mask=exists)
    tl.store(last_label + row * columns + column, label, mask=exists)


@triton.jit
@no_type_check
def _backward_kernel(pointers, last, frames, columns, states):
    """Follows the back-pointers of one row."""
    row = tl.program_id(0).to(tl.int64)
    state = tl.load(last + row)
    for back in range(1, frames + 1):
        t = row * frames + frames - back
        tl.store(states + t, state)
        pointer = tl.load(pointers + t * columns + (state + 1) // 2).to(tl.int32)
        state -= tl.where(state % 2 == 1, pointer % BLANK_FROM_LABEL, pointer // BLANK_FROM_LABEL)
