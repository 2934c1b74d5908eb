"""Mixing of several sources: the number and choice of each source's utterances in an epoch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from jaxtyping import Float64, Int, Int32, Int64

from asr_jax.core.settings import PositiveFloat, above, settings


@settings
class Mixing:
    """Share of each entry of `data.train` in an epoch.

    An epoch is as long as possible without repeating an utterance. Utterances that an epoch leaves out come first in
    the next epochs, and every utterance is eventually used.
    """

    kind: Literal["none", "absolute", "relative", "temperature"] = "none"
    """Rule of mixing. none: every utterance once. absolute: utterances are drawn from source i with weight w_i,
    independent of its size. relative: w_i times its number of utterances. temperature: its number of utterances times
    (its share of all hours)^(exponent - 1); exponent 1 equals none, and towards 0 all sources get equal hours."""
    weights: tuple[PositiveFloat, ...] = ()
    """Weight of each entry of data.train, for absolute and relative. To exclude an entry, remove it from data.train."""
    exponent: Annotated[float, above(0, most=1)] = 0.75
    """Exponent of temperature; the "canary exponent" of CAIMAN-ASR. Small values increase
    the share of small sources."""

    def problems(self) -> Iterator[str]:
        """Yields a message if the weights do not fit the kind."""
        if bool(self.weights) != (self.kind in ("absolute", "relative")):
            yield (
                f"kind is {self.kind!r} and weights is {self.weights}: expected weights for absolute and relative, and "
                "no weights for other kinds"
            )


def epoch_shares(
    settings: Mixing, num_utterances: Int[np.ndarray, " G"], hours: Float64[np.ndarray, " G"]
) -> Float64[np.ndarray, " G"]:
    """Share of each source's utterances that an epoch contains.

    Args:
        num_utterances: Number of utterances of each source [G].
        hours: Hours of each source [G].

    Returns:
        Shares from 0 to 1. At least one source has 1; a source without utterances has 0.
    """
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


class Sources(NamedTuple):
    """Sources of utterances, and the share of each that an epoch contains."""

    of_utterance: Int[np.ndarray, " R"]
    """Source of each utterance, as an index into `shares`."""
    shares: Float64[np.ndarray, " G"]
    """Shares from 0 to 1."""


@dataclass(frozen=True)
class Stratum:
    """Entries of one source in one bucket, and the number of them in an epoch."""

    entries: Int32[np.ndarray, " M"]
    num_drawn: int
    """Number of entries in an epoch, 1 to M."""

    def of_epoch(self, epoch: int) -> Int32[np.ndarray, " N"]:
        """Entries of an epoch.

        Epochs take consecutive parts of the entries, which are repeated without end. Every entry is used before any is
        repeated, none occurs twice in an epoch, and an epoch is computed without the preceding ones.
        """
        num = len(self.entries)
        if self.num_drawn == num:
            return self.entries
        first = epoch * self.num_drawn % num
        end = first + self.num_drawn
        return np.concatenate([self.entries[first:end], self.entries[: max(end - num, 0)]])


def num_drawn(num: Int[np.ndarray, "K G"], shares: Float64[np.ndarray, " G"]) -> Int64[np.ndarray, "K G"]:
    """Number of the `num` entries of each bucket and source that an epoch contains.

    It is at least one if there are any entries. Apart from that, the total of a source is its share, within half an
    entry.
    """
    reached = np.floor(np.cumsum(num * shares, axis=0) + 0.5).astype(np.int64)
    return np.maximum(np.diff(reached, axis=0, prepend=0), num > 0)


def strata(
    entries: Int32[np.ndarray, " E"],
    source_of: Int[np.ndarray, " E"],
    num_drawn: Int[np.ndarray, " G"],
    rng: np.random.Generator,
) -> list[Stratum]:
    """Divides the entries of a bucket by source. Sources with no drawn entries are left out.

    If an epoch contains only some of the entries of a source, they are shuffled, because neighbours in a manifest
    should not always occur together.

    Args:
        entries: Entries of the bucket [E].
        source_of: Source of each entry [E].
        num_drawn: Number of entries of each source in an epoch [G].
    """
    result = []
    for source in np.flatnonzero(num_drawn).tolist():
        member, num = entries[source_of == source], int(num_drawn[source])
        result.append(Stratum(member if num == len(member) else rng.permutation(member), num))
    return result
