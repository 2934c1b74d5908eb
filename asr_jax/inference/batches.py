"""Sizes of the batches of inference: options, and defaults that fit the device."""

import math

import jax
from jax.sharding import Mesh

from asr_jax.audio.features import FrontEnd
from asr_jax.core.settings import PositiveFloat, PositiveInt, command_options
from asr_jax.data.batching.limits import MAX_ROWS, BatchLimits

ON_CPU_S = 60.0
"""Padded audio per batch and device in seconds on CPUs, where larger batches are not faster."""
ON_OTHERS_S = 240.0
"""Padded audio per batch and device in seconds on accelerators that do not report their memory."""
BYTES_PER_S, BYTES_PER_S_OF_SAMPLES = 10e6, 40e6
"""Memory in bytes for a second of padded audio: for models of mel bins (measured: Zipformer-M, 8 MB in float32), and
for models of samples (measured: wav2vec 2.0 Base, 27 MB)."""
MEMORY_SHARE = 0.5
"""Share of an accelerator's free memory that a batch takes. The rest is for the next batch and for fragmentation."""


@command_options
class BatchOptions:
    """Sizes of the batches of inference.

    The results do not depend on them, except for audio that is computed in windows and for losses of whole batches.
    """

    batch_seconds: PositiveFloat | None = None
    """Maximum padded audio per batch in seconds, over all devices. Default: 60 per CPU device; on accelerators, as much
    as fits the memory."""
    batch_size: PositiveInt | None = None
    """Maximum number of rows per batch, over all devices. Default: 512."""
    max_duration: PositiveFloat | None = None
    """Longest audio in seconds that is computed at once; longer audio is computed in windows. Default: the longest
    utterance of training in transcription, and four times as much in evaluation and alignment."""

    def limits(self, mesh: Mesh, front_end: FrontEnd, *, most_s: float = math.inf) -> BatchLimits:
        """Returns the limits of batches on a mesh, without a longest audio if there is no `max_duration`."""
        return BatchLimits(
            seconds=self.batch_seconds or min(most_s, mesh.size * device_seconds(mesh.devices.flat[0], front_end)),
            rows=self.batch_size or MAX_ROWS,
            longest_s=self.max_duration or math.inf,
        )


def device_seconds(device: jax.Device, front_end: FrontEnd) -> float:
    """Returns the padded audio in seconds that one batch has on a device by default.

    For accelerators, it is a power of two, so that small changes of the free memory do not change the shapes.
    """
    if device.platform == "cpu":
        return ON_CPU_S
    stats = device.memory_stats() or {}
    if "bytes_limit" not in stats:
        return ON_OTHERS_S
    free = stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    per_s = BYTES_PER_S if front_end.hop > 1 else BYTES_PER_S_OF_SAMPLES
    return 2.0 ** math.floor(math.log2(max(MEMORY_SHARE * free / per_s, 1)))
