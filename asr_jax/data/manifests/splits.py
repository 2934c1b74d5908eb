"""A validation set cut from the training data, by speaker where they are known."""

import re

import numpy as np
from jaxtyping import Bool, Int

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.reading import Utterances

_NUMBERED = re.compile(r"#\d+$")


def split(utterances: Utterances, *, share: float, seed: int) -> tuple[Utterances, Utterances]:
    """Training and validation utterances; the second has about `share` of all hours.

    Whole speakers, drawn by the seed, until the share is reached, where at least 3 are known and none of those drawn
    makes it more than twice the share; else single utterances: utterances whose ids differ in `#2`, `#3` … alone, which
    one utterance at several speeds has, stay together.

    Raises: UserError for fewer than two utterances.
    """
    if len(utterances) < 2:
        raise UserError(
            f"{len(utterances)} utterance{'s' * (len(utterances) != 1)} to train on: none can be held back to validate on; name "
            "a validation set (data.validation)"
        )
    rng = np.random.default_rng(seed)
    columns = utterances.columns
    seconds = np.maximum(columns.duration_s[utterances.rows], 0)
    speaker_of = columns.speakers.of_row[utterances.rows]
    groups = speaker_of if _knows_speakers(columns.speakers.names, speaker_of) else _utterances(utterances)
    chosen = _drawn(groups, seconds, share, rng)
    if not chosen.any() or chosen.all() or seconds[chosen].sum() > 2 * share * seconds.sum():
        chosen = _drawn(_utterances(utterances), seconds, share, rng)
    return utterances.select(~chosen), utterances.select(chosen)


def _knows_speakers(names: tuple[str, ...], speaker_of: np.ndarray) -> bool:
    used = np.unique(speaker_of)
    return len(used) >= 3 and all(names[number] for number in used)


def _utterances(utterances: Utterances) -> Int[np.ndarray, " R"]:
    """A number for each utterance, equal where the utterance is."""
    ids = utterances.columns.ids
    if not (ids.values == ord("#")).any():
        return np.arange(len(utterances))
    number: dict[str, int] = {}
    names = (_NUMBERED.sub("", ids.text(row)) for row in utterances.rows.tolist())
    return np.array([number.setdefault(name, len(number)) for name in names])


def _drawn(groups: np.ndarray, seconds: np.ndarray, share: float, rng: np.random.Generator) -> Bool[np.ndarray, " R"]:
    """Groups in a drawn order, as many as come nearest to the share; at least one."""
    names, group_of = np.unique(groups, return_inverse=True)
    of_group = np.bincount(group_of, weights=seconds)
    order = rng.permutation(len(names))
    reached = np.cumsum(of_group[order])
    num = int(np.abs(reached - share * seconds.sum()).argmin()) + 1
    return np.isin(group_of, order[:num])
