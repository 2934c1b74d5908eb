"""Utterances that the training set and the validation set have in common."""

from dataclasses import dataclass

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
    of_audio = _members(validation, train, "locations", np.ones(len(validation), bool), np.ones(len(train), bool))
    others = ~np.isin(validation.rows, of_audio)
    comparable = [_is_long(validation) & others, _is_long(train)]
    durations = [_milliseconds(validation), _milliseconds(train)]
    comparable[1] &= np.isin(durations[1], durations[0][comparable[0]])
    of_texts = _members(validation, train, "texts", *comparable, durations=durations)
    ids = validation.columns.ids
    return [list(map(ids.text, rows)) for rows in (of_audio, of_texts)]


def _members(
    validation: Utterances,
    train: Utterances,
    column: str,
    of_validation: np.ndarray,
    of_train: np.ndarray,
    *,
    durations: list[np.ndarray] | None = None,
) -> list[int]:
    """Rows of validation utterances whose value in a column, with the duration, is one of the training set's.

    Args:
        validation: Validation set, V utterances.
        train: Training set, N utterances.
        of_validation: Mask of the utterances to compare [V].
        of_train: Mask of the utterances to compare [N].
        durations: Durations in milliseconds, [V] and [N]. None: durations are not compared.
    """
    places: dict[tuple[bytes, int], list[int]] = {}
    for utterances, mask, number in ((validation, of_validation, 0), (train, of_train, 1)):
        values = getattr(utterances.columns, column)
        found = []
        for place in np.flatnonzero(mask).tolist():
            row = int(utterances.rows[place])
            key = values[row].tobytes(), int(durations[number][place]) if durations else 0
            if number == 0:
                places.setdefault(key, []).append(row)
            elif key in places:
                found += places.pop(key)
    return sorted(found)


def _is_long(utterances: Utterances) -> np.ndarray:
    return utterances.columns.num_chars[utterances.rows] >= LONG_TEXT


def _milliseconds(utterances: Utterances) -> np.ndarray:
    return np.rint(np.nan_to_num(utterances.columns.duration_s[utterances.rows], nan=-1) * 1000).astype(np.int64)
