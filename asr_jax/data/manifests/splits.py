"""A validation set cut from the training data, by speaker where they are known."""

import re

import numpy as np
from jaxtyping import Bool, Int

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.reading import Records

_NUMBERED = re.compile(r"#\d+$")


def split(records: Records, *, share: float, seed: int) -> tuple[Records, Records]:
    """Training and validation records; the second has about `share` of all hours.

    Whole speakers, drawn by the seed, until the share is reached, where at least 3 are known and none of those drawn
    makes it more than twice the share; else single utterances: records whose ids differ in `#2`, `#3` … alone, which
    one utterance at several speeds has, stay together.

    Raises: UserError for fewer than two records.
    """
    if len(records) < 2:
        raise UserError(
            f"{len(records)} record{'s' * (len(records) != 1)} to train on: none can be held back to validate on; name "
            "a validation set (data.validation)"
        )
    rng = np.random.default_rng(seed)
    columns = records.columns
    seconds = np.maximum(columns.duration_s[records.rows], 0)
    speaker_of = columns.speakers.of_row[records.rows]
    groups = speaker_of if _knows_speakers(columns.speakers.names, speaker_of) else _utterances(records)
    chosen = _drawn(groups, seconds, share, rng)
    if not chosen.any() or chosen.all() or seconds[chosen].sum() > 2 * share * seconds.sum():
        chosen = _drawn(_utterances(records), seconds, share, rng)
    return records.select(~chosen), records.select(chosen)


def _knows_speakers(names: tuple[str, ...], speaker_of: np.ndarray) -> bool:
    used = np.unique(speaker_of)
    return len(used) >= 3 and all(names[number] for number in used)


def _utterances(records: Records) -> Int[np.ndarray, " R"]:
    """A number for each record, equal where the utterance is."""
    ids = records.columns.ids
    if not (ids.values == ord("#")).any():
        return np.arange(len(records))
    number: dict[str, int] = {}
    names = (_NUMBERED.sub("", ids.text(row)) for row in records.rows.tolist())
    return np.array([number.setdefault(name, len(number)) for name in names])


def _drawn(groups: np.ndarray, seconds: np.ndarray, share: float, rng: np.random.Generator) -> Bool[np.ndarray, " R"]:
    """Groups in a drawn order, as many as come nearest to the share; at least one."""
    names, group_of = np.unique(groups, return_inverse=True)
    of_group = np.bincount(group_of, weights=seconds)
    order = rng.permutation(len(names))
    reached = np.cumsum(of_group[order])
    num = int(np.abs(reached - share * seconds.sum()).argmin()) + 1
    return np.isin(group_of, order[:num])
