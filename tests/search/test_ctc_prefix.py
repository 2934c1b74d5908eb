"""CTC scores of prefixes, compared with the sum over all paths."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.batch import Frames
from asr_jax.search.ctc_prefix import NEVER, empty_prefixes, extended, prefix_scores, without_padding
from tests.support import assert_close

BLANK, VOCAB = 2, 4


def texts_of(log_probs):
    """Returns the probability of every text, by enumeration of all paths."""
    found: dict[tuple[int, ...], float] = {}
    for path in itertools.product(range(VOCAB), repeat=len(log_probs)):
        text = tuple(label for label, _ in itertools.groupby(path) if label != BLANK)
        found[text] = found.get(text, 0.0) + float(np.exp(sum(log_probs[t, label] for t, label in enumerate(path))))
    return found


def prefix_log_prob(texts, prefix):
    return np.log(sum(p for text, p in texts.items() if text[: len(prefix)] == prefix) or np.exp(-700.0))


@pytest.mark.parametrize("end_id", [BLANK, 3])
def test_scores_are_sums_over_all_paths(end_id):
    rng = np.random.default_rng(0)
    log_probs = jax.nn.log_softmax(jnp.asarray(rng.normal(0, 2, (2, 6, VOCAB)), jnp.float32))
    lengths = jnp.array([5, 3])
    texts = [texts_of(np.asarray(log_probs[row, : int(lengths[row])], np.float64)) for row in range(2)]
    padded = jnp.where(jnp.arange(6)[None, :, None] < lengths[:, None, None], log_probs, jnp.nan)
    values = without_padding(Frames(padded, lengths), blank_id=BLANK)
    beams = [(), (0,), (0, 0), (0, 0, 1), (0, 1), (1,), (1, 0)]
    places = {beam: number for number, beam in enumerate(beams)}
    prefixes = empty_prefixes(values, width=1, blank_id=BLANK)
    states, extend = {(): prefixes}, jax.jit(extended, static_argnames="blank_id")
    for beam in sorted(places, key=len)[1:]:
        states[beam] = extend(states[beam[:-1]], values, jnp.full((2, 1), beam[-1]), blank_id=BLANK)
    together = jax.tree.map(lambda *each: jnp.concatenate(each, axis=1), *(states[beam] for beam in beams))
    scores = np.asarray(prefix_scores(together, values, blank_id=BLANK, end_id=end_id))
    for row, (beam, place) in itertools.product(range(2), places.items()):
        for label in range(VOCAB):
            if label == end_id:
                expected = np.log(texts[row].get(beam, np.exp(-700.0)))
            elif label == BLANK:
                expected = NEVER
            else:
                expected = prefix_log_prob(texts[row], (*beam, label))
            if expected > -80:
                assert_close(scores[row, place, label], expected, atol=2e-4)
            else:
                assert scores[row, place, label] < -60
