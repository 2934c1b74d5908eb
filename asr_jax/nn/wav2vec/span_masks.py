"""Random spans of masked frames or channels, as in wav2vec 2.0, with static shapes."""

import math
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from asr_jax.core.across import least, part_of_rows
from asr_jax.core.random_streams import row_keys


@dataclass(frozen=True)
class SpanMask:
    """Settings of random masks that consist of spans.

    A row of L frames has max(⌊probability · L / length + u⌋, min_spans) spans, with u uniform in [0, 1). The spans have
    distinct starts and may overlap. The masked proportion is therefore less than `probability`: 49 % with 0.65 and a
    length of 10.

    Without `overlap`, spans are placed one after the other, the longest first, in a part of the row that is still free
    and long enough, with a probability that is proportional to the part's length. Spans that find no such part are not
    placed.

    Source: compute_mask_indices in fairseq/data/data_utils.py at commit 3d262bb2; Baevski et al. 2020
    (arXiv:2006.11477), section 3.1. Differs from: with `min_space` 0, fairseq fails if a part is as long as a span.
    """

    probability: float = 0.65
    """Proportion of frames that spans would mask without overlap. 0: no masks."""
    length: int = 10
    """Length of a span in frames, or the centre of the distribution of lengths if `selection` is not static."""
    min_spans: int = 2
    """Minimum number of spans of a row."""
    same_count: bool = True
    """Whether random frames are unmasked until all rows have as many masked frames as the row with the fewest."""
    selection: Literal["static", "uniform", "normal", "poisson"] = "static"
    """Distribution of the lengths of spans. static: all have `length`. uniform: from `other` to twice `length`. normal:
    mean `length` and standard deviation `other`, at least 1. poisson: mean `length`."""
    other: float = 0.0
    """Minimum length for selection uniform, and standard deviation of the length for normal, in frames. Static and
    poisson do not use it."""
    draws_last_start: bool = False
    """Whether a span may end at the last frame of a row, as in Hugging Face's code. Otherwise a frame is left behind
    it, as in fairseq."""
    overlap: bool = True
    """Whether spans may overlap. Otherwise at least `min_space` frames are between them (fairseq's no_mask_overlap)."""
    min_space: int = 1
    """Minimum number of frames between two spans that do not overlap."""
    dropout: float = 0.0
    """Proportion of the masked frames of each row that are unmasked at random (fairseq's mask_dropout)."""

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability is {self.probability}, expected a value between 0 and 1")
        if self.length < 1 or self.min_spans < 0 or not self.other >= 0:
            raise ValueError(
                f"length is {self.length}, min_spans is {self.min_spans} and other is {self.other}, expected at least "
                "1, 0 and 0"
            )
        if self.min_space < 0 or not 0 <= self.dropout < 1:
            raise ValueError(
                f"min_space is {self.min_space} and dropout is {self.dropout}, expected at least 0, and at least 0 and "
                "less than 1"
            )

    def __call__(
        self, key: PRNGKeyArray, lengths: Int[Array, " B"], size: int, *, sub_batches: int = 1
    ) -> Bool[Array, "B size"]:
        """Draws a mask for each row.

        Args:
            lengths: Length of each row in frames. Rows of length 0 are not masked, and `same_count` ignores them.
            size: Length of the padded rows in frames.
            sub_batches: Number of micro-batches, of equal numbers of rows, to each of which `same_count` applies.

        Returns:
            True for masked frames, which are within the row's length.
        """
        if not self.probability:
            return jnp.zeros((len(lengths), size), bool)

        def of_row(key: Array, length: Array) -> tuple[Array, Array]:
            keys = jax.random.split(key, 4)
            return self._row(keys[0], keys[1], keys[2], length, size), jax.random.uniform(keys[3], (size,))

        masks, scores = jax.vmap(of_row)(row_keys(key, len(lengths)), lengths)
        if not self.same_count and not self.dropout:
            return masks
        kept = masks.sum(axis=1)
        if self.same_count:
            is_in = part_of_rows(len(lengths), sub_batches) > 0
            counts = least(jnp.min(jnp.where(is_in & (lengths > 0)[None], kept[None], size), axis=1))
            kept = counts[jnp.argmax(is_in, axis=0)]
        if self.dropout:
            kept -= jnp.asarray(np.rint(np.arange(size + 1) * self.dropout), jnp.int32)[kept]
        return masks & (_ranks(jnp.where(masks, scores, 2.0)) < kept[:, None])

    def _row(
        self, of_num: Array, of_starts: Array, of_lengths: Array, length: Int[Array, ""], size: int
    ) -> Bool[Array, " size"]:
        expected = self.probability * length / self.length
        num = jnp.floor(expected + jax.random.uniform(of_num)).astype(jnp.int32)
        num = jnp.maximum(num, self.min_spans)
        if not self.overlap:
            return self._apart(of_starts, of_lengths, num, length, size)
        place, spans = jnp.arange(size), self._lengths(of_lengths, size)
        least = jnp.min(jnp.where(place < num, spans, size))
        places = length - least + self.draws_last_start
        if not self.draws_last_start:  # in short rows, spans that do not fit are cut off
            places = jnp.where(places <= num, num + 1, places)
        places = jnp.clip(places, 0, length)
        ranks = _ranks(jnp.where(place < places, jax.random.uniform(of_starts, (size,)), 2.0)[None])[0]
        is_start = ranks < jnp.minimum(num, places)
        ends = jax.lax.cummax(jnp.where(is_start, place + spans[ranks], 0))
        return (place < ends) & (place < length)

    def _apart(
        self, of_starts: Array, of_lengths: Array, num: Int[Array, ""], length: Int[Array, ""], size: int
    ) -> Bool[Array, " size"]:
        """Places `num` spans that do not overlap, the longest first."""
        most = max(math.floor(self.probability * size / self.length) + 1, self.min_spans)
        exists = jnp.arange(most) < num
        spans = jnp.where(exists, self._lengths(of_lengths, most), 0)
        spans = jnp.where((jnp.sum(spans) == 0) & (jnp.arange(most) == 0), jnp.minimum(self.length, length - 1), spans)
        shortest = jnp.min(jnp.where(exists, spans, size))
        spans = -jnp.sort(-jnp.where(exists, spans, -1))
        draws = jax.random.uniform(of_starts, (most, 2))

        def placed(number: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
            begins, ends, starts, is_full = state
            span, (of_part, of_start) = spans[number], draws[number]
            room = jnp.where(ends - begins >= jnp.maximum(span + self.min_space, 1), ends - begins, 0)
            is_full |= (jnp.sum(room) == 0) | (span < 0)
            part = jnp.argmax(jnp.cumsum(room) > _below(jnp.sum(room), of_part))
            begin, end = begins[part], ends[part]
            start = begin + _below(end - span - begin, of_start)
            left = jnp.where(start - begin - self.min_space >= shortest, start - self.min_space + 1, begin)
            behind = start + span + self.min_space
            right = jnp.where(end - behind > shortest, end, behind)
            begins, ends = (
                jnp.where(is_full, old, old.at[part].set(one).at[number + 1].set(other))
                for old, one, other in ((begins, begin, behind), (ends, left, right))
            )
            return begins, ends, starts.at[number].set(jnp.where(is_full, size, start)), is_full

        nothing = jnp.zeros(most + 1, jnp.int32)
        state = nothing, nothing.at[0].set(length), jnp.full(most, size, jnp.int32), jnp.zeros((), bool)
        _, _, starts, _ = jax.lax.fori_loop(0, most, placed, state)
        place = jnp.arange(size)[:, None]
        return jnp.any((place >= starts[None]) & (place < (starts + spans)[None]), axis=1)

    def _lengths(self, key: Array, size: int) -> Int[Array, " size"]:
        """Draws the length of each span, in frames."""
        if self.selection == "static":
            return jnp.full(size, self.length, jnp.int32)
        if self.selection == "uniform":
            return jax.random.randint(key, (size,), int(self.other), 2 * self.length + 1)
        if self.selection == "normal":
            drawn = self.length + self.other * jax.random.normal(key, (size,))
            return jnp.maximum(jnp.round(drawn).astype(jnp.int32), 1)
        return jax.random.poisson(key, self.length, (size,))


def _below(bound: Int[Array, ""], uniform: Array) -> Int[Array, ""]:
    """Integer below `bound`, at least 0, for a uniform number in [0, 1)."""
    return jnp.clip(jnp.floor(uniform * bound).astype(jnp.int32), 0, jnp.maximum(bound - 1, 0))


def _ranks(scores: Array) -> Int[Array, "B size"]:
    """Rank of each score within its row, from 0 for the smallest."""
    return jnp.argsort(jnp.argsort(scores, axis=1), axis=1)
