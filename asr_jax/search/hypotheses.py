"""Settings of beam search, and the conversion of its final paths to an n-best list of texts."""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from asr_jax.core.settings import NonNegativeInt, between, settings
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.search.base import BeamSize
from asr_jax.search.word_scores import WordScores
from asr_jax.text.spelling import Spelling


@settings
class Search(BeamSize):
    """Settings of prefix beam search over the labels of CTC. Scores are natural logarithms."""

    beam_width = 20
    beam_prune_logp: Annotated[float, between(-math.inf, 0)] = -10.0
    """Prefixes with a score lower than the best one plus this (negative) threshold are pruned."""
    token_min_logp: Annotated[float, between(-math.inf, 0)] = -5.0
    """Labels with a lower log-probability are not candidates, except for the most likely label of a frame."""
    max_tokens: NonNegativeInt = 0
    """Number of the most likely labels of a frame that are candidates. 0: all. With a lexicon, this and
    `token_min_logp` only exclude labels that extend a prefix, because an unfinished word has few continuations."""
    alignments: Literal["sum", "max"] = "sum"
    """Probability of a prefix: the sum over its alignments, or that of its most likely alignment."""
    rules: Literal["own", "pyctcdecode", "flashlight", "flashlight_lexicon"] = "own"
    """System whose rules the search follows. own: those of this package. pyctcdecode: those of pyctcdecode 0.5.0 for
    characters, without `prune_history`; its width is 100. With pieces, texts that differ only in their pieces are
    merged only at the end. flashlight, flashlight_lexicon: those of flashlight-text 0.0.7 without and with a lexicon;
    its `beam_size` is `beam_width`, its `beam_threshold` is `-beam_prune_logp`, its `beam_size_token` is `max_tokens`,
    and `token_min_logp` is minus infinity."""

    @property
    def counts_endings(self) -> bool:
        """Whether the beam's width and thresholds count endings, not prefixes.

        A prefix then counts separately for alignments that end in its last label and in a blank.
        """
        return self.rules != "own"

    @property
    def merges_borders(self) -> bool:
        """Whether prefixes that differ only in repeated word borders, or in one at the start, are equal.

        Otherwise, only prefixes with the same labels are equal.
        """
        return self.rules != "flashlight"

    @property
    def shows_likeliest(self) -> bool:
        """Whether words have the frames of the likeliest of merged alignments, not of the one with the lower score."""
        return self.rules != "pyctcdecode"

    @property
    def needs_border(self) -> bool:
        """Whether a text ends with a border, unless no hypothesis has one."""
        return self.rules == "flashlight_lexicon"

    @property
    def adds_empty_word(self) -> bool:
        """Whether a text that ends with a border scores as if an unknown word without letters followed."""
        return self.rules == "pyctcdecode"


@dataclass(frozen=True)
class WordSpan:
    """A word of a text, and its frames."""

    text: str
    start_frame: int
    """First frame of the word."""
    end_frame: int
    """Frame after the last frame of its last label."""
    logp: float
    """Log-probability: mean over the word's labels of the largest log-probability in the frames of the label."""


@dataclass(frozen=True)
class Hypothesis:
    """A text of an n-best list. Scores are natural logarithms."""

    words: tuple[WordSpan, ...]
    labels: tuple[int, ...]
    """Labels of the path that determines the frames."""
    log_prob: float
    """Log-probability of the alignments that the search kept."""
    lm_score: float
    """Weighted contributions of language model, word bonus and hot words."""
    starts: tuple[int, ...] = ()
    """First frame of each label."""
    ends: tuple[int, ...] = ()
    """Frame after the last frame of each label."""
    log_probs: tuple[float, ...] = ()
    """Largest log-probability of each label in its frames."""

    @functools.cached_property
    def texts(self) -> tuple[str, ...]:
        """Texts of the words."""
        return tuple(word.text for word in self.words)

    @property
    def text(self) -> str:
        return " ".join(self.texts)

    @property
    def score(self) -> float:
        """Score by which the list is sorted."""
        return self.log_prob + self.lm_score

    @property
    def sequence(self) -> TokenSequence:
        """Labels with their times."""
        return TokenSequence(self.labels, self.starts, self.ends, self.log_probs, self.score)


class Ending(NamedTuple):
    """A final path of a search; it represents all alignments of its prefix that end in the same label."""

    log_prob: float
    path: Int[np.ndarray, " T"]
    """Symbol of each frame."""
    logps: Float[np.ndarray, " T"]
    """Log-probability of each label; undefined for blanks."""
    before: Hypothesis = Hypothesis(words=(), labels=(), log_prob=0.0, lm_score=0.0)
    """Words that the path follows, if a word begins in its first frame. Their log-probability is part of `log_prob`."""
    first_frame: int = 0
    """Frame in which the path begins."""


