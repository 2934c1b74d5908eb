"""Batched CTC prefix beam search over windows of streams.

The beams of all streams are on the device. The back-pointers of each window go to the host, which keeps the paths of
all endings in the beam: their complete words, and the labels of the last word. The cost of a window thus hardly depends
on the frames before it, unless the vocabulary has no word boundaries.
"""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from asr_jax.core.batch import Frames
from asr_jax.core.devices import local_devices
from asr_jax.core.pytrees import Node, where_rows
from asr_jax.search.beam_stage import BeamStreams, check_streams, num_common
from asr_jax.search.ctc_beam import FIXED, CTCBeamSearch
from asr_jax.search.ctc_beam_state import NEVER, Frame, PrefixBeam, start
from asr_jax.search.ctc_beam_step import BLANK, step
from asr_jax.search.ctc_frames import SearchedFrames
from asr_jax.search.hypotheses import Ending, Hypothesis, Search, closed
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
class _Utterance:
    """Paths of an utterance so far."""

    paths: dict[int, Ending]
    """Path to each ending in the beam, up to its last label. Log-probabilities are 0."""
    num_frames: int = 0
    log_prob: float = 0.0
    """Sum of what was subtracted from the beam, and of the blanks of skipped frames."""
    num_settled: int = 0
    """Number of first labels that all paths shared when this was last computed."""


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
        # The states that follow are committed to this device. If the first one was not, it would compile a program.
        begun = _begin(num_rows, search=search.fixed["search"], border=search.fixed["border"])
        self._state = jax.device_put(begun, local_devices()[0])
        self._rows = [self._begun() for _ in range(num_rows)]
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
                self._rows[row] = self._begun()
            utterance, considered = self._rows[row], order[row, : num[row]].tolist()
            places = np.flatnonzero(endings[row].reshape(-1) > NEVER)
            before, shape = places, (len(places), int(lengths[row]))
            symbols, logps = np.full(shape, self._blank_id), np.zeros(shape, np.float32)
            for i, frame in reversed(list(enumerate(considered))):
                slots = before // 2
                symbols[:, frame] = np.where(before % 2 == BLANK, self._blank_id, steps.last[i, row][slots])
                logps[:, frame] = steps.logps[i, row][slots]
                before = steps.back[i, row].reshape(-1)[before]
            longer = zip(before.tolist(), symbols, logps, strict=True)
            paths = [self._longer(utterance.paths[one], utterance.num_frames, *labels) for one, *labels in longer]
            utterance.paths = dict(zip(places.tolist(), paths, strict=True))
            utterance.num_frames += int(lengths[row])
            of_window = (steps.best[: num[row], row], skipped[row])
            utterance.log_prob += float(sum(each.astype(np.float64).sum() for each in of_window))

    def n_best(self, row: int) -> list[Hypothesis]:
        return self._search.finished(*self._endings(row))

    def num_settled(self, row: int) -> int:
        utterance, collapse = self._rows[row], self._search.spelling.collapse
        labels = [each.before.labels + collapse(each.path) for each in self._endings(row)[0]]
        utterance.num_settled += num_common([each[utterance.num_settled :] for each in labels])
        return utterance.num_settled

    def _begun(self) -> _Utterance:
        nothing = Ending(0.0, np.zeros(0, np.int64), np.zeros(0, np.float32))
        return _Utterance(dict.fromkeys(range(2), nothing))

    def _longer(
        self, path: Ending, frame: int, symbols: Int[np.ndarray, " T"], logps: Float[np.ndarray, " T"]
    ) -> Ending:
        """Returns a path with the labels of further frames, which begin with `frame`."""
        if (symbols == self._blank_id).all():
            return path
        num_blank = frame - path.first_frame - len(path.path)
        symbols = np.concatenate([path.path, np.full(num_blank, self._blank_id), symbols])
        logps = np.concatenate([path.logps, np.zeros(num_blank, np.float32), logps])
        search = self._search
        return closed(path._replace(path=symbols, logps=logps), search.spelling, search.word_scores)

    def _endings(self, row: int) -> tuple[list[Ending], Float[np.ndarray, " E"]]:
        """Returns the paths of a row with their log-probabilities, and their scores."""
        if self._ended is None:
            search, num_labels = self._search, len(self._search.spelling.texts)
            self._ended = jax.device_get(_end(self._state, search.tables, num_labels=num_labels, **search.fixed))
        ended, utterance = self._ended, self._rows[row]
        endings, scores, back, best = (
            np.asarray(each)[row] for each in (ended.endings, ended.scores, ended.back, ended.best)
        )
        totals = endings.astype(np.float64) + (utterance.log_prob + float(best))
        places = np.flatnonzero(totals > NEVER)
        pairs = zip(back[places].tolist(), totals[places].tolist(), strict=True)
        return [utterance.paths[before]._replace(log_prob=total) for before, total in pairs], scores[places]


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
