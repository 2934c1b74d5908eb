"""Counts of the characters that a normaliser removes from the texts of a set, or replaces in them."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.data.manifests.columns import Ragged
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.remembered import remembered
from asr_jax.data.manifests.utterances import Rejected
from asr_jax.text.invisible import invisible_characters
from asr_jax.text.removed import (
    depends_on_context,
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
EVERY = "every normaliser"
"""Cause of the removal of invisible characters."""
ABSENT = "not in the vocabulary"
LABELS = "its labels"
CAPITALS, SMALL, SPACES = "capital letters", "small letters", "white space"
GROUPS = frozenset((CAPITALS, SMALL, SPACES))
"""Parts that stand for many characters."""


@dataclass(frozen=True)
class RemovedPart:
    """Character that is removed or replaced, or word that the labels write otherwise."""

    part: str
    by: str
    """`the normaliser NAME`; `every normaliser`, for an invisible character; `not in the vocabulary`, for a part
    without a label; `its labels`, for a part that labels write otherwise."""
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
    """Letters that the normaliser or the labels write for it. Empty: none."""

    @property
    def is_spoken(self) -> bool:
        """Whether the part is pronounced. Punctuation is not."""
        return len(self.part) > 1 or is_spoken(self.part)

    @property
    def description(self) -> str:
        """The part with its replacement and its Unicode name: `'ü' → 'u' (LATIN SMALL LETTER U WITH DIAERESIS)`."""
        name = name_of(self.part)
        return change_text(self.part, self.replacement) + (f" ({name})" if name else "")


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
        """The parts without punctuation and invisible characters."""
        return [each for each in self.parts if each.is_spoken]

    @property
    def invisible(self) -> list[RemovedPart]:
        """The invisible characters."""
        return [each for each in self.parts if each.by == EVERY]

    def lines(self) -> list[str]:
        """One line for each of the most frequent spoken or invisible parts, with an utterance as an example."""
        return part_lines([*self.spoken, *self.invisible])

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


def count_removed(utterances: Utterances, tokenizer: Tokenizer, *, takes_ids: bool = False) -> Removed:
    """Counts the characters that a tokenizer's normaliser removes from the texts of a set or replaces in them.

    Args:
        takes_ids: Whether token ids of manifests take precedence over texts. Texts of utterances with token ids are
            then not counted.
    """
    if not tokenizer.has_labels or tokenizer.kind == "ids":
        return Removed((), 0)

    def work() -> Any:
        return asdict(_count_removed(utterances, tokenizer, takes_ids=takes_ids))

    inputs = (utterances.digest, utterances.rows, str(utterances.folder), tokenizer.digest(), takes_ids)
    found = remembered(utterances.folder, "removed", inputs, work)
    return Removed(tuple(RemovedPart(**part) for part in found["parts"]), found["num_chars"])


def _count_removed(utterances: Utterances, tokenizer: Tokenizer, *, takes_ids: bool) -> Removed:
    columns, rows = utterances.columns, text_rows(utterances, takes_ids=takes_ids)
    counts, name = PartCounts(), tokenizer.normaliser
    characters = _characters(columns.texts)
    suspects = [each for each in characters if may_be_removed(each, name) or replacement_of(each, name)]
    pattern = re.compile(f"[{re.escape(''.join(suspects))}]") if suspects else None
    are_unseen = any(map(invisible_characters, characters))
    for row, text in texts_of_rows(columns.texts, rows) if suspects or are_unseen else ():
        unseen = invisible_characters(text)
        found = Counter(pattern.findall(text)) if pattern else Counter[str]()
        if any(is_spoken(each) or depends_on_context(each, name) for each in found):
            found = removed_characters(text, name) + replaced_characters(text, name) - unseen
        by = f"the normaliser {name}"
        counts.add({(by, part, replacement_of(part, name)): number for part, number in found.items()}, row)
        counts.add({(EVERY, part, ""): number for part, number in unseen.items()}, row)
    return Removed(counts.parts(utterances), int(columns.num_chars[rows].sum(dtype=np.int64)))


def check_removed(removed: Removed, *, limit: float, what: str) -> None:
    """Checks the share of removed and replaced characters.

    Args:
        limit: Largest allowed share, as in `Data.max_removed_share`.

    Raises:
        UserError: If more characters are removed or replaced. The message names them and three ways to continue.
    """
    if removed.share > limit:
        allowed = min(np.ceil(removed.share * 100 + 1e-9) / 100, 1.0)  # in whole percents
        raise UserError(
            f"{share_removed(removed, what)} (expected at most {100 * limit:.3g} %, data.max_removed_share):\n"
            + "\n".join(removed.lines())
            + "\nThree ways to continue:\n"
            "  keep them: --data.tokenizer.normaliser lower.v1 (Unicode NFC and lower case; removes nothing), with a "
            "tokenizer that is trained on these texts (without --data.tokenizer.path)\n"
            "  rewrite them: write the texts as they are spoken in the manifest; for English texts alone, "
            "--data.tokenizer.normaliser english.v1 spells out numbers\n"
            f"  train without them, with any replacements: --data.max-removed-share {allowed:g}"
        )


def about_removed(removed: Removed, what: str) -> str:
    """Returns a sentence on the removed and replaced characters of a set, and lines with the characters.

    The result is empty if they are only punctuation.
    """
    if removed.spoken:
        return "\n".join([share_removed(removed, what), *removed.lines()])
    if not removed.invisible:
        return ""
    number = counted(sum(each.number for each in removed.invisible), "invisible character")
    return "\n".join([f"{number} of the {what} texts become no labels", *removed.lines()])


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
    if part.by == LABELS:
        return f"written as {part.replacement!r} by its labels"
    return f"{f'replaced by {part.replacement!r}' if part.replacement else 'removed'} by {part.by}"


def change_text(part: str, replacement: str) -> str:
    """Returns a part and what is written for it, such as `'ü' → 'u'`."""
    if part in GROUPS:
        return f"{part} → {replacement}"
    # Texts in other code points, such as e and an accent for é, look the same.
    looks_same = unicodedata.normalize("NFC", part) == unicodedata.normalize("NFC", replacement)
    quoted = ascii if looks_same else repr
    return quoted(part) + (f" → {quoted(replacement)}" if replacement else "")


def part_lines(parts: Sequence[RemovedPart]) -> list[str]:
    """Returns a line for each of the first SHOWN parts, with its occurrences and an utterance as an example."""
    shown = [
        f"  {each.description}: {counted(each.number, 'time')} in {counted(each.texts, 'text')}, "
        f"{'' if each.by == ABSENT else 'by '}{each.by}; for example in {each.id}: {each.text[:100]!r}"
        for each in parts[:SHOWN]
    ]
    more = len(parts) - SHOWN
    return shown + ([f"  and {counted(more, 'other')}"] if more > 0 else [])


PartKey = tuple[str, str, str]
"""`by`, `part` and `replacement` of a RemovedPart."""


class PartCounts:
    """Occurrences, texts and first row of parts that are removed or replaced."""

    def __init__(self) -> None:
        self._numbers = Counter[PartKey]()
        self._texts = Counter[PartKey]()
        self._first: dict[PartKey, int] = {}

    def add(self, found: Mapping[PartKey, int], row: int) -> None:
        """Adds the parts of a text, with their numbers of occurrences."""
        for key, number in found.items():
            self._numbers[key] += number
            self._texts[key] += 1
            self._first.setdefault(key, row)

    def merge(self, later: "PartCounts") -> None:
        """Adds the counts of texts that follow."""
        self._numbers.update(later._numbers)
        self._texts.update(later._texts)
        self._first = later._first | self._first

    def parts(self, utterances: Utterances, most: int | None = None) -> tuple[RemovedPart, ...]:
        """Returns the parts, most frequent first; at most `most` of them."""
        found = []
        for (by, part, to), number in self._numbers.most_common(most):
            first = utterances.columns.utterance(self._first[by, part, to])
            texts = self._texts[by, part, to]
            found.append(RemovedPart(part, by, number, texts, first.id, first.location, first.text, to))
        return tuple(found)


def text_rows(utterances: Utterances, *, takes_ids: bool) -> np.ndarray:
    """Returns the rows whose texts count: all, or with `takes_ids` those without token ids."""
    rows = utterances.rows
    return rows[~utterances.columns.has_labels[rows]] if takes_ids else rows


def _characters(texts: Ragged) -> list[str]:
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


def texts_of_rows(texts: Ragged, rows: np.ndarray) -> Iterable[tuple[int, str]]:
    """Yields row and text of each of the rows."""
    if len(rows) == len(texts):
        return enumerate(texts.all_texts())
    return ((row, texts.text(row)) for row in rows.tolist())
