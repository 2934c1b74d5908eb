"""What words add to a CTC score: a language model, a bonus for each, hot words, and a lexicon that allows no others."""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from asr_jax.core.errors import UserError, check_numbers
from asr_jax.search.language_model import arpa_words, listed_words, load_kenlm
from asr_jax.text.spelling import Spelling

LN10 = math.log(10)
USUAL_WORD = 6
"""Letters from which on an unknown open word costs more: pyctcdecode's AVG_TOKEN_LEN."""


@dataclass(frozen=True)
class Fusion:
    """What is fused with CTC scores during a beam search. By default nothing is."""

    kenlm: str = ""
    """An n-gram model of words that KenLM reads; empty: none."""
    lm_weight: float = 0.5
    """Times the natural logarithm of the language model's probabilities (alpha)."""
    word_bonus: float = 1.5
    """Added for each word where there is a language model (beta)."""
    unknown_score: float = -10.0
    """Added for a word that is not known: to its log10 before the weight, and as it is while the word is open and no
    known word begins like it, growing with its letters from the sixth on. Of a binary model without known_words, which
    lists none, no open word is known."""
    known_words: str = ""
    """A file with a word at the begin of each line: those that are not unknown, if the language model has them; empty:
    all that it has."""
    hot_words: tuple[str, ...] = ()
    """Words that score higher than they would, whether the language model has them or not."""
    hot_word_weight: float = 10.0
    """Added for each hot word, while it is open by the share of its letters that are there."""
    lexicon: str = ""
    """A file with a word at the begin of each line: the only words that there may be; empty: any."""
    lookahead: bool = False
    """Whether a word that is open counts as the lexicon's likeliest one, at a sentence's begin, that begins so."""
    unit: Literal["words", "labels"] = "words"
    """What the language model is of: words, or labels (characters, with | for the space; or pieces, with ▁)."""
    bos: bool = True
    """Whether the language model sees the begin of the sentence."""
    eos: bool = True
    """Whether it scores the end of the sentence."""

    def __post_init__(self) -> None:
        check_numbers(self, "lm_weight", "word_bonus", "unknown_score", "hot_word_weight")
        if self.lookahead and not (self.lexicon and self.kenlm):
            raise ValueError("lookahead: expected a lexicon and a language model with it")
        if self.unit == "labels" and (self.lexicon or self.hot_words):
            raise ValueError("unit='labels': expected neither lexicon nor hot words, which are of words")

    def build(self) -> "WordScores | None":
        """None where nothing is fused.

        Raises: UserError where the language model cannot be read.
        """
        return WordScores(self) if self.kenlm or self.hot_words or self.lexicon else None


class WordScores:
    """Scores of words in their order. A state is all that they depend on of the words before."""

    def __init__(self, settings: Fusion) -> None:
        self.settings = settings
        self.model: Any = load_kenlm(settings.kenlm) if settings.kenlm else None
        self.lexicon = listed_words(settings.lexicon) if settings.lexicon else frozenset()
        self.hot_words = frozenset(word for words in settings.hot_words for word in words.split())
        self.known = self._known_words() if self.model else None
        """None: those that the model has, and which these are cannot be told of a binary one: any open word counts as
        none of them."""

    def _known_words(self) -> frozenset[str] | None:
        if not self.settings.known_words:
            return arpa_words(self.settings.kenlm)
        known = frozenset(word for word in listed_words(self.settings.known_words) if word in self.model)
        if not known:
            raise UserError(
                f"{self.settings.kenlm} has no word of {self.settings.known_words}: expected words that it has"
            )
        return known

    def start(self) -> Any:
        """The state before the first word."""
        if self.model is None:
            return None
        state = _new_state()
        (self.model.BeginSentenceWrite if self.settings.bos else self.model.NullContextWrite)(state)
        return state

    def word(self, state: Any, word: str) -> tuple[Any, float]:
        """The state after one more word, and what the word adds; minus infinity for one that may not be."""
        added = self.by_lists(word)
        if self.model is None or added == -math.inf:
            return state, added
        after = _new_state()
        log10 = self.model.BaseScore(state, word, after)
        if self.is_unknown(word):
            log10 += self.settings.unknown_score
        return after, added + self.settings.lm_weight * LN10 * log10 + self.settings.word_bonus

    def by_lists(self, word: str) -> float:
        """What a word adds without a language model."""
        if not self.may_be(word):
            return -math.inf
        return self.settings.hot_word_weight if word in self.hot_words else 0.0

    def end(self, state: Any) -> float:
        """What the end of the sentence adds."""
        if self.model is None or not self.settings.eos:
            return 0.0
        return self.settings.lm_weight * LN10 * self.model.BaseScore(state, "</s>", _new_state())

    def text(self, words: Iterable[str]) -> float:
        """What whole words and the end add together."""
        state, total = self.start(), 0.0
        for word in words:
            state, added = self.word(state, word)
            total += added
        return total + self.end(state)

    def units(self, words: Sequence[str], spelling: Spelling, labels: Sequence[int]) -> Sequence[str]:
        """What of a text is scored: its words, or symbols of its labels."""
        return words if self.settings.unit == "words" else [spelling.symbols[label] for label in labels]

    def ended(self, before: Sequence[str], words: Sequence[str], symbol: str) -> Sequence[str]:
        """What one more label has ended: the open word, or itself."""
        return words[len(before) :] if self.settings.unit == "words" else [symbol]

    def may_be(self, word: str) -> bool:
        """Whether there may be this word; one of no letters may."""
        return not self.lexicon or not word or word in self.lexicon

    def is_unknown(self, word: str) -> bool:
        """Whether a word is none of the language model's, or of those that it was told are known."""
        return (self.known is not None and word not in self.known) or word not in self.model

    def open(self, part: str) -> float:
        """What an open word adds for as long as it is open; minus infinity where none may begin so."""
        if not part:
            return 0.0
        found = self.beginnings.get(part)
        return self.outside(len(part)) if found is None else found

    def outside(self, num_letters: int) -> float:
        """`open` of a beginning of no word that is listed."""
        if self.lexicon:
            return -math.inf
        if self.model is None or self.settings.unit == "labels":
            return 0.0
        return self.settings.unknown_score * max(1.0, num_letters / USUAL_WORD)

    @functools.cached_property
    def beginnings(self) -> dict[str, float]:
        """`open` of every beginning of the lexicon's, the known and the hot words."""
        found: dict[str, float] = {}
        for word in self.lexicon or self.known or ():
            score = self._alone(word) if self.settings.lookahead else 0.0
            for part in _beginnings(word):
                found[part] = max(score, found.get(part, -math.inf))
        shortest: dict[str, int] = {}
        for word in sorted(self.hot_words & self.lexicon if self.lexicon else self.hot_words, key=len):
            for part in _beginnings(word):
                shortest.setdefault(part, len(word))
        for part, num_letters in shortest.items():
            found[part] = found.get(part, 0.0) + self.settings.hot_word_weight * len(part) / num_letters
        return found

    def _alone(self, word: str) -> float:
        """What the language model alone gives a word that is the first."""
        return self.settings.lm_weight * LN10 * self.model.BaseScore(self.start(), word, _new_state())


def _beginnings(word: str) -> Iterator[str]:
    return (word[:i] for i in range(1, len(word) + 1))


def _new_state() -> Any:
    import kenlm

    return kenlm.State()
