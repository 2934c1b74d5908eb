"""Counts of the characters that a normaliser or a vocabulary removes from the texts of a set, or replaces in them."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.data.manifests.columns import Ragged
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.remembered import remembered
from asr_jax.data.manifests.utterances import Rejected
from asr_jax.text.base import OutOfVocabulary
from asr_jax.text.normalise import normalise
from asr_jax.text.removed import (
    is_spoken,
    may_be_removed,
    name_of,
    removed_characters,
    replaced_characters,
    replacement_of,
)
from asr_jax.text.tokenizers import Tokenizer

AT_ONCE = 1 << 16
"""Rows whose distinct characters are collected together."""
BYTES_AT_ONCE = 1 << 24
"""Bytes of texts that are counted together."""
SHOWN = 5
"""Number of characters in a message."""
VOCABULARY = "the vocabulary"
ABSENT = "not in the vocabulary"


@dataclass(frozen=True)
class RemovedPart:
    """A character that is removed from texts or replaced in them, or a word that a vocabulary of words lacks."""

    part: str
    by: str
    """`the normaliser NAME`, `the vocabulary`, or `not in the vocabulary` for a part of a reference, which is kept."""
    number: int
    """Number of occurrences."""
    texts: int
    """Number of texts."""
    id: str
    """Id of the first utterance."""
    location: str
    """Location of its audio."""
    text: str
    """Its text as in the manifest."""
    replacement: str = ""
    """Letters that the normaliser writes for it. Empty: it is removed."""

    @property
    def is_spoken(self) -> bool:
        """Whether the part is pronounced. Punctuation is not."""
        return len(self.part) > 1 or is_spoken(self.part)

    @property
    def description(self) -> str:
        """The part with its replacement and its Unicode name: `'ü' → 'u' (LATIN SMALL LETTER U WITH DIAERESIS)`."""
        name = name_of(self.part)
        by = f" → {self.replacement!r}" if self.replacement else ""
        return repr(self.part) + by + (f" ({name})" if name else "")


@dataclass(frozen=True)
class Removed:
    """Characters that are removed from the texts of a set or replaced in them, most frequent first."""

    parts: tuple[RemovedPart, ...]
    num_chars: int
    """Number of characters of all texts, including spaces."""

    @property
    def share(self) -> float:
        """Removed or replaced letters, marks, digits and symbols, as a fraction of all characters."""
        return sum(each.number * len(each.part) for each in self.spoken) / max(self.num_chars, 1)

    @property
    def spoken(self) -> list[RemovedPart]:
        """The parts without punctuation."""
        return [each for each in self.parts if each.is_spoken]

    def lines(self) -> list[str]:
        """One line for each of the most frequent parts: its occurrences, and an utterance as an example."""
        shown = [
            f"  {each.description}: {counted(each.number, 'time')} in {counted(each.texts, 'text')}, "
            f"{'' if each.by == ABSENT else 'by '}{each.by}; for example in {each.id}: {each.text[:100]!r}"
            for each in self.spoken[:SHOWN]
        ]
        more = len(self.spoken) - SHOWN
        return shown + ([f"  and {counted(more, 'other')}"] if more > 0 else [])

    def to_json(self) -> dict[str, Any]:
        """`share`, and under `characters` each part with its occurrences, its first text and its replacement."""
        parts = [
            {"character": part.part, "times": part.number, "texts": part.texts, "id": part.id, "text": part.text}
            | ({"replacement": part.replacement} if part.replacement else {})
            for part in self.parts
        ]
        return {"share": self.share, "characters": parts}

    def entries(self) -> list[Rejected]:
        """Lines for rejected.jsonl, one for each part, with its first utterance. The utterances are not rejected."""
        return [
            Rejected(
                each.id,
                each.location,
                f"character {_what_happened(each)}, "
                f"{counted(each.number, 'time')} in {counted(each.texts, 'text')}, first in {each.text!r}",
                "used",
                each.part,
            )
            for each in self.parts
        ]


def count_removed(
    utterances: Utterances, tokenizer: Tokenizer, *, takes_ids: bool = False, labels: Ragged | None = None
) -> Removed:
    """Counts the characters that a tokenizer removes from the texts of a set or replaces in them.

    Args:
        tokenizer: Tokenizer of the texts, with its normaliser.
        takes_ids: Whether token ids of manifests take precedence over texts. Texts of utterances with token ids are
            then not counted.
        labels: Labels by row of `utterances.columns`, as in `Index`. None: characters that are not in the vocabulary
            are not counted, as in error rates.
    """
    if not tokenizer.has_labels or tokenizer.kind == "ids":
        return Removed((), 0)

    def work() -> Any:
        return asdict(_count_removed(utterances, tokenizer, takes_ids=takes_ids, labels=labels))

    inputs = (utterances.digest, utterances.rows, str(utterances.folder), tokenizer.digest(), takes_ids, labels is None)
    found = remembered(utterances.folder, "removed", inputs, work)
    return Removed(tuple(RemovedPart(**part) for part in found["parts"]), found["num_chars"])


def _count_removed(utterances: Utterances, tokenizer: Tokenizer, *, takes_ids: bool, labels: Ragged | None) -> Removed:
    columns, rows = utterances.columns, utterances.rows
    if takes_ids:
        rows = rows[~columns.has_labels[rows]]
    counts = _Counts()
    by = f"the normaliser {tokenizer.normaliser}"
    name = tokenizer.normaliser
    suspects = [each for each in _characters(columns.texts) if may_be_removed(each, name) or replacement_of(each, name)]
    if suspects:
        pattern = re.compile(f"[{re.escape(''.join(suspects))}]")
        for row, text in _texts(columns.texts, rows):
            found = Counter(pattern.findall(text))
            if any(map(is_spoken, found)):
                found = removed_characters(text, name) + replaced_characters(text, name)
            counts.add(by, found, row)
    if labels is not None:
        for row in _without_label(labels, rows, tokenizer).tolist():
            counts.add(VOCABULARY, _without_labels(columns.texts.text(row), tokenizer), row)
    return Removed(counts.parts(utterances, name), int(columns.num_chars[rows].sum(dtype=np.int64)))


def count_absent(utterances: Utterances, tokenizer: Tokenizer, *, takes_ids: bool = False) -> Removed:
    """Counts the characters, or words, of normalised references that a vocabulary lacks.

    They are not removed: error rates count them, and a model with this vocabulary cannot recognise them.

    Args:
        tokenizer: Tokenizer of the model, with the normaliser of the references.
        takes_ids: As in `count_removed`.
    """
    columns, rows = utterances.columns, utterances.rows
    if not tokenizer.has_labels or tokenizer.kind == "ids":
        return Removed((), 0)
    if takes_ids:
        rows = rows[~columns.has_labels[rows]]
    counts = _Counts()
    for row, text in _texts(columns.texts, rows):
        try:
            is_whole = tokenizer.unknown_id not in tokenizer.encode(text)
        except OutOfVocabulary:
            is_whole = False
        if not is_whole:
            counts.add(ABSENT, _without_labels(text, tokenizer), row)
    return Removed(counts.parts(utterances, tokenizer.normaliser), int(columns.num_chars[rows].sum(dtype=np.int64)))


def share_absent(absent: Removed, what: str) -> str:
    """Returns a sentence with the share of the characters that the vocabulary lacks; empty if it has all."""
    if not absent.spoken:
        return ""
    number = sum(each.number * len(each.part) for each in absent.spoken)
    share, are = f"{100 * absent.share:.2g} %", "is" if number == 1 else "are"
    return (
        f"{number:,} of {absent.num_chars:,} characters ({share}) of the {what} texts {are} not in the vocabulary: the "
        "model cannot recognise them, and each counts as an error"
    )


def check_removed(removed: Removed, *, limit: float, what: str) -> None:
    """Checks the share of removed and replaced characters.

    Args:
        removed: Removed and replaced characters of a set.
        limit: Largest allowed share, as in `Data.max_removed_share`.
        what: Name of the set, for the message.

    Raises:
        UserError: If more characters are removed or replaced. The message names them and three ways to continue.
    """
    if removed.share > limit:
        raise UserError(
            f"{share_removed(removed, what)} (expected at most {100 * limit:.3g} %, data.max_removed_share):\n"
            + "\n".join(removed.lines())
            + "\nThree ways to continue:\n"
            "  keep them: --data.tokenizer.normaliser lower.v1 (Unicode NFC and lower case; removes nothing), with a "
            "tokenizer that is trained on these texts (without --data.tokenizer.path)\n"
            "  rewrite them: write the texts as they are spoken in the manifest; for English texts alone, "
            "--data.tokenizer.normaliser english.v1 spells out numbers\n"
            f"  train without them, with any replacements: --data.max-removed-share {_above(removed.share):g}"
        )


def share_removed(removed: Removed, what: str) -> str:
    """Returns a sentence with the share of removed and replaced characters of a set."""
    number = sum(each.number * len(each.part) for each in removed.spoken)
    share, are = f"{100 * removed.share:.2g} %", "is" if number == 1 else "are"
    return (
        f"{number:,} of {removed.num_chars:,} characters ({share}) of the {what} texts {are} removed "
        "or replaced by the normaliser or the vocabulary"
    )


def _what_happened(part: RemovedPart) -> str:
    if part.by == ABSENT:
        return ABSENT
    return f"{f'replaced by {part.replacement!r}' if part.replacement else 'removed'} by {part.by}"


def _without_labels(text: str, tokenizer: Tokenizer) -> Counter[str]:
    """Number of occurrences of each character, or word, of a normalised text that has no label."""
    parts = tokenizer.parts(normalise(text, tokenizer.normaliser))
    return Counter({part: parts.count(part) for part in sorted(tokenizer.without_label(text))})


def _above(share: float) -> float:
    """The share, rounded up to a percent."""
    return min(np.ceil(share * 100 + 1e-9) / 100, 1.0)


class _Counts:
    """Occurrences, texts and first row of removed parts."""

    def __init__(self) -> None:
        self._numbers = Counter[tuple[str, str]]()
        self._texts = Counter[tuple[str, str]]()
        self._first: dict[tuple[str, str], int] = {}

    def add(self, by: str, found: Counter[str], row: int) -> None:
        """Adds the removed parts of a text.

        Args:
            by: Cause of the removal, as in `RemovedPart`.
            found: Number of occurrences of each part.
        """
        for part, number in found.items():
            self._numbers[by, part] += number
            self._texts[by, part] += 1
            self._first.setdefault((by, part), row)

    def parts(self, utterances: Utterances, normaliser: str) -> tuple[RemovedPart, ...]:
        found = []
        for (by, part), number in self._numbers.most_common():
            first = utterances.columns.utterance(self._first[by, part])
            texts = self._texts[by, part]
            to = "" if by in (VOCABULARY, ABSENT) or len(part) > 1 else replacement_of(part, normaliser)
            found.append(RemovedPart(part, by, number, texts, first.id, first.location, first.text, to))
        return tuple(found)


def _characters(texts: Ragged) -> Iterable[str]:
    """Distinct characters of all texts."""
    counts = np.zeros(256, np.int64)
    for first in range(0, len(texts.values), BYTES_AT_ONCE):  # NumPy converts them to eight bytes each
        counts += np.bincount(texts.values[first : first + BYTES_AT_ONCE], minlength=256)
    if not counts[128:].any():  # ASCII, which needs no decoding
        return [chr(code) for code in np.flatnonzero(counts)]
    found: set[str] = set()
    for first in range(0, len(texts), AT_ONCE):
        begin, end = texts.offsets[first], texts.offsets[min(first + AT_ONCE, len(texts))]
        found.update(texts.values[begin:end].tobytes().decode())
    return sorted(found)


def _texts(texts: Ragged, rows: np.ndarray) -> Iterable[tuple[int, str]]:
    """Row and text of each of the rows."""
    if len(rows) == len(texts):
        return enumerate(texts.all_texts())
    return ((row, texts.text(row)) for row in rows.tolist())


def _without_label(labels: Ragged, rows: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Rows whose text may have characters without a label: rows without labels, or with the unknown label."""
    suspects = labels.lengths() == 0
    if tokenizer.unknown_id is not None:
        places = np.flatnonzero(labels.values == tokenizer.unknown_id)
        suspects[np.searchsorted(labels.offsets, places, side="right") - 1] = True
    return rows[suspects[rows]]
