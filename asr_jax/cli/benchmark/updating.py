"""Timing of updates in the order of the training loop, on synthetic batches or with the loader of a config."""

import itertools
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from asr_jax.audio.augmentation import AudioAugmentation
from asr_jax.audio.sounds import read_sounds
from asr_jax.cli.benchmark.systems import peak_bytes, tokenizer_without_data
from asr_jax.config import Experiment
from asr_jax.core.batch import Batch
from asr_jax.core.devices import devices
from asr_jax.core.environment import reading_threads
from asr_jax.core.files import write_whole
from asr_jax.core.meshes import data_mesh, global_batch, replicated
from asr_jax.core.targets import accelerator_of
from asr_jax.data.batching.buckets import Bucket, Scale
from asr_jax.data.batching.index import scale_of
from asr_jax.data.loading.source import BatchSource, open_batches
from asr_jax.inference.model import make_model
from asr_jax.optim.schedules import RunLength
from asr_jax.training.batches import labels_of, noise_of
from asr_jax.training.initial_state import abstract_state, initial_state, lower_initial_state
from asr_jax.training.loop import IN_FLIGHT
from asr_jax.training.programs import CompiledSteps, compile_steps
from asr_jax.training.recipe import Recipe, make_recipe
from asr_jax.training.run import find_run
from asr_jax.training.setup import set_up

SETTLED = 30_000
"""Number of updates after which the schedules of dropout and layer skipping have ended."""
Group = list[tuple[Bucket, Batch]]
"""The batches of an update, in host memory."""
TRACED, PROGRAM = 3, ".hlo.txt"
"""Number of updates of a trace, and suffix of the files that contain the text of a compiled program."""


@dataclass(frozen=True)
class UpdateCase:
    """A training recipe with its batch shapes, for one accumulation and any number of devices."""

    recipe: Recipe
    buckets: tuple[Bucket, ...]
    scale: Scale
    sounds: dict[str, np.ndarray]
    seed: int


class Done(NamedTuple):
    """Figures of one update."""

    end_s: float
    """Time at which the host received the result, in seconds."""
    utterances: float
    audio_s: float
    padded_s: float
    flops: float
    applied: bool


