"""Masks made from lengths, and arrays without their padding, with an implementation chosen for the device.

Each row has a length, its number of valid frames. Lengths may exceed the number of frames; all frames are valid then.
Padding may be NaN. A ValueError is raised if the number of lengths is wrong or a size of a mask is less than 1.
"""

from jaxtyping import Array, Bool, Float, Int

from asr_jax.kernels.implementations import Implementation, module_of


def mask_time(
    x: Float[Array, "B T C"], lengths: Int[Array, " N"], *, implementation: Implementation = "auto"
) -> Float[Array, "B T C"]:
    """Sets frames beyond each row's length to 0."""
    return _masked_sum(lengths, x, axis=1, implementation=implementation)


def mask_channel_time(
    x: Float[Array, "B C T"], lengths: Int[Array, " N"], *, implementation: Implementation = "auto"
) -> Float[Array, "B C T"]:
    """Sets frames beyond each row's length to 0; frames are along the last axis."""
    return _masked_sum(lengths, x, axis=2, implementation=implementation)


def residual_add_mask_time(
    residual: Float[Array, "B T C"],
    update: Float[Array, "_ _ _"],
    lengths: Int[Array, " N"],
    *,
    implementation: Implementation = "auto",
) -> Float[Array, "B T C"]:
    """Adds an update of the same shape and dtype to a residual, and sets frames beyond each row's length to 0."""
    if (residual.shape, residual.dtype) != (update.shape, update.dtype):
        raise ValueError(
            f"update has shape {update.shape} and dtype {update.dtype}: expected those of the residual, "
            f"{residual.shape} and {residual.dtype}"
        )
    return _masked_sum(lengths, residual, update, axis=1, implementation=implementation)


def sequence_mask(
    lengths: Int[Array, " B"], num_frames: int, *, implementation: Implementation = "auto"
) -> Bool[Array, "B T"]:
    """Returns a mask that is True for the first `lengths[b]` of T frames, as `core.batch.length_mask` does."""
    return _mask(lengths, 1, 1, num_frames, implementation)[:, 0, 0]


def padding_mask(
    lengths: Int[Array, " B"], num_frames: int, *, implementation: Implementation = "auto"
) -> Bool[Array, "B T"]:
    """Returns a mask that is True for the frames after the first `lengths[b]` of T frames."""
    return _mask(lengths, 1, 1, num_frames, implementation, inverted=True)[:, 0, 0]


def attention_mask(
    lengths: Int[Array, " B"], num_queries: int, num_keys: int, *, implementation: Implementation = "auto"
) -> Bool[Array, "B Q K"]:
    """Returns a mask that is True for valid queries with valid keys."""
    return _mask(lengths, 1, num_queries, num_keys, implementation)[:, 0]


def attention_mask_4d(
    lengths: Int[Array, " B"],
    num_heads: int,
    num_queries: int,
    num_keys: int,
    *,
    implementation: Implementation = "auto",
) -> Bool[Array, "B H Q K"]:
    """Returns a mask that is True for valid queries with valid keys, once for each head."""
    return _mask(lengths, num_heads, num_queries, num_keys, implementation)


def _masked_sum(lengths: Array, *arrays: Array, axis: int, implementation: Implementation) -> Array:
    if lengths.shape[0] != arrays[0].shape[0]:
        raise ValueError(f"{lengths.shape[0]} lengths for {arrays[0].shape[0]} rows: expected one for each row")
    return module_of("masking", implementation, arrays[0]).masked_sum(lengths, *arrays, axis=axis)


def _mask(
    lengths: Array, heads: int, queries: int, keys: int, implementation: Implementation, *, inverted: bool = False
) -> Array:
    if min(heads, queries, keys) < 1:
        raise ValueError(f"a mask of {heads} heads, {queries} queries and {keys} keys: expected at least 1 of each")
    return module_of("masking", implementation).mask(lengths, heads, queries, keys, inverted=inverted)
