"""Settings of batches: edges of the buckets, rows of a batch, and the choice of its utterances."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

from asr_jax.core.paths import UserPath
from asr_jax.core.settings import NonNegativeInt, PositiveFloat, PositiveInt, settings

Edges = Literal["least-padding", "equal-duration", "equal-count", "none"]
Unit = Literal["padded-seconds", "seconds", "padded-frames", "frames", "feature-values", "utterances", "memory-gb"]


@settings
class Batching:
    """Rule that forms batches of few static shapes [rows, T] with U labels.

    A batch is a function of (seed, epoch, position), and has utterances of one bucket. An utterance belongs to the
    first bucket with room for its duration, at its slowest speed, and for its labels. Rows that a batch does not fill
    have weight 0. An epoch has every utterance once, and as many batches on all processes. The constructors are the
    sampling modes of CAIMAN-ASR.
    """

    num_buckets: PositiveInt = 8
    """Number of buckets by duration; a program is compiled for each. On LibriSpeech, 8 buckets reach 93 % padding
    efficiency and 12 reach 95 %. With `edges` none, the number of shapes."""
    num_by_labels: PositiveInt = 1
    """Number of parts into which each duration bucket is divided by the number of labels. This is useful for
    transducers, because their cost is the product of frames and labels."""
    edges: Edges = "least-padding"
    """Method that chooses the longest durations of the buckets. least-padding: minimises padding by dynamic
    programming. equal-duration: the same amount of audio in each bucket. equal-count: the same number of utterances in
    each bucket. none: batches have utterances of any length, and the first shape that fits them; expects `rows`, or
    `unit` seconds."""
    edges_s: tuple[PositiveFloat, ...] = ()
    """Longest duration of each bucket in seconds, in ascending order. Replaces `num_buckets` and `edges`. Utterances
    that fit no bucket are rejected."""
    edges_labels: tuple[NonNegativeInt, ...] = ()
    """Largest number of labels of each bucket of `edges_s`, which then has one duration for each pair. Empty: the
    largest number among its utterances."""
    budget: PositiveFloat = 240.0
    """Size of a batch in `unit`. Buckets of longer utterances have fewer rows."""
    unit: Unit = "padded-seconds"
    """Measure of `budget`. Seconds and frames of audio count padding if their name says so; otherwise the budget is the
    mean over the batches of a bucket. feature-values: padded frames times values per frame. memory-gb: memory that a
    training step needs on a device, with the training state, in GB (1e9 bytes), by XLA's memory analysis. With `edges`
    none, seconds are a limit that no batch reaches."""
    rows: tuple[PositiveInt, ...] = ()
    """Exact number of rows of a batch, or one number for each of `edges_s`. Replaces `budget`. With `edges` none and
    `unit` seconds, the maximum; by default a tenth more than utterances of mean length fill."""
    max_rows: NonNegativeInt = 512
    """Maximum number of rows that a budget gives to a batch. 0: no limit."""
    row_multiple: PositiveInt = 8
    """Divisor of the number of rows of a batch over all devices, and its minimum with a budget. If the number of
    devices does not divide it, padding rows are added to each batch."""
    devices: NonNegativeInt | None = None
    """Number of devices if `budget`, `rows` and `max_rows` are sizes for each device; batches then depend on it. 0: the
    devices of this job. The number of another job keeps its batches when a run continues on other devices. None: the
    sizes are for all devices together; edges and rows then follow the shares of `data.mixing`, and a bucket's rows are
    spread evenly over its batches."""
    sort_window: NonNegativeInt = 0
    """Number of utterances, in manifest order, within which an epoch goes from longest to shortest, the same in every
    epoch (sort-buffer-size of the Rust trainer). 0: utterances within their bucket, then batches, are permuted in every
    epoch."""
    random_epochs: NonNegativeInt = 0
    """Number of first epochs whose batches have utterances of any length (randomize_first_n_epochs); expects `rows`."""
    pessimistic_first: bool = False
    """Whether the first batch of a run has the largest shape and the longest utterances of that shape."""
    rows_product: NonNegativeInt = 0
    """Expected product of `rows`, `training.accumulate` and the number of devices, such as QuartzNet's 1152, for which
    a learning rate was chosen. A warning is written if the product differs. 0: no check."""
    file: UserPath = ""
    """File of `python -m asr_jax.plan --target DEVICES --fit OUT.json` with the shapes of the batches. Replaces
    buckets, budget and rows."""

    def problems(self) -> Iterator[str]:
        """Yields a message for each value that does not fit the others."""
        labels = self.edges_labels or (0,) * len(self.edges_s)
        edges = f"edges_s is {self.edges_s} and edges_labels is {self.edges_labels}"
        if len(labels) != len(self.edges_s):
            yield f"{edges}: expected a number of labels for each duration, or none"
        elif any(low >= high for low, high in pairwise(zip(self.edges_s, labels, strict=True))):
            yield f"{edges}: expected ascending seconds, and of equal seconds ascending labels"
        if self.edges_labels and self.num_by_labels > 1:
            yield f"{edges}, and num_by_labels is {self.num_by_labels}: expected 1 with given labels"
        if self.any_length and (self.edges_s or self.num_by_labels > 1 or self.sort_window):
            yield "edges is none, and edges_s, num_by_labels or sort_window is set: they need buckets"
        if self.any_length and not self.rows and self.unit != "seconds":
            yield f"edges is none and unit is {self.unit}: expected rows, or unit seconds"
        if self.unit == "memory-gb" and self.devices is None:
            yield "unit is memory-gb and devices is None: expected devices 0, because the memory is that of a device"
        if len(self.rows) not in (0, 1, len(self.edges_s)):
            yield f"rows is {self.rows} and edges_s is {self.edges_s}: expected one number, or one for each duration"
        if self.rows_product and len(self.rows) != 1:
            yield f"rows_product is {self.rows_product} and rows is {self.rows}: expected one number of rows"
        if self.random_epochs and (len(self.rows) != 1 or self.any_length or self.sort_window):
            yield (
                f"random_epochs is {self.random_epochs}, rows is {self.rows}, edges is {self.edges} and sort_window is "
                f"{self.sort_window}: expected one number of rows, buckets for the later epochs, and no sorting"
            )
        if 0 < self.max_rows < self.row_multiple:
            yield f"max_rows is {self.max_rows}: expected 0, or at least row_multiple {self.row_multiple}"

    @property
    def any_length(self) -> bool:
        """Whether batches have utterances of any length in all epochs."""
        return self.edges == "none"

    @property
    def fits_memory(self) -> bool:
        """Whether rows follow from the memory of a device."""
        return self.unit == "memory-gb" and not self.rows

    def num_parts(self, num_devices: int) -> int:
        """Returns the number of parts of a batch that the budget or the rows are meant for."""
        return 1 if self.devices is None else self.devices or num_devices

    @property
    def by_duration(self) -> bool:
        """Whether batches of utterances of any length are limited by their seconds."""
        return self.any_length and self.unit == "seconds"

    @classmethod
    def planned(cls, *, num_buckets: int = 8, seconds: float = 240.0, **others: Any) -> "Batching":
        """Utterances of one bucket, with padding of at most `seconds` over all devices; the default."""
        return cls(num_buckets=num_buckets, budget=seconds, **others)

    @classmethod
    def fixed(cls, *, rows: int, num_buckets: int = 0, **others: Any) -> "Batching":
        """As many utterances on each device in every batch, of any length.

        Args:
            num_buckets: Number of buckets with equal numbers of utterances that batches are of. 0: of any length.
        """
        edges = {"edges": "equal-count", "num_buckets": num_buckets} if num_buckets else ANY_LENGTH
        return cls(**OF_DEVICES | edges | {"rows": (rows,)} | others)

    @classmethod
    def duration(cls, *, seconds: float, rows: int = 0, **others: Any) -> "Batching":
        """Utterances of any length, less than `seconds` on each device without padding, and at most `rows`."""
        limits = {"budget": seconds, "unit": "seconds", "rows": (rows,) if rows else ()}
        return cls(**OF_DEVICES | ANY_LENGTH | limits | others)

    @classmethod
    def bucketing_1d(cls, *, edges_s: tuple[float, ...], seconds: float, **others: Any) -> "Batching":
        """Utterances of one given bucket, as many as `seconds` on each device fit with padding."""
        return cls(**OF_DEVICES | {"edges_s": edges_s, "budget": seconds} | others)

    @classmethod
    def bucketing_1d_dyn(cls, *, num_buckets: int, seconds: float, **others: Any) -> "Batching":
        """As `bucketing_1d`, with buckets of equal total duration."""
        return cls(**OF_DEVICES | {"edges": "equal-duration", "num_buckets": num_buckets, "budget": seconds} | others)

    @classmethod
    def bucketing_2d(
        cls, bins: "Bins", *, memory_gb: float = 0.0, rows: tuple[int, ...] = (), **others: Any
    ) -> "Batching":
        """Utterances of one bucket by duration and labels, as many as the memory of a device fits, or given `rows`.

        Args:
            bins: Longest duration in seconds and largest number of labels of each bucket; or a number of buckets of
                equal total duration, each divided in two by labels.
        """
        size: dict[str, Any] = {"rows": rows} if rows else {"budget": memory_gb, "unit": "memory-gb"}
        return cls(**OF_DEVICES | _edges_of(bins) | size | others)

    @classmethod
    def bucketing_2d_fixed(cls, bins: "Bins", *, rows: int, **others: Any) -> "Batching":
        """As `bucketing_2d`, with as many rows in all buckets."""
        return cls(**OF_DEVICES | _edges_of(bins) | {"rows": (rows,)} | others)

    @classmethod
    def bucketing_2d_singlet(cls, *, seconds: float, labels: int, rows: int, **others: Any) -> "Batching":
        """As `bucketing_2d_fixed`, with one bucket, and therefore one shape."""
        return cls.bucketing_2d_fixed(((seconds, labels),), rows=rows, **others)


Bins = tuple[tuple[float, int], ...] | int
OF_DEVICES: dict[str, Any] = {"devices": 0, "row_multiple": 1, "max_rows": 0}
"""Settings of the modes of CAIMAN-ASR, which give the size of a batch on each device."""
ANY_LENGTH: dict[str, Any] = {"edges": "none", "num_buckets": 3}


def _edges_of(bins: Bins) -> dict[str, Any]:
    if isinstance(bins, int):
        return {"edges": "equal-duration", "num_buckets": bins, "num_by_labels": 2}
    seconds, labels = zip(*bins, strict=True)
    return {"edges_s": seconds, "edges_labels": labels}
