"""`Experiment`: the one tree of settings of a run, and its form as JSON."""

import dataclasses
import importlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

from beartype import BeartypeConf
from beartype.door import is_bearable

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.precision import Precision
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT
from asr_jax.data.batching.dataset import Data
from asr_jax.models.base import Model
from asr_jax.optim.ema import EMA
from asr_jax.optim.lora import LoRA
from asr_jax.optim.loss_scale import LossScale
from asr_jax.optim.optimizers import AdamW, Optimizer
from asr_jax.search.base import Decoding

NOT_NEGATIVE = (
    "keep_best", "num_samples", "max_rejected", "save_minutes", "sample_every", "patience", "max_hours",
    "epochs_this_job", "alarm_wer", "alarm_updates",
)  # fmt: skip


@dataclass(frozen=True)
class Training:
    """How long a run is, what it computes in, and when it looks, saves and speaks."""

    num_updates: int = 0
    """Updates of the run, voided ones among them; 0 leaves the length to num_epochs. With both, the shorter counts."""
    num_epochs: float = 0.0
    """Passes over the training data; 0 leaves the length to num_updates."""
    accumulate: int = 1
    """Batches whose gradients are added up for one update."""
    epoch_end: Literal["carried", "flushed", "dropped"] = "carried"
    """What becomes of the batches that an epoch leaves over, fewer than `accumulate`: they are carried into the next
    epoch's first update, flushed as an update of their own, or dropped."""
    precision: Precision = "f32"
    """What activations are computed in; parameters, losses and statistics are float32 always (core/precision.py)."""
    loss_scale: LossScale = LossScale()
    """How the loss is scaled with precision f16."""
    ema: EMA = EMA()
    """The averaged weights that evaluation uses."""
    validate_every: int = 1000
    """Updates from one validation, and the checkpoint after it, to the next; both follow the last update too."""
    validate_epochs: bool = False
    """Validate and save at the end of each epoch as well."""
    validate_live: bool = True
    """Validate the live weights beside the averaged ones, which take as long again."""
    validate_loss: bool = False
    """Compute the loss of the validation set beside its error rate, which takes as long again; without augmentation,
    and of those texts that have labels which fit (loss_utterances in the event). Where nothing is recognised, as in
    pre-training, it is what validation finds in any case."""
    sample_every: int = 0
    """Updates from one look at a few transcripts of the validation set to the next; 0: at validations alone."""
    save_minutes: float = 15.0
    """Minutes from one checkpoint to the next where validations are further apart; 0 for none between them."""
    keep_last: int = 2
    """Newest checkpoints that are kept, beside the best and the milestones."""
    keep_best: int = 1
    """Checkpoints of lowest validation WER that are kept; of lowest loss where nothing is recognised."""
    milestones: tuple[int, ...] = ()
    """Updates whose checkpoints are kept for good (of those that are saved)."""
    log_every: int = 50
    """Updates from one line of progress, event and TensorBoard point to the next."""
    num_samples: int = 3
    """Transcripts shown at each validation."""
    max_rejected: int = 100
    """Files that may be unreadable before the run stops; each is named in rejected.jsonl."""
    max_failed: int = 200
    """Updates in a row that may be not finite before the run stops; each changes nothing."""
    patience: int = 0
    """Validations in a row without a better error rate (or loss, likewise) after which the run ends; 0: it goes on."""
    max_hours: float = 0.0
    """Hours after which a job saves and ends, to be started again; 0: no limit."""
    epochs_this_job: float = 0.0
    """Epochs after which a job saves and ends, without a change of the schedule; 0: no limit."""
    profile: str = ""
    """Updates of a job that an XLA trace is written of, such as 10:15: from the 11th to the 15th; empty: none."""
    alarm_wer: float = 0.9
    """A warning tells of a validation WER above this ..."""
    alarm_updates: int = 0
    """... after so many updates; 0: never."""

    def __post_init__(self) -> None:
        problems = []
        if self.num_updates < 0 or self.num_epochs < 0 or not (self.num_updates or self.num_epochs):
            problems.append(
                f"num_updates is {self.num_updates} and num_epochs is {self.num_epochs}: "
                "expected one of them above 0, and neither below"
            )
        problems += [
            f"{name} is {getattr(self, name)}: expected at least 1"
            for name in ("accumulate", "validate_every", "keep_last", "log_every", "max_failed")
            if getattr(self, name) < 1
        ]
        problems += [
            f"{name} is {getattr(self, name)}: expected 0 or more" for name in NOT_NEGATIVE if getattr(self, name) < 0
        ]
        if self.profile and profiled(self.profile) is None:
            problems.append(f"profile is {self.profile!r}: expected two updates of the job, such as 10:15, or nothing")
        if problems:
            raise ValueError("; ".join(problems))


