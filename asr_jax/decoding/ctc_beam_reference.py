"""Prefix beam search over CTC outputs in plain Python: what `ctc_beam` must equal. Meant to be read."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from asr_jax.core.batch import AnyArray
from asr_jax.decoding.hypotheses import Ending, Hypothesis, Search, combined, finish
from asr_jax.decoding.spelling import Spelling
from asr_jax.decoding.word_scores import WordScores


@dataclass(frozen=True, eq=False)
class Prefix:
    """A sequence of labels. There is one object for each, so that equal ones are the same."""

    labels: tuple[int, ...] = ()
    words: tuple[str, ...] = ()
    part: str = ""
    """The open word; empty behind a border."""
    state: Any = None
    """Of the word scores, after `words`."""
    added: float = 0.0
    """By `words`."""
    extra: float = 0.0
    """By these and the open word."""
    longer: dict[int, "Prefix"] = field(default_factory=dict)
    """Those of one more label that were met."""


class Path(NamedTuple):
    """A path's last symbol, and what came before."""

    symbol: int
    before: "Path | None"


class Alignments(NamedTuple):
    """All paths that give a prefix and end in the same symbol: its last label, or the blank."""

    prefix: Prefix
    last: int | None
    """The symbol; None before the first frame of a vocabulary without a border."""
    logp: float
    path: Path | None
    """One of them."""

    @property
    def score(self) -> float:
        return self.logp + self.prefix.extra


def beam_search(
    log_probs: Float[AnyArray, "T V"], spelling: Spelling, *, search: Search, scores: WordScores | None = None
) -> list[Hypothesis]:
    """The n-best texts of one utterance, the best first. What is not a number in `log_probs` leaves no path: the list
    has one empty text of score minus infinity.

    Each prefix that the beam keeps has two probabilities: of all its alignments that end in its last label, and of
    those that end in a blank. A symbol keeps or extends it: the blank keeps it, and so does its last label after the
    label; another label, or the same one after a blank, makes it longer. Equal prefixes are merged, then the best
    `beam_width` go on.

    Source: Hannun et al. 2014, "First-Pass Large Vocabulary Continuous Speech Recognition using Bi-Directional
    Recurrent DNNs", algorithm 1; what options stand for: pyctcdecode 0.5.0, flashlight-text 0.0.7.
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
    """Which symbols of each frame are looked at."""
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
    """Every one of the beam with every symbol behind it."""
    is_any_kept = scores is not None and bool(scores.lexicon)
    for symbol, (logp, is_kept) in enumerate(zip(frame.tolist(), kept.tolist(), strict=True)):
        for prefix, last, before, path in beam if is_kept or is_any_kept else ():
            stays = symbol in (spelling.blank_id, last) or _is_repeated_border(prefix, symbol, spelling, search)
            if is_kept or stays:
                after = prefix if stays else _extend(prefix, symbol, spelling, scores)
                yield Alignments(after, symbol, before + logp, Path(symbol, path))


def _is_repeated_border(prefix: Prefix, symbol: int, spelling: Spelling, search: Search) -> bool:
    if symbol != spelling.border or search.same == "labels":
        return False
    return not prefix.labels or prefix.labels[-1] == symbol


def _extend(prefix: Prefix, label: int, spelling: Spelling, scores: WordScores | None) -> Prefix:
    """The prefix with one more label, and what that adds by the unit of the language model that it ends."""
    if label not in prefix.longer:
        words, part = spelling.extend(prefix.words, prefix.part, label)
        state, added, extra = prefix.state, prefix.added, 0.0
        if scores is not None:
            for unit in scores.ended(prefix.words, words, spelling.symbols[label]):
                state, more = scores.word(state, unit)
                added += more
            extra = added + scores.open(part)
        prefix.longer[label] = Prefix((*prefix.labels, label), words, part, state, added, extra)
    return prefix.longer[label]


def _merge(found: Iterator[Alignments], search: Search) -> list[Alignments]:
    """Paths to equal prefixes with equal last symbols as one."""
    groups: dict[Any, list[Alignments]] = {}
    for each in found:
        groups.setdefault((_name(each.prefix, search), each.last), []).append(each)
    return [group[0] if len(group) == 1 else _merged(group, search) for group in groups.values()]


def _merged(group: list[Alignments], search: Search) -> Alignments:
    """`group`: in the order of what they come from, the best first."""
    shown = max(group, key=lambda each: each.logp) if search.frames == "likeliest" else group[-1]
    return shown._replace(logp=combined([each.logp for each in group], search))


def _name(prefix: Prefix, search: Search) -> Any:
    """Equal for prefixes that are one."""
    return (prefix.words, prefix.part) if search.same == "text" else prefix


def _prune(beam: list[Alignments], search: Search) -> list[Alignments]:
    """The best of the beam, the best first."""
    counted: dict[Any, list[Alignments]] = {}
    for each in beam:
        name = _name(each.prefix, search)
        counted.setdefault((name, each.last) if search.counts == "endings" else name, []).append(each)
    totals = [(combined([each.score for each in group], search), group) for group in counted.values()]
    totals.sort(key=lambda total: -total[0])
    least = max([total for total, _ in totals], default=0.0) + search.beam_prune_logp
    kept = [group for total, group in totals[: search.beam_width] if total >= least and total > -math.inf]
    return sorted((each for group in kept for each in group), key=lambda each: -each.score)


def _unrolled(path: Path | None) -> Int[np.ndarray, " T"]:
    symbols = []
    while path is not None:
        symbols.append(path.symbol)
        path = path.before
    return np.array(symbols[::-1], np.int64)
