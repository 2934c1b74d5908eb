"""Batched beam search of transducers with static shapes on the device.

Without a language model, one program processes all steps. With one, the device processes one step per call. The host
then looks up in KenLM by how much each open word, or each candidate label, would change the score.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from asr_jax.core.devices import local_devices
from asr_jax.core.settings import between, settings
from asr_jax.search.base import BeamSize
from asr_jax.search.ctc_beam_state import Moves
from asr_jax.search.hypotheses import Hypothesis, WordSpan
from asr_jax.search.transducer_beam_state import (
    FrameBeam,
    Label,
    Nodes,
    Paths,
    Proposal,
    Texts,
    TransducerFrames,
    begin,
    texts_of,
)
from asr_jax.search.transducer_beam_step import StepLimits, extend_all, extend_best, grown
from asr_jax.search.transducer_proposals import blank_durations, propose
from asr_jax.search.word_scores import WordScores
from asr_jax.search.word_states import LabelStates, WordStates
from asr_jax.search.word_tables import WordTables, word_tables
from asr_jax.text.spelling import Spelling

FUSION_LABELS = 20
"""Number of the most likely labels after a hypothesis (TDT: pairs of a label and a duration) that are candidates in
fusion. Without fusion, and at least, there are as many as the beam is wide: others could not be chosen."""
KEPT_IN_FRAME = 16
"""Number of hypotheses that are kept until a frame ends, for each of `beam_width`, if a frame may have several labels.
The worst others are given up. A frame ends when as many were extended."""


@settings
class TransducerSearch(BeamSize):
    """Settings of the beam search of transducers. Scores are natural logarithms.

    CAIMAN-ASR's settings are beam_width 4, temperature 1.4, label_prune_logp -0.4, token_prune_logp -1.5, same texts
    and max_symbols 8. icefall's modified beam search has max_symbols 1, and its beam_search no limit. At most
    `beam_width` hypotheses are found.
    """

    beam_width = 4
    label_prune_logp: Annotated[float, between(-math.inf, 0)] = -math.inf
    """Hypotheses whose score per label is lower than the best one's plus this (negative) threshold are pruned."""
    token_prune_logp: Annotated[float, between(-math.inf, 0)] = -math.inf
    """Labels whose log-probability is lower than the largest one plus this (negative) threshold are not candidates."""
    same: Literal["labels", "texts"] = "labels"
    """Which hypotheses are equal, and add their probabilities: those with the same labels, or with the same text. The
    prediction network continues from the more likely one."""
    length_normalised: bool = True
    """Whether lists are ordered by the score per label; otherwise, by the score. Labels before the first one count: the
    context of a stateless prediction network, or one."""


@dataclass(frozen=True)
class LogitScaling:
    """Settings that change logits."""

    temperature: float
    blank_penalty: float
    blank_id: int

    def __call__(self, logits: Float[Array, "*S V"]) -> Float[Array, "*S V"]:
        """Returns the logits less the penalty of the blank, divided by the temperature."""
        penalties = jnp.zeros(logits.shape[-1]).at[self.blank_id].set(self.blank_penalty)
        return (logits - penalties.reshape((1,) * (logits.ndim - 1) + (-1,))) / self.temperature


State = tuple[FrameBeam, Nodes, Proposal]
"""Hypotheses, their labels, and candidates."""


