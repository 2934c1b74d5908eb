"""Compilation of a run's training programs for devices that may be absent, for `python -m asr_jax.plan --target`."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import jax
from jax.sharding import Mesh

from asr_jax.config import Experiment
from asr_jax.core.errors import UserError
from asr_jax.core.hlo import largest
from asr_jax.core.layout import Layout
from asr_jax.core.meshes import described_devices, num_row_devices
from asr_jax.core.names import counted
from asr_jax.core.program_cost import ProgramCost, compile_and_measure
from asr_jax.core.programs import Program, Programs
from asr_jax.core.sharding import device_bytes
from asr_jax.core.targets import QUICK, Accelerator, Target
from asr_jax.data.batching.buckets import Bucket, Scale, largest_first
from asr_jax.inference.decoder import Decoder
from asr_jax.inference.losses import Losses
from asr_jax.inference.model import make_model
from asr_jax.kernels.implementations import check_selected, selected_kernels
from asr_jax.optim.schedules import RunLength
from asr_jax.text.tokenizers import Tokenizer
from asr_jax.training.initial_state import abstract_state, lower_initial_state
from asr_jax.training.memory_fit import most_within
from asr_jax.training.programs import StepPrograms
from asr_jax.training.recipe import make_recipe

MAX_ROWS = 1 << 16
"""Limit of the search for rows without `Batching.max_rows`."""
TOO_LARGE = "RESOURCE_EXHAUSTED"
"""Part of XLA's message if a program needs more memory than a TPU has."""


