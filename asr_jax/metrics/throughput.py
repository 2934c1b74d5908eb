"""How fast a run goes and where its time goes: ratios of sums over the batches since the last reset."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, SupportsFloat, get_args

from asr_jax.core.sums import Sum

Spent = Literal["waiting", "host", "device"]
"""Waiting for a batch; the host's own work (dispatch, logging); waiting for the device to finish."""

COUNTS = ("utterances", "audio_s", "padded_audio_s", "frames", "tokens")


class Throughput:
    """Adds up what batches held and the wall time they took.

    Counts are those of the whole batch, over all devices and processes; `num_devices` divides them into rates per
    device. The first `num_warmup` batches and the time up to their end are left out (compilation, first reads).
    Steps are dispatched without waiting for the device, so `device` is the time that the host is blocked by it: the
    three kinds together are the wall time, and a device that is never waited for is starved by the other two.
    """

    def __init__(
        self, *, num_devices: int = 1, num_warmup: int = 0, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        if num_devices < 1 or num_warmup < 0:
            raise ValueError(f"num_devices {num_devices}, num_warmup {num_warmup}: expected >= 1 and >= 0")
        self.num_devices = num_devices
        self._num_warmup = num_warmup
        self._clock = clock
        self.reset()

    def reset(self) -> None:
        """Begins a new window; a warm-up that is not over goes on."""
        self._num_batches = 0
        self._counts = dict.fromkeys(COUNTS, 0.0)
        self._spent_s: dict[Spent, float] = dict.fromkeys(get_args(Spent), 0.0)

    def add(
        self,
        *,
        utterances: SupportsFloat,
        audio_s: SupportsFloat,
        padded_audio_s: SupportsFloat,
        frames: SupportsFloat,
        tokens: SupportsFloat,
        waiting_s: float = 0.0,
        host_s: float = 0.0,
        device_s: float = 0.0,
    ) -> None:
        """One batch: its rows that count, their seconds of audio, the seconds of all rows with padding, valid frames
        and tokens, and the wall time it took where `timed` does not measure it.
        """
        self._num_batches += 1
        values = (utterances, audio_s, padded_audio_s, frames, tokens)
        for name, value in zip(COUNTS, values, strict=True):
            self._counts[name] += float(value)
        self._spent_s["waiting"] += waiting_s
        self._spent_s["host"] += host_s
        self._spent_s["device"] += device_s
        if self._num_warmup:
            self._num_warmup -= 1
            self.reset()

    @contextmanager
    def timed(self, kind: Spent) -> Iterator[None]:
        """Adds the wall time of a `with` block. Blocks are not nested; what is outside of all blocks (validation,
        checkpoints) does not count.
        """
        start = self._clock()
        try:
            yield
        finally:
            self._spent_s[kind] += self._clock() - start

    def rates(self) -> dict[str, Any]:
        """`utterances_per_s`, `audio_s_per_s`, `padded_audio_s_per_s`, `frames_per_s`, `tokens_per_s` in all and
        `per_device`; `padding_share`, `waiting_share`, `host_share`, `device_share` in 0..1; `batch_s` seconds per
        batch over `num_batches`. NaN where there was nothing to count.
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