def profiled(text: str) -> tuple[int, int] | None:
    """The updates of a job before and with which a trace begins and ends; None for what `Training.profile` is not."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        return None
    return int(found[1]), int(found[2])


@dataclass(frozen=True)
class Init:
    """Weights that a run begins with instead of random ones."""

    path: str = ""
    """Where they are: the folder of a run (its best checkpoint's averaged weights), one of its checkpoints, a
    .safetensors file by our names or a peer's, a peer's PyTorch file (.pt), a .nemo file, or a folder of Hugging Face's
    (config.json and its weights); empty: random ones."""
    strict: bool = True
    """Refuse weights that are missing, left over, or of another shape. The rows of a head whose vocabulary is another
    one are no mismatch: those of shared pieces are kept."""
    new: tuple[str, ...] = ()
    """Regular expressions of whole paths of parameters that may be new: where the weights do not have them, or have
    them in another shape, they are random; and the model need not have them where the weights do. As with a head for a
    model that had none, or had that of its pre-training: heads_.*"""
    tokenizer: str = ""
    """The tokenizer that the weights were trained with, where they do not bring it (files of other systems): the folder
    of one, or a vocabulary as data.tokenizer.path takes it."""

    def __post_init__(self) -> None:
        if self.tokenizer and not self.path:
            raise ValueError(f"tokenizer is {self.tokenizer!r} and path is empty: expected weights that it belongs to")
        for pattern in self.new:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"new: {pattern!r} is no regular expression: {error}") from error


@dataclass(frozen=True)
class Experiment:
    """Everything that a run depends on. Its JSON lies in the run's folder and in every checkpoint."""

    name: str
    """Name of the run; its folder is runs/NAME unless run_dir says otherwise."""
    model: Model
    """Front-end, augmentation, encoder and heads."""
    data: Data
    """Manifests, tokenizer, filters and batches."""
    optim: Optimizer = field(default_factory=AdamW)
    """The optimizer and its learning rate."""
    init: Init = Init()
    """Weights to begin with, for fine-tuning."""
    lora: LoRA = LoRA()
    """Low-rank adaptation, for fine-tuning."""
    training: Training = field(default_factory=lambda: Training(num_updates=1000))
    """Length, precision, validation and logging."""
    seed: int = 0
    """The one seed: of initial weights, order of the data, augmentation and dropout."""
    run_dir: str = ""
    """Folder of the run; training into an existing one continues it."""
    fresh: bool = False
    """Start anew in a folder beside the existing one (NAME-2, NAME-3 …); nothing is deleted."""
    dry_run: bool = False
    """Plan, compile and compute one batch of each shape, write nothing, and tell what was found."""

    def __post_init__(self) -> None:
        problems = [] if self.seed >= 0 else [f"seed is {self.seed}: expected 0 or more"]
        problems += wrong_types(self) or self._of_texts()
        problems += [f"{name} is not a number" for name, value in _leaves(to_json(self)) if value != value]
        if problems:
            raise ValueError("; ".join(problems))

    def _of_texts(self) -> list[str]:
        """What is wrong between the heads and what there is of texts."""
        problems, learning = [], [name for name, head in self.model.heads.items() if head.recognises]
        if learning and self.data.tokenizer.kind == "none":
            problems.append(
                f"data.tokenizer.kind is none and model.heads.{learning[0]} learns from labels: expected another kind, "
                "such as characters, or heads for pre-training alone"
            )
        if not learning and self.training.sample_every:
            problems.append(
                f"training.sample_every is {self.training.sample_every} and no head finds texts: expected 0"
            )
        return problems

    @property
    def folder(self) -> Path:
        return Path(self.run_dir or Path("runs") / self.name)

    @property
    def decoding(self) -> Decoding | None:
        """How the head that texts come from finds them; None for a model that gives none."""
        return self.model.decoding_of(self.model.recognising) if self.model.recognises else None

    def with_decoding(self, decoding: Decoding) -> "Experiment":
        """The same experiment with another decoding of the head that texts come from."""
        return dataclasses.replace(self, model=self.model.with_decoding(self.model.recognising, decoding))


INT_IS_FLOAT = BeartypeConf(is_pep484_tower=True)

# What may differ between a run and its continuation: length, looks and speed, not results so far. All else is rejected.
MAY_CHANGE = (
    "run_dir", "fresh", "dry_run",
    "training.num_updates", "training.num_epochs", "training.validate_every", "training.log_every",
    "training.save_minutes", "training.num_samples", "training.max_rejected", "training.max_failed",
    "training.keep_last", "training.keep_best", "training.milestones", "training.validate_epochs",
    "training.validate_live", "training.validate_loss", "training.sample_every", "training.patience",
    "training.max_hours", "training.epochs_this_job", "training.profile", "training.alarm_wer",
    "training.alarm_updates",
    "data.train", "data.validation",  # the paths: what lies there is held by its fingerprint (inference/trained.py)
    "data.workers", "data.threads", "data.cache", "model.encoder.remat",
    "model.heads.*.decoding",
)  # fmt: skip
# What may be another on each machine of a run.
OF_MACHINE = ("run_dir", "fresh", "data.train", "data.validation", "data.workers", "data.threads", "data.cache")


def wrong_types(settings: Any, name: str = "") -> list[str]:
    """What of a tree of settings is not of its field's type: flags are read by it, what a file gives is not."""
    if isinstance(settings, dict):
        return [problem for key, value in settings.items() for problem in wrong_types(value, f"{name}.{key}")]
    if isinstance(settings, tuple):
        return [problem for key, value in enumerate(settings) for problem in wrong_types(value, f"{name}.{key}")]
    if not dataclasses.is_dataclass(settings):
        return []
    problems, hints = list[str](), get_type_hints(type(settings))
    for each in dataclasses.fields(settings):
        value, place = getattr(settings, each.name), f"{name}.{each.name}".removeprefix(".")
        if is_bearable(value, hints[each.name], conf=INT_IS_FLOAT):
            problems += wrong_types(value, place)
        else:
            said = getattr(hints[each.name], "__name__", "") if isinstance(hints[each.name], type) else hints[each.name]
            problems.append(f"{place} is {value!r}: expected {str(said).replace('typing.', '')}")
    return problems


def leaves(settings: Any) -> list[tuple[str, Any]]:
    """Every value of a tree of settings with its dotted name."""
    return list(_leaves(to_json(settings)))


def classes(settings: Any) -> set[str]:
    """The classes of a tree of settings, as `to_json` names them."""
    return {value for name, value in _leaves(to_json(settings)) if name.rpartition(".")[2] == "class"}


def to_json(settings: Any) -> Any:
    """JSON values; a dataclass, or a tuple with names, becomes an object with its class's name under `class`."""
    if _has_fields(type(settings)):
        names = (
            [f.name for f in dataclasses.fields(settings)] if dataclasses.is_dataclass(settings) else settings._fields
        )
        fields = {name: to_json(getattr(settings, name)) for name in names}
        return {"class": f"{type(settings).__module__}:{type(settings).__qualname__}"} | fields
    if isinstance(settings, dict):
        return {name: to_json(value) for name, value in settings.items()}
    if isinstance(settings, tuple | list):
        return [to_json(value) for value in settings]
    return settings


def from_json(values: Any) -> Any:
    """The inverse of `to_json`: arrays become tuples.

    Raises: UserError for a class or a field that does not exist (any more).
    """
    if isinstance(values, list):
        return tuple(from_json(value) for value in values)
    if not isinstance(values, dict):
        return values
    fields = {name: from_json(value) for name, value in values.items() if name != "class"}
    if "class" not in values:
        return fields
    module, _, name = values["class"].partition(":")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UserError(f"the experiment needs the class {values['class']}, which cannot be loaded: {error}") from error
    if not _has_fields(cls):
        raise UserError(f"the experiment names {values['class']}, which is not a class of settings")
    try:
        return UPGRADES.get(cls, _as_they_are)(cls, fields)
    except (TypeError, ValueError) as error:
        raise UserError(f"the experiment's {values['class']} does not fit this version: {error}") from error


def _as_they_are(cls: Any, fields: dict[str, Any]) -> Any:
    return cls(**fields)


def _upgraded_model(cls: Any, fields: dict[str, Any]) -> Model:
    """Before there was `primary`, texts came from the first CTC head, of those that read the encoder's output if there
    was one.
    """
    recognising = [name for name, head in fields["heads"].items() if head.recognises]
    if "primary" not in fields and len(recognising) > 1:
        fields["primary"] = min(recognising, key=lambda name: bool(fields["heads"][name].tap))
    model: Model = cls(**fields)
    return model


def _upgraded_experiment(cls: Any, fields: dict[str, Any]) -> Experiment:
    """The decoding was a field of the experiment before it was one of its head."""
    decoding = fields.pop("decoding", None)
    experiment: Experiment = cls(**fields)
    return experiment.with_decoding(decoding) if decoding and experiment.model.recognises else experiment


def _upgraded_training(cls: Any, fields: dict[str, Any]) -> Training:
    """Fields with their former names."""
    training: Training = cls(**{FORMER_FIELDS.get(name, name): value for name, value in fields.items()})
    return training


FORMER_FIELDS = {"max_skipped": "max_rejected"}
"""Present names of the fields of Training, by their former names."""
UPGRADES = {Model: _upgraded_model, Experiment: _upgraded_experiment, Training: _upgraded_training}
"""Functions that make settings from JSON that an earlier version wrote."""


def _has_fields(cls: Any) -> bool:
    """Whether it is a class of settings."""
    is_tuple = isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")
    return isinstance(cls, type) and (dataclasses.is_dataclass(cls) or is_tuple)


def save_experiment(experiment: Experiment, path: Path) -> None:
    write_whole(path, json.dumps(to_json(experiment), indent=2) + "\n")


def load_experiment(path: Path) -> Experiment:
    """Raises: UserError where the file is missing or not an experiment."""
    try:
        experiment = from_json(json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise UserError(
            f"{path.parent} is not a run: it has no {path.name}; expected a folder that training made"
        ) from error
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(experiment, Experiment):
        raise UserError(f"{path} holds no Experiment")
    return experiment


def experiment_of(path: str) -> Experiment | None:
    """What the run at `path` is trained with, or the run that a checkpoint there (RUN/checkpoints/NUMBER) is of; None
    where there is neither.

    Raises: UserError where its experiment cannot be read.
    """
    run = Path(path).parents[1] if Path(path).parent.name == CHECKPOINTS else Path(path)
    return load_experiment(run / EXPERIMENT) if path and (run / EXPERIMENT).is_file() else None


def differences(before: Experiment, after: Experiment) -> list[tuple[str, Any, Any]]:
    """Fields by dotted name whose values differ, with both values."""
    old, new = dict(_leaves(to_json(before))), dict(_leaves(to_json(after)))
    names = sorted(old.keys() | new.keys())
    return [(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def may_change(name: str) -> bool:
    """Whether a continuation of a run may have another value of the field."""
    return is_among(name, MAY_CHANGE)


def is_of_machine(name: str) -> bool:
    """Whether the processes of a run may have other values of the field."""
    return is_among(name, OF_MACHINE)


def is_among(name: str, fields: Sequence[str]) -> bool:
    """Whether a field, by its dotted name, is one of the fields or a part of one; `*` stands for any one name."""
    parts = name.split(".")
    return any(
        len(parts) >= len(known) and all(a in (b, "*") for a, b in zip(known, parts, strict=False))
        for known in (field.split(".") for field in fields)
    )


def _leaves(values: dict | list, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items() if isinstance(values, dict) else enumerate(values):
        place = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, dict | list) and value:
            yield from _leaves(value, place)
        else:
            yield place, value
