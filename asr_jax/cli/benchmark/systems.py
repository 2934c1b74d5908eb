"""What a benchmark is of: a trained run, or a config with random weights."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from asr_jax.config import Experiment
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import data_mesh
from asr_jax.core.precision import Precision
from asr_jax.core.pytrees import Tree, num_elements
from asr_jax.data.batching.buckets import Bucket, Scale, make_buckets
from asr_jax.data.batching.dataset import PlannedData, scale_of_utterances
from asr_jax.data.batching.evaluation import plan_evaluation
from asr_jax.data.batching.filters import Filters
from asr_jax.data.batching.index import build_index
from asr_jax.data.manifests.reading import Utterances
from asr_jax.inference.decoder import HeadSearch
from asr_jax.inference.model import make_model
from asr_jax.inference.trained import Trained
from asr_jax.models.base import Recogniser
from asr_jax.optim.schedules import RunLength
from asr_jax.search.base import Decoding
from asr_jax.text.characters import CharacterTokenizer, IdTokenizer
from asr_jax.text.tokenizers import Tokenizer, TokenizerSettings, given_tokenizer
from asr_jax.training.beginning import initial_training, lower_beginning
from asr_jax.training.setup import make_recipe


@dataclass(frozen=True)
class System:
    """A recogniser, on the first device."""

    name: str
    experiment: Experiment
    model: Recogniser
    tokenizer: Tokenizer
    variables: Tree
    weights: str
    """Which they are."""
    buckets: tuple[Bucket, ...] = ()
    """Shapes that it was trained in; empty where it was not."""
    scale: Scale | None = None
    """That their lengths are in."""

    def search(self) -> HeadSearch:
        """As the run or the config validates."""
        head = self.model.recognising
        return HeadSearch(self.model, self.tokenizer, head=head, decoding=self.experiment.model.decoding_of(head))

    @property
    def about(self) -> dict[str, Any]:
        """Name, weights, precision and number of parameters."""
        return {
            "system": self.name, "weights": self.weights, "precision": self.experiment.training.precision,
            "parameters": num_elements(self.variables["params"]), "vocabulary": self.tokenizer.vocab_size,
            "decoding": str(self.experiment.decoding),
        }  # fmt: skip

    def plan(self, utterances: Utterances, *, batch_seconds: float | None) -> PlannedData:
        """Every utterance once: in the shapes of training, or in the config's own number of shapes of `batch_seconds` of
        padded audio.
        """
        settings, front_end = self.experiment.data, self.model.front_end
        buckets, scale = self.buckets, self.scale
        if not buckets or scale is None or batch_seconds is not None:
            scale = scale_of_utterances(utterances, front_end)
            index, _ = build_index(utterances, scale=scale, tokenizer=None, filters=Filters.none())
            how = replace(
                settings.buckets, batch_multiple=1, budget=0.0, unit="", max_batch=4096,
                batch_seconds=batch_seconds or settings.buckets.batch_seconds,
            )  # fmt: skip
            buckets = make_buckets(index.lengths, index.num_labels(), how, scale=scale)
        return plan_evaluation(
            utterances, buckets, scale=scale, front_end=front_end, tokenizer=self.tokenizer,
            takes_ids=settings.tokenizer.takes_ids, num_devices=1,
        )  # fmt: skip


def system_of_run(trained: Trained, decoding: Decoding) -> System:
    """A trained run, with a decoding."""
    return System(
        str(trained.folder), trained.experiment.with_decoding(decoding), trained.model, trained.tokenizer,
        jax.device_put(trained.variables, jax.devices()[0]), f"checkpoint {trained.updates}, {trained.weights} weights",
        trained.buckets, trained.scale,
    )  # fmt: skip


def system_of_config(experiment: Experiment, *, precision: Precision | None, vocabulary: int | None) -> System:
    """With random weights and labels that stand for nothing, but for those that the config itself gives."""
    experiment = in_precision(experiment, precision)
    tokenizer = tokenizer_without_data(experiment.data.tokenizer, vocabulary)
    model = make_model(experiment, tokenizer)
    recipe = make_recipe(experiment, model, RunLength(1, 1))
    state, _ = initial_training(lower_beginning(recipe, seed=experiment.seed).compile(), data_mesh(1))
    return System(experiment.name, experiment, model, tokenizer, recipe.evaluated(state), "random weights")


def in_precision(experiment: Experiment, precision: Precision | None) -> Experiment:
    """The experiment, computing in it; None: in its own."""
    return replace(
        experiment, training=replace(experiment.training, precision=precision or experiment.training.precision)
    )


def tokenizer_without_data(settings: TokenizerSettings, vocabulary: int | None) -> Tokenizer:
    """The one that the settings name, or ids: as many as `vocabulary` (the blank among them), or as the settings say,
    or 29.
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
    """What figures are of: the device, this process's cores, the libraries, and how busy the machine is already."""
    return {
        "device": jax.devices()[0].device_kind, "num_devices": jax.device_count(), "cores": os.cpu_count(),
        "jax": jax.__version__, "python": platform.python_version(),
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
    }  # fmt: skip


def described(figures: dict[str, Any]) -> str:
    """A title's words for a machine."""
    device, num = figures["device"], figures["num_devices"]
    cores = f", {figures['cores']} cores" if device == "cpu" else ""
    return f"{num} × {device}{cores}" if num > 1 else f"{device}{cores}"


def peak_bytes() -> int | None:
    """Most memory that any device has held in this process; None where devices do not tell."""
    peaks = [(device.memory_stats() or {}).get("peak_bytes_in_use", 0) for device in jax.local_devices()]
    return max(peaks) or None


def check_counts(options: object, names: Sequence[str], *, least: float = 1) -> None:
    """Raises: UserError for an option, or one of its numbers, below `least`."""
    for name in names:
        given = getattr(options, name)
        values = given if isinstance(given, tuple) else (given,)
        if any(value is not None and not value >= least for value in values):
            said = " ".join(f"{value:g}" for value in values)
            raise UserError(f"--{name.replace('_', '-')} {said}: expected {least:g} or more")
