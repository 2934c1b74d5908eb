"""Batched CTC prefix beam search over windows of streams.

The beams of all streams are on the device. The back-pointers of each window go to the host, which keeps those after the
last frame at which all paths of the beam were one path; the frames before it have their final labels.
"""

import functools
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import Node, where_rows
from asr_jax.search.beam_stage import BeamStreams, check_streams, num_common
from asr_jax.search.ctc_beam import FIXED, CTCBeamSearch
from asr_jax.search.ctc_beam_state import NEVER, Frame, PrefixBeam, start
from asr_jax.search.ctc_beam_step import BLANK, step
from asr_jax.search.ctc_frames import SearchedFrames
from asr_jax.search.hypotheses import Hypothesis, Search
from asr_jax.search.word_tables import WordTables


class Beams(Node):
    """State of the search of all rows between two windows."""

    beams: PrefixBeam
    is_blank: Bool[Array, " R"]
    """Whether frames were skipped after the last considered frame, in which only the blank was a candidate."""


class Steps(Node):
    """Results of the considered frames of a window. N: frames of the window."""

    back: Int[Array, "N R W 2"]
    """As `ctc_beam_state.BackPointers.back`."""
    last: Int[Array, "N R W"]
    """Last label of each prefix."""
    logps: Float[Array, "N R W"]
    """Log-probability of this label in the frame."""
    best: Float[Array, "N R"]
    """Log-probability that was subtracted from the beam; 0 if there is no frame."""


class Ended(Node):
    """The prefixes with the skipped frames after the last considered frame."""

    endings: Float[Array, "R E"]
    """Log-probabilities of both endings of each prefix, E = 2 W."""
    scores: Float[Array, "R E"]
    """The same with the scores of words."""
    back: Int[Array, "R E"]
    """Ending after the last considered frame."""
    best: Float[Array, " R"]
    """As `Steps.best`."""


