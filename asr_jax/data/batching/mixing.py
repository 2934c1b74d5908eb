"""Mixing of several sources: how many utterances of each an epoch has, and which."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64, Int, Int32, Int64


@dataclass(frozen=True)
class Mixing:
    """How much of each entry of `data.train` an epoch has. An epoch is as long as it can be without any utterance coming
    twice; what is left of the other sources comes first in the next ones, so that every utterance gets its turn.
    """

    kind: Literal["none", "absolute", "relative", "temperature"] = "none"
    """none: every utterance once. absolute: utterances are drawn from source i with weight w_i, whatever its size. relative:
    w_i times its number of utterances. temperature: its number of utterances times (its share of all hours)^(exponent - 1):
    exponent 1 is none, and towards 0 all sources get as many hours."""
    weights: tuple[float, ...] = ()
    """Absolute and relative: one above 0 for each entry of data.train."""
    exponent: float = 0.75
    """Temperature: more than 0, at most 1. CAIMAN's "canary"."""

    def __post_init__(self) -> None:
        if any(not weight > 0 for weight in self.weights):
            raise ValueError(
                f"weights {self.weights}: expected numbers above 0; leave a source out of data.train instead"
            )
        if bool(self.weights) != (self.kind in ("absolute", "relative")):
            raise ValueError(
                f"kind {self.kind!r} and weights {self.weights}: absolute and relative take weights, the others none"
            )
        if not 0 < self.exponent <= 1:
            raise ValueError(f"exponent {self.exponent}: expected more than 0, at most 1")


def epoch_shares(
    settings: Mixing, num_utterances: Int[np.ndarray, " G"], hours: Float64[np.ndarray, " G"]
) -> Float64[np.ndarray, " G"]:
    """Of each source's utterances, the share that an epoch has: at most 1, and 1 for at least one source. A source without
    utterances has none.

    Raises: ValueError where there are not as many weights as sources.
    """
    if settings.weights and len(settings.weights) != len(num_utterances):
        raise ValueError(
            f"data.mixing.weights has {len(settings.weights)} numbers for {len(num_utterances)} entries of data.train: "
            "expected one each"
        )
    num = num_utterances.astype(np.float64)
    there = num > 0
    weights = np.ones(len(num))
    if settings.kind == "absolute":
        weights[there] = np.array(settings.weights)[there] / num[there]
    elif settings.kind == "relative":
        weights = np.array(settings.weights)
    elif settings.kind == "temperature":
        weights[there] = (hours[there] / hours.sum()) ** (settings.exponent - 1)
    weights = np.where(there, weights, 0.0)
    return weights / weights.max()


@dataclass(frozen=True)
class Stratum:
    """The entries of one source that belong to one bucket, and how many of them an epoch has."""

    entries: Int32[np.ndarray, " M"]
    num_drawn: int
    """1 to M."""

    def of_epoch(self, epoch: int) -> Int32[np.ndarray, " N"]:
        """A stretch of the entries, which are laid end to end for ever: every one comes before any comes again, none
        twice in an epoch, and an epoch's are found without those before it.
        """
        num = len(self.entries)
        if self.num_drawn == num:
            return self.entries
        first = epoch * self.num_drawn % num
        end = first + self.num_drawn
        return np.concatenate([self.entries[first:end], self.entries[: max(end - num, 0)]])


def num_drawn(num: Int[np.ndarray, "K G"], shares: Float64[np.ndarray, " G"]) -> Int64[np.ndarray, "K G"]:
    """How many of the `num` entries of each bucket and source an epoch has: at least one where there are any, and of a
    source in all, but for that, its share to half an entry.
    """
    reached = np.floor(np.cumsum(num * shares, axis=0) + 0.5).astype(np.int64)
    return np.maximum(np.diff(reached, axis=0, prepend=0), num > 0)


def strata(
    entries: Int32[np.ndarray, " E"],
    source_of: Int[np.ndarray, " E"],
    num_drawn: Int[np.ndarray, " G"],
    rng: np.random.Generator,
) -> list[Stratum]:
    """The entries of a bucket by source, those without any left out. Where an epoch has only some, all are shuffled:
    neighbours in a manifest should not always come together.
    """
    result = []
    for source in np.flatnonzero(num_drawn).tolist():
        member, num = entries[source_of == source], int(num_drawn[source])
        result.append(Stratum(member if num == len(member) else rng.permutation(member), num))
    return result
