"""Sampling modes: settings that decide which utterances form a batch."""

import math
from dataclasses import dataclass
from typing import Literal

Mode = Literal[
    "planned", "fixed", "duration", "1D-bucketing", "1D-bucketing-dyn", "2D-bucketing", "2D-bucketing-fixed",
    "2D-bucketing-singlet",
]  # fmt: skip

NUM_SHAPES = 3
"""Number of shapes of the modes whose batches have utterances of any length."""
NUM_BY_LABELS = 2
"""Number of parts by labels into which each duration of estimated `bins` is divided."""
_ALL = ("mode", "pessimistic_first")
_OF_DEVICES = (*_ALL, "devices")
_USES: dict[str, tuple[str, ...]] = {
    "planned": _ALL,
    "fixed": (*_OF_DEVICES, "device_rows", "num_buckets", "num_shapes", "random_epochs", "rows_product"),
    "duration": (*_OF_DEVICES, "device_seconds", "device_rows", "num_shapes"),
    "1D-bucketing": (*_OF_DEVICES, "device_seconds", "edges_s"),
    "1D-bucketing-dyn": (*_OF_DEVICES, "device_seconds", "num_buckets"),
    "2D-bucketing": (*_OF_DEVICES, "bins", "num_buckets", "bin_rows", "memory_gb"),
    "2D-bucketing-fixed": (*_OF_DEVICES, "bins", "num_buckets", "device_rows", "rows_product"),
    "2D-bucketing-singlet": (*_OF_DEVICES, "bins", "device_rows", "rows_product"),
}
_NEEDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "planned": (),
    "fixed": (("device_rows",),),
    "duration": (("device_seconds",),),
    "1D-bucketing": (("edges_s",), ("device_seconds",)),
    "1D-bucketing-dyn": (("num_buckets",), ("device_seconds",)),
    "2D-bucketing": (("bins", "num_buckets"), ("memory_gb", "bin_rows")),
    "2D-bucketing-fixed": (("bins", "num_buckets"), ("device_rows",)),
    "2D-bucketing-singlet": (("bins",), ("device_rows",)),
}
"""Fields that each mode needs: exactly one of each group."""


