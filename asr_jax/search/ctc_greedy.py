"""Greedy CTC decoding: the best symbol of every frame on the device, its text on the host."""

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32

from asr_jax.core.batch import length_mask
from asr_jax.search.hypotheses import Hypothesis, WordSpan
from asr_jax.text.spelling import Spelling


def best_path(
    log_probs: Float[Array, "B T V"], lengths: Int[Array, " B"], blank_id: int
) -> tuple[Int32[Array, "B T"], Float[Array, "B T"]]:
    """The likeliest symbol of each frame and its log-probability; the blank and 0 beyond a row's length.

    Shapes are static, so this may be jitted with the model and its batch sharded.
    """
    is_there = length_mask(lengths, log_probs.shape[1])
    path = jnp.where(is_there, jnp.argmax(log_probs, axis=-1), blank_id)
    return path.astype(jnp.int32), jnp.where(is_there, jnp.max(log_probs, axis=-1), 0.0)


def greedy_hypothesis(
    path: Int[np.ndarray, " T"],
    logps: Float[np.ndarray, " T"],
    spelling: Spelling,
    *,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> Hypothesis:
    """The text of a row's best path: repeats merged, blanks left out. `decode`: text of labels, for vocabularies whose
    labels do not spell it one by one (bytes of characters)."""
    labels = spelling.collapse(path)
    finished, part = spelling.words(labels)
    texts = (*finished, part) if part else finished
    spans = spelling.spans(path, logps)
    if decode and len(whole := decode(labels).split()) == len(spans):
        texts = tuple(whole)
    words = tuple(WordSpan(text, *span) for text, span in zip(texts, spans, strict=True))
    return Hypothesis(words, labels, ctc_score=float(logps.sum(dtype=np.float64)), lm_score=0.0)