@dataclass(frozen=True)
class BeamProgram:
    """Static settings of the compiled search."""

    search: TransducerSearch
    max_symbols: int
    scaling: LogitScaling
    num_candidates: int
    num_slots: int

    def begin(self, frames: TransducerFrames) -> State:
        """Returns the state before the first step."""
        return self.proposed(*begin(frames, self.num_slots), frames)

    def step(
        self, state: State, frames: TransducerFrames, texts: Texts, tables: WordTables | None, given: Array | None
    ) -> tuple[State, Moves]:
        """Computes one step of all rows.

        Args:
            texts: Hash functions.
            tables: Tables of word scores. None: no fusion of words.
            given: Scores by the host, as for `transducer_beam_step.grown`, for all rows. None: none.

        Returns:
            The state, and the origin of each hypothesis.
        """
        beam, nodes, proposal = state
        networks = frames.networks
        limits = StepLimits(
            blank_durations(networks.durations),
            self.max_symbols,
            width=self.search.beam_width,
            least=self.search.label_prune_logp,
            start=networks.start_labels,
        )
        extend = extend_all if self.max_symbols == 1 else extend_best

        def of_row(beam: FrameBeam, proposal: Proposal, length: Array, given: Array | None) -> tuple[FrameBeam, Moves]:
            words = grown(beam.hypotheses.words, proposal, tables, given)
            return extend(beam, proposal, length, words, texts, limits=limits)

        beam, moves = jax.vmap(of_row)(beam, proposal, frames.lengths, given)
        return self.proposed(beam, nodes, frames), moves

    def proposed(self, beam: FrameBeam, nodes: Nodes, frames: TransducerFrames) -> State:
        """Returns the state with the candidates of the next step."""
        if self.max_symbols == 1:
            slots = jnp.tile(jnp.arange(self.num_slots)[None], (len(frames.lengths), 1))
        else:
            waits = beam.hypotheses.reached > beam.frame[:, None]
            slots = jnp.where(waits, -jnp.inf, beam.hypotheses.score).argmax(1)[:, None].astype(jnp.int32)
        return propose(
            beam,
            nodes,
            slots,
            frames,
            num_candidates=self.num_candidates,
            least=self.search.token_prune_logp,
            scaled=self.scaling,
        )


class TransducerBeamSearch:
    """N-best search for batches. Each shape of a batch is compiled once.

    An object must not be used by several threads at once.
    """

    def __init__(
        self,
        spelling: Spelling,
        *,
        search: TransducerSearch,
        max_symbols: int,
        temperature: float = 1.0,
        blank_penalty: float = 0.0,
        scores: WordScores | None = None,
    ) -> None:
        """Builds the tables of a search.

        Args:
            max_symbols: Largest number of labels of a frame. 1: a label needs no blank in its frame.
            temperature: Divisor of the logits.
            blank_penalty: Number that is subtracted from the logits of the blank.
            scores: Language model, hot words and lexicon. None: no fusion.
        """
        self._spelling, self._search, self._scores = spelling, search, scores
        self.texts = texts_of(spelling, search.same)
        are_words = scores is not None and scores.settings.unit == "words"
        self.tables = word_tables(spelling, scores) if scores and are_words else None
        self._states: WordStates | LabelStates | None = None
        if scores and scores.model:
            self._states = (WordStates if are_words else LabelStates)(spelling, scores)
        most = max(search.beam_width, FUSION_LABELS) if scores else search.beam_width
        self.program = BeamProgram(
            search,
            max_symbols,
            LogitScaling(temperature, blank_penalty, spelling.blank_id),
            num_candidates=most + 1,
            num_slots=search.beam_width if max_symbols == 1 else max(KEPT_IN_FRAME * search.beam_width, most + 1),
        )

    def __call__(self, frames: TransducerFrames) -> list[list[Hypothesis]]:
        """Returns the n-best list of each row, best first."""
        # Arrays on other devices would be compiled for again.
        frames = jax.device_put(frames, local_devices()[0])
        if frames.values.shape[1] == 0:
            frames = frames.replace(values=jnp.zeros((len(frames.lengths), 1, frames.values.shape[2])))
        if self._states is None:
            beam, nodes = _search(frames, self.texts, self.tables, program=self.program)
        else:
            beam, nodes = self._search_with_host(frames, self._states)
        paths, start = Paths.of(beam, nodes), frames.networks.start_labels
        found = []
        for row, log_probs in enumerate(paths.log_prob):
            slots = np.flatnonzero(np.isfinite(log_probs)).tolist()
            labels = [paths.labels(row, slot) for slot in slots]
            found.append(self.finished(log_probs[slots].tolist(), labels, start))
        return found

    @property
    def scores_on_host(self) -> bool:
        """Whether the host looks up scores between the steps."""
        return self._states is not None

    def _search_with_host(self, frames: TransducerFrames, states: WordStates | LabelStates) -> tuple[FrameBeam, Nodes]:
        """Searches with the language model on the host."""
        states.begin(len(frames.lengths), self.program.num_slots)
        state, is_going = jax.device_put(_begin(frames, program=self.program), local_devices()[0])
        while is_going:
            if isinstance(states, WordStates):
                given = states.closing(np.ones(len(frames.lengths), bool))
            else:
                given = states.gains(np.asarray(state[2].slots), np.asarray(state[2].tokens))
            state, is_going, moves = _step(
                state, frames, self.texts, self.tables, jnp.asarray(given), program=self.program
            )
            states.follow(np.asarray(moves.source), np.asarray(moves.token))
        return state[0], state[1]

    def finished(self, log_probs: Sequence[float], paths: Sequence[list[Label]], start: int) -> list[Hypothesis]:
        """Returns the n-best list of one row; one empty text with score minus infinity if nothing was found.

        Args:
            log_probs: Log-probability of the alignments of each hypothesis.
            paths: Labels of each hypothesis with their frames, in order.
            start: Number of labels before the first one.
        """
        scores, spelling = self._scores, self._spelling
        may_end = [scores is None or scores.may_end(spelling.words([each.token for each in path])[1]) for path in paths]
        found = []
        for log_prob, path, is_complete in zip(log_probs, paths, may_end, strict=True):
            if is_complete or not any(may_end):
                found.append(self._hypothesis(log_prob, path, is_complete=is_complete))
        if self._search.same == "texts":
            found = _of_different_texts(found)
        if not found:
            return [Hypothesis(words=(), labels=(), log_prob=-math.inf, lm_score=0.0)]
        is_by_length = self._search.length_normalised
        found.sort(key=lambda each: -each.score / (len(each.labels) + start if is_by_length else 1))
        return found[: self._search.num_best]

    def _hypothesis(self, log_prob: float, path: list[Label], *, is_complete: bool) -> Hypothesis:
        """Returns a hypothesis with its words.

        Args:
            log_prob: Log-probability of the alignments.
            is_complete: Whether the last word may be a word. If not, it is removed, but its score remains.
                A word without a space before it is not removed.
        """
        spelling, scores, lm_score = self._spelling, self._scores, 0.0
        labels = [each.token for each in path]
        words, part = spelling.words(labels)
        ranges = spelling.word_ranges(labels)
        if not is_complete:
            assert scores
            ended, last = scores.grown("", part)
            lm_score = scores.open(last) + scores.text([*scores.units(words, spelling, labels), *ended])
            if not ended:
                num = ranges[len(words)][0]
                path, labels, ranges, part = path[:num], labels[:num], ranges[:-1], ""
        texts = (*words, part) if part else words
        if scores and is_complete:
            lm_score = scores.text(scores.units(texts, spelling, labels))
        spans = tuple(
            WordSpan(
                text, path[first].start, path[end - 1].end, float(np.mean([each.log_prob for each in path[first:end]]))
            )
            for text, (first, end) in zip(texts, ranges, strict=True)
        )
        _, starts, ends, log_probs = zip(*path, strict=True) if path else ((), (), (), ())
        return Hypothesis(spans, tuple(labels), log_prob, lm_score, starts=starts, ends=ends, log_probs=log_probs)


