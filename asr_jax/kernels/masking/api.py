"""Masks made from lengths, and arrays without their padding, with an implementation chosen for the device.

Lengths may exceed the number of frames; all frames are valid then.
"""

from jaxtyping import Array, Bool, Float, Int

from asr_jax.kernels.implementations import Implementation, module_of


def mask_time(
    x: Float[Array, "B T C"], lengths: Int[Array, " N"], *, implementation: Implementation = "auto"
) -> Float[Array, "B T C"]:
    """Sets frames beyond each row's length, including NaN, to 0.

    Args:
        lengths: Number of valid frames of each row, N = B.
        implementation: An `Implementation`.

    Raises:
        ValueError: If the number of lengths is wrong, or the implementation cannot run here.
    """
    _check(lengths, x)
    found: Array = module_of("masking", implementation, given=x).masked(x, lengths, 1)
    return found


def mask_channel_time(
    x: Float[Array, "B C T"], lengths: Int[Array, " N"], *, implementation: Implementation = "auto"
) -> Float[Array, "B C T"]:
    """Sets frames beyond each row's length, including NaN, to 0; frames are along the last axis.

    Args:
        lengths: Number of valid frames of each row, N = B.
        implementation: An `Implementation`.

    Raises:
        ValueError: If the number of lengths is wrong, or the implementation cannot run here.
    """
    _check(lengths, x)
    found: Array = module_of("masking", implementation, given=x).masked(x, lengths, 2)
    return found


def residual_add_mask_time(
    residual: Float[Array, "B T C"],
    update: Float[Array, "_ _ _"],
    lengths: Int[Array, " N"],
    *,
    implementation: Implementation = "auto",
) -> Float[Array, "B T C"]:
    """Adds an update to a residual, and sets frames beyond each row's length, including NaN, to 0.

    Args:
        update: Frames of the same shape and dtype.
        lengths: Number of valid frames of each row, N = B.
        implementation: An `Implementation`.

    Raises:
        ValueError: If shapes or dtypes differ, the number of lengths is wrong, or the implementation cannot run here.
    """
    _check(lengths, residual)
    if (residual.shape, residual.dtype) != (update.shape, update.dtype):
        raise ValueError(
            f"update has shape {update.shape} and dtype {update.dtype}: expected those of the residual, "
            f"{residual.shape} and {residual.dtype}"
        )
    found: Array = module_of("masking", implementation, given=residual).masked_sum(residual, update, lengths)
    return found


def sequence_mask(
    lengths: Int[Array, " B"], num_frames: int, *, implementation: Implementation = "auto"
) -> Bool[Array, "B T"]:
    """Returns a mask that is True for the first `lengths[b]` of T frames, as `core.batch.length_mask` does.

    Args:
        lengths: Number of valid frames of each row.
        num_frames: Number T of frames.
        implementation: An `Implementation`.

    Raises:
        ValueError: If a size is less than 1, or the implementation cannot run here.
    """
    return _mask(lengths, 1, 1, num_frames, implementation)[:, 0, 0]


def padding_mask(
    lengths: Int[Array, " B"], num_frames: int, *, implementation: Implementation = "auto"
) -> Bool[Array, "B T"]:
    """Returns a mask that is True for the frames after the first `lengths[b]` of T frames.

    Args:
        lengths: Number of valid frames of each row.
        num_frames: Number T of frames.
        implementation: An `Implementation`.

    Raises:
        ValueError: If a size is less than 1, or the implementation cannot run here.
    """
    return _mask(lengths, 1, 1, num_frames, implementation, inverted=True)[:, 0, 0]


def attention_mask(
    lengths: Int[Array, " B"], num_queries: int, num_keys: int, *, implementation: Implementation = "auto"
) -> Bool[Array, "B Q K"]:
    """Returns a mask that is True for valid queries with valid keys.

    Args:
        lengths: Number of valid frames of each row.
        num_queries: Number Q of queries.
        num_keys: Number K of keys.
        implementation: An `Implementation`.

    Raises:
        ValueError: If a size is less than 1, or the implementation cannot run here.
    """
    return _mask(lengths, 1, num_queries, num_keys, implementation)[:, 0]


def attention_mask_4d(
    lengths: Int[Array, " B"],
    num_heads: int,
    num_queries: int,
    num_keys: int,
    *,
    implementation: Implementation = "auto",
) -> Bool[Array, "B H Q K"]:
    """Returns a mask that is True for valid queries with valid keys, once for each head.

    Args:
        lengths: Number of valid frames of each row.
        num_heads: Number H of heads.
        num_queries: Number Q of queries.
        num_keys: Number K of keys.
        implementation: An `Implementation`.

    Raises:
        ValueError: If a size is less than 1, or the implementation cannot run here.
    """
    return _mask(lengths, num_heads, num_queries, num_keys, implementation)


def _mask(
    lengths: Array, heads: int, queries: int, keys: int, implementation: Implementation, *, inverted: bool = False
) -> Array:
    if min(heads, queries, keys) < 1:
        raise ValueError(f"a mask of {heads} heads, {queries} queries and {keys} keys: expected at least 1 of each")
    found: Array = module_of("masking", implementation).mask(lengths, heads, queries, keys, inverted=inverted)
    return found


def _check(lengths: Array, x: Array) -> None:
    if len(lengths) != len(x):
        raise ValueError(f"{len(lengths)} lengths for {len(x)} rows: expected one for each row")