@dataclass
class _Step:
    """A considered frame of one row. Its label may still change."""

    frame: int
    back: Int[np.ndarray, " E"]
    last: Int[np.ndarray, " W"]
    logps: Float[np.ndarray, " W"]

    def symbols(self, endings: Int[np.ndarray, " N"], blank_id: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the symbols of the frame with their log-probabilities, and the endings before it."""
        labels = np.where(endings % 2 == BLANK, blank_id, self.last[endings // 2])
        return labels, self.logps[endings // 2], self.back[endings]


@dataclass
class _Utterance:
    """Labels of an utterance so far."""

    num_frames: int = 0
    log_prob: float = 0.0
    """Sum of what was subtracted from the beam, and of the blanks of skipped frames."""
    path: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Symbol and log-probability of each considered frame that has its final label."""
    steps: list[_Step] = field(default_factory=list)

    def settle(self, endings: Int[np.ndarray, " N"], blank_id: int) -> None:
        """Fixes the labels of the frames in which all paths to the endings are one path."""
        for place in reversed(range(len(self.steps))):
            if len(np.unique(endings)) == 1:
                for each in reversed(self.steps[: place + 1]):
                    (label,), (logp,), endings = each.symbols(endings[:1], blank_id)
                    self.path[each.frame] = int(label), float(logp)
                del self.steps[: place + 1]
                return
            endings = self.steps[place].back[endings]

    def paths(self, endings: Int[np.ndarray, " E"], blank_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the symbols [E T] of all frames and their log-probabilities [E T]."""
        symbols = np.full((len(endings), self.num_frames), blank_id)
        logps = np.zeros(symbols.shape, np.float32)
        if self.path:
            symbols[:, list(self.path)], logps[:, list(self.path)] = (
                np.array(each)[None] for each in zip(*self.path.values(), strict=True)
            )
        for each in reversed(self.steps):
            symbols[:, each.frame], logps[:, each.frame], endings = each.symbols(endings, blank_id)
        return symbols, logps


class CTCBeamStreams(BeamStreams):
    """Prefix beam search of streams. The windows of an utterance give the results of `CTCBeamSearch` for all frames."""

    def __init__(self, search: CTCBeamSearch, num_rows: int) -> None:
        """Starts with empty prefixes.

        Args:
            search: Search of whole recordings.
            num_rows: Number of streams.

        Raises:
            UserError: As `check_streams`.
        """
        check_streams(search)
        self._search, self._blank_id = search, search.spelling.blank_id
        self._state = _begin(num_rows, search=search.fixed["search"], border=search.fixed["border"])
        self._rows = [_Utterance() for _ in range(num_rows)]
        self._ended: Ended | None = None

    def take(self, found: Frames, lengths: Int[np.ndarray, " B"], begins: Bool[np.ndarray, " B"]) -> None:
        search = self._search
        frames = search.frames(found.values, lengths)
        self._state, steps = _search_window(self._state, begins, frames, search.tables, **search.fixed)
        self._ended = None
        steps, endings, order, num, skipped = jax.device_get(
            (steps, self._state.beams.endings, frames.order, frames.num, frames.skipped)
        )
        for row in np.flatnonzero(np.asarray(lengths)).tolist():
            if begins[row]:
                self._rows[row] = _Utterance()
            utterance = self._rows[row]
            for i in range(num[row]):
                frame = utterance.num_frames + int(order[row, i])
                back = steps.back[i, row].reshape(-1)
                utterance.steps.append(_Step(frame, back, steps.last[i, row], steps.logps[i, row]))
            utterance.num_frames += int(lengths[row])
            of_window = (steps.best[: num[row], row], skipped[row])
            utterance.log_prob += float(sum(each.astype(np.float64).sum() for each in of_window))
            utterance.settle(np.flatnonzero(endings[row].reshape(-1) > NEVER), self._blank_id)

    def n_best(self, row: int) -> list[Hypothesis]:
        return self._search.finished(*self._endings(row), self._rows[row].num_frames)

    def num_settled(self, row: int) -> int:
        totals, _, paths, _ = self._endings(row)
        return num_common([self._search.spelling.collapse(path) for path in paths[totals > NEVER]])

    def _endings(self, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Returns the log-probabilities, scores, paths and log-probabilities of the paths of all endings of a row."""
        if self._ended is None:
            search, num_labels = self._search, len(self._search.spelling.texts)
            self._ended = jax.device_get(_end(self._state, search.tables, num_labels=num_labels, **search.fixed))
        ended, utterance = self._ended, self._rows[row]
        endings, scores, back, best = (
            np.asarray(each)[row] for each in (ended.endings, ended.scores, ended.back, ended.best)
        )
        totals = endings.astype(np.float64) + (utterance.log_prob + float(best))
        return totals, scores, *utterance.paths(back, self._blank_id)


def _begin(num_rows: int, *, search: Search, border: int) -> Beams:
    beams = jax.tree.map(lambda leaf: jnp.stack([leaf] * num_rows), start(search, border=border))
    return Beams(beams, jnp.zeros(num_rows, bool))


@functools.partial(jax.jit, static_argnames=FIXED)
def _search_window(
    state: Beams,
    begins: Bool[Array, " R"],
    frames: SearchedFrames,
    tables: WordTables | None,
    *,
    search: Search,
    border: int,
    blank_id: int,
) -> tuple[Beams, Steps]:
    """Processes the frames of a window of each row."""
    num_rows, num_frames = frames.growing.shape[:2]
    state = where_rows(begins, _begin(num_rows, search=search, border=border), state)
    before = frames.is_blank_before
    before = before.at[:, 0].set(before[:, 0] | state.is_blank)
    is_blank = jnp.take_along_axis(before, frames.num[:, None], axis=1)[:, 0]
    frames = frames.replace(is_blank_before=before & (jnp.arange(num_frames + 1)[None] < frames.num[:, None]))
    advance = functools.partial(step, search=search, border=border, blank_id=blank_id, tables=tables)
    shape = num_frames, num_rows, search.beam_width
    nothing = Steps(
        back=jnp.zeros((*shape, 2), jnp.int32),
        last=jnp.zeros(shape, jnp.int32),
        logps=jnp.zeros(shape),
        best=jnp.zeros(shape[:2]),
    )

    def body(i: Array, carried: tuple[PrefixBeam, Steps]) -> tuple[PrefixBeam, Steps]:
        beams, steps = carried
        frame = frames.at(i)
        new, found, _ = jax.vmap(advance)(beams, frame)
        logps = jnp.take_along_axis(frame.staying, jnp.maximum(found.last, 0), axis=1)
        of_frame = Steps(found.back, found.last, logps, found.best)
        steps = jax.tree.map(lambda old, one: old.at[i].set(one.astype(old.dtype)), steps, of_frame)
        return where_rows(frame.is_there, new, beams), steps

    beams, steps = jax.lax.fori_loop(0, frames.num.max(), body, (state.beams, nothing))
    return Beams(beams, is_blank), steps


@functools.partial(jax.jit, static_argnames=(*FIXED, "num_labels"))
def _end(
    state: Beams, tables: WordTables | None, *, num_labels: int, search: Search, border: int, blank_id: int
) -> Ended:
    """Returns the endings as if the utterances of all rows ended here. The state does not change."""
    rows = len(state.is_blank)
    nothing = Frame(
        staying=jnp.zeros((rows, num_labels)),
        growing=jnp.full((rows, num_labels), NEVER),
        tokens=jnp.tile(jnp.arange(num_labels, dtype=jnp.int32), (rows, 1)),
        is_there=jnp.zeros(rows, bool),
        is_blank_before=state.is_blank,
    )
    advance = functools.partial(step, search=search, border=border, blank_id=blank_id, tables=tables)
    beams, found, _ = jax.vmap(advance)(state.beams, nothing)
    scores = beams.endings + beams.words.extra[..., None]
    shape = rows, 2 * search.beam_width
    return Ended(beams.endings.reshape(shape), scores.reshape(shape), found.back.reshape(shape), found.best)
