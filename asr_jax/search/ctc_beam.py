"""Batched CTC prefix beam search with static shapes on the device.

`tests/search/ctc_beam_reference.py` has the same algorithm in plain Python.

Without a language model, one program processes all frames. With one, the device processes one frame per call and
returns the prefixes that were extended. The host then computes with KenLM by how much each open word would change the
score if it ended, and passes these values to the next frame. It looks up each pair of state and word once, and only
before frames in which a word may begin.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from asr_jax.core.batch import AnyArray
from asr_jax.core.devices import local_devices
from asr_jax.search.ctc_beam_state import NEVER, BackPointers, Moves, PrefixBeam, start
from asr_jax.search.ctc_beam_step import BLANK, step
from asr_jax.search.ctc_frames import SearchedFrames, frames_of
from asr_jax.search.hypotheses import Ending, Hypothesis, Search, finish
from asr_jax.search.word_scores import WordScores
from asr_jax.search.word_states import WordStates
from asr_jax.search.word_tables import WordTables, word_tables
from asr_jax.text.spelling import Spelling

FIXED = ("search", "border", "blank_id")


class CTCBeamSearch:
    """N-best search for batches. Each shape of a batch is compiled once.

    With T frames, V labels and beam width W, a row needs about 13 T V + 26 T W + 6 W² + 2 W V bytes on the device,
    including the log-probabilities: 1.2 MB for 400 frames, 29 labels and a beam of 100. An object must not be used by
    several threads at once.
    """

    def __init__(self, spelling: Spelling, *, search: Search, scores: WordScores | None = None) -> None:
        """Builds the tables of a search.

        Args:
            scores: Language model, hot words and lexicon. None: no fusion.

        Raises:
            ValueError: If the language model is of labels, which this search does not support.
        """
        if scores and scores.settings.unit == "labels":
            raise ValueError("unit='labels': expected a language model of words")
        self.spelling, self._search, self.word_scores = spelling, search, scores
        self.tables = word_tables(spelling, scores) if scores else None
        self._states = WordStates(spelling, scores) if scores and scores.model else None
        border = -1 if spelling.border is None else spelling.border
        self.fixed: dict[str, Any] = {"search": search, "border": border, "blank_id": spelling.blank_id}

    def __call__(self, log_probs: Float[AnyArray, "B T V"], lengths: Int[AnyArray, " B"]) -> list[list[Hypothesis]]:
        """Returns the n-best list of each row, best first. Scores are in float32."""
        frames = self.frames(log_probs, lengths)
        if self._states is None:
            beams, found = _search(frames, self.tables, **self.fixed)
        else:
            beams, found = self._search_with_host(frames, self._states)
        endings, scores, paths, logps = jax.device_get(_ended(frames, beams, found, blank_id=self.spelling.blank_id))
        best, skipped = (np.asarray(each, np.float64) for each in (found.best, frames.skipped))
        totals = (best.sum(0) + skipped.sum(1))[:, None] + endings
        found = []
        for row, length in enumerate(np.asarray(lengths).tolist()):
            of_row = zip(totals[row].tolist(), paths[row, :, :length], logps[row, :, :length], strict=True)
            found.append(self.finished([Ending(*each) for each in of_row], scores[row]))
        return found

    def frames(self, log_probs: Float[AnyArray, "B T V"], lengths: Int[AnyArray, " B"]) -> SearchedFrames:
        """Returns the frames and labels that are considered."""
        # Arrays on other devices would be compiled for again.
        log_probs, num = jax.device_put((log_probs, lengths), local_devices()[0])
        log_probs = log_probs.astype(jnp.float32)
        if log_probs.shape[1] == 0:
            log_probs = jnp.zeros((len(log_probs), 1, log_probs.shape[2]))
        blank_id, are_all = self.spelling.blank_id, bool(self.word_scores and self.word_scores.lexicon)
        return frames_of(log_probs, num, search=self._search, blank_id=blank_id, are_all_looked_at=are_all)

    def finished(self, endings: Sequence[Ending], scores: Float[np.ndarray, " E"]) -> list[Hypothesis]:
        """Returns the n-best list of one row.

        Args:
            endings: Final paths. They do not count if their log-probability is minus infinity or NaN.
            scores: Scores that order them.
        """
        order = np.argsort(-scores, kind="stable").tolist()
        best = [endings[i] for i in order if endings[i].log_prob > -math.inf]
        return finish(best, self.spelling, search=self._search, scores=self.word_scores)

    @property
    def scores_on_host(self) -> bool:
        """Whether the host looks up scores between the frames."""
        return self._states is not None

    def _search_with_host(self, frames: SearchedFrames, states: WordStates) -> tuple[PrefixBeam, BackPointers]:
        """Searches with the language model on the host."""
        states.begin(len(frames.num), self._search.beam_width)
        # Arrays that follow are committed to this device. If the first ones were not, they would compile a program.
        beams, found = jax.device_put(_begin(frames, **self.fixed), local_devices()[0])
        may_begin = np.asarray(_may_word_begin(frames, self.tables))
        for i in range(int(frames.num.max()) + 1):
            closing = states.closing(may_begin[:, i])
            beams, found, moves = _advance(i, beams, found, frames, self.tables, closing, **self.fixed)
            states.follow(np.asarray(moves.source), np.asarray(moves.token))
        return beams, found


def _begin(frames: SearchedFrames, *, search: Search, border: int, blank_id: int) -> tuple[PrefixBeam, BackPointers]:
    """Returns the initial beam of each row, and arrays for the results of all frames with identity back-pointers."""
    num_rows, num_frames, vocab_size = frames.growing.shape
    beam = start(search, border=border)
    steps, width = num_frames + 1, search.beam_width
    unmoved = jnp.arange(2 * width, dtype=jnp.int16 if width < 2**14 else jnp.int32).reshape(width, 2)
    found = BackPointers(
        back=jnp.tile(unmoved, (steps, num_rows, 1, 1)),
        last=jnp.zeros((steps, num_rows, width), jnp.int16 if vocab_size < 2**15 else jnp.int32),
        best=jnp.zeros((steps, num_rows)),
    )
    return jax.tree.map(lambda leaf: jnp.stack([leaf] * num_rows), beam), found


@functools.partial(jax.jit, static_argnames=FIXED, donate_argnames=("beams", "found"))
def _advance(
    i: Int[AnyArray, ""] | int,
    beams: PrefixBeam,
    found: BackPointers,
    frames: SearchedFrames,
    tables: WordTables | None,
    closing: Float[AnyArray, "B W"] | None,
    *,
    search: Search,
    border: int,
    blank_id: int,
) -> tuple[PrefixBeam, BackPointers, Moves]:
    """Processes the i-th considered frame of every row."""
    advance = functools.partial(step, search=search, border=border, blank_id=blank_id, tables=tables)
    beams, new, moves = jax.vmap(advance)(beams, frames.at(i), closing=closing)
    return beams, jax.tree.map(lambda old, one: old.at[i].set(one.astype(old.dtype)), found, new), moves


@functools.partial(jax.jit, static_argnames=FIXED)
def _search(
    frames: SearchedFrames, tables: WordTables | None, *, search: Search, border: int, blank_id: int
) -> tuple[PrefixBeam, BackPointers]:
    """Processes all frames of every row."""
    fixed: dict[str, Any] = {"search": search, "border": border, "blank_id": blank_id}

    def body(i: Array, carried: tuple[PrefixBeam, BackPointers]) -> tuple[PrefixBeam, BackPointers]:
        return _advance(i, *carried, frames, tables, None, **fixed)[:2]

    return jax.lax.fori_loop(0, frames.num.max() + 1, body, _begin(frames, **fixed))


@jax.jit
def _may_word_begin(frames: SearchedFrames, tables: WordTables) -> Array:
    """Returns, for each row and evaluated frame, whether a label that begins a word is a candidate, [B T+1]."""
    begins = tables.opens if tables.ends is None else jnp.ones_like(tables.opens)
    is_begin = ((frames.growing > NEVER) & begins[None, None]).any(-1)
    is_there = jnp.arange(is_begin.shape[1])[None] < frames.num[:, None]
    return jnp.pad(jnp.take_along_axis(is_begin, frames.order, axis=1) & is_there, ((0, 0), (0, 1)))


@functools.partial(jax.jit, static_argnames="blank_id")
def _ended(
    frames: SearchedFrames, beams: PrefixBeam, found: BackPointers, *, blank_id: int
) -> tuple[Array, Array, Array, Array]:
    """Backtracks the paths of both endings of every slot.

    Returns:
        Log-probabilities [B 2W], scores [B 2W], the labels of the paths [B 2W T], and the log-probabilities of
        these labels [B 2W T], which are undefined for blanks.
    """
    num_rows, width, _ = beams.endings.shape
    endings = jnp.tile(jnp.arange(2 * width), (num_rows, 1))

    def back(ending: Array, one: BackPointers) -> tuple[Array, Array]:
        before = jnp.take_along_axis(one.back.reshape(num_rows, -1), ending, axis=1)
        label = jnp.take_along_axis(one.last, ending // 2, axis=1)
        return before.astype(ending.dtype), jnp.where(ending % 2 == BLANK, blank_id, label)

    _, symbols = jax.lax.scan(back, endings, found, reverse=True)
    place = jnp.cumsum(frames.is_looked_at, axis=1) - 1
    paths = jnp.take_along_axis(symbols.transpose(1, 2, 0), place[:, None], axis=2)
    scores = beams.endings + beams.words.extra[..., None]
    paths = jnp.where(frames.is_looked_at[:, None], paths, blank_id)
    logps = jnp.take_along_axis(frames.staying, paths.transpose(0, 2, 1), axis=2).transpose(0, 2, 1)
    return beams.endings.reshape(num_rows, -1), scores.reshape(num_rows, -1), paths, logps
