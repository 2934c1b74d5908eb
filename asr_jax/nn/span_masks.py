"""Spans of frames, or of channels, that are hidden from an encoder: as wav2vec 2.0 draws them, on static shapes."""

from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray


@dataclass(frozen=True)
class SpanMask:
    """How spans are drawn for each row: ⌊probability · L / length + u⌋ of them, u uniform in [0, 1), but no fewer than
    `min_spans`; their starts are different places, and spans may overlap. So fewer than `probability` of the frames are
    masked: 49 % with 0.65 and 10.

    Source: compute_mask_indices in fairseq/data/data_utils.py; Baevski et al. 2020 (arXiv:2006.11477), section 3.1.
    """

    probability: float = 0.65
    """Frames that spans without overlap would cover, as a share of all; 0: nothing is masked."""
    length: int = 10
    """Length of a span; with another `selection` than static what its lengths are drawn around."""
    min_spans: int = 2
    """Least number of spans of a row."""
    same_count: bool = True
    """Unmask frames at random in all rows but the one with the fewest, until all have as many as it has."""
    selection: Literal["static", "uniform", "normal", "poisson"] = "static"
    """Lengths of spans: all `length`; uniform from `other` to twice `length`; normal with the deviation `other`, at
    least 1; Poisson."""
    other: float = 0.0
    """See `selection`."""
    draws_last_start: bool = False
    """Whether a span may end with the row's last frame, as Hugging Face has it; fairseq leaves one frame behind it."""

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability is {self.probability}: expected within 0 and 1")
        if self.length < 1 or self.min_spans < 0 or not self.other >= 0:
            raise ValueError(
                f"length {self.length}, min_spans {self.min_spans}, other {self.other}: expected at least 1, 0 and 0"
            )

    def __call__(self, key: PRNGKeyArray, lengths: Int[Array, " B"], size: int) -> Bool[Array, "B size"]:
        """True where masked: never beyond a row's length; rows of length 0 have no masks and do not count."""
        if not self.probability:
            return jnp.zeros((len(lengths), size), bool)

        def of_row(number: Array, length: Array) -> tuple[Array, Array]:
            keys = jax.random.split(jax.random.fold_in(key, number), 4)
            return self._row(keys[0], keys[1], keys[2], length, size), jax.random.uniform(keys[3], (size,))

        masks, scores = jax.vmap(of_row)(jnp.arange(len(lengths)), lengths)
        if not self.same_count:
            return masks
        counts = jnp.where(lengths > 0, masks.sum(axis=1), size)
        return masks & (_ranks(jnp.where(masks, scores, 2.0)) < jnp.min(counts))

    def _row(
        self, of_num: Array, of_starts: Array, of_lengths: Array, length: Int[Array, ""], size: int
    ) -> Bool[Array, " size"]:
        expected = self.probability * length / self.length
        num = jnp.floor(expected + jax.random.uniform(of_num)).astype(jnp.int32)
        num = jnp.maximum(num, self.min_spans)
        place, spans = jnp.arange(size), self._lengths(of_lengths, size)
        least = jnp.min(jnp.where(place < num, spans, size))
        places = length - least + self.draws_last_start
        if not self.draws_last_start:  # short rows: spans that do not fit begin where they can, and are cut off
            places = jnp.where(places <= num, num + 1, places)
        places = jnp.clip(places, 0, length)
        ranks = _ranks(jnp.where(place < places, jax.random.uniform(of_starts, (size,)), 2.0)[None])[0]
        is_start = ranks < jnp.minimum(num, places)
        ends = jax.lax.cummax(jnp.where(is_start, place + spans[ranks], 0))
        return (place < ends) & (place < length)

    def _lengths(self, key: Array, size: int) -> Int[Array, " size"]:
        """Of the first span that is drawn, the second …"""
        if self.selection == "static":
            return jnp.full(size, self.length, jnp.int32)
        if self.selection == "uniform":
            return jax.random.randint(key, (size,), int(self.other), 2 * self.length + 1)
        if self.selection == "normal":
            drawn = self.length + self.other * jax.random.normal(key, (size,))
            return jnp.maximum(jnp.round(drawn).astype(jnp.int32), 1)
        return jax.random.poisson(key, self.length, (size,))


def _ranks(scores: Array) -> Int[Array, "B size"]:
    """Of each score how many of its row are smaller."""
    return jnp.argsort(jnp.argsort(scores, axis=1), axis=1)
