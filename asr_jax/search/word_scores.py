"""Scores that words add to log-probabilities: language model, word bonus, hot words, and restriction to a lexicon."""

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from asr_jax.core.errors import UserError
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import Finite, settings
from asr_jax.search.language_model import (
    LanguageModel,
    listed_words,
    load_kenlm,
    model_words,
    words_of_model,
)
from asr_jax.text.invisible import visible
from asr_jax.text.segmentation import may_follow
from asr_jax.text.spelling import Spelling

LN10 = math.log(10)
USUAL_WORD = 6
"""Number of letters above which the penalty of an unknown open word grows: pyctcdecode's AVG_TOKEN_LEN."""


@settings
class Fusion(LanguageModel):
    """Settings of shallow fusion in beam search. The default is no fusion."""

    word_bonus = 1.5
    unknown_score: Finite = -10.0
    """Penalty of an unknown word. It is added to the word's log10 probability before `lm_weight` is applied. While a
    word is open and no listed word begins like it, it is added to the score, multiplied by the number of letters / 6 if
    there are more than 6. With a binary model without its words and no `known_words`, all open words are unknown."""
    known_words: UserPath = ""
    """Path of a list with a word at the start of each line. Words that are in this list and in the language model are
    known. Empty: all words of the language model."""
    hot_words: tuple[str, ...] = ()
    """Words to favour, whether or not the language model contains them. `WORD:WEIGHT` has another weight than
    `hot_word_weight`. In scripts without spaces, they are favoured at all places of a text."""
    hot_word_weight: Finite = 10.0
    """Score added for each hot word. While a word is open, the share of its letters that are present is added."""
    lexicon: UserPath = ""
    """Path of a list with a word at the start of each line. No other words are allowed. Empty: all words are."""
    lookahead: bool = False
    """Whether an open word scores as the most likely word of the lexicon with this beginning, at a sentence's start."""
    unit: Literal["words", "labels"] = "words"
    """Unit of the language model: words, or labels (characters, with | for the space; or pieces, with ▁)."""

    def problems(self) -> Iterator[str]:
        for entry in self.hot_words:
            if not math.isfinite(_weighted(entry, self.hot_word_weight)[1]):
                yield f"hot_words is {self.hot_words}: expected a finite weight of {entry!r}"
        weighted = [_weighted(entry, self.hot_word_weight) for entry in self.hot_words]
        if twice := sorted({words for words, weight in weighted if weight != dict(weighted)[words]}):
            yield f"hot_words is {self.hot_words}: expected one weight of {', '.join(twice)}"
        if self.lookahead and not (self.lexicon and self.kenlm):
            yield "lookahead is True: expected a lexicon and a language model; set lexicon and kenlm"
        if self.unit == "labels" and (self.lexicon or self.hot_words):
            yield "unit is 'labels': expected neither lexicon nor hot words, which need unit 'words'"

    def build(self) -> "WordScores | None":
        """Returns the word scores; None if nothing is fused.

        Raises:
            UserError: If a language model or a list cannot be read.
        """
        return WordScores(self) if self.kenlm or self.hot_words or self.lexicon else None


def hot_word_weights(settings: Fusion) -> dict[str, float]:
    """Returns the score of each hot word: the number after its colon, otherwise `hot_word_weight`."""
    entries = (_weighted(entry, settings.hot_word_weight) for entry in settings.hot_words)
    return {word: weight for words, weight in entries for word in visible(words).split()}


def _weighted(entry: str, usual: float) -> tuple[str, float]:
    """Returns the words of an entry of hot words, and their weight."""
    words, _, number = entry.rpartition(":")
    try:
        return (words, float(number)) if words else (entry, usual)
    except ValueError:
        return entry, usual


