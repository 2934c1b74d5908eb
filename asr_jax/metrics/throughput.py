"""Throughput and time shares of training: ratios of sums over the batches since the last reset."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, SupportsFloat, get_args

import jax

from asr_jax.core.sums import Sum

Spent = Literal["waiting", "host", "device"]
"""Kind of wall time: `waiting` for a batch, `host` work (dispatch, logging), or blocked by the `device`."""
TRACED = "training: "
"""InitialState of the names of these kinds in traces."""

COUNTS = (
    "utterances",  # rows that count
    "audio_s",  # seconds of these rows
    "padded_audio_s",  # seconds of all rows, including padding
    "feature_values",  # valid values of the features, or valid samples without features
    "frames",  # valid frames of the encoder's output
    "masked_frames",
    "tokens",
    "letters",  # letters of these tokens, with word boundaries
)
"""Units of the contents of batches, in which the speed of training systems is published."""


class Throughput:
    """Sums the contents of batches and the wall time spent on them.

    The counts refer to whole batches on all devices of all processes. The first batches are excluded, with the time up
    to their end, because they include compilation and first reads. Updates are dispatched asynchronously, so `device`
    is the time for which the device blocks the host. The three kinds of time add up to the wall time. If the device
    never blocks the host, the other two kinds limit the speed.

    Args:
        clock: Function that returns the time in seconds.
    """

    def __init__(
        self, *, num_devices: int = 1, num_warmup: int = 0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if num_devices < 1 or num_warmup < 0:
            raise ValueError(
                f"num_devices is {num_devices} and num_warmup is {num_warmup}: expected at least 1 and at least 0"
            )
        self.num_devices = num_devices
        self._num_warmup = num_warmup
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Starts a new window. An unfinished warm-up continues."""
        self._num_batches = 0
        self._counts = dict.fromkeys(COUNTS, 0.0)
        self._spent_s: dict[Spent, float] = dict.fromkeys(get_args(Spent), 0.0)
        self.loading_s = 0.0
        """Seconds in which threads or workers of this process read the batches."""

    def add(
        self,
        *,
        waiting_s: float = 0.0,
        host_s: float = 0.0,
        device_s: float = 0.0,
        loading_s: float = 0.0,
        **counts: SupportsFloat,
    ) -> None:
        """Adds one batch.

        Args:
            waiting_s: Seconds of waiting for the batch that `timed` did not measure.
            host_s: Seconds of host work that `timed` did not measure.
            device_s: Seconds blocked by the device that `timed` did not measure.
            loading_s: Seconds of reading, which is not wall time: it runs ahead, in several threads.
            counts: Value of each of `COUNTS`, except for masked frames.
        """
        self._num_batches += 1
        for name, value in counts.items():
            self._counts[name] += float(value)
        self._spent_s["waiting"] += waiting_s
        self._spent_s["host"] += host_s
        self._spent_s["device"] += device_s
        self.loading_s += loading_s
        if self._num_warmup:
            self._num_warmup -= 1
            self.reset()

    @property
    def waiting_s(self) -> float:
        """Seconds of waiting for batches since the last reset."""
        return self._spent_s["waiting"]

    @property
    def is_warming_up(self) -> bool:
        """Whether the next batch will be excluded."""
        return self._num_warmup > 0

    def add_masked(self, num_frames: SupportsFloat) -> None:
        """Adds masked frames of batches that were added before; the device counts them."""
        self._counts["masked_frames"] += float(num_frames)

    @contextmanager
    def timed(self, kind: Spent) -> Iterator[None]:
        """Adds the wall time of a `with` block, which traces show as `training: KIND`. Blocks must not be nested.

        Time outside of all blocks (validation, checkpoints) does not count.
        """
        start = self._clock()
        try:
            with jax.profiler.TraceAnnotation(f"{TRACED}{kind}"):
                yield
        finally:
            self._spent_s[kind] += self._clock() - start

    def rates(self) -> dict[str, Any]:
        """Returns the rates since the last reset.

        Returns:
            `utterances_per_s` and so on for all `COUNTS`, in total and under `per_device`; `padding_share`,
            `waiting_share`, `host_share` and `device_share` in 0..1; `batch_s`, seconds per batch; `num_batches`.
            Ratios with a denominator of 0 are NaN.
        """
        wall_s = sum(self._spent_s.values(), start=0.0)
        per_s = {f"{name}_per_s": Sum(count, wall_s).mean() for name, count in self._counts.items()}
        counts = self._counts
        return {
            **per_s,
            "per_device": {name: rate / self.num_devices for name, rate in per_s.items()},
            "padding_share": 1.0 - Sum(counts["audio_s"], counts["padded_audio_s"]).mean(),
            **{f"{kind}_share": Sum(spent, wall_s).mean() for kind, spent in self._spent_s.items()},
            "batch_s": Sum(wall_s, float(self._num_batches)).mean(),
            "num_batches": self._num_batches,
        }