@dataclass(frozen=True)
class Sampling:
    """Rule that chooses the utterances of a batch; `planned`, or one of the modes of CAIMAN-ASR.

    In every mode, a batch is a function of (seed, epoch, position), all batches have one of a few static shapes
    [rows, T] with U labels, and an epoch has the same number of batches on all processes. Rows that a batch does not
    fill have weight 0. Rows are given for each device; a batch has as many rows for each of `devices`.

    planned: `data.buckets` decides. T and U are those of the bucket, rows follow from its `batch_seconds`, and no
        utterance is rejected. Memory is bounded by `batch_seconds` of padded audio, over all devices.
    fixed: `device_rows` utterances on each device, except in the last batch (of each bucket). They are drawn from all
        lengths, and the batch has the first of `num_shapes` shapes that fits them; or, with `num_buckets`, from one of
        as many buckets with equal numbers of utterances, and the batch has that bucket's T and U. No utterance is
        rejected. Memory is bounded by `device_rows` times the longest utterance.
    duration: utterances of any length, less than `device_seconds` of audio without padding on each device. The batch
        has the first of `num_shapes` shapes that fits them. No utterance is rejected. The sum of durations does
        not bound memory; rows times T do.
    1D-bucketing: utterances of one bucket of `edges_s`, the first that is long enough. A batch has as many rows as fit
        `device_seconds` with padding; T is the edge, and U is the largest number of labels in the bucket. Utterances
        that are longer than the last edge are rejected. Memory is bounded by `device_seconds`.
    1D-bucketing-dyn: as 1D-bucketing, with `num_buckets` edges that divide the training set into buckets of equal total
        duration, so that no utterance is rejected.
    2D-bucketing: utterances of one of `bins`, the first with room for both its duration and its labels; T and U are
        those of the bin. Rows are the most whose compiled training step needs at most `memory_gb`, or `bin_rows`.
        Utterances that fit no bin are rejected.
    2D-bucketing-fixed: as 2D-bucketing, with `device_rows` in all bins. The largest bin bounds memory.
    2D-bucketing-singlet: as 2D-bucketing-fixed, with a single bin, and therefore one shape.

    Rejected utterances are counted, and listed in rejected.jsonl.
    """

    mode: Mode = "planned"
    """Rule that chooses the utterances of a batch: planned uses data.buckets, the others are CAIMAN-ASR's
    (docs/data.md)."""
    device_rows: int = 0
    """Utterances of a batch on each device (per-GPU batch size). duration: the maximum; 0: a tenth more than utterances
    of mean length fill."""
    device_seconds: float = 0.0
    """Audio of a batch on each device in seconds (batch duration). duration: the limit without padding. 1D-bucketing
    and 1D-bucketing-dyn: the maximum with padding."""
    num_buckets: int = 0
    """Number of buckets by duration: of equal numbers of utterances (fixed), or of equal total duration
    (1D-bucketing-dyn; 2D-bucketing and 2D-bucketing-fixed without `bins`, each in two parts by labels). 0 with fixed:
    batches have utterances of any length."""
    edges_s: tuple[float, ...] = ()
    """Longest duration of each bucket in seconds, in ascending order, for 1D-bucketing."""
    bins: tuple[tuple[float, int], ...] = ()
    """Longest duration in seconds and largest number of labels of each bin, for the 2D modes; as a flag, the numbers
    one after another."""
    bin_rows: tuple[int, ...] = ()
    """Rows of a batch on each device, for each of `bins`, instead of memory_gb."""
    memory_gb: float = 0.0
    """Memory of a device that a training step of 2D-bucketing may take, in GB (1e9 bytes), with the training state.
    Rows of each bin are the most that fit it according to XLA's memory analysis; the figures are cached."""
    num_shapes: int = 0
    """Number of shapes of fixed (without num_buckets) and duration; a program is compiled for each. 0: 3."""
    devices: int = 0
    """Number of devices that the rows are for. 0: that of this job. The number of another job keeps its batches when a
    run continues on other devices."""
    random_epochs: int = 0
    """Number of first epochs whose batches have utterances of any length, for fixed with num_buckets
    (randomize_first_n_epochs)."""
    pessimistic_first: bool = False
    """Whether the first batch of a run has the largest shape and the longest utterances of that shape."""
    rows_product: int = 0
    """Expected product of device_rows, training.accumulate and the number of devices, such as QuartzNet's 1152, for
    which a learning rate was chosen. A warning is written if the product differs. 0: no check."""

    def __post_init__(self) -> None:
        values = vars(self)
        if unused := [name for name, value in values.items() if value and name not in _USES[self.mode]]:
            raise ValueError(
                f"{unused[0]} is {values[unused[0]]}, and mode {self.mode} does not use it: expected "
                f"{', '.join(name for name in _USES[self.mode] if name != 'mode')}"
            )
        for names in _NEEDS[self.mode]:
            if sum(bool(values[name]) for name in names) != 1:
                raise ValueError(
                    f"mode is {self.mode}, and {', '.join(f'{name} is {values[name]}' for name in names)}: expected "
                    f"{' or '.join(names)}{', not both' * (len(names) > 1)}"
                )
        self._check_numbers()
        self._check_bins()

    def _check_numbers(self) -> None:
        for name in ("device_rows", "num_buckets", "num_shapes", "devices", "random_epochs", "rows_product"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}: expected 0 or more")
        for name in ("device_seconds", "memory_gb"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: expected a number above 0")
        if self.num_shapes and self.num_buckets:
            raise ValueError(
                f"num_shapes is {self.num_shapes} and num_buckets is {self.num_buckets}: expected one of them, because "
                "each bucket has one shape"
            )
        if self.random_epochs and not self.num_buckets:
            raise ValueError(
                f"random_epochs is {self.random_epochs} and num_buckets is 0: expected buckets, because all epochs of "
                "mode fixed are random without them"
            )

    def _check_bins(self) -> None:
        if any(not low < high < math.inf for low, high in zip((0.0, *self.edges_s), self.edges_s, strict=False)):
            raise ValueError(f"edges_s is {self.edges_s}: expected ascending, finite seconds > 0")
        if any(not 0 < seconds < math.inf or labels < 0 for seconds, labels in self.bins) or len({*self.bins}) < len(
            self.bins
        ):
            raise ValueError(f"bins is {self.bins}: expected different pairs of finite seconds > 0 and labels ≥ 0")
        if self.mode == "2D-bucketing-singlet" and len(self.bins) > 1:
            raise ValueError(f"bins is {self.bins}: expected one bin for mode {self.mode}")
        if self.bin_rows and not self.bins:
            raise ValueError(f"bin_rows is {self.bin_rows}, and bins is not set: expected bins, whose rows they are")
        if self.bin_rows and (len(self.bin_rows) != len(self.bins) or min(self.bin_rows) < 1):
            raise ValueError(f"bin_rows is {self.bin_rows}: expected a number ≥ 1 for each of {len(self.bins)} bins")

    @property
    def is_pooled(self) -> bool:
        """Whether batches have utterances of any length in all epochs."""
        return self.mode == "duration" or (self.mode == "fixed" and not self.num_buckets)
