"""Shift of attention scores from offsets to keys, with an implementation chosen for the device."""

from jaxtyping import Array, Float

from asr_jax.kernels.implementations import Implementation, module_of


def relative_shift(
    scores: Float[Array, "*rest T R"], *, implementation: Implementation = "auto"
) -> Float[Array, "*rest T S"]:
    """Converts scores by query t and offset s - t to scores by query t and key s, y[t, s] = x[t, T - 1 + s - t].

    The R = T + S - 1 offsets of S keys from T queries are in ascending order. In self-attention, R = 2T - 1.

    Source: Dai et al. 2019, "Transformer-XL" (arXiv:1901.02860), appendix B.

    Raises:
        ValueError: If there are less offsets than queries.
    """
    num_queries, num_offsets = scores.shape[-2:]
    if num_offsets < num_queries:
        raise ValueError(
            f"{num_offsets} offsets for {num_queries} queries: expected queries and keys together, minus 1"
        )
    return module_of("relative_shift", implementation, scores).relative_shift(scores)
