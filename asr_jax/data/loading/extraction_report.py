"""Events of an extraction: how far it is, at which speed, and its last utterance."""

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from asr_jax.data.loading.source import LoadedBatch
from asr_jax.data.manifests.utterances import Utterance

EVERY_S = 1.0
"""Shortest time between two events in seconds."""


class ExtractionReport:
    """Writes extraction events of one output while its utterances are computed.

    Args:
        write: Function that writes an event, as `EventLog.write`.
        num_utterances: Number of utterances of the output.
        num_done: Number of utterances that an earlier command has computed.
    """

    def __init__(self, write: Callable[..., None], out: Path, *, num_utterances: int, num_done: int) -> None:
        self._write, self._out, self._num, self._done = write, out, num_utterances, num_done
        self._num_long, self._num_rejected, self._shard = 0, 0, ""
        self._last: Utterance | None = None
        self._audio_s = self._loading_s = 0.0
        self._utterances, self._since_s = 0, time.monotonic()

    def begin(self, shard: str) -> None:
        """Names the shard whose utterances follow."""
        self._shard = shard

    def timed(self, batches: Iterable[LoadedBatch]) -> Iterator[LoadedBatch]:
        """Passes batches on, and adds the time in which they were read."""
        for loaded in batches:
            self._loading_s += loaded.loading_s
            yield loaded

    def add(self, utterance: Utterance, *, is_long: bool, num_rejected: int) -> None:
        """Counts an utterance that is computed.

        Args:
            is_long: Whether it was computed in windows.
            num_rejected: Number of utterances of the shard that could not be read so far.
        """
        self._last, self._num_rejected = utterance, num_rejected
        self._num_long += is_long
        self._utterances += 1
        self._audio_s += utterance.duration_s
        if time.monotonic() - self._since_s >= EVERY_S:
            self.flush()

    def flush(self) -> None:
        """Writes an event on the utterances since the last one, if there are any."""
        if not self._utterances or self._last is None:
            return
        wall_s = max(time.monotonic() - self._since_s, 1e-9)
        self._done += self._utterances
        last: dict[str, Any] = {"id": self._last.id, "text": self._last.text, "duration_s": self._last.duration_s}
        self._write(
            "extraction",
            output=self._out,
            done=self._done,
            utterances=self._num,
            long=self._num_long,
            rejected=self._num_rejected,
            shard=self._shard,
            last=last,
            utterances_per_s=self._utterances / wall_s,
            audio_s_per_s=self._audio_s / wall_s,
            reading=self._loading_s / wall_s,
        )
        self._audio_s = self._loading_s = 0.0
        self._utterances, self._since_s = 0, time.monotonic()
