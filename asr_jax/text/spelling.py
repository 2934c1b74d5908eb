"""What labels spell: the text of each, and where words begin. With it a search over labels knows words."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from asr_jax.core.errors import UserError
from asr_jax.text.tokenizers import Tokenizer


@dataclass(frozen=True)
class Spelling:
    """The text of each label, and whether a word border stands before it."""

    texts: tuple[str, ...]
    """Without borders: "a" of the character a, "" of a space, "the" of the piece ▁the; the blank's is not used."""
    opens: tuple[bool, ...]
    """Whether a border stands before the text: true of a space, of ▁the, and of a label that is a whole word."""
    blank_id: int

    def __post_init__(self) -> None:
        if several := [text for text in self.texts if text != "".join(text.split())]:
            raise UserError(
                f"labels {several[:5]} have borders within: expected labels of one word at most; make the tokenizer "
                "anew with pieces that end where words do"
            )

    @classmethod
    def of_surfaces(cls, surfaces: Sequence[str], *, blank_id: int) -> "Spelling":
        """Of each label's text with a space at its beginning where it begins a word."""
        opens = tuple(surface.startswith(" ") for surface in surfaces)
        return cls(texts=tuple(surface.strip() for surface in surfaces), opens=opens, blank_id=blank_id)

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> "Spelling":
        """Of any tokenizer: what each label adds to a text that another one began. Differs from: SentencePiece's own
        text, which has a space behind an unknown symbol as well.

        Raises: UserError for a vocabulary with labels of several words.
        """
        ids = [i for i in range(tokenizer.vocab_size) if i != tokenizer.blank_id]
        first = next((i for i in ids if len(tokenizer.decode([i]).strip()) > 0), None)
        begun = "" if first is None else tokenizer.decode([first])
        surfaces = [""] * tokenizer.vocab_size
        for i in ids:
            surfaces[i] = tokenizer.decode([i] if first is None else [first, i])[len(begun) :]
        return cls.of_surfaces(surfaces, blank_id=tokenizer.blank_id)

    @functools.cached_property
    def border(self) -> int | None:
        """The label that is a border and nothing else; None in a vocabulary without one."""
        pairs = enumerate(zip(self.texts, self.opens, strict=True))
        return next((i for i, (text, opens) in pairs if opens and not text and i != self.blank_id), None)

    @functools.cached_property
    def has_bytes(self) -> bool:
        """Whether some labels are parts of characters: alone they spell nothing."""
        return any("\ufffd" in text for text in self.texts)

    def can_spell(self, word: str) -> bool:
        """Whether some labels one after another are this word."""
        first, inner = self._beginnings_and_rest
        reached = {0}
        for place in range(len(word)):
            if place in reached:
                texts = inner if place else first
                reached |= {place + num for num in range(1, self._longest + 1) if word[place : place + num] in texts}
        return len(word) in reached

    @functools.cached_property
    def _beginnings_and_rest(self) -> tuple[frozenset[str], frozenset[str]]:
        """Texts that may begin a word, and those that may go on with one."""
        pairs = list(zip(self.texts, self.opens, strict=True))
        opening, inner = (frozenset(text for text, opens in pairs if text and opens == each) for each in (True, False))
        return (opening | inner if self.border is not None or not opening else opening), inner

    @functools.cached_property
    def _longest(self) -> int:
        return max(map(len, self.texts), default=0)

    @property
    def is_of_pieces(self) -> bool:
        """Whether there are labels of text with a border before it."""
        return any(opens and text for text, opens in zip(self.texts, self.opens, strict=True))

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        """Each label as a language model of labels has it: characters and | for the space; pieces with ▁ in front."""
        border = "▁" if self.is_of_pieces else "|"
        return tuple(border * opens + text for text, opens in zip(self.texts, self.opens, strict=True))

    def collapse(self, path: Int[np.ndarray, " T"]) -> tuple[int, ...]:
        """Labels of a path (a symbol per frame): repeats merged, blanks left out, and a border in the first frame."""
        return tuple(path[self._starts(path)].tolist())

    def _starts(self, path: Int[np.ndarray, " T"]) -> Int[np.ndarray, " U"]:
        """The frames in which labels begin."""
        before = np.concatenate([[self.blank_id if self.border is None else self.border], path[:-1]])
        return np.flatnonzero((path != self.blank_id) & (path != before))

    def extend(self, words: tuple[str, ...], part: str, label: int) -> tuple[tuple[str, ...], str]:
        """Finished words and the open one, after one more label."""
        if not self.opens[label]:
            return words, part + self.texts[label]
        return ((*words, part) if part else words), self.texts[label]

    def words(self, labels: Iterable[int]) -> tuple[tuple[str, ...], str]:
        """Finished words and the open one, which is empty behind a border."""
        *words, part = "".join([self._surfaces[label] for label in labels]).split(" ")
        return tuple(word for word in words if word), part

    @functools.cached_property
    def _surfaces(self) -> tuple[str, ...]:
        return tuple(" " * opens + text for text, opens in zip(self.texts, self.opens, strict=True))

    def runs(
        self, path: Int[np.ndarray, " T"], logps: Float[np.ndarray, " T"]
    ) -> tuple[Int[np.ndarray, " U"], Int[np.ndarray, " U"], Float[np.ndarray, " U"]]:
        """Of each label of `collapse(path)`: the first frame, the frame after its last one, and the largest of its
        log-probabilities.

        Args:
            logps: of the path's symbols; those of blanks do not count.
        """
        starts = self._starts(path)
        if not len(starts):
            return starts, starts, np.zeros(0, logps.dtype)
        said = np.flatnonzero(path != self.blank_id)
        ends = said[np.searchsorted(said, np.append(starts, len(path))[1:]) - 1] + 1
        return starts, ends, np.maximum.reduceat(np.where(path == self.blank_id, -np.inf, logps), starts)

    def word_ranges(self, labels: Sequence[int] | Int[np.ndarray, " U"]) -> list[tuple[int, int]]:
        """The labels of each word that `words` gives, the open one included: from its first label that has text up to,
        and without, the label that begins the next segment.
        """
        if not len(labels):
            return []
        chosen = np.asarray(labels)
        segment, has_text = np.cumsum(self._opens[chosen]), self._has_text[chosen]
        first = np.flatnonzero(np.diff(segment, prepend=-1))  # of each segment, which begins with a label that opens
        num_texts = np.cumsum(has_text)
        before = np.repeat(num_texts[first] - has_text[first], np.diff(first, append=len(chosen)))
        in_word = np.flatnonzero(num_texts > before)  # from the first label of a segment that has text to its end
        word = np.flatnonzero(np.diff(segment[in_word], prepend=-1))
        ends = in_word[np.append(word[1:], len(in_word)) - 1] + 1 if len(word) else word
        return list(zip(in_word[word].tolist(), ends.tolist(), strict=True))

    def spans(self, path: Int[np.ndarray, " T"], logps: Float[np.ndarray, " T"]) -> list[tuple[int, int, float]]:
        """Of each word of a path: the first frame of its first label that has text, the frame after the last one of its
        last label, and the mean of its labels' largest log-probabilities.

        Args:
            logps: of the path's symbols; those of blanks do not count.
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
    def _has_text(self) -> Bool[np.ndarray, " V"]:
        return np.array([bool(text) for text in self.texts])
