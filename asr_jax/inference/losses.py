"""Loss terms and metrics of a set: ratios of two sums over the whole set, with constant random numbers."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from asr_jax.core.batch import Batch
from asr_jax.core.collectives import SAME, on_each_device, total
from asr_jax.core.environment import READING_THREADS
from asr_jax.core.meshes import global_batch
from asr_jax.core.processes import gathered
from asr_jax.core.programs import TRACED, Program, Programs
from asr_jax.core.pytrees import Tree
from asr_jax.core.random_streams import GENERATOR, random_streams
from asr_jax.core.sums import Sum, Sums, merge
from asr_jax.data.batching.buckets import Bucket, Scale
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.manifests.utterances import Rejected, rejected_everywhere
from asr_jax.inference.by_shape import ByShape, abstract_batch
from asr_jax.inference.recognition import batches_of, used_buckets
from asr_jax.models.base import Recogniser
from asr_jax.models.terms import batch_denominators, total_of


class Losses:
    """The compiled model with the losses and metrics of its heads, without augmentation and dropout.

    A model with masked pre-training masks frames here as well. The mask and other random numbers of heads depend only
    on the utterances. A quantiser uses the most likely entries.
    """

    def __init__(
        self,
        model: Recogniser,
        scales: Mapping[str, float],
        *,
        mesh: Mesh,
        variables: Tree,
        programs: Programs = TRACED,
    ) -> None:
        self.mesh, self.scales = mesh, scales
        self._model = model.clone(sub_batches=1)  # micro-batches are needed only in training
        sums = on_each_device(self._sums_of_rows, mesh, SAME)
        self._programs = ByShape("losses", sums, variables, mesh=mesh, programs=programs)

    def prepare(self, buckets: Iterable[Bucket], scale: Scale) -> None:
        """Starts to compile for the shapes of buckets."""
        self._programs.prepare(abstract_batch(bucket, self.mesh, scale) for bucket in buckets)

    def lower(self, bucket: Bucket, scale: Scale) -> Program:
        """Lowers the losses for the shape of a bucket."""
        return self._programs.lower(abstract_batch(bucket, self.mesh, scale))

    def wait(self) -> None:
        """Waits until all prepared shapes are compiled."""
        self._programs.wait()

    def __call__(self, variables: Tree, batch: Batch) -> tuple[Sums, Sums]:
        """Computes loss terms and metrics. They are on the device, and may still be being computed."""
        terms, metrics = self._programs(variables, batch)
        return terms, metrics

    def _sums_of_rows(self, variables: Tree, batch: Batch) -> tuple[Sums, Sums]:
        streams = {}
        if self._model.needs_mask:
            streams = random_streams(jax.random.key_data(jax.random.key(0, impl=GENERATOR)), jnp.int32(0))
        sums: Any = self._model.apply(variables, batch, step=None, rngs=streams)
        terms = batch_denominators(self._model, batch, streams)
        sums = total(sums)
        return {name: sums[name] for name in terms}, {name: sums[name] for name in sums if name not in terms}


class MeasuredLosses(NamedTuple):
    """Result of `measure`."""

    figures: dict[str, Any]
    """`loss` (sum of all terms and heads, as in training), dicts `losses` and `metrics` (NaN if nothing was counted),
    and the numbers of `utterances` that were read, and of `rejected` ones."""
    rejected: list[Rejected]
    differing: list[Rejected]
    """Utterances with remarks on their audio, as of `LoadedBatch`."""


def measure(
    losses: Losses,
    variables: Tree,
    data: PlannedData,
    *,
    threads: int = READING_THREADS,
    is_stopped: Callable[[], bool] = lambda: False,
) -> MeasuredLosses:
    """Computes the losses and metrics of a set. The result is the same on all processes.

    Args:
        is_stopped: Called before each batch; True stops the evaluation.

    Raises:
        BrokenOff: If `is_stopped` returns True.
    """
    losses.prepare(used_buckets(data), data.index.scale)
    found: list[tuple[Sums, Sums]] = []
    rejected, differing = list[Rejected](), list[Rejected]()
    utterances = 0
    with closing(batches_of(data, losses.mesh, threads=threads, is_stopped=is_stopped)) as batches:
        for loaded in batches:
            rejected += loaded.rejected
            differing += loaded.differing
            utterances += int(np.count_nonzero(loaded.batch.weights))
            found.append(losses(variables, global_batch(loaded.batch, losses.mesh)))
            jax.block_until_ready(found[-2:-1])  # bounds the number of batches on the device
    terms, metrics = (_means(each) for each in zip(*jax.device_get(found), strict=True))
    every = rejected_everywhere(rejected) + list(_not_computed(data))
    figures = {
        "loss": total_of(terms, losses.scales),
        "losses": terms,
        "metrics": metrics,
        "utterances": sum(gathered(utterances)),
        "rejected": len(every),
    }
    return MeasuredLosses(figures, every, rejected_everywhere(differing))


def _not_computed(data: PlannedData) -> Iterator[Rejected]:
    """Yields the rejected utterances, and those that are in no batch because of their length."""
    yield from data.rejections.entries
    for row in data.windowed_rows:
        utterance = data.index.utterances[row]
        reason = f"longer than {data.longest_s:g} s, and losses are not computed in windows"
        yield Rejected(utterance.id, utterance.location, reason, "result")


def _means(found: Iterable[Sums]) -> dict[str, float]:
    """Returns means in float64: float32 sums over many batches would lose precision."""
    exact = ({name: Sum(float(each.total), float(each.weight)) for name, each in sums.items()} for sums in found)
    return {name: value.mean() for name, value in merge(exact).items()}
