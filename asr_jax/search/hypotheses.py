"""What a beam search is asked for, and how the paths that it ends with become an n-best list of texts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from asr_jax.core.errors import check_numbers
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.search.word_scores import WordScores
from asr_jax.text.spelling import Spelling


@dataclass(frozen=True)
class Search:
    """A prefix beam search over the CTC symbols of an utterance. Scores are natural logarithms."""

    beam_width: int = 20
    """How many prefixes (or endings of prefixes) go on to the next frame."""
    num_best: int = 10
    """How many texts come out, at most."""
    beam_prune_logp: float = -10.0
    """Prefixes that score worse than the best one by more than this are left out."""
    token_min_logp: float = -5.0
    """Symbols with a log-probability below this are left out, but for a frame's likeliest."""
    max_tokens: int = 0
    """How many of a frame's likeliest symbols are looked at; 0: all. With a lexicon, this and `token_min_logp` only
    leave out labels that would make a prefix longer: a word that must go on has few."""
    counts: Literal["prefixes", "endings"] = "prefixes"
    """What the beam's width counts and the thresholds compare: prefixes, or a prefix that ends in a label and the same
    one that ends in a blank each for itself (pyctcdecode, flashlight)."""
    same: Literal["labels", "borders"] = "borders"
    """Which prefixes are one: of the same labels (flashlight without a lexicon), or besides with word borders one after
    another counted once. Both begin as though a border stood before the first frame."""
    alignments: Literal["sum", "max"] = "sum"
    """Whether a prefix has the probability of all its alignments, or of the likeliest one."""
    frames: Literal["likeliest", "least_likely"] = "likeliest"
    """Whose frames words get where alignments meet (pyctcdecode: those of the lower score)."""
    last_word: Literal["free", "border", "no_border"] = "free"
    """Whether a text may end with or without a border; must end with one, unless none does (flashlight with a lexicon);
    or, ending with one, counts as though an unknown word of no letters followed (pyctcdecode)."""

    def __post_init__(self) -> None:
        check_numbers(self, "beam_width", "num_best", least=1)
        check_numbers(self, "max_tokens", least=0)
        if not max(self.beam_prune_logp, self.token_min_logp) <= 0:
            raise ValueError(
                f"beam_prune_logp is {self.beam_prune_logp}, token_min_logp {self.token_min_logp}: expected 0 or less"
            )

    @classmethod
    def of_pyctcdecode(cls, **options: Any) -> "Search":
        """As pyctcdecode 0.5.0 searches characters, without `prune_history`. Differs from: it with pieces: texts that
        are equal but for their pieces are merged at the end only.
        """
        fixed = {"counts": "endings", "frames": "least_likely", "last_word": "no_border"}
        return cls(**({"beam_width": 100} | options | fixed))

    @classmethod
    def of_flashlight(cls, *, lexicon: bool, **options: Any) -> "Search":
        """As flashlight-text 0.0.7 searches: `beam_size` is the width, `beam_threshold` minus `beam_prune_logp`, and
        `beam_size_token` is `max_tokens`.
        """
        fixed = {"counts": "endings", "same": "borders" if lexicon else "labels", "token_min_logp": -math.inf}
        rest = {"last_word": "border"} if lexicon else {}
        return cls(**(options | fixed | rest))


@dataclass(frozen=True)
class WordSpan:
    """A word of a text and its frames."""

    text: str
    start_frame: int
    end_frame: int
    """The frame behind the last one of its last label."""
    logp: float
    """The mean over its labels of the largest log-probability that the label has in its frames."""


@dataclass(frozen=True)
class Hypothesis:
    """One text of an n-best list. Scores are natural logarithms."""

    words: tuple[WordSpan, ...]
    labels: tuple[int, ...]
    """Of the path that gave the frames."""
    ctc_score: float
    """Of the alignments that the search kept: their log-probability."""
    lm_score: float
    """What language model, word bonus and hot words add, weighted."""
    starts: tuple[int, ...] = ()
    """Of each label: the first frame."""
    ends: tuple[int, ...] = ()
    """Of each label: the frame after its last one."""
    log_probs: tuple[float, ...] = ()
    """Of each label: the largest of its log-probabilities."""

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)

    @property
    def score(self) -> float:
        """What the list is sorted by."""
        return self.ctc_score + self.lm_score

    @property
    def sequence(self) -> TokenSequence:
        """Its labels with their times."""
        return TokenSequence(self.labels, self.starts, self.ends, self.log_probs, self.score)


