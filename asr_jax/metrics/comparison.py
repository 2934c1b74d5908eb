"""Comparison of two systems on the same utterances: results, difference with interval, and significance."""

import dataclasses
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int64

from asr_jax.core.errors import UserError
from asr_jax.metrics.bootstrap import Bootstrap, percentiles, rates, resampled, resampling_units, sums_by
from asr_jax.metrics.matched_pairs import matched_pairs
from asr_jax.metrics.scoring import Recognised, count_utterances, score
from asr_jax.text.normalise import normalise

Name = tuple[str, str]
"""Set and id of an utterance. The set is empty if utterances are matched by id alone."""


def compare(
    first: Sequence[Recognised],
    second: Sequence[Recognised],
    *,
    normaliser: str,
    bootstrap: Bootstrap | None = None,
    num_shown: int = 10,
) -> dict[str, Any]:
    """Compares two systems on the utterances that both of them have.

    Utterances are matched by set and id. They are matched by id alone if both systems have one and the same set, or
    have no name of a set in common.

    Args:
        normaliser: Name of the normaliser for references and hypotheses.
        bootstrap: Settings of the intervals. None: the defaults.
        num_shown: Largest number of utterances in `differing`.

    Returns:
        A JSON object:

        - `normaliser`.
        - `first`, `second`: results as `score` returns them.
        - `difference`: `wer`, WER of the second system less that of the first; `wer_interval`, its interval;
          `probability_of_improvement`, the share of resamples in which the second system has fewer errors;
          `bootstrap`, as in `score`. Without reference words the first three are None, with fewer than two units the
          second and third.
        - `matched_pairs`: the fields of `MatchedPairs`.
        - `differing`: the utterances whose numbers of word errors differ most.
        - `only_first_ids`, `only_second_ids`: excluded utterances that only one system has. The ids follow the name of
          the set if utterances are matched by it.

    Raises:
        UserError: If a system has an utterance twice, no utterance is in both, references differ, or the normaliser is
            unknown.
    """
    bootstrap = bootstrap or Bootstrap()
    first, second = named_alike(first, second)
    by_name = _by_name(first, "first", normaliser), _by_name(second, "second", normaliser)
    systems = _matched(*by_name)
    counts = [count_utterances(system, normaliser="none") for system in systems]
    errors = np.stack([of_system[:, :3].sum(axis=1) for of_system in counts], axis=1)
    texts = [[utterance.hypothesis for utterance in system] for system in systems]
    pairs = matched_pairs([utterance.reference for utterance in systems[0]], first=texts[0], second=texts[1])
    return {
        "normaliser": normaliser,
        "first": score(systems[0], normaliser=normaliser, bootstrap=bootstrap),
        "second": score(systems[1], normaliser=normaliser, bootstrap=bootstrap),
        "difference": _difference(errors, counts[0][:, 3], [u.speaker for u in systems[0]], bootstrap),
        "matched_pairs": dataclasses.asdict(pairs),
        "differing": _differing(systems, errors, num_shown),
        "only_first_ids": [_text(name) for name in by_name[0] if name not in by_name[1]],
        "only_second_ids": [_text(name) for name in by_name[1] if name not in by_name[0]],
    }


def named_alike(
    first: Sequence[Recognised], second: Sequence[Recognised]
) -> tuple[Sequence[Recognised], Sequence[Recognised]]:
    """Returns the utterances with the sets by which they are matched: none if `compare` matches them by id alone."""
    sets = [{utterance.set for utterance in system} for system in (first, second)]
    if sets[0] & sets[1] and len(sets[0] | sets[1]) > 1:
        return first, second
    without, others = ([replace(utterance, set="") for utterance in system] for system in (first, second))
    return without, others


def _by_name(system: Sequence[Recognised], which: str, normaliser: str) -> dict[Name, Recognised]:
    """Returns the utterances with normalised texts, by set and id. Raises a UserError if one occurs twice."""
    found: dict[Name, Recognised] = {}
    for utterance in system:
        name = utterance.set, utterance.id
        if name in found:
            raise UserError(
                f"utterance {_text(name)} comes twice in the {which} system: expected unique ids, or sets with the "
                "same names in both systems; compare one set at a time"
            )
        reference, hypothesis = (normalise(text, normaliser) for text in (utterance.reference, utterance.hypothesis))
        found[name] = replace(utterance, reference=reference, hypothesis=hypothesis)
    return found


def _text(name: Name) -> str:
    return " ".join(name).strip()


def _matched(
    first: dict[Name, Recognised], second: dict[Name, Recognised]
) -> tuple[list[Recognised], list[Recognised]]:
    """Returns the common utterances in the first system's order. Raises a UserError if there are none or texts differ.

    The references must be equal except for white space.
    """
    names = [name for name in first if name in second]
    if not names:
        one, other = (_text(next(iter(system), ("", "none"))) for system in (first, second))
        raise UserError(
            f"no utterance is in both systems: the first has {len(first)}, the second {len(second)}; expected equal "
            f"ids, but found {one!r} in the first and {other!r} in the second; pass predictions for the same set"
        )
    others = [name for name in names if first[name].reference.split() != second[name].reference.split()]
    if others:
        one, other = first[others[0]].reference, second[others[0]].reference
        raise UserError(
            f"{len(others)} of {len(names)} references are not the same in both systems, the first of them is "
            f"{_text(others[0])}: {one!r} and {other!r}; expected predictions for the same set, or a normaliser after "
            "which the references are equal"
        )
    return [first[name] for name in names], [second[name] for name in names]


def _difference(
    errors: Int64[np.ndarray, "N 2"], words: Int64[np.ndarray, " N"], speakers: Sequence[str], bootstrap: Bootstrap
) -> dict[str, Any]:
    """Returns `difference` of `compare`. Both systems are resampled together, because their errors are correlated."""
    units, over = resampling_units(speakers)
    gained = errors[:, 1] - errors[:, 0]
    sums = sums_by(units, np.column_stack((gained, words)))
    found: dict[str, Any] = {
        "wer": float(gained.sum() / words.sum()) if words.sum() else None,
        "wer_interval": None,
        "probability_of_improvement": None,
    }
    if len(sums) > 1 and words.sum():
        drawn = rates(*resampled(sums, bootstrap).T)
        found["wer_interval"] = percentiles(drawn, bootstrap)
        found["probability_of_improvement"] = float((drawn < 0).mean())
    return found | {"bootstrap": dataclasses.asdict(bootstrap) | {"over": over, "units": len(sums)}}


def _differing(
    systems: Sequence[Sequence[Recognised]], errors: Int64[np.ndarray, "N 2"], num_shown: int
) -> list[dict[str, Any]]:
    """Returns the utterances whose numbers of word errors differ most; equal differences are in order of the rows."""
    apart = np.abs(errors[:, 1] - errors[:, 0])
    rows = [row for row in np.argsort(-apart, kind="stable")[:num_shown].tolist() if apart[row]]
    return [
        {
            "set": systems[0][row].set,
            "id": systems[0][row].id,
            "first_errors": int(errors[row, 0]),
            "second_errors": int(errors[row, 1]),
            "reference": systems[0][row].reference,
            "first": systems[0][row].hypothesis,
            "second": systems[1][row].hypothesis,
        }
        for row in rows
    ]
