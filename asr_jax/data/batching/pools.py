"""Batches of utterances of any length: how a shuffled epoch is cut into parts of equal number or equal duration."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int, Int32, Int64


@dataclass(frozen=True)
class Pool:
    """Composition of batches of utterances of any length.

    A batch consists of a part for each device. Without `limit`, a part has `rows` entries. With it, a part has the
    entries whose cost begins in an interval of at most `limit` - `longest`, so that its length is less than `limit`. An
    entry costs its length, and at least a share 1 / `rows` of that interval, so that a part has at most `rows` entries.
    """

    num_parts: int
    """Number of parts of a batch."""
    rows: int
    """Maximum number of entries of a part."""
    limit: int = 0
    """Total length of a part, in samples or frames, that is not reached. 0: no limit."""
    longest: int = 0
    """Length of the longest entry."""
    until: float = math.inf
    """Number of first epochs that are composed in this way."""

    @property
    def batch_rows(self) -> int:
        """Rows of a batch."""
        return self.num_parts * self.rows

    def num_batches(self, lengths: Int[np.ndarray, " E"]) -> int:
        """Returns the least number of batches of entries with these lengths whose parts are within the limits."""
        if not self.limit:
            return -(-len(lengths) // self.batch_rows)
        return -(-int(self._costs(lengths).sum()) // ((self.limit - self.longest) * self.num_parts))

    def fill(
        self, entries: Int32[np.ndarray, " E"], lengths: Int[np.ndarray, " E"], num_batches: int
    ) -> Int32[np.ndarray, " N"]:
        """Returns the rows of all batches of an epoch.

        Args:
            entries: Entries of the epoch, in their order.
            lengths: Length of each, in the same order.
            num_batches: Number of batches, at least that of `num_batches`.

        Returns:
            Entries by part, `rows` for each; -1 for rows that are not filled.
        """
        num = num_batches * self.num_parts
        if self.limit:
            costs = self._costs(lengths)
            firsts = np.searchsorted(np.cumsum(costs) - costs, _bounds(int(costs.sum()), num))
        elif num_batches == self.num_batches(lengths):
            firsts = np.minimum(np.arange(num) * self.rows, len(entries))  # only the last batch is incomplete
        else:  # there are more batches than needed, and none may be empty
            firsts = _bounds(len(entries), num)
        filled = np.full(num * self.rows, -1, np.int32)
        part_of = np.repeat(np.arange(num), np.diff(firsts, append=len(entries)))
        filled[part_of * self.rows + np.arange(len(entries)) - firsts[part_of]] = entries
        return filled

    def _costs(self, lengths: np.ndarray) -> Int64[np.ndarray, " E"]:
        return np.maximum(lengths, -(-(self.limit - self.longest) // self.rows)).astype(np.int64)


def _bounds(total: int, num: int) -> Int64[np.ndarray, " N"]:
    """Beginnings of `num` intervals of 0 … total, whose lengths differ by at most 1."""
    numbers = np.arange(num, dtype=np.int64)
    return numbers * (total // num) + numbers * (total % num) // num  # numbers * total could overflow


def largest(entries: Int32[np.ndarray, "N B"], values: Int[np.ndarray, " E"]) -> Int[np.ndarray, " N"]:
    """Largest value of the entries of each batch; 0 without entries."""
    return np.where(entries >= 0, values[entries], 0).max(axis=1)
