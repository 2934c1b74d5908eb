"""A trained run, loaded for evaluation: model, tokenizer, averaged weights and the shapes it was trained in."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import jax
from jax.sharding import Mesh

from asr_jax.checkpoints.store import checkpoint_to_evaluate, restore_average
from asr_jax.config import Experiment, load_experiment
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import abstract, data_mesh, replicated
from asr_jax.core.pytrees import Tree
from asr_jax.data.buckets import Bucket
from asr_jax.data.dataset import PlannedData, plan_evaluation
from asr_jax.data.manifest import Record
from asr_jax.models.base import Recogniser
from asr_jax.text.tokenizer import Tokenizer, load_tokenizer
from asr_jax.training.evaluate import Decoder
from asr_jax.training.run import BUCKETS, CHECKPOINTS, EXPERIMENT, TOKENIZER
from asr_jax.training.state import average_of, initial_state


@dataclass(frozen=True)
class Trained:
    """What evaluation and transcription need of a run."""

    experiment: Experiment
    model: Recogniser
    tokenizer: Tokenizer
    variables: Tree
    buckets: tuple[Bucket, ...]
    updates: int
    """Which checkpoint."""
    mesh: Mesh

    def decoder(self) -> Decoder:
        return Decoder(self.model, self.tokenizer, mesh=self.mesh, variables=self.variables)

    def plan(self, records: list[Record]) -> PlannedData:
        """The records in the shapes of training, so that what was compiled there is found in the cache."""
        front_end = self.model.front_end
        multiple = self.experiment.data.buckets.batch_multiple
        return plan_evaluation(
            records, self.buckets, rate_hz=front_end.rate_hz, hop_samples=front_end.hop, batch_multiple=multiple
        )


def load_trained(folder: Path, *, updates: int | None = None) -> Trained:
    """The best checkpoint by validation WER, or the one after `updates` updates; its averaged weights.

    Raises: UserError where the folder is not a run or has no such checkpoint.
    """
    experiment = load_experiment(folder / EXPERIMENT)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    chosen = checkpoint_to_evaluate(folder / CHECKPOINTS, updates)
    model = experiment.model.build(
        vocab_size=tokenizer.vocab_size, blank_id=tokenizer.blank_id, precision=experiment.training.precision
    )
    mesh = _mesh(experiment.data.buckets.batch_multiple)
    optimizer = experiment.optim.build(1)
    shapes = jax.eval_shape(lambda: average_of(initial_state(model, optimizer, seed=0)))
    variables = restore_average(folder / CHECKPOINTS, chosen, abstract(shapes, replicated(mesh)))
    return Trained(experiment, model, tokenizer, variables, load_buckets(folder), chosen, mesh)


def save_buckets(buckets: tuple[Bucket, ...], folder: Path) -> None:
    (folder / BUCKETS).write_text(json.dumps([asdict(bucket) for bucket in buckets], indent=2) + "\n")


def load_buckets(folder: Path) -> tuple[Bucket, ...]:
    """The shapes that a run was trained in."""
    try:
        return tuple(Bucket(**bucket) for bucket in json.loads((folder / BUCKETS).read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise UserError(
            f"{folder / BUCKETS} cannot be read: {error}; continue the training, which writes it"
        ) from error


def _mesh(batch_multiple: int) -> Mesh:
    """As many devices as the rows of a batch can be split over: another machine may have more than training had."""
    devices = jax.device_count()
    return data_mesh(max(n for n in range(1, devices + 1) if batch_multiple % n == 0))
