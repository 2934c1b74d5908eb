"""Batched beam search of transducers over windows of streams.

The hypotheses of all streams are on the device, and the labels that they had before a window are on the host: at the
beginning of a window, the node of a hypothesis is a negative number that stands for its slot.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Int

from asr_jax.core.devices import local_devices
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import where_rows
from asr_jax.search.beam_stage import BeamStreams, check_streams, num_common
from asr_jax.search.hypotheses import Hypothesis
from asr_jax.search.transducer_beam import BeamProgram, TransducerBeamSearch
from asr_jax.search.transducer_beam_state import FrameBeam, Label, Paths, Texts, TransducerFrames, begin
from asr_jax.search.word_tables import WordTables

FIRST = -2
"""Node of the hypothesis in slot 0 at the beginning of a window; that of slot s is FIRST - s."""


class TransducerBeamStreams(BeamStreams):
    """Beam search of streams. The windows of an utterance give the results of `TransducerBeamSearch` for all frames."""

    def __init__(self, search: TransducerBeamSearch, num_rows: int) -> None:
        """Starts with empty hypotheses.

        Args:
            search: Search of whole recordings.
            num_rows: Number of streams.

        Raises:
            UserError: As `check_streams`.
        """
        check_streams(search)
        self._search, self._beam, self._start = search, None, 0
        self._num_frames = [0] * num_rows
        nothing: list[tuple[Label, ...]] = [()] * search.program.num_slots
        self._before = [nothing] * num_rows
        """Labels of each row and slot, without pending ones."""
        self._found: list[list[tuple[float, list[Label]]]] = [[(0.0, [])] for _ in range(num_rows)]
        """Log-probability and labels of the hypotheses of each row."""

    def take(self, found: TransducerFrames, lengths: Int[np.ndarray, " B"], begins: Bool[np.ndarray, " B"]) -> None:
        """Searches the next window of each row, as `StreamSearch.take`.

        Raises:
            UserError: If labels have durations, which may lead beyond a window.
        """
        if found.networks.durations:
            raise UserError(
                "the beam search of streams does not support labels with durations (TDT): expected --decoding.kind "
                "greedy"
            )
        search, frames = self._search, jax.device_put(found.replace(variables=self.variables), local_devices()[0])
        beam, paths = _search_window(self._beam, begins, frames, search.texts, search.tables, program=search.program)
        self._beam, self._start = beam, frames.networks.start_labels
        paths = Paths(*jax.device_get(paths))
        for row in np.flatnonzero(lengths).tolist():
            if begins[row]:
                self._num_frames[row], self._before[row] = 0, [()] * search.program.num_slots
            self._follow(row, paths)
            self._num_frames[row] += int(lengths[row])

    def _follow(self, row: int, paths: Paths) -> None:
        """Updates the labels of a row after a window."""
        first, before = self._num_frames[row], self._before[row]
        after, found = before.copy(), []
        for slot in np.flatnonzero(np.isfinite(paths.log_prob[row])).tolist():
            labels, root = paths.labels_and_root(row, slot)
            moved = [label._replace(start=first + label.start, end=first + label.end) for label in labels]
            known = (*before[FIRST - root], *moved)
            found.append((float(paths.log_prob[row, slot]), list(known)))
            after[slot] = known[:-1] if paths.pending[row, slot] >= 0 else known
        self._before[row], self._found[row] = after, found

    def n_best(self, row: int) -> list[Hypothesis]:
        log_probs, labels = [each for each, _ in self._found[row]], [each for _, each in self._found[row]]
        return self._search.finished(log_probs, labels, self._start)

    def num_settled(self, row: int) -> int:
        return num_common([[label.token for label in labels] for _, labels in self._found[row]])


@functools.partial(jax.jit, static_argnames="program")
def _search_window(
    beam: FrameBeam | None,
    begins: Bool[Array, " R"],
    frames: TransducerFrames,
    texts: Texts,
    tables: WordTables | None,
    *,
    program: BeamProgram,
) -> tuple[FrameBeam, Paths]:
    """Processes the frames of a window of each row.

    Args:
        beam: State after the window before. None: there is none.
        begins: Whether a row begins an utterance.

    Returns:
        The state, and the labels of the window. Their frame numbers begin with the window.
    """
    fresh, nodes = begin(frames, program.num_slots)
    beam = fresh if beam is None else where_rows(begins, fresh, beam)
    slots = jnp.broadcast_to(FIRST - jnp.arange(program.num_slots)[None], beam.hypotheses.node.shape)
    beam = beam.replace(hypotheses=beam.hypotheses.replace(node=slots))
    beam, nodes, _ = jax.lax.while_loop(
        lambda state: jnp.any(state[0].frame < frames.lengths),
        lambda state: program.step(state, frames, texts, tables, None)[0],
        program.proposed(beam, nodes, frames),
    )
    found = beam.hypotheses
    paths = Paths(nodes, *(getattr(found, name) for name in Paths._fields[1:]))
    later = frames.lengths[:, None]
    found = found.replace(since=found.since - later, reached=found.reached - later)
    return beam.replace(hypotheses=found, frame=beam.frame - frames.lengths), paths
