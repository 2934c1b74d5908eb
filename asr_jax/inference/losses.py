"""Loss terms and metrics of a set: each a ratio of two sums over all of it, with random numbers that never change."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int

from asr_jax.core.batch import Batch
from asr_jax.core.meshes import global_batch
from asr_jax.core.processes import gathered
from asr_jax.core.programs import TRACED, Programs
from asr_jax.core.pytrees import Tree
from asr_jax.core.random_streams import GENERATOR, random_streams
from asr_jax.core.sums import Sum, Sums, merge
from asr_jax.data.batching.buckets import Bucket, Scale
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.batching.evaluation import WHOLE
from asr_jax.data.manifests.utterances import Rejected, rejected_everywhere
from asr_jax.inference.by_shape import ByShape, abstract_batch
from asr_jax.inference.recognition import batches_of, used_buckets
from asr_jax.models.base import Recogniser
from asr_jax.models.terms import batch_denominators, total_of


class Losses:
    """The compiled model with what its heads say of a batch, without augmentation and dropout.

    A model that is trained on hidden frames hides some here as well; which, and what else heads draw, depends on the
    batch's place in the plan alone. A quantiser takes the most probable entries.
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
        """`scales`: of the heads in the loss; `programs`: which lowers the model's."""
        self.mesh, self.scales = mesh, scales
        self._model = model.clone(sub_batches=1)  # rows of a set that is evaluated need not be parted
        position = jax.ShapeDtypeStruct((), jnp.int32)
        self._programs = ByShape("losses", self._sums, variables, position, mesh=mesh, programs=programs)

    def prepare(self, buckets: Iterable[Bucket], scale: Scale) -> None:
        """Begins to compile the shapes of buckets."""
        self._programs.prepare(abstract_batch(bucket, self.mesh, scale) for bucket in buckets)

    def wait(self) -> None:
        """Returns when all shapes that were prepared are compiled."""
        self._programs.wait()

    def __call__(self, variables: Tree, batch: Batch, position: int) -> tuple[Sums, Sums]:
        """Terms and metrics of a global batch; on the device, and perhaps not yet there."""
        terms, metrics = self._programs(variables, batch, np.int32(position))
        return terms, metrics

    def _sums(self, variables: Tree, batch: Batch, position: Int[Array, ""]) -> tuple[Sums, Sums]:
        streams = {}
        if self._model.needs_mask:
            streams = random_streams(jax.random.key_data(jax.random.key(0, impl=GENERATOR)), position)
        sums: Any = self._model.apply(variables, batch, step=None, rngs=streams)
        terms = batch_denominators(self._model, batch, streams)
        return {name: sums[name] for name in terms}, {name: sums[name] for name in sums if name not in terms}


class Measured(NamedTuple):
    """What `measure` finds."""

    figures: dict[str, Any]
    """`loss` (of all terms and heads, as in training), `losses` and `metrics` by name, NaN where there was nothing to
    count; `utterances` that were read, and how many were `rejected`."""
    rejected: list[Rejected]


def measure(
    losses: Losses,
    variables: Tree,
    data: PlannedData,
    *,
    workers: int = 0,
    threads: int = 2,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Measured:
    """Of all recordings of a set; the same on all processes.

    Raises: BrokenOff where `is_stopped`, asked before each batch, says so.
    """
    losses.prepare(used_buckets(data), data.index.scale)
    found: list[tuple[Sums, Sums]] = []
    rejected: list[Rejected] = []
    utterances = 0
    with closing(batches_of(data, workers=workers, threads=threads, is_stopped=is_stopped)) as batches:
        for loaded in batches:
            rejected += loaded.rejected
            utterances += int(np.count_nonzero(loaded.batch.weights))
            found.append(losses(variables, global_batch(loaded.batch, losses.mesh), loaded.position))
            jax.block_until_ready(found[-2:-1])  # batches do not pile up on the device
    terms, metrics = (_means(each) for each in zip(*jax.device_get(found), strict=True))
    every = rejected_everywhere(rejected) + list(_not_computed(data))
    figures = {
        "loss": total_of(terms, losses.scales), "losses": terms, "metrics": metrics,
        "utterances": sum(gathered(utterances)), "rejected": len(every),
    }  # fmt: skip
    return Measured(figures, every)


def _not_computed(data: PlannedData) -> Iterator[Rejected]:
    """Utterances that are in no batch."""
    yield from data.rejections.entries
    for row in data.windowed_rows:
        utterance = data.index.utterances[row]
        reason = f"longer than {WHOLE} × training's longest"
        yield Rejected(utterance.id, utterance.location, reason, "result")


def _means(found: Iterable[Sums]) -> dict[str, float]:
    """In float64: a set may have many batches."""
    exact = ({name: Sum(float(each.total), float(each.weight)) for name, each in sums.items()} for sums in found)
    return {name: value.mean() for name, value in merge(exact).items()}
