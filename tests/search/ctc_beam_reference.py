"""Readable reference implementation of CTC prefix beam search in plain Python, which `ctc_beam` must equal."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from asr_jax.core.batch import AnyArray
from asr_jax.search.hypotheses import Ending, Hypothesis, Search, combined, finish
from asr_jax.search.word_scores import WordScores
from asr_jax.text.spelling import Spelling


@dataclass(frozen=True, eq=False)
class Prefix:
    """A sequence of labels. Equal sequences are the same object."""

    label: int | None = None
    """Last label; None for the empty prefix."""
    words: tuple[str, ...] = ()
    """Finished words."""
    part: str = ""
    """Open word; empty after a border."""
    state: Any = None
    """State of the word scores after `words`."""
    added: float = 0.0
    """Score added by `words`."""
    extra: float = 0.0
    """Score added by `words` and the open word."""
    longer: dict[int, "Prefix"] = field(default_factory=dict)
    """Prefixes with one more label that were created so far, by label."""


class Path(NamedTuple):
    """Last label of a path, and the path before it."""

    symbol: int
    before: "Path | None"


class Alignments(NamedTuple):
    """All alignments of a prefix that end in the same label: the prefix's last label or the blank."""

    prefix: Prefix
    last: int | None
    """Symbol that the alignments end in; None before the first frame if the vocabulary has no border."""
    logp: float
    path: Path | None
    """Path of one of the alignments, which determines the frames of words."""

    @property
    def score(self) -> float:
        return self.logp + self.prefix.extra


def beam_search(
    log_probs: Float[AnyArray, "T V"], spelling: Spelling, *, search: Search, scores: WordScores | None = None
) -> list[Hypothesis]:
    """Returns the n-best texts of one utterance, best first.

    Each prefix in the beam has two probabilities: the sum over its alignments that end in its last label, and the sum
    over its alignments that end in a blank. A symbol keeps or extends a prefix. The blank keeps it, and so does its
    last label directly after this label. Another label, or the same label after a blank, extends it. Equal prefixes are
    merged, then the best `beam_width` continue.

    Source: Hannun et al. 2014, "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional
    Recurrent DNNs", algorithm 1; meaning of options: pyctcdecode 0.5.0, flashlight-text 0.0.7.

    Args:
        log_probs: Natural log-probabilities of the labels of each frame.
        spelling: Text of each label.
        search: Settings.
        scores: Language model, hot words and lexicon. None: no fusion.

    Returns:
        The n-best list. If `log_probs` contains NaN, it is one empty text with score minus infinity.
    """
    log_probs = np.asarray(log_probs, np.float64)
    beam = [Alignments(Prefix(state=scores.start() if scores else None), spelling.border, 0.0, None)]
    beam = [] if np.isnan(log_probs).any() else beam
    for frame, kept in zip(log_probs, kept_symbols(log_probs, search), strict=True):
        beam = _prune(_merge(_advance(beam, frame, kept, spelling, search, scores), search), search)
    paths = [_unrolled(each.path) for each in beam]
    frames = np.arange(len(log_probs))
    endings = [Ending(each.logp, path, log_probs[frames, path]) for each, path in zip(beam, paths, strict=True)]
    return finish(endings, spelling, search=search, scores=scores)


def kept_symbols(log_probs: Float[np.ndarray, "T V"], search: Search) -> Bool[np.ndarray, "T V"]:
    """Returns the candidate labels of each frame."""
    kept = log_probs >= search.token_min_logp
    if 0 < search.max_tokens < log_probs.shape[1]:
        kept &= log_probs >= np.sort(log_probs, axis=1)[:, -search.max_tokens, None]
    return kept | (np.arange(log_probs.shape[1]) == log_probs.argmax(1)[:, None])


def _advance(
    beam: list[Alignments],
    frame: Float[np.ndarray, " V"],
    kept: Bool[np.ndarray, " V"],
    spelling: Spelling,
    search: Search,
    scores: WordScores | None,
) -> Iterator[Alignments]:
    """Yields the alignments of the beam extended by each label."""
    is_any_kept = scores is not None and bool(scores.lexicon)
    staying = [_staying(each, spelling, search) for each in beam]
    for symbol, (logp, is_kept) in enumerate(zip(frame.tolist(), kept.tolist(), strict=True)):
        for (prefix, _, before, path), stays in zip(beam, staying, strict=True) if is_kept or is_any_kept else ():
            if symbol in stays:
                yield Alignments(prefix, symbol, before + logp, Path(symbol, path))
            elif is_kept:
                longer = prefix.longer.get(symbol) or _extend(prefix, symbol, spelling, scores)
                yield Alignments(longer, symbol, before + logp, Path(symbol, path))


def _staying(each: Alignments, spelling: Spelling, search: Search) -> set[int | None]:
    """Returns the labels that leave a prefix unchanged."""
    is_border = search.merges_borders and each.prefix.label in (None, spelling.border)
    return {spelling.blank_id, each.last} | ({spelling.border} if is_border else set())


def _extend(prefix: Prefix, label: int, spelling: Spelling, scores: WordScores | None) -> Prefix:
    """Returns the prefix with one more label, and its score: the label may end a unit of the language model."""
    words, part = spelling.extend(prefix.words, prefix.part, label)
    state, added, extra = prefix.state, prefix.added, 0.0
    if scores is not None:
        units = [spelling.symbols[label]]
        if scores.settings.unit == "words":
            ended, part = scores.grown("" if spelling.opens[label] else prefix.part, spelling.texts[label])
            units = [*(scores.finished(prefix.part) if spelling.opens[label] else []), *ended]
        for unit in units:
            state, more = scores.word(state, unit)
            added += more
        extra = added + scores.open(part)
    prefix.longer[label] = longer = Prefix(label, words, part, state, added, extra)
    return longer


def _merge(found: Iterator[Alignments], search: Search) -> list[Alignments]:
    """Merges alignments with equal prefixes and equal last labels."""
    groups: dict[tuple[Prefix, int | None], list[Alignments]] = {}
    for each in found:
        groups.setdefault((each.prefix, each.last), []).append(each)
    return [group[0] if len(group) == 1 else _merged(group, search) for group in groups.values()]


def _merged(group: list[Alignments], search: Search) -> Alignments:
    """Merges a group of alignments, which is in the order of the beam that they extend, best first."""
    shown = max(group, key=lambda each: each.logp) if search.shows_likeliest else group[-1]
    return shown._replace(logp=combined([each.logp for each in group], search))


def _prune(beam: list[Alignments], search: Search) -> list[Alignments]:
    """Returns the best alignments, best first."""
    groups: dict[Any, list[Alignments]] = {}
    for i, each in enumerate(beam):
        groups.setdefault(i if search.counts_endings else each.prefix, []).append(each)
    totals = [(combined([each.score for each in group], search), group) for group in groups.values()]
    totals.sort(key=lambda total: -total[0])
    least = max(totals[0][0] + search.beam_prune_logp, -sys.float_info.max) if totals else 0.0
    kept = [each for total, group in totals[: search.beam_width] if total >= least for each in group]
    return sorted(kept, key=lambda each: -each.score)


def _unrolled(path: Path | None) -> Int[np.ndarray, " T"]:
    symbols = []
    while path is not None:
        symbols.append(path.symbol)
        path = path.before
    return np.array(symbols[::-1], np.int64)