def synthetic_case(
    experiment: Experiment, *, rows: int, seconds: Sequence[float], labels: int, vocabulary: int | None
) -> tuple[UpdateCase, list[Batch]]:
    """Batches of noise, one for each length, with the augmentation of the config.

    Args:
        labels: Maximum number of labels of a row; it is limited to one label for two frames of the heads.
        vocabulary: Number of labels with the blank; None: as for `tokenizer_without_data`.
    """
    settings, front_end = experiment.model, experiment.model.front_end
    tokenizer = tokenizer_without_data(experiment.data.tokenizer, vocabulary)
    model = make_model(experiment, tokenizer)
    of_audio = [each for each in settings.augment if isinstance(each, AudioAugmentation)]
    lengths, scale = [round(each * front_end.rate_hz) for each in seconds], scale_of(front_end, of_features=False)
    case = UpdateCase(
        make_recipe(experiment, model, RunLength(10 * SETTLED, SETTLED)),
        tuple(Bucket(size, min(labels, int(model.output_length(size)) // 2), rows, size) for size in lengths),
        scale,
        read_sounds(of_audio, rate_hz=front_end.rate_hz, threads=reading_threads(experiment.data.threads)),
        experiment.seed,
    )
    return case, [noise_of(shape, scale, labels_of(tokenizer)) for shape in case.buckets]


def synthetic_groups(case: UpdateCase, batches: Sequence[Batch], accumulation: int) -> Iterator[Group]:
    """Yields the batches of each update, all of one length; the lengths alternate."""
    for bucket, batch in itertools.cycle(zip(case.buckets, batches, strict=True)):
        yield [(bucket, batch)] * accumulation


def with_accumulation(experiment: Experiment, accumulation: int) -> Experiment:
    """Returns the experiment with another number of batches per update and the same size of an update.

    The sizes of the batches change accordingly and can be divided over all devices.
    """
    old, share = experiment.data.batching, experiment.training.accumulate / accumulation
    multiple = math.lcm(old.row_multiple, len(devices()))
    max_rows = max(math.ceil(old.max_rows * share), multiple) if old.max_rows else 0
    batching = replace(old, budget=old.budget * share, row_multiple=multiple, max_rows=max_rows)
    return replace(
        experiment,
        data=replace(experiment.data, batching=batching),
        training=replace(experiment.training, accumulate=accumulation),
    )


@contextmanager
def loaded_groups(experiment: Experiment) -> Iterator[tuple[UpdateCase, Iterator[Group]]]:
    """Opens the training set of an experiment like training; yields the case and the batches of each update."""
    setup = set_up(experiment, find_run(replace(experiment, fresh=True)))  # existing runs do not matter
    plan, data, accumulation = setup.data.train.plan, experiment.data, experiment.training.accumulate
    case = UpdateCase(setup.recipe, plan.buckets, setup.data.train.index.scale, setup.data.sounds, experiment.seed)
    source = BatchSource(setup.data.train.index, plan)
    with open_batches(
        source, workers=data.workers, threads=reading_threads(data.threads, workers=data.workers)
    ) as batches:
        each = ((plan.buckets[loaded.bucket], loaded.batch) for loaded in batches)
        yield case, iter(lambda: list(itertools.islice(each, accumulation)), [])


def time_updates(
    case: UpdateCase,
    groups: Iterator[Group],
    *,
    num_devices: int,
    accumulation: int,
    warm_ups: int,
    updates: int,
    trace: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Measures updates, with several of them in flight as in training, and yields their figures. A trace follows.

    Args:
        trace: Folder to write an XLA trace of three more updates to, with the texts of their programs. None: no trace.

    Yields:
        Seconds of compilation and of each update, throughput, the share of the time that was spent waiting for the
        loader, TFLOP/s of products on a device, their share of the device's peak rate if that is known, and memory.
    """
    mesh, before, begun = data_mesh(num_devices), peak_bytes() or 0, time.perf_counter()
    update, steps = _compiled(case, mesh, accumulation)
    compile_s, table = time.perf_counter() - begun, dict(zip(steps.gradient, steps.table, strict=True))
    under_way, waiting_s, done = deque[tuple[Any, Group]](), list[float](), list[Done]()
    while len(done) < warm_ups + updates:
        begun = time.perf_counter()
        group = next(groups)
        waiting_s.append(time.perf_counter() - begun)
        under_way.append((update(group), group))
        if len(under_way) > IN_FLIGHT:
            done.append(_ended(*under_way.popleft(), per_s=case.scale.per_s, table=table))
    jax.block_until_ready(list(under_way))
    measured, update_s = done[warm_ups:], np.diff([each.end_s for each in done[warm_ups - 1 :]])
    total_s, batches = float(update_s.sum()), updates * accumulation
    utterances, audio_s = sum(each.utterances for each in measured), sum(each.audio_s for each in measured)
    tflops, known = sum(each.flops for each in measured) / total_s / 1e12, accelerator_of(devices()[0].device_kind)
    yield {
        "devices": num_devices,
        "accumulation": accumulation,
        "compile_s": compile_s,
        "update_s": update_s.tolist(),
        "batch_s": total_s / batches,
        "rows_of_a_device": utterances / batches / num_devices,
        "utterances_per_s": utterances / total_s,
        "audio_s_per_s": audio_s / total_s,
        "padded_audio_s_per_s": sum(each.padded_s for each in measured) / total_s,
        "waiting_share": sum(waiting_s[-updates:]) / total_s,
        "tflops_of_a_device": tflops,
        "share_of_peak": tflops / known.peak_tflops if known else None,
        "planned_bytes": max(row["memory_bytes"] for row in table.values()),
        # The peak is that of the process: of this case only if it rose.
        "peak_bytes": peak if (peak := peak_bytes() or 0) > before else None,
        "parameters": next(iter(table.values()))["parameters"],
        "voided": sum(not each.applied for each in measured),
    }
    if trace:
        options = jax.profiler.ProfileOptions()
        options.python_tracer_level = 0
        with jax.profiler.trace(str(trace), create_perfetto_trace=True, profiler_options=options):
            jax.block_until_ready([update(next(groups)) for _ in range(TRACED)])
        programs: list[Any] = [*steps.executables.values(), steps.apply_update]
        for number, program in enumerate(programs):
            write_whole(trace / f"{number}{PROGRAM}", program.as_text() or "")


def _compiled(case: UpdateCase, mesh: Mesh, accumulation: int) -> tuple[Any, CompiledSteps]:
    """Returns a function that dispatches an update and returns its report, and the compiled programs."""
    lowered = lower_initial_state(case.recipe, seed=case.seed)
    shapes = abstract_state(lowered, mesh)
    steps = compile_steps(
        case.recipe, case.buckets, shapes, scale=case.scale, mesh=mesh, num_batches=accumulation, sounds=case.sounds
    )
    state, average = initial_state(lowered.compile(), mesh)
    state = state.replace(updates=jax.device_put(jnp.int32(SETTLED), replicated(mesh)))
    number = itertools.count()

    def update(group: Group) -> Any:
        nonlocal state, average
        parts = [(bucket, global_batch(batch, mesh), np.int32(next(number))) for bucket, batch in group]
        state, average, report = steps.apply_update(state, average, steps.accumulate(state, parts))
        return report

    return update, steps


def _ended(report: Any, group: Group, *, per_s: float, table: dict[Bucket, dict[str, Any]]) -> Done:
    """Waits for the report of an update and returns its figures."""
    applied = bool(report.applied)
    end_s = time.perf_counter()
    utterances = sum(float(batch.weights.sum()) for _, batch in group)
    audio_s = sum(float((batch.lengths * batch.weights).sum()) / per_s for _, batch in group)
    padded_s = sum(len(batch.lengths) * bucket.length / per_s for bucket, batch in group)
    return Done(end_s, utterances, audio_s, padded_s, sum(table[bucket]["flops"] for bucket, _ in group), applied)
