"""Downsampling by means of pairs of frames with learned weights, with an implementation chosen for the device."""

from jaxtyping import Array, Float, Int

from asr_jax.kernels.implementations import Implementation, module_of
from asr_jax.kernels.pairwise_downsample.reference import group_weights


def pairwise_downsample(
    x: Float[Array, "B T D"],
    logits: Float[Array, " G"],
    lengths: Int[Array, " N"],
    *,
    implementation: Implementation = "auto",
) -> Float[Array, "B S D"]:
    """Replaces each group of G frames (a pair, G = 2) by the mean of its valid frames, with learned weights.

    The weights are the softmax of the logits, divided by their sum over the valid frames of the group. Pairs agree with
    `nn.zipformer.subsampling.Downsample` on valid frames; larger groups do not, because that layer fills them with
    copies of the last valid frame.

    Source: `pairwise_downsample` in rust-asr's src/cubecl_kernels.rs.

    Args:
        logits: Logits of the frames of a group.
        lengths: Number of valid frames of each row, N = B.

    Returns:
        S = ceil(T / G) frames in the dtype of `x`, of which ceil(lengths / G) are valid; the others are 0.

    Raises:
        ValueError: If there are no logits, or the number of lengths is wrong.
    """
    if not len(logits):
        raise ValueError("there are 0 logits: expected one for each frame of a group")
    if lengths.shape[0] != x.shape[0]:
        raise ValueError(f"{lengths.shape[0]} lengths for {x.shape[0]} rows: expected one for each row")
    weights = group_weights(logits, lengths, x.shape[1])
    return module_of("pairwise_downsample", implementation, x).weighted_sums(x, weights)