class WordScores:
    """Scores of words in sequence. A state contains the context of the language model.

    In scripts without spaces, an open word ends before a letter with which no listed word begins like it. Its words are
    the longest listed ones.
    """

    def __init__(self, settings: Fusion) -> None:
        self.settings = settings
        self.model: Any = load_kenlm(settings.kenlm) if settings.kenlm else None
        self.lexicon = listed_words(settings.lexicon) if settings.lexicon else frozenset()
        self.hot_words = hot_word_weights(settings)
        """Score of each hot word."""
        self.known = self._known_words() if self.model else None
        """Known words. None: a binary model without its words and no `known_words`, so that every open word is treated
        as unknown; finished words are looked up."""

    def _known_words(self) -> frozenset[str] | None:
        if not self.settings.known_words:
            return model_words(self.settings.kenlm)
        known = frozenset(word for word in listed_words(self.settings.known_words) if word in self.model)
        if not known:
            raise UserError(
                f"{self.settings.kenlm} has no word of {self.settings.known_words}: expected words of the model"
            )
        return known

    def start(self) -> Any:
        """Returns the state before the first word."""
        if self.model is None:
            return None
        state = _new_state()
        (self.model.BeginSentenceWrite if self.settings.bos else self.model.NullContextWrite)(state)
        return state

    def word(self, state: Any, word: str) -> tuple[Any, float]:
        """Returns the state after a word, and the score that the word adds; minus infinity if it is not allowed."""
        added = self.by_lists(word)
        if self.model is None or added == -math.inf:
            return state, added
        after = _new_state()
        log10 = self.model.BaseScore(state, word, after)
        if self.is_unknown(word):
            log10 += self.settings.unknown_score
        return after, added + self.settings.lm_weight * LN10 * log10 + self.settings.word_bonus

    def by_lists(self, word: str) -> float:
        """Returns the score of a word without a language model."""
        if not self.may_be(word):
            return -math.inf
        return self.hot_words.get(word, 0.0)

    def end(self, state: Any) -> float:
        """Returns the score of the end of the sentence."""
        if self.model is None or not self.settings.eos:
            return 0.0
        return self.settings.lm_weight * LN10 * self.model.BaseScore(state, "</s>", _new_state())

    def ends_before(self, part: str, letter: str) -> bool:
        """Returns whether an open word ends before a letter that follows it without a space."""
        return may_follow(part, letter) and part + letter not in self.beginnings

    def grown(self, part: str, text: str) -> tuple[list[str], str]:
        """Returns the words that end, and the open word, if a text without spaces follows an open word."""
        ended = list[str]()
        for letter in text:
            if self.ends_before(part, letter):
                ended += self.finished(part)
                part = ""
            part += letter
        return ended, part

    def finished(self, part: str) -> list[str]:
        """Returns the words of an open word that ends."""
        return words_of_model(part, lambda word: word in self._listed) if part else []

    @functools.cached_property
    def _listed(self) -> frozenset[str]:
        favoured = frozenset(self.hot_words)
        return self.lexicon or (self.known or frozenset()) | favoured

    def text(self, words: Iterable[str]) -> float:
        """Returns the score of finished words and the end of the sentence."""
        state, total = self.start(), 0.0
        for word in words:
            state, added = self.word(state, word)
            total += added
        return total + self.end(state)

    def units(self, words: Sequence[str], spelling: Spelling, labels: Sequence[int]) -> list[str]:
        """Returns the units of a text that the language model scores.

        Args:
            words: Texts between spaces.
        """
        if self.settings.unit == "labels":
            return [spelling.symbols[label] for label in labels]
        return [word for text in words for word in self._words(text)]

    def _words(self, text: str) -> list[str]:
        ended, part = self.grown("", text)
        return ended + self.finished(part)

    def may_end(self, text: str) -> bool:
        """Returns whether all words of a text between spaces are allowed. The empty text is."""
        return all(map(self.may_be, self._words(text)))

    def may_be(self, word: str) -> bool:
        """Returns whether a word is allowed. The empty word is."""
        return not self.lexicon or not word or word in self.lexicon

    def is_unknown(self, word: str) -> bool:
        """Returns whether a word is missing in the language model or in the list of known words."""
        return (self.known is not None and word not in self.known) or word not in self.model

    def open(self, part: str) -> float:
        """Returns the score of an open word; minus infinity if no allowed word begins like it."""
        if not part:
            return 0.0
        found = self.beginnings.get(part)
        return self.outside(len(part)) if found is None else found

    def outside(self, num_letters: int) -> float:
        """Returns the score of an open word of `num_letters` letters with which no listed word begins."""
        if self.lexicon:
            return -math.inf
        if self.model is None or self.settings.unit == "labels":
            return 0.0
        return self.settings.unknown_score * max(1.0, num_letters / USUAL_WORD)

    @functools.cached_property
    def beginnings(self) -> dict[str, float]:
        """`open` of every beginning of a word of the lexicon, of known words and of hot words."""
        found: dict[str, float] = {}
        for word in self.lexicon or self.known or ():
            score = self._alone(word) if self.settings.lookahead else 0.0
            for part in _beginnings(word):
                found[part] = max(score, found.get(part, -math.inf))
        best: dict[str, str] = {}  # of the hot words with a beginning, the one with the largest score per letter
        for word in sorted(self.hot_words, key=lambda word: -abs(self.hot_words[word]) / len(word)):
            for part in _beginnings(word) if word in self.lexicon or not self.lexicon else ():
                best.setdefault(part, word)
        for part, word in best.items():
            found[part] = found.get(part, 0.0) + self.hot_words[word] * len(part) / len(word)
        return found

    def _alone(self, word: str) -> float:
        """Returns the weighted log-probability of a word at the start of a sentence."""
        return self.settings.lm_weight * LN10 * self.model.BaseScore(self.start(), word, _new_state())


def _beginnings(word: str) -> Iterator[str]:
    return (word[:i] for i in range(1, len(word) + 1))


def _new_state() -> Any:
    import kenlm

    return kenlm.State()
