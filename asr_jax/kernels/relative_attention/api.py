"""Self-attention with relative positions, with an implementation chosen for the device."""

from functools import partial

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from asr_jax.kernels.gradients import with_gradient
from asr_jax.kernels.implementations import Implementation, module_of
from asr_jax.kernels.relative_attention import reference


def relative_attention(
    query: Float[Array, "B T H C"],
    position_query: Float[Array, "B T H P"],
    key: Float[Array, "B T H C"],
    value: Float[Array, "B T H V"],
    offsets: Float[Array, "R H P"],
    lengths: Int[Array, " B"],
    *,
    scale: float,
    implementation: Implementation = "auto",
) -> Float[Array, "B T H V"]:
    """Computes self-attention whose scores have a term for the offset of the key from the query.

    The scores of query t and key s are scale · (query[t] · key[s] + position_query[t] · offsets[T - 1 + s - t]).

    Source: Dai et al. 2019, "Transformer-XL" (arXiv:1901.02860), section 3.3.

    Args:
        query: Queries of T frames and H heads.
        position_query: Queries of the positions. In Transformer-XL, both are the projected frames with biases u and v.
        offsets: Encodings of the R = 2T - 1 offsets of keys from queries, in ascending order.
        lengths: Number of valid keys of each row, at most T; larger ones count as T. Padding after them is not attended
            to.
        scale: Factor of the scores.
        implementation: "reference" keeps the scores of all queries and keys [B H T T] in memory; "xla" keeps the scores
            of one block of queries and recomputes them for the gradient; "triton" is for heads of at most 128 channels;
            "mosaic_tpu" is for at most 2,048 frames, of which the keys, values and offsets of a head fit into VMEM.
            "auto" is "reference".

    Returns:
        Means of the values, in their dtype. 0 in rows without valid keys.

    Raises:
        ValueError: If the number of offsets is wrong.
    """
    num_frames = query.shape[1]
    if len(offsets) != (expected := max(2 * num_frames - 1, 0)):
        raise ValueError(f"{len(offsets)} offsets for {num_frames} frames: expected {expected}")
    given = (query, position_query, key, value, offsets, jnp.minimum(lengths, num_frames))
    module = module_of(
        "relative_attention",
        implementation,
        *given[:5],
        portable=("xla", "reference"),
        reason_against=lambda name: _reason_against(name, *given[:5]),
    )
    if module is reference:  # its gradient is automatic
        return reference.attend(*given, scale=scale)
    function = with_gradient(partial(module.forward, scale=scale), partial(module.backward, scale=scale))
    return function(*given)


def _reason_against(implementation: str, *given: Array) -> str:
    """Returns the reason why a kernel cannot compute the attention of these arrays; empty if there is none."""
    query, position_query, _, value, _ = given
    widths = [each.shape[3] for each in (query, position_query, value)]
    if implementation == "triton":
        from asr_jax.kernels.relative_attention.triton import MOST_WIDTH

        return f"heads of widths {widths}: expected at most {MOST_WIDTH}" if max(widths) > MOST_WIDTH else ""
    from asr_jax.kernels.relative_attention.mosaic_tpu import MOST_FRAMES, vmem_bytes
    from asr_jax.kernels.tiles_tpu import too_large

    if (frames := query.shape[1]) > MOST_FRAMES:
        return f"{frames} frames: expected at most {MOST_FRAMES}"
    return too_large(vmem_bytes(*given), f"{frames} frames and heads of widths {widths} in {query.dtype}")
