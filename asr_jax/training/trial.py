"""Trial of a run: one batch shape is compiled and a few updates are timed, to plan the time and the memory."""

import os
import time
from dataclasses import dataclass, replace

import jax
import numpy as np

from asr_jax.config import Experiment
from asr_jax.core.allocator import RESIDENT, available_bytes
from asr_jax.core.devices import platform_of
from asr_jax.core.meshes import global_batch
from asr_jax.core.text_files import read_text
from asr_jax.data.batching.buckets import largest_first
from asr_jax.training.batches import labels_of, noise_of
from asr_jax.training.initial_state import abstract_state, initial_state, lower_initial_state
from asr_jax.training.programs import compile_steps
from asr_jax.training.run import find_run
from asr_jax.training.setup import set_up

TIMED = 5
"""Number of updates that are timed, after a first one."""
HOST = 1.35
"""Factor of the time for reading audio and for the loop, which on a CPU take the cores of the model. Of two corpora, it
was 1.24 and 1.47 (benchmarks/init_corpora.py)."""
GROWTH = 1.2
"""Factor of the process's memory on a CPU for the programs of validation and for checkpoints."""
RECOGNITION = 0.3
"""Share of the time of a training step that recognition of as much audio takes."""
START_S = 20.0
"""Time that a run takes to start, without compilation, in seconds."""


@dataclass(frozen=True)
class Trial:
    """Figures of a run that were measured or follow from its plan."""

    padded_rate: float
    """Seconds of audio, with padding, that an update computes in a second. It is that of the largest batch shape."""
    compile_s: float
    """Time to compile the update for one shape, in seconds. The compiled programs are kept in the cache."""
    memory_bytes: int
    """Memory of a device during the largest batch by XLA's analysis, with the training state."""
    limit_bytes: int
    """Memory of a device; of a CPU, the available memory of this machine. 0: not known."""
    process_bytes: int
    """Resident memory of the process on a CPU: that after the updates, times `GROWTH`. 0: not known."""
    num_shapes: int
    updates_per_epoch: float
    padded_s: float
    """Mean seconds of audio of an update, with padding."""
    epoch_s: float
    """Seconds of audio of an epoch, at all speeds, without padding."""
    validation_s: float
    """Seconds of audio of the validation set."""

    @property
    def update_s(self) -> float:
        """Mean time of an update in seconds."""
        return self.padded_s / self.padded_rate

    @property
    def start_s(self) -> float:
        """Planned time before the first update in seconds: the start, and the compilation of the other shapes."""
        return START_S + self.compile_s * (self.num_shapes - 1)

    def validation_time_s(self, audio_s: float) -> float:
        """Planned time of a validation of some seconds of audio."""
        return audio_s * RECOGNITION / self.padded_rate


def try_out(experiment: Experiment) -> Trial:
    """Compiles the largest batch shape of an experiment, and times some updates with noise.

    Raises:
        UserError: If the data cannot be read, or as `compile_steps` if the batch does not fit.
    """
    setup = set_up(experiment, find_run(replace(experiment, fresh=True)))  # an existing run does not matter
    lowered = lower_initial_state(setup.recipe, seed=experiment.seed, programs=setup.programs)
    shapes = abstract_state(lowered, setup.mesh, setup.recipe.sharding)
    plan, scale = setup.data.train.plan, setup.data.train.index.scale
    shape = setup.shapes[largest_first(setup.shapes)[0]]
    began_s = time.monotonic()
    steps = compile_steps(
        setup.recipe,
        [shape],
        shapes,
        scale=scale,
        mesh=setup.mesh,
        num_batches=setup.most_parts,
        sounds=setup.data.sounds,
        programs=setup.programs,
    )
    compile_s = time.monotonic() - began_s
    state, average = initial_state(lowered.compile(), setup.mesh, setup.recipe.sharding)
    batch = global_batch(noise_of(shape, scale, labels_of(setup.data.tokenizer)), setup.mesh)
    taken = list[float]()
    for number in range(1 + TIMED):
        began_s = time.monotonic()
        parts = [(shape, batch, np.int32(number))] * setup.most_parts
        state, average, _ = steps.apply_update(state, average, steps.accumulate(state, parts))
        jax.block_until_ready(state)
        taken.append(time.monotonic() - began_s)
    is_cpu = platform_of(setup.mesh.devices.flat[0]) == "cpu"
    update_s = float(np.median(taken[1:])) * (HOST if is_cpu else 1.0)
    padded_s = float(plan.padded_by_bucket().sum()) / scale.per_s / plan.batches_per_epoch
    return Trial(
        padded_rate=shape.batch_size * shape.length / scale.per_s * setup.most_parts / update_s,
        compile_s=compile_s,
        memory_bytes=int(steps.memory["maximum_bytes"] or 0),
        limit_bytes=steps.memory["limit_bytes"] or available_bytes(),
        process_bytes=int(GROWTH * _resident_bytes()) if is_cpu else 0,
        num_shapes=len(setup.shapes),
        updates_per_epoch=setup.updates_per_epoch,
        padded_s=padded_s * experiment.training.accumulate,
        epoch_s=plan.length_per_epoch / scale.per_s,
        validation_s=setup.data.validation.index.hours * 3600,
    )


def _resident_bytes() -> int:
    """Resident memory of this process with the files of its libraries, in bytes; 0 if the system is not Linux."""
    return int(read_text(RESIDENT).split()[1]) * os.sysconf("SC_PAGE_SIZE") if RESIDENT.exists() else 0