def _of_different_texts(found: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Returns the best hypothesis of each text, with the probability of all of them."""
    best: dict[str, Hypothesis] = {}
    for each in sorted(found, key=lambda each: -each.score):
        if (first := best.get(each.text)) is None:
            best[each.text] = each
        else:
            log_prob = float(np.logaddexp(first.log_prob, each.score - first.lm_score))
            best[each.text] = replace(first, log_prob=log_prob)
    return list(best.values())


@functools.partial(jax.jit, static_argnames="program")
def _search(
    frames: TransducerFrames, texts: Texts, tables: WordTables | None, *, program: BeamProgram
) -> tuple[FrameBeam, Nodes]:
    """Processes all steps of every row."""
    beam, nodes, _ = jax.lax.while_loop(
        lambda state: jnp.any(state[0].frame < frames.lengths),
        lambda state: program.step(state, frames, texts, tables, None)[0],
        program.begin(frames),
    )
    return beam, nodes


@functools.partial(jax.jit, static_argnames="program")
def _begin(frames: TransducerFrames, *, program: BeamProgram) -> tuple[State, Array]:
    """Returns the state before the first step, and whether there is a step."""
    return program.begin(frames), jnp.any(frames.lengths > 0)


@functools.partial(jax.jit, static_argnames="program", donate_argnames="state")
def _step(
    state: State,
    frames: TransducerFrames,
    texts: Texts,
    tables: WordTables | None,
    given: Array,
    *,
    program: BeamProgram,
) -> tuple[State, Array, Moves]:
    """Processes one step, and returns whether there is another one."""
    state, moves = program.step(state, frames, texts, tables, given)
    return state, jnp.any(state[0].frame < frames.lengths), moves