class Ending(NamedTuple):
    """A path that a search ended with, for all that end in the same prefix and symbol."""

    ctc_score: float
    path: Int[np.ndarray, " T"]
    """A symbol for each frame."""
    logps: Float[np.ndarray, " T"]
    """The log-probability of each symbol, but for blanks."""


def combined(scores: Sequence[float], search: Search) -> float:
    """Of alternatives, the score that they have together."""
    if len(scores) == 1 or search.alignments == "max":
        return max(scores)
    return float(np.logaddexp.reduce(scores))


def finish(
    endings: Sequence[Ending], spelling: Spelling, *, search: Search, scores: WordScores | None
) -> list[Hypothesis]:
    """The n-best list, the best first. `endings`: those of the last frame, the best first; where there are none, the
    list has one empty text of score minus infinity.
    """
    if not endings:
        return [Hypothesis(words=(), labels=(), ctc_score=-math.inf, lm_score=0.0)]
    ended = [_Ended.of(ending, spelling) for ending in endings]
    complete = [each for each in ended if each.may_end(search, scores)]
    groups: dict[Any, list[_Ended]] = {}
    for each in complete or ended:
        groups.setdefault(each.labels if search.same == "labels" else each.words, []).append(each)
    texts = [_Text.of(group, spelling, search, scores, is_complete=bool(complete)) for group in groups.values()]
    texts.sort(key=lambda text: -text.score)
    distinct: dict[Any, _Text] = {}
    for text in texts:
        distinct.setdefault(text.shown.labels if search.same == "labels" else text.words, text)
    least = texts[0].score + search.beam_prune_logp
    best = [text for text in distinct.values() if text.score >= least][: search.num_best]
    return [text.hypothesis(spelling) for text in best]


class _Ended(NamedTuple):
    ending: Ending
    labels: tuple[int, ...]
    words: tuple[str, ...]
    """The open one among them, as the last."""
    has_open_word: bool

    @classmethod
    def of(cls, ending: Ending, spelling: Spelling) -> "_Ended":
        labels = spelling.collapse(ending.path)
        words, part = spelling.words(labels)
        return cls(ending, labels, (*words, part) if part else words, bool(part))

    def may_end(self, search: Search, scores: WordScores | None) -> bool:
        if not self.has_open_word:
            return True
        return search.last_word != "border" and (scores is None or scores.may_be(self.words[-1]))


class _Text(NamedTuple):
    """Of endings with the same words."""

    shown: _Ended
    """The one whose frames the words get."""
    words: tuple[str, ...]
    ctc_score: float
    lm_score: float

    @classmethod
    def of(
        cls, group: list[_Ended], spelling: Spelling, search: Search, scores: WordScores | None, *, is_complete: bool
    ) -> "_Text":
        """Where no text is complete, it loses its open word."""
        shown = group[0] if search.frames == "likeliest" else group[-1]
        words, added = shown.words, 0.0
        if scores is not None:
            if not is_complete and shown.has_open_word:
                words, added = words[:-1], scores.open(words[-1])
            units = list(scores.units(words, spelling, shown.labels))
            if search.last_word == "no_border" and not shown.has_open_word:
                units.append("")
            added += scores.text(units)
        return cls(shown, words, combined([each.ending.ctc_score for each in group], search), added)

    @property
    def score(self) -> float:
        return self.ctc_score + self.lm_score

    def hypothesis(self, spelling: Spelling) -> Hypothesis:
        path, logps = self.shown.ending.path, self.shown.ending.logps
        spans = spelling.spans(path, logps)
        words = tuple(WordSpan(text, *span) for text, span in zip(self.words, spans, strict=False))
        num = len(self.shown.labels)
        if len(words) < len(self.shown.words):  # without the open word
            num = spelling.word_ranges(self.shown.labels)[len(words)][0]
        starts, ends, log_probs = (tuple(each[:num].tolist()) for each in spelling.runs(path, logps))
        return Hypothesis(
            words, self.shown.labels[:num], self.ctc_score, self.lm_score, starts=starts, ends=ends, log_probs=log_probs
        )
