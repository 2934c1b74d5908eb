"""Utterances that the training set and the validation set have in common."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.remembered import remembered

LONG_TEXT = 20
"""Minimum length of a text in characters for a comparison with others. Short texts, such as commands, often repeat."""
SHOWN = 3


@dataclass(frozen=True)
class Overlap:
    """Validation utterances that are also in the training set."""

    of_audio: tuple[str, ...]
    """Ids of validation utterances whose audio is in the training set."""
    of_texts: tuple[str, ...]
    """Ids of other validation utterances with text and duration of a training utterance."""
    num_validation: int
    """Number of validation utterances."""

    def lines(self) -> list[str]:
        """One line for each kind of overlap. Empty if there is none."""
        kinds = ((self.of_audio, "the same audio"), (self.of_texts, "the same text and duration"))
        return [
            f"{len(ids):,} of {self.num_validation:,} validation utterances have {what} as a training utterance "
            f"({', '.join(ids[:SHOWN])}{' …' * (len(ids) > SHOWN)}): their error rates are too low; remove them "
            "from one of the sets"
            for ids, what in kinds
            if ids
        ]


def find_overlap(train: Utterances, validation: Utterances) -> Overlap:
    """Finds validation utterances with the audio, or with the text and the duration, of a training utterance.

    Locations are compared as strings. Texts of less than LONG_TEXT characters are not compared. Durations are equal if
    they differ by less than a millisecond.
    """
    inputs = (train.digest, train.rows, str(train.folder), validation.digest, validation.rows, str(validation.folder))
    found = remembered(
        train.folder if validation.folder else None, "overlap", inputs, lambda: _found(train, validation)
    )
    of_audio, of_texts = map(tuple, found)
    return Overlap(of_audio, of_texts, len(validation))


def _found(train: Utterances, validation: Utterances) -> list[list[str]]:
    """Ids of validation utterances with equal audio, and with equal text and duration."""
    everything = np.arange(len(validation)), np.arange(len(train))
    of_audio = _members(_keys(validation, "locations", everything[0]), _keys(train, "locations", everything[1]))
    of_each = _milliseconds(validation), _milliseconds(train)
    comparable = np.flatnonzero(_is_long(validation) & ~np.isin(validation.rows, of_audio))
    of_train = np.flatnonzero(_is_long(train) & np.isin(of_each[1], of_each[0][comparable]))
    of_texts = _members(_keys(validation, "texts", comparable, of_each[0]), _keys(train, "texts", of_train, of_each[1]))
    ids = validation.columns.ids
    return [list(map(ids.text, rows)) for rows in (of_audio, of_texts)]


def _keys(
    utterances: Utterances, column: str, places: np.ndarray, milliseconds: np.ndarray | None = None
) -> Iterator[tuple[int, tuple[bytes, int]]]:
    """Yields the row of each place, and its value in a column with its duration; without durations, with 0."""
    values = getattr(utterances.columns, column)
    for place in places.tolist():
        row = int(utterances.rows[place])
        yield row, (values[row].tobytes(), 0 if milliseconds is None else int(milliseconds[place]))


def _members(validation: Iterable[tuple[int, Any]], train: Iterable[tuple[int, Any]]) -> list[int]:
    """Rows of the validation set whose keys the training set has."""
    rows = defaultdict[Any, list[int]](list)
    for row, key in validation:
        rows[key].append(row)
    return sorted(row for _, key in train for row in rows.pop(key, ()))


def _is_long(utterances: Utterances) -> np.ndarray:
    return utterances.columns.num_chars[utterances.rows] >= LONG_TEXT


def _milliseconds(utterances: Utterances) -> np.ndarray:
    return np.rint(np.nan_to_num(utterances.columns.duration_s[utterances.rows], nan=-1) * 1000).astype(np.int64)
