"""Split of a validation set from the training data, by speaker if speakers are known."""

import re

import numpy as np
from jaxtyping import Bool, Int

from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.data.manifests.reading import Utterances

_NUMBERED = re.compile(r"#\d+$")


def split(utterances: Utterances, *, share: float, seed: int) -> tuple[Utterances, Utterances]:
    """Splits utterances into training and validation utterances.

    Whole speakers are drawn, as many as come nearest to the share, if there are at least 3 and all are known. If their
    share exceeds twice `share`, or there are fewer speakers, single utterances are drawn instead. Utterances whose ids
    differ only in `#2`, `#3` … are one utterance at several speeds and stay together.

    Args:
        share: Approximate share of all hours for validation.

    Raises:
        UserError: If there are fewer than two utterances.
    """
    if len(utterances) < 2:
        raise UserError(
            f"{counted(len(utterances), 'utterance')} to train on: expected 2 or more to split off a "
            "validation set; name a validation set (data.validation)"
        )
    rng = np.random.default_rng(seed)
    columns = utterances.columns
    seconds = np.maximum(columns.duration_s[utterances.rows], 0)
    speaker_of = columns.speakers.of_row[utterances.rows]
    used = np.unique(speaker_of)
    are_known = len(used) >= 3 and all(columns.speakers.names[number] for number in used)
    groups = speaker_of if are_known else _utterances(utterances)
    chosen = drawn(groups, seconds, share, rng)
    if not chosen.any() or chosen.all() or seconds[chosen].sum() > 2 * share * seconds.sum():
        chosen = drawn(_utterances(utterances), seconds, share, rng)
    return utterances.select(~chosen), utterances.select(chosen)


def _utterances(utterances: Utterances) -> Int[np.ndarray, " R"]:
    """Group of each utterance, equal for one utterance at several speeds."""
    ids = utterances.columns.ids
    if not (ids.values == ord("#")).any():
        return np.arange(len(utterances))
    number: dict[str, int] = {}
    names = (_NUMBERED.sub("", ids.text(row)) for row in utterances.rows.tolist())
    return np.array([number.setdefault(name, len(number)) for name in names])


def drawn(groups: np.ndarray, seconds: np.ndarray, share: float, rng: np.random.Generator) -> Bool[np.ndarray, " R"]:
    """Mask of the utterances of randomly drawn groups, as many as come nearest to the share, at least one."""
    names, group_of = np.unique(groups, return_inverse=True)
    of_group = np.bincount(group_of, weights=seconds)
    order = rng.permutation(len(names))
    reached = np.cumsum(of_group[order])
    num = int(np.abs(reached - share * seconds.sum()).argmin()) + 1
    return np.isin(group_of, order[:num])
