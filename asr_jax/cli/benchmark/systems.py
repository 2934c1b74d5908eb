"""Recognisers of benchmarks: a trained run, or a config with random weights."""

import os
import platform
from dataclasses import dataclass, replace
from typing import Any

import jax

from asr_jax.config import Experiment
from asr_jax.core.devices import devices, local_devices
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import data_mesh
from asr_jax.core.precision import Precision
from asr_jax.core.pytrees import Tree, num_elements
from asr_jax.data.batching.buckets import Scale
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.batching.evaluation import plan_evaluation
from asr_jax.data.batching.index import scale_of
from asr_jax.data.manifests.reading import Utterances
from asr_jax.inference.batches import BatchOptions
from asr_jax.inference.decoder import HeadSearch
from asr_jax.inference.model import make_model
from asr_jax.inference.trained import Trained
from asr_jax.models.base import Recogniser
from asr_jax.optim.schedules import RunLength
from asr_jax.search.base import Decoding
from asr_jax.text.characters import CharacterTokenizer, IdTokenizer
from asr_jax.text.tokenizers import Tokenizer, TokenizerSettings, given_tokenizer
from asr_jax.training.initial_state import initial_state, lower_initial_state
from asr_jax.training.recipe import make_recipe


@dataclass(frozen=True)
class System:
    """A recogniser with its weights on the first device."""

    name: str
    experiment: Experiment
    model: Recogniser
    tokenizer: Tokenizer
    variables: Tree
    weights: str
    """Description of the weights."""

    def search(self) -> HeadSearch:
        """Search of the primary head, with the decoding of validation."""
        head = self.model.recognising
        return HeadSearch(self.model, self.tokenizer, head=head, decoding=self.experiment.model.decoding_of(head))

    @property
    def scale(self) -> Scale:
        """Unit of lengths of audio."""
        return scale_of(self.model.front_end, of_features=False)

    @property
    def about(self) -> dict[str, Any]:
        """Name, weights, precision and number of parameters."""
        return {
            "system": self.name,
            "weights": self.weights,
            "precision": self.experiment.training.precision,
            "parameters": num_elements(self.variables["params"]),
            "vocabulary": self.tokenizer.vocab_size,
            "head": self.model.recognising,
            "decoding": str(self.experiment.primary_decoding),
        }

    def plan(self, utterances: Utterances, batches: BatchOptions) -> PlannedData:
        """Plans batches on one device that contain every utterance once, as evaluation does.

        Audio of any length is computed at once. All batches have `batch_size` rows, if it is given.
        """
        limits = batches.limits(data_mesh(1), self.model.front_end)
        return plan_evaluation(
            utterances,
            replace(limits, multiple=batches.batch_size or 1),
            front_end=self.model.front_end,
            tokenizer=self.tokenizer,
            takes_ids=self.experiment.data.tokenizer.takes_ids,
            num_devices=1,
        )


def system_of_run(trained: Trained, decoding: Decoding) -> System:
    """System of a trained run, with a decoding."""
    return System(
        trained.name,
        trained.experiment.with_decoding(decoding),
        trained.model,
        trained.tokenizer,
        jax.device_put(trained.variables, local_devices()[0]),
        f"checkpoint {trained.updates}, {trained.weights} parameters",
    )


def system_of_config(experiment: Experiment, *, precision: Precision | None, vocabulary: int | None) -> System:
    """System of a config, with random weights.

    Args:
        vocabulary: Number of labels with the blank; None: as for `tokenizer_without_data`.
    """
    experiment = in_precision(experiment, precision)
    tokenizer = tokenizer_without_data(experiment.data.tokenizer, vocabulary)
    model = make_model(experiment, tokenizer)
    recipe = make_recipe(experiment, model, RunLength(1, 1))
    state, _ = initial_state(lower_initial_state(recipe, seed=experiment.seed).compile(), data_mesh(1))
    return System(experiment.name, experiment, model, tokenizer, recipe.evaluated(state), "random weights")


def in_precision(experiment: Experiment, precision: Precision | None) -> Experiment:
    """Returns the experiment with another precision; None: its own."""
    return replace(
        experiment, training=replace(experiment.training, precision=precision or experiment.training.precision)
    )


def tokenizer_without_data(settings: TokenizerSettings, vocabulary: int | None) -> Tokenizer:
    """Tokenizer for settings whose tokenizer would be trained on data.

    Args:
        settings: Settings of the tokenizer. If they give a path or an alphabet, and `vocabulary` is None, their
            tokenizer is returned.
        vocabulary: Number of labels with the blank, which then are ids without texts. Default: the vocab_size of the
            settings for SentencePiece, otherwise 29.

    Raises:
        UserError: If `vocabulary` is less than 2.
    """
    if vocabulary is not None and vocabulary < 2:
        raise UserError(f"--vocabulary {vocabulary}: expected at least 2, a label and the blank")
    if vocabulary is None and settings.path:
        return given_tokenizer(settings)
    if vocabulary is None and settings.kind == "characters" and settings.alphabet:
        return CharacterTokenizer.train((), alphabet=settings.alphabet, normaliser=settings.normaliser)
    size = vocabulary or (settings.vocab_size if settings.kind == "sentencepiece" else 29)
    return IdTokenizer.up_to(size - 2, blank_id=None)


def machine() -> dict[str, Any]:
    """Description of the machine: devices, CPU cores, versions of libraries, and the current load average."""
    return {
        "device": devices()[0].device_kind,
        "num_devices": len(devices()),
        "cores": os.cpu_count(),
        "jax": jax.__version__,
        "python": platform.python_version(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }


def described(figures: dict[str, Any]) -> str:
    """Description of a machine for the title of a table."""
    device, num = figures["device"], figures["num_devices"]
    cores = f", {figures['cores']} cores" if device == "cpu" else ""
    return f"{num} × {device}{cores}" if num > 1 else f"{device}{cores}"


def peak_bytes() -> int | None:
    """Peak memory of any device in this process in bytes; None if the devices do not report it."""
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in local_devices()]
    return max(peaks) or None
