"""Label-synchronous search of an attention decoder on the device: greedy and beam, with a joint CTC score.

Source: Watanabe et al. 2017, "Hybrid CTC/Attention Architecture for End-to-End Speech Recognition", for the joint
score; ESPnet's espnet/nets/batch_beam_search.py, for `ctc_weight`, `label_bonus` (`penalty`) and
`max_labels_per_frame` (`maxlenratio`). Differs from: ESPnet, in which CTC scores only the labels that attention finds
likely, and which stops when no better end has appeared for some labels.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from asr_jax.core.batch import Frames
from asr_jax.core.settings import Finite, PositiveFloat, ShareBelow1, settings
from asr_jax.core.timed_tokens import TimedTokens
from asr_jax.kernels.log_space import NEVER
from asr_jax.search.base import BeamSize, GreedyOrBeam
from asr_jax.search.ctc_prefix import Prefixes, empty_prefixes, extended, prefix_scores, without_padding

POSSIBLE = NEVER / 2
"""Scores below this belong to hypotheses that do not exist."""


@settings
class LabelDecoding(BeamSize, GreedyOrBeam):
    """Settings of the search of an attention decoder. Scores are natural logarithms.

    The width of the beam includes hypotheses that have ended.
    """

    ctc_weight: ShareBelow1 = 0.0
    """Share of the CTC score in the score of a hypothesis. 0: attention alone. For CTC alone, --head names its head."""
    label_bonus: Finite = 0.0
    """Number that is added to the score for each label. Values above 0 favour long texts, values below 0 short ones."""
    max_labels_per_frame: PositiveFloat = 1.0
    """Largest number of labels for each frame of an utterance. A hypothesis of this length must end."""

    def __str__(self) -> str:
        parts = ["greedy" if self.kind == "greedy" else f"beam {self.beam_width}"]
        if self.ctc_weight:
            parts.append(f"CTC × {self.ctc_weight:g}")
        if self.label_bonus:
            parts.append(f"label bonus {self.label_bonus:g}")
        if self.max_labels_per_frame != 1:
            parts.append(f"at most {self.max_labels_per_frame:g} labels per frame")
        return ", ".join(parts)

    def digest(self) -> str:
        return f"attention {self}"

    @property
    def width(self) -> int:
        """Number of hypotheses of each row."""
        return 1 if self.kind == "greedy" else self.beam_width


class Step(NamedTuple):
    """Output of the decoder after one more label of each hypothesis."""

    log_probs: Float[Array, "B K V"]
    frames: Int[Array, "B K"]
    """Frame that the next label is likely at."""
    cache: Any
    """Tree of arrays with axes [L B K …], for all labels so far."""


class Ids(NamedTuple):
    """Special label ids."""

    begin: int
    end: int
    blank: int

    def is_label(self, vocab_size: int) -> Bool[Array, " V"]:
        """Returns which ids are labels of texts."""
        ids = jnp.arange(vocab_size)
        return (ids != self.begin) & (ids != self.end) & (ids != self.blank)


class LabelBeam(NamedTuple):
    """Hypotheses of all rows, best first."""

    place: Int[Array, ""]
    """Number of labels of hypotheses that have not ended."""
    labels: Int[Array, "B K U"]
    frames: Int[Array, "B K U"]
    log_probs: Float[Array, "B K U"]
    num: Int[Array, "B K"]
    last: Int[Array, "B K"]
    attention: Float[Array, "B K"]
    """Log-probability of the attention decoder."""
    scores: Float[Array, "B K"]
    has_ended: Bool[Array, "B K"]
    is_broken: Bool[Array, " B"]
    """Whether a score of the row was NaN."""
    prefixes: Prefixes | None
    cache: Any


def label_search(
    advance: Callable[[Any, Int[Array, "B K"], Int[Array, ""]], Step],
    cache: Any,
    lengths: Int[Array, " B"],
    num_frames: int,
    *,
    ctc: Frames | None,
    ids: Ids,
    decoding: LabelDecoding,
) -> TimedTokens:
    """Returns n-best lists with shapes [B N U], where U is the largest number of labels for `num_frames`.

    The score is (1 - ctc_weight) · attention + ctc_weight · CTC + label_bonus · labels, with the end. Both
    log-probabilities only fall with further labels, so that a row is complete when no hypothesis can enter its list any
    more. A row with a score of NaN has the score NaN and no tokens. `starts` and `ends` are those of `Step.frames`.

    Args:
        advance: Computes the decoder for the given labels, from the cache and the number of labels before them.
        cache: Cache before the label of the begin.
        lengths: Number of frames of each row.
        num_frames: Number of frames of the batch.
        ctc: Log-probabilities of CTC; None if `ctc_weight` is 0.
    """
    width, size = decoding.width, most_labels(num_frames, decoding)
    limits = jnp.floor(lengths * decoding.max_labels_per_frame).astype(jnp.int32)
    limits = jnp.clip(limits, jnp.minimum(lengths, 1), size)
    values = without_padding(ctc, blank_id=ids.blank) if ctc is not None else None

    def is_going(beam: LabelBeam) -> Bool[Array, ""]:
        return jnp.any(~_is_complete(beam, limits, decoding) & (beam.place <= limits))

    def step(beam: LabelBeam) -> LabelBeam:
        found = advance(beam.cache, beam.last, beam.place)
        return _next(beam, found, values, limits, ids=ids, decoding=decoding)

    rows = len(lengths)
    whole, one = jnp.zeros((rows, width, size), jnp.int32), jnp.zeros((rows, width), jnp.int32)
    first = jnp.where(jnp.arange(width)[None] == 0, jnp.zeros((rows, 1)), NEVER)
    prefixes = empty_prefixes(values, width=width, blank_id=ids.blank) if values is not None else None
    beam = LabelBeam(
        jnp.int32(0),
        whole,
        whole,
        jnp.zeros(whole.shape),
        one,
        jnp.full_like(one, ids.begin),
        first,
        first,
        one > 0,
        jnp.zeros(rows, bool),
        prefixes,
        cache,
    )
    return _listed(jax.lax.while_loop(is_going, step, beam), min(decoding.num_best, width))


def most_labels(num_frames: int, decoding: LabelDecoding) -> int:
    """Returns the largest number of labels of a row with `num_frames` frames."""
    return max(int(num_frames * decoding.max_labels_per_frame), 1)


def _is_complete(beam: LabelBeam, limits: Int[Array, " B"], decoding: LabelDecoding) -> Bool[Array, " B"]:
    """Returns whether the n-best list of each row is final."""
    num_best = min(decoding.num_best, decoding.width)
    ended = jax.lax.top_k(jnp.where(beam.has_ended, beam.scores, NEVER), num_best)[0][:, -1]
    going = jnp.max(jnp.where(beam.has_ended, NEVER, beam.scores), axis=1)
    possible = going + max(decoding.label_bonus, 0.0) * (limits - beam.place)
    return (going < POSSIBLE) | ((ended > POSSIBLE) & (ended >= possible))


def _next(
    beam: LabelBeam,
    found: Step,
    values: Float[Array, "B T V"] | None,
    limits: Int[Array, " B"],
    *,
    ids: Ids,
    decoding: LabelDecoding,
) -> LabelBeam:
    """Returns the best hypotheses after one more label.

    Args:
        beam: Hypotheses before.
        found: Output of the decoder for them.
        values: Log-probabilities of CTC (`ctc_prefix.without_padding`), or None.
        limits: Largest number of labels of each row.
        ids: Special label ids.
    """
    width, vocab_size = found.log_probs.shape[1:]
    weight, is_end = decoding.ctc_weight, (jnp.arange(vocab_size) == ids.end)[None, None]
    attention = beam.attention[..., None] + found.log_probs
    num = beam.num[..., None] + jnp.where(is_end, 0, 1)
    scores = (1 - weight) * attention + decoding.label_bonus * num
    if values is not None:
        assert beam.prefixes is not None
        scores += weight * prefix_scores(beam.prefixes, values, blank_id=ids.blank, end_id=ids.end)
    may_go_on = ids.is_label(vocab_size)[None, None] & (beam.place < limits)[:, None, None]
    going = (~beam.has_ended & (beam.scores > POSSIBLE))[..., None]
    is_broken = beam.is_broken | jnp.any(jnp.isnan(scores) & going, axis=(1, 2))
    scores = jnp.where(going & (may_go_on | is_end) & ~jnp.isnan(scores), scores, NEVER)
    scores = jnp.where(beam.has_ended[..., None] & is_end, beam.scores[..., None], scores)
    best, chosen = jax.lax.top_k(scores.reshape(len(scores), -1), width)
    parents, labels = chosen // vocab_size, (chosen % vocab_size).astype(jnp.int32)

    def of_parents(array: Array) -> Array:
        return jax.vmap(lambda of_row, parents: of_row[parents])(array, parents)  # keeps sharded rows on their devices

    had_ended = of_parents(beam.has_ended)
    is_new = ~had_ended & (labels != ids.end)
    log_probs = jax.vmap(lambda of_row, chosen: of_row.reshape(-1)[chosen])(found.log_probs, chosen)

    def written(old: Array, new: Array) -> Array:
        column = (jnp.arange(old.shape[2]) == beam.place)[None, None]
        return jnp.where(column & is_new[..., None], new[..., None], of_parents(old))

    prefixes = beam.prefixes
    if values is not None:
        prefixes = extended(jax.tree.map(of_parents, beam.prefixes), values, labels, blank_id=ids.blank)
    return LabelBeam(
        place=beam.place + 1,
        labels=written(beam.labels, labels),
        frames=written(beam.frames, of_parents(found.frames)),
        log_probs=written(beam.log_probs, log_probs),
        num=of_parents(beam.num) + is_new,
        last=labels,
        attention=of_parents(beam.attention) + jnp.where(had_ended, 0.0, log_probs),
        scores=best,
        has_ended=had_ended | (labels == ids.end),
        is_broken=is_broken,
        prefixes=prefixes,
        cache=jax.tree.map(jax.vmap(of_parents), found.cache),
    )


def _listed(beam: LabelBeam, num_best: int) -> TimedTokens:
    """Returns the best hypotheses that have ended."""
    scores, places = jax.lax.top_k(jnp.where(beam.has_ended, beam.scores, NEVER), num_best)

    def chosen(array: Array) -> Array:
        return jax.vmap(lambda of_row, places: of_row[places])(array, places)

    frames = jax.lax.cummax(chosen(beam.frames), axis=2)  # a later label does not begin earlier
    is_there = scores > POSSIBLE
    is_first = (jnp.arange(num_best) == 0)[None]
    lengths = jnp.where(is_there, chosen(beam.num), -1)
    lengths = jnp.where(beam.is_broken[:, None], jnp.where(is_first, 0, -1), lengths).astype(jnp.int32)
    scores = jnp.where(beam.is_broken[:, None], jnp.nan, jnp.where(is_there, scores, -jnp.inf))
    return TimedTokens(chosen(beam.labels), frames, frames + 1, chosen(beam.log_probs), lengths, scores)
