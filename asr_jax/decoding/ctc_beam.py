"""Prefix beam search over CTC outputs, batched on static shapes on the device. `ctc_beam_reference` says what it does.

Without a language model, all frames are one program. With one, the device does a frame at a time and tells the host
which prefixes grew; the host looks up in KenLM what the open words would add if they ended, each pair of a state and a
word once, and gives that to the next frame.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from asr_jax.core.batch import AnyArray
from asr_jax.decoding.ctc_beam_step import NEVER, Beam, Step, start, step
from asr_jax.decoding.ctc_frames import Frames, frames_of
from asr_jax.decoding.hypotheses import Ending, Hypothesis, Search, finish
from asr_jax.decoding.spelling import Spelling
from asr_jax.decoding.word_scores import WordScores
from asr_jax.decoding.word_states import WordStates
from asr_jax.decoding.word_tables import WordTables, open_scores, word_tables


class CTCBeamSearch:
    """A search for the n-best texts of batches, with its tables made once."""

    def __init__(self, spelling: Spelling, *, search: Search, scores: WordScores | None = None) -> None:
        """Raises: ValueError for what only the reference does: prefixes that are equal by their texts' pieces, and a
        language model of labels."""
        if search.same == "text" and any(o and text for text, o in zip(spelling.texts, spelling.opens, strict=True)):
            raise ValueError("same='text' takes characters: with pieces, expected 'borders' or 'labels'")
        if scores and scores.settings.unit == "labels":
            raise ValueError("unit='labels': expected a language model of words, or the n-best list re-ranked")
        self._spelling, self._search, self._scores = spelling, search, scores
        self._tables = word_tables(spelling, scores) if scores else None
        self._states = WordStates(spelling, scores) if scores and scores.model else None
        border = -1 if spelling.border is None else spelling.border
        self._fixed: dict[str, Any] = {"search": search, "border": border, "blank_id": spelling.blank_id}

    def __call__(self, log_probs: Float[AnyArray, "B T V"], lengths: Int[AnyArray, " B"]) -> list[list[Hypothesis]]:
        """The n-best texts of each row, the best first: those of `ctc_beam_reference.beam_search`, in float32."""
        log_probs = jnp.asarray(log_probs, jnp.float32)
        if log_probs.shape[1] == 0:
            log_probs = jnp.zeros((len(log_probs), 1, log_probs.shape[2]))
        frames = frames_of(
            log_probs, jnp.asarray(lengths), search=self._search, blank_id=self._spelling.blank_id,
            are_all_looked_at=bool(self._scores and self._scores.lexicon),
        )  # fmt: skip
        if self._states is None:
            beams, steps = _search(frames, self._tables, **self._fixed)
        else:
            beams, steps = self._with_language_model(frames, self._states)
        blank_id = self._spelling.blank_id
        ended = jax.device_get(_ended(frames, beams, steps, self._tables, blank_id=blank_id))
        best, skipped = (np.asarray(each, np.float64) for each in (steps.best, frames.skipped))
        offsets = best.sum(0) + skipped.sum(1)
        rows = zip(*ended, offsets.tolist(), np.asarray(lengths).tolist(), strict=True)
        return [finish(_endings(*row), self._spelling, search=self._search, scores=self._scores) for row in rows]

    def _with_language_model(self, frames: Frames, states: WordStates) -> tuple[Beam, Step]:
        states.begin(len(frames.num), self._search.beam_width)
        beams, steps = _begin(frames, **self._fixed)
        order, num, does_word_begin = jax.device_get((frames.order, frames.num, _does_word_begin(frames, self._tables)))
        does_word_begin = np.take_along_axis(does_word_begin, order, axis=1)
        for i in range(num.max() + 1):
            closing = states.closing(does_word_begin[:, min(i, order.shape[1] - 1)] & (i < num))
            beams, steps, source, token = _advance(i, beams, steps, frames, self._tables, closing, **self._fixed)
            states.follow(np.asarray(source), np.asarray(token))
        return beams, steps


@jax.jit
def _does_word_begin(frames: Frames, tables: WordTables) -> Array:
    return ((frames.growing > NEVER) & tables.opens).any(-1)


FIXED = ("search", "border", "blank_id")


def _begin(frames: Frames, *, search: Search, border: int, blank_id: int) -> tuple[Beam, Step]:
    """A beam for each row, and room for what is found at each frame."""
    num_rows, num_frames, vocab_size = frames.growing.shape
    beam = start(search, max_labels=num_frames, vocab_size=vocab_size, border=border)
    shape = (num_frames + 1, num_rows, search.beam_width)
    code = jnp.int16 if search.beam_width < 2**14 else jnp.int32
    unmoved = jnp.arange(2 * search.beam_width, dtype=code).reshape(-1, 2)
    beams = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (num_rows, *leaf.shape)), beam)
    return beams, Step(
        back=jnp.broadcast_to(unmoved, (*shape, 2)), last=jnp.zeros(shape, beam.labels.dtype), best=jnp.zeros(shape[:2])
    )


def _advance_all(
    i: Any, beams: Beam, steps: Step, frames: Frames, tables: Any, closing: Any, *, search: Search, border: int,
    blank_id: int,
) -> tuple[Beam, Step, Array, Array]:  # fmt: skip
    advance = functools.partial(step, search=search, border=border, blank_id=blank_id, tables=tables)
    beams, found, source, token = jax.vmap(advance)(beams, frames.at(i), closing=closing)
    steps = jax.tree.map(lambda all_steps, one: all_steps.at[i].set(one.astype(all_steps.dtype)), steps, found)
    return beams, steps, source, token


_advance = jax.jit(_advance_all, static_argnames=FIXED, donate_argnums=(1, 2))


@functools.partial(jax.jit, static_argnames=FIXED)
def _search(frames: Frames, tables: Any, *, search: Search, border: int, blank_id: int) -> tuple[Beam, Step]:
    fixed: dict[str, Any] = {"search": search, "border": border, "blank_id": blank_id}

    def body(i: Array, carry: tuple[Beam, Step]) -> tuple[Beam, Step]:
        beams, steps = carry
        closing = None if tables is None else tables.closing[beams.node]
        return _advance_all(i, beams, steps, frames, tables, closing, **fixed)[:2]

    return jax.lax.fori_loop(0, frames.num.max() + 1, body, _begin(frames, **fixed))


@functools.partial(jax.jit, static_argnames="blank_id")
def _ended(
    frames: Frames, beams: Beam, steps: Step, tables: WordTables | None, *, blank_id: int
) -> tuple[Array, Array, Array]:
    """Of every slot's two endings [B 2W]: log-probabilities, scores, and paths [B 2W T]."""
    logps = jnp.stack([beams.blank, beams.label], axis=-1)
    extra = beams.added + (0.0 if tables is None else open_scores(tables, beams.node, beams.num_letters))
    num_rows, width = beams.blank.shape
    endings = jnp.broadcast_to(jnp.arange(2 * width), (num_rows, 2 * width))

    def back(ending: Array, found: Step) -> tuple[Array, Array]:
        label = jnp.take_along_axis(found.last, ending // 2, axis=1)
        before = jnp.take_along_axis(found.back.reshape(num_rows, -1), ending, axis=1)
        return before.astype(ending.dtype), jnp.where(ending % 2 == 1, label, blank_id)

    _, symbols = jax.lax.scan(back, endings, steps, reverse=True)
    place = jnp.cumsum(frames.is_looked_at, axis=1) - 1
    paths = jnp.take_along_axis(symbols.transpose(1, 2, 0), place[:, None], axis=2)
    paths = jnp.where(frames.is_looked_at[:, None], paths, blank_id)
    return logps.reshape(num_rows, -1), (logps + extra[..., None]).reshape(num_rows, -1), paths


def _endings(logps: Any, scores: Any, paths: Any, offset: float, length: int) -> list[Ending]:
    """What one row ended with, the best first."""
    order = np.argsort(-scores, kind="stable")
    return [Ending(float(logps[i]) + offset, paths[i, :length]) for i in order if logps[i] > NEVER]
