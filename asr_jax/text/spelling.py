"""Text and word boundaries of labels, with which a search over labels forms words."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from asr_jax.core.errors import UserError
from asr_jax.text.mixed import MixedTokenizer
from asr_jax.text.segmentation import is_unspaced, may_follow
from asr_jax.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Spelling:
    """Text of each label, and whether a word boundary precedes it."""

    texts: tuple[str, ...]
    """Text of each label without word boundaries: "a" for the character a, "" for a space, "the" for the piece ▁the.
    The blank's text is ignored."""
    opens: tuple[bool, ...]
    """Whether a word boundary precedes the text: True for a space, for ▁the, and for a label that is a whole word."""
    blank_id: int
    """Id of the blank."""
    ends: tuple[bool, ...] = ()
    """Whether a word boundary can follow the text: False for FunASR's hel@@ and 你. Empty: it always can."""

    def __post_init__(self) -> None:
        if several := [text for text in self.texts if text != "".join(text.split())]:
            raise UserError(
                f"labels {several[:5]} contain word boundaries: expected labels of one word at most; train a tokenizer "
                "whose pieces do not cross word boundaries"
            )

    @classmethod
    def of_surfaces(cls, surfaces: Sequence[str], *, blank_id: int) -> "Spelling":
        """Creates a spelling from each label's text, with a leading space if the label begins a word."""
        opens = tuple(surface.startswith(" ") for surface in surfaces)
        return cls(texts=tuple(surface.strip() for surface in surfaces), opens=opens, blank_id=blank_id)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Spelling":
        """Creates the spelling of a tokenizer.

        The text of a label is the text that it appends to the decoded text of another label. Differs from:
        SentencePiece's decoded text, which has a space behind an unknown label as well.

        Raises:
            UserError: If the vocabulary has labels of several words.
        """
        if isinstance(tokenizer, MixedTokenizer):
            return cls(tokenizer.texts, tokenizer.opens, tokenizer.blank_id, ends=tokenizer.ends)
        ids = [i for i in range(tokenizer.vocab_size) if i != tokenizer.blank_id]
        first = next((i for i in ids if len(tokenizer.decode([i]).strip()) > 0), None)
        begun = "" if first is None else tokenizer.decode([first])
        surfaces = [""] * tokenizer.vocab_size
        for i in ids:
            surfaces[i] = tokenizer.decode([i] if first is None else [first, i])[len(begun) :]
        return cls.of_surfaces(surfaces, blank_id=tokenizer.blank_id)

    @functools.cached_property
    def border(self) -> int | None:
        """Label that is a word boundary without text; None if the vocabulary has no such label."""
        pairs = enumerate(zip(self.texts, self.opens, strict=True))
        return next((i for i, (text, opens) in pairs if opens and not text and i != self.blank_id), None)

    @functools.cached_property
    def has_bytes(self) -> bool:
        """Whether some labels are bytes of characters, which cannot be decoded on their own."""
        return any("\ufffd" in text for text in self.texts)

    def can_spell(self, word: str) -> bool:
        """Returns whether a sequence of labels spells the word."""
        first, inner = self._beginnings_and_rest
        reached = {0}
        for place in range(len(word)):
            if place in reached:
                texts = inner if place else first
                if is_unspaced(word[place]):  # without a space before it
                    texts = first | inner
                elif self.ends and may_follow(word[:place], word[place]):
                    texts = first
                reached |= {place + num for num in range(1, self._longest + 1) if word[place : place + num] in texts}
        return len(word) in reached

    @functools.cached_property
    def _beginnings_and_rest(self) -> tuple[frozenset[str], frozenset[str]]:
        """Texts of labels that can begin a word, and texts that can continue one."""
        pairs = list(zip(self.texts, self.opens, strict=True))
        opening, inner = (frozenset(text for text, opens in pairs if text and opens == each) for each in (True, False))
        return (opening | inner if self.border is not None or not opening else opening), inner

    @functools.cached_property
    def _longest(self) -> int:
        return max(map(len, self.texts), default=0)

    @property
    def is_of_pieces(self) -> bool:
        """Whether the vocabulary has labels that consist of a word boundary and text."""
        return any(opens and text for text, opens in zip(self.texts, self.opens, strict=True))

    @property
    def is_of_parts(self) -> bool:
        """Whether some labels are parts of words that the next label continues, such as FunASR's hel@@."""
        endings = [text[-1] for text, ends in zip(self.texts, self.ends, strict=False) if text and not ends]
        return any(letter.isalpha() and not is_unspaced(letter) for letter in endings)

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        """Labels in the notation of label-level language models: characters with | for the space, or pieces with ▁."""
        border = "▁" if self.is_of_pieces else "|"
        return tuple(border * opens + text for text, opens in zip(self.texts, self.opens, strict=True))

    def collapse(self, path: Int[np.ndarray, " T"]) -> tuple[int, ...]:
        """Returns the labels of a path, which has one label per frame.

        Repeated labels are merged; blanks and a word-boundary label in the first frame are removed.
        """
        return tuple(path[self._starts(path)].tolist())

    def _starts(self, path: Int[np.ndarray, " T"]) -> Int[np.ndarray, " U"]:
        """Returns the frames in which labels begin."""
        before = np.concatenate([[self.blank_id if self.border is None else self.border], path[:-1]])
        return np.flatnonzero((path != self.blank_id) & (path != before))

    def extend(self, words: tuple[str, ...], part: str, label: int) -> tuple[tuple[str, ...], str]:
        """Appends a label to words, of a vocabulary without `ends`.

        Args:
            part: Incomplete word.

        Returns:
            Complete words and the incomplete word.
        """
        if not self.opens[label]:
            return words, part + self.texts[label]
        return ((*words, part) if part else words), self.texts[label]

    def words(self, labels: Iterable[int]) -> tuple[tuple[str, ...], str]:
        """Returns complete words and the incomplete last word, which is empty after a word-boundary label."""
        if self.ends:
            labels = list(labels)
            pairs = zip(self.boundaries(labels).tolist(), labels, strict=True)
            surfaces = [" " * opens + self.texts[label] for opens, label in pairs]
        else:
            surfaces = [self._surfaces[label] for label in labels]
        *words, part = "".join(surfaces).split(" ")
        return tuple(word for word in words if word), part

    def boundaries(self, labels: Sequence[int] | Int[np.ndarray, " U"]) -> Bool[np.ndarray, " U"]:
        """Returns whether a word boundary precedes each label."""
        chosen = np.asarray(labels, np.int64)
        if not self.ends:
            return self._opens[chosen]
        with_text = np.where(self._has_text[chosen], np.arange(len(chosen)), -1)
        before = np.maximum.accumulate(np.concatenate([[-1], with_text]))[:-1]  # the last label with text
        return self._opens[chosen] & ((before < 0) | np.array(self.ends, bool)[chosen[before]])

    def runs(
        self, path: Int[np.ndarray, " T"], logps: Float[np.ndarray, " T"]
    ) -> tuple[Int[np.ndarray, " U"], Int[np.ndarray, " U"], Float[np.ndarray, " U"]]:
        """Returns frames and scores of the labels of `collapse(path)`.

        Args:
            path: Label of each frame.
            logps: Log-probability of the path's label in each frame; blanks are ignored.

        Returns:
            For each label the first frame, the frame after its last one, and its maximum log-probability.
        """
        starts = self._starts(path)
        if not len(starts):
            return starts, starts, np.zeros(0, logps.dtype)
        labelled = np.flatnonzero(path != self.blank_id)
        ends = labelled[np.searchsorted(labelled, np.append(starts, len(path))[1:]) - 1] + 1
        return starts, ends, np.maximum.reduceat(np.where(path == self.blank_id, -np.inf, logps), starts)

    def word_ranges(self, labels: Sequence[int] | Int[np.ndarray, " U"]) -> list[tuple[int, int]]:
        """Returns the range of labels of each word of `words`, including the incomplete last word.

        Returns:
            For each word the first label with text, and the label after its last one. A word ends at the next label
            with a word boundary.
        """
        if not len(labels):
            return []
        chosen = np.asarray(labels)
        segment, has_text = np.cumsum(self.boundaries(chosen)), self._has_text[chosen]
        first = np.flatnonzero(np.diff(segment, prepend=-1))  # first label of each segment, which begins at a boundary
        num_texts = np.cumsum(has_text)
        before = np.repeat(num_texts[first] - has_text[first], np.diff(first, append=len(chosen)))
        in_word = np.flatnonzero(num_texts > before)  # labels of a segment from its first label with text on
        word = np.flatnonzero(np.diff(segment[in_word], prepend=-1))
        ends = in_word[np.append(word[1:], len(in_word)) - 1] + 1 if len(word) else word
        return list(zip(in_word[word].tolist(), ends.tolist(), strict=True))

    def spans(self, path: Int[np.ndarray, " T"], logps: Float[np.ndarray, " T"]) -> list[tuple[int, int, float]]:
        """Returns frames and scores of the words of a path.

        Args:
            path: Label of each frame.
            logps: Log-probability of the path's label in each frame; blanks are ignored.

        Returns:
            For each word the first frame of its first label with text, the frame after the last one of its last label,
            and the mean of its labels' maximum log-probabilities.
        """
        starts, ends, most = self.runs(path, logps)
        return [
            (int(starts[first]), int(ends[end - 1]), float(most[first:end].mean(dtype=np.float64)))
            for first, end in self.word_ranges(path[starts])
        ]

    @functools.cached_property
    def _opens(self) -> Bool[np.ndarray, " V"]:
        return np.array(self.opens, bool)

    @functools.cached_property
    def _surfaces(self) -> tuple[str, ...]:
        """Text of each label, with a space if a word boundary precedes it."""
        return tuple(" " * opens + text for text, opens in zip(self.texts, self.opens, strict=True))

    @functools.cached_property
    def _has_text(self) -> Bool[np.ndarray, " V"]:
        return np.array([bool(text) for text in self.texts])