@dataclass(frozen=True)
class TargetSteps:
    """Training programs of a run on the devices of a target."""

    experiment: Experiment
    tokenizer: Tokenizer
    length: RunLength
    target: Target
    buckets: tuple[Bucket, ...]
    """Shapes of the batches on all devices of the target."""
    scale: Scale
    """Unit of the buckets' lengths."""
    quick: bool = False
    """Whether the compilers take the least time, at the price of the programs."""
    num_operations: int = 0
    """Number of the largest operations of each program in its row of the table."""
    validation: tuple[Bucket, ...] = ()
    """Shapes of the batches of recognition in validation, on all devices of the target."""
    losses: tuple[Bucket, ...] = ()
    """Shapes of the batches whose loss validation computes, on all devices of the target."""
    measured: dict[str, ProgramCost | None] = field(default_factory=dict)
    """Costs of the programs that are compiled so far, by digests of their texts; None for those that the compiler
    refuses because of memory. The search of `fit` and the table then compile a program once."""

    def step(self, mesh: Mesh) -> StepPrograms:
        """Returns the training programs for devices."""
        training = self.experiment.training
        recipe = make_recipe(
            self.experiment,
            make_model(self.experiment, self.tokenizer),
            self.length,
            most_rows=max(bucket.batch_size for bucket in self.buckets),
        )
        shapes = abstract_state(lower_initial_state(recipe, seed=self.experiment.seed), mesh, recipe.sharding)
        options = QUICK[self.target.accelerator.platform] if self.quick else ()
        kernels = selected_kernels(training.kernels)
        check_selected(kernels, self.target.accelerator.platform)
        programs = Programs(options=options, kernels=kernels)
        num_batches = training.accumulate * training.split
        return StepPrograms(recipe, shapes, mesh, self.scale, num_batches, programs=programs)

    def layout(self, mesh: Mesh) -> Layout:
        """Returns the parts and padding rows of the batches on devices."""
        training = self.experiment.training
        return Layout.of(mesh, split=training.split, sub_batches=self.experiment.model.sub_batches)

    def part(self, bucket: Bucket, mesh: Mesh) -> Bucket:
        """Returns the shape of a part of a bucket's batches on some of the devices, with as many rows on each."""
        rows = -(-bucket.batch_size // num_row_devices(self.target.mesh)) * num_row_devices(mesh)
        return self.layout(mesh).shape(replace(bucket, batch_size=rows))

    def rows(self, say: Callable[[str], None]) -> list[dict[str, Any]]:
        """Compiles the gradient of each bucket and the update, for one device and for all, and validation for all."""
        meshes = {mesh.size: mesh for mesh in (self.target.one, self.target.mesh)}
        of_training = [row for mesh in meshes.values() for row in self.rows_on(mesh, say)]
        return of_training + self.validation_rows(say)

    def validation_rows(self, say: Callable[[str], None]) -> list[dict[str, Any]]:
        """Compiles the programs of validation for all devices: recognition by each validated head, and losses.

        The memory in the rows includes the state of training.
        """
        mesh, found = self.target.mesh, list[dict[str, Any]]()
        step, settings = self.step(mesh), self.experiment.model
        model, further = step.recipe.model, self.experiment.training.validation.heads
        kept_bytes = device_bytes(step.shapes.state)
        of_model: dict[str, Any] = {"mesh": mesh, "variables": step.shapes.average, "programs": step.programs}
        programs: dict[str, tuple[Decoder | Losses, tuple[Bucket, ...]]] = {}
        for head in (settings.recognising, *further) if settings.recognises else ():
            decoder = Decoder(model, self.tokenizer, decoding=settings.decoding_of(head), head=head, **of_model)
            programs["recognition" + f" by {head}" * (head in further)] = decoder, self.validation
        programs["validation loss"] = Losses(model, step.recipe.scales, **of_model), self.losses
        for name, (validated, buckets) in programs.items():
            for bucket in (buckets[number] for number in largest_first(buckets)):
                seconds = bucket.length / self.scale.per_s
                say(f"compiling {name} of {bucket.batch_size} × {seconds:.2f} s for {described_devices(mesh)}")
                row = {"program": name, "devices": mesh.size, "rows": -(-bucket.batch_size // num_row_devices(mesh))}
                measured = self._measured(validated.lower(bucket, self.scale), mesh, kept_bytes)
                found.append(row | {"seconds": seconds} | measured)
        return found

    def rows_on(self, mesh: Mesh, say: Callable[[str], None]) -> list[dict[str, Any]]:
        """Compiles the gradient of each bucket and the update for some of the devices, with as many rows on each."""
        step, found, accumulated = self.step(mesh), list[dict[str, Any]](), None
        for bucket in (self.buckets[number] for number in largest_first(self.buckets)):
            part = self.part(bucket, mesh)
            seconds = part.length / step.scale.per_s
            say(f"compiling {part.batch_size} × {seconds:.2f} s for {described_devices(mesh)}")
            program = step.gradient(part)
            accumulated = step.accumulated(program)
            row = {"program": "gradient", "devices": mesh.size, "rows": part.batch_size // num_row_devices(mesh)}
            row |= {"seconds": seconds, "labels": part.num_tokens}
            found.append(row | self._measured(program, mesh, step.kept_bytes))
        say(f"compiling the update for {described_devices(mesh)}")
        update = {"program": "update", "devices": mesh.size}
        return [*found, update | self._measured(step.update(accumulated), mesh, 0)]

    def _measured(self, program: Program, mesh: Mesh, kept_bytes: int) -> dict[str, Any]:
        cost = self._cost(program, mesh)
        if not cost:
            return {"memory GB": "does not fit"}
        needed = cost.memory_bytes + kept_bytes
        return (
            costs(cost, self.target.accelerator)
            | {
                "memory GB": needed / 1e9,
                "of memory": f"{needed / self.target.memory_bytes:.0%}"
                + (" ✗" if needed > self.target.memory_bytes else ""),
            }
            | ({"largest": largest_rows(cost, self.num_operations)} if self.num_operations else {})
        )

    def _cost(self, program: Program, mesh: Mesh) -> ProgramCost | None:
        """Cost of a program; None if it needs more memory than the compiler allows. Compiles only if necessary."""
        text = hashlib.sha256(program.lowered.as_text().encode()).hexdigest()
        if text not in self.measured:
            try:
                _, self.measured[text] = compile_and_measure(program, num_devices=mesh.size)
            except jax.errors.JaxRuntimeError as error:
                if TOO_LARGE not in str(error):
                    raise
                self.measured[text] = None
        return self.measured[text]

    def fit(self, margin: float, say: Callable[[str], None]) -> tuple[tuple[Bucket, ...], str]:
        """Finds the most rows of each bucket that fit the memory of a device, up to `data.batching.max_rows`.

        Args:
            margin: Share of the memory that is left free.

        Returns:
            The buckets of the plan with these rows, over all devices, and a message on those that
            `data.batching.max_rows` limits; empty if there are none.

        Raises:
            UserError: If the smallest batch of a bucket does not fit. The message has settings that need less memory.
        """
        # The memory of a device depends on the number of devices, for example through collectives.
        step, layout = self.step(self.target.mesh), self.layout(self.target.mesh)
        settings = self.experiment.data.batching
        unit, most = settings.row_multiple, (settings.max_rows or MAX_ROWS) // settings.row_multiple
        budget, found, limited = self.target.memory_bytes * (1 - margin), list[Bucket](), list[str]()
        for bucket in self.buckets:
            sizes = dict[int, float]()

            def needed(number: int, bucket: Bucket = bucket, sizes: dict[int, float] = sizes) -> float:
                part = layout.shape(replace(bucket, batch_size=number * unit))
                size = sizes[number] = self.memory(step, part)
                say(f"{part.batch_size} × {part.length / step.scale.per_s:.2f} s: {_gigabytes(size)} of a device")
                return size

            number = most_within(needed, most, budget)
            if not number:
                raise UserError(
                    f"--fit: a batch of {unit} × {bucket.length / step.scale.per_s:.2f} s does not fit the memory of "
                    f"{self.target.name}, of which {_gigabytes(budget)} may be used; {self._savings(bucket)}"
                )
            found.append(replace(bucket, batch_size=number * unit))
            if number == most:
                rows = -(-number * unit // num_row_devices(self.target.mesh))
                limited.append(
                    f"{bucket.length / step.scale.per_s:.2f} s, {bucket.num_tokens} labels: "
                    f"{counted(rows, 'row')} per device, {sizes[number] / self.target.memory_bytes:.0%} of its memory"
                )
        message = (
            f"data.batching.max_rows {settings.max_rows} (rows over all devices) limits {len(limited)} of "
            f"{counted(len(found), 'bucket')}, and a higher --data.batching.max-rows allows more rows: "
            f"{'; '.join(limited)}"
        )
        return tuple(found), message if limited else ""

    def memory(self, step: StepPrograms, part: Bucket) -> float:
        """Memory of a device in bytes during the gradient of a part; infinite if the compiler refuses it."""
        cost = self._cost(step.gradient(part), step.mesh)
        return cost.memory_bytes + step.kept_bytes if cost else math.inf

    def _savings(self, bucket: Bucket) -> str:
        """Message with the memory of the smallest batch of a bucket under settings that need less, alone and together.

        A setting can need more: with a split, for example, the sum of the gradients of earlier parts is kept.
        """
        mesh, part = self.target.mesh, replace(bucket, batch_size=self.experiment.data.batching.row_multiple)

        def needed(experiment: Experiment) -> float:
            other = replace(self, experiment=experiment)
            return other.memory(other.step(mesh), other.layout(mesh).shape(part))

        now, found, together = needed(self.experiment), dict[str, float](), self.experiment
        for flag, change in _changes(self.experiment).items():
            if (size := needed(change(self.experiment))) < now:
                found[flag], together = size, change(together)
        if len(found) > 1 and (size := needed(together)) < now:
            found[f"all together ({' '.join(found)})"] = size
        shorter = "a lower --data.filters.max-duration-s"
        if not found:
            return f"it needs {_gigabytes(now)}, and no other split, precision or rematerialisation less: use {shorter}"
        listed = ", ".join(f"{flag}: {_gigabytes(size)}" for flag, size in found.items())
        return f"it needs {_gigabytes(now)}, and with other settings {listed}; {shorter} also helps"


def _changes(experiment: Experiment) -> dict[str, Callable[[Experiment], Experiment]]:
    """Changes of an experiment that may need less memory, by their flags."""
    training, encoder, sub_batches = experiment.training, experiment.model.encoder, experiment.model.sub_batches
    split, changes = 2 * training.split, dict[str, Callable[[Experiment], Experiment]]()
    if sub_batches == 1 or sub_batches % split == 0:
        changes[f"--training.split {split}"] = lambda of: replace(of, training=replace(of.training, split=split))
    if training.precision != "bf16":
        changes["--training.precision bf16"] = lambda of: replace(of, training=replace(of.training, precision="bf16"))
    if getattr(encoder, "remat", "layers") != "layers":
        changes["--model.encoder.remat layers"] = lambda of: replace(
            of, model=replace(of.model, encoder=replace(cast(Any, of.model.encoder), remat="layers"))
        )
    return changes


def costs(cost: ProgramCost, accelerator: Accelerator) -> dict[str, Any]:
    """Columns of the table on a program."""
    by_flops = cost.flops / (1e12 * accelerator.peak_tflops)
    by_bytes = cost.moved_bytes / (1e9 * accelerator.memory_gb_per_s)
    by_links = cost.collective_bytes / (1e9 * accelerator.link_gb_per_s)
    return {
        "compile s": cost.compile_s,
        "arguments GB": cost.argument_bytes / 1e9,
        "temporary GB": cost.temporary_bytes / 1e9,
        "outputs GB": cost.output_bytes / 1e9,
        "aliased GB": cost.alias_bytes / 1e9,
        "TFLOP": cost.flops / 1e12,
        "GB moved": cost.moved_bytes / 1e9,
        "collectives": ", ".join(
            f"{number} {kind} {size / 1e6:.1f} MB" for kind, (number, size) in sorted(cost.collectives.items())
        ),
    } | (
        {
            "least ms": 1e3 * max(by_flops, by_bytes, by_links),
            "limit": max((by_flops, "products"), (by_bytes, "memory"), (by_links, "links"))[1],
        }
        if math.isfinite(accelerator.peak_tflops)
        else {}
    )


def largest_rows(cost: ProgramCost, number: int) -> list[dict[str, Any]]:
    """Rows of the table of the largest operations of a program, by bytes and by floating-point operations."""
    return [
        {
            "by": by,
            "GB": each.times * each.bytes / 1e9,
            "GFLOP": each.times * each.flops / 1e9,
            "executions": each.times,
            "output": each.shape[:60],
            "operation": each.kind,
            "source": each.op_name[-100:],
        }
        for by in ("bytes", "flops")
        for each in largest(cost.operations, by, number)
        if getattr(each, by)
    ]


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.3g} GB" if math.isfinite(size) else "too much for the compiler"