def closed(ending: Ending, spelling: Spelling, scores: WordScores | None) -> Ending:
    """Moves all words of a path but the last one to the words before it, so that they are not computed again.

    Args:
        scores: Hot words and lexicon, without a language model, which scores words in their context. None: no fusion.
    """
    starts, _, _ = spelling.runs(ending.path, ending.logps)
    ranges = spelling.word_ranges(ending.path[starts])
    if len(ranges) < 2:
        return ending
    first = int(starts[ranges[-1][0]])
    ended = _Ended.of(ending._replace(path=ending.path[:first], logps=ending.logps[:first]), spelling)
    added = ending.before.lm_score
    if scores:
        added += scores.text(scores.units(ended.words, spelling, ended.labels))
    return Ending(
        ending.log_prob,
        ending.path[first:],
        ending.logps[first:],
        before=_Text(ended, ended.words, 0.0, added).hypothesis(spelling),
        first_frame=ending.first_frame + first,
    )


def combined(scores: Sequence[float], search: Search) -> float:
    """Returns the combined score of paths: their sum in the probability domain, or the largest one."""
    if len(scores) == 1 or search.alignments == "max":
        return max(scores)
    return float(np.logaddexp.reduce(scores))


def finish(
    endings: Sequence[Ending], spelling: Spelling, *, search: Search, scores: WordScores | None
) -> list[Hypothesis]:
    """Converts the final paths of a search to an n-best list.

    Args:
        endings: Final paths, best first.
        scores: Language model, hot words and lexicon. None: no fusion. With a language model, paths have no words
            before them.

    Returns:
        The n-best list, best first. If there are no paths, it is one empty text with score minus infinity.
    """
    if not endings:
        return [Hypothesis(words=(), labels=(), log_prob=-math.inf, lm_score=0.0)]
    ended = [_Ended.of(ending, spelling) for ending in endings]
    complete = [each for each in ended if each.may_end(search, scores)]
    groups: dict[Any, list[_Ended]] = {}
    for each in complete or ended:
        groups.setdefault(each.key(each.words, search), []).append(each)
    texts = [_Text.of(group, spelling, search, scores, is_complete=bool(complete)) for group in groups.values()]
    texts.sort(key=lambda text: -text.score)
    distinct: dict[Any, _Text] = {}
    for text in texts:
        distinct.setdefault(text.shown.key(text.words, search), text)
    least = texts[0].score + search.beam_prune_logp
    best = [text for text in distinct.values() if text.score >= least][: search.num_best]
    return [text.hypothesis(spelling) for text in best]


class _Ended(NamedTuple):
    """A final path with its labels and words."""

    ending: Ending
    labels: tuple[int, ...]
    words: tuple[str, ...]
    """All words of the path; the last one may be open."""
    has_open_word: bool

    @classmethod
    def of(cls, ending: Ending, spelling: Spelling) -> "_Ended":
        labels = spelling.collapse(ending.path)
        words, part = spelling.words(labels)
        return cls(ending, labels, (*words, part) if part else words, bool(part))

    def key(self, words: tuple[str, ...], search: Search) -> tuple[Any, ...]:
        """Returns a key that is equal for equal texts. `words` are the words of the path."""
        before = self.ending.before
        if search.merges_borders:
            return before.texts + words
        return before.labels + self.labels

    def may_end(self, search: Search, scores: WordScores | None) -> bool:
        if not self.has_open_word:
            return True
        return not search.needs_border and (scores is None or scores.may_end(self.words[-1]))


class _Text(NamedTuple):
    """Final paths with the same words."""

    shown: _Ended
    """Path that determines the frames of the words."""
    words: tuple[str, ...]
    """Words of the path."""
    log_prob: float
    lm_score: float

    @classmethod
    def of(
        cls, group: list[_Ended], spelling: Spelling, search: Search, scores: WordScores | None, *, is_complete: bool
    ) -> "_Text":
        """Combines paths with the same words.

        Args:
            group: The paths, best first.
            scores: Language model, hot words and lexicon. None: no fusion.
            is_complete: Whether any text is complete. If not, an open word is removed, but its score remains.
                A word without a space before it is not removed.
        """
        shown = group[0] if search.shows_likeliest else group[-1]
        words, added = shown.words, shown.ending.before.lm_score
        if scores is not None:
            ended = list[str]()
            if not is_complete and shown.has_open_word:
                ended, part = scores.grown("", words[-1])
                words, added = words[:-1], added + scores.open(part)
            units = [*scores.units(words, spelling, shown.labels), *ended]
            words = shown.words if ended else words
            if search.adds_empty_word and not shown.has_open_word:
                units.append("")
            added += scores.text(units)
        return cls(shown, words, combined([each.ending.log_prob for each in group], search), added)

    @property
    def score(self) -> float:
        return self.log_prob + self.lm_score

    def hypothesis(self, spelling: Spelling) -> Hypothesis:
        _, path, logps, before, first = self.shown.ending
        spans = spelling.spans(path, logps)
        words = tuple(
            WordSpan(text, first + start, first + end, logp)
            for text, (start, end, logp) in zip(self.words, spans, strict=False)
        )
        num = len(self.shown.labels)
        if len(words) < len(self.shown.words):  # the open word was removed
            num = spelling.word_ranges(self.shown.labels)[len(words)][0]
        starts, ends, log_probs = (each[:num] for each in spelling.runs(path, logps))
        return Hypothesis(
            before.words + words,
            before.labels + self.shown.labels[:num],
            self.log_prob,
            self.lm_score,
            starts=(*before.starts, *(first + starts).tolist()),
            ends=(*before.ends, *(first + ends).tolist()),
            log_probs=(*before.log_probs, *log_probs.tolist()),
        )
