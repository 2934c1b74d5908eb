"""The settings of a run, `Experiment`, and their JSON form."""

import dataclasses
import importlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from asr_jax.audio.features import FrontEnd
from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.meshes import MeshSizes
from asr_jax.core.paths import UserPath, at_home, matches
from asr_jax.core.precision import Precision
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT, TOKENIZER
from asr_jax.core.settings import NonNegativeFloat, NonNegativeInt, PositiveInt, check, settings, with_paths
from asr_jax.core.text_files import read_text
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.locations import URL
from asr_jax.kernels.implementations import selected_kernels
from asr_jax.metrics.measure import ALL
from asr_jax.models.base import Model
from asr_jax.models.encoder import EncoderSettings
from asr_jax.nn.recurrent.state_passing import StatePassing
from asr_jax.optim.ema import EMA
from asr_jax.optim.lora import LoRA
from asr_jax.optim.loss_scale import LossScale
from asr_jax.optim.optimizers import AdamW, Optimizer
from asr_jax.pretrained.encoders import describes_itself, encoder_of, folder_of, front_end_of
from asr_jax.pretrained.hub import Upload
from asr_jax.search.base import Decoding


@settings
class Validation:
    """Settings of validation, which computes error rates (or losses) of the validation sets."""

    every: PositiveInt = 1000
    """Number of updates between validations. Each validation is followed by a checkpoint. The last update is also
    followed by both."""
    each_epoch: bool = False
    """Whether to validate and save at the end of each epoch as well."""
    live: bool = True
    """Whether to validate the live parameters in addition to the averaged ones, which doubles the time."""
    loss: bool = False
    """Whether to compute the validation loss in addition to the error rate, which doubles the time. The loss has no
    augmentation and counts the utterances whose labels fit their frames (loss_utterances in the event). Models without
    a recognising head, as in pre-training, always compute it."""
    heads: tuple[str, ...] = ()
    """Names of further heads whose error rates validation reports in addition to the primary head, such as ctc. Each
    takes as much time as the primary head."""
    max_duration_s: NonNegativeFloat = 0.0
    """Longest validation audio in seconds that is computed at once. Longer audio is computed in windows, or in pieces
    by a model without a recognising head. 0: four times the longest training utterance, and at least 40."""
    num_samples: NonNegativeInt = 3
    """Number of transcripts to show at each validation."""
    sample_every: NonNegativeInt = 0
    """Number of updates between samples of validation transcripts. 0: only at validations."""


@settings
class Saving:
    """Settings of checkpoints: when they are saved, and which are kept."""

    every_minutes: NonNegativeFloat = 15.0
    """Minutes between checkpoints if validations are further apart. 0: no checkpoints by time."""
    every_updates: NonNegativeInt = 0
    """Number of updates between checkpoints, in addition to those after validations and by time. 0: no checkpoints by
    updates."""
    every_epochs: NonNegativeInt = 0
    """Number of epochs between checkpoints at the end of an epoch, in addition to those after validations and by time.
    0: no checkpoints by epochs."""
    keep_last: PositiveInt = 2
    """Number of newest checkpoints to keep, in addition to the best ones and the milestones."""
    keep_best: NonNegativeInt = 1
    """Number of checkpoints with the lowest validation WER to keep; with the lowest CER if most words of the references
    follow each other without a space, and with the lowest loss without a recognising head."""
    best_of: str = ALL
    """Choice of the best checkpoint: all, mean or a set's name. It is the one with the lowest WER (CER, loss) of all
    utterances of all validation sets together, of the unweighted mean of the sets, or of the set with this name, which
    is that of its file or folder. limits.patience counts by the same."""
    milestones: tuple[PositiveInt, ...] = ()
    """Updates whose checkpoints are never deleted, if a checkpoint is saved after them."""
    milestone_epochs: tuple[PositiveInt, ...] = ()
    """Epochs at whose end a checkpoint is saved that is never deleted."""


@settings
class Limits:
    """Conditions under which a job ends before the run is complete."""

    patience: NonNegativeInt = 0
    """Number of consecutive validations without a lower error rate (or loss, see saving.best_of) after which the run
    ends. 0: no early stopping."""
    max_hours: NonNegativeFloat = 0.0
    """Hours after which a job saves a checkpoint and ends; the same command continues the run. Several processes check
    the time every log_every updates, one process after every update. 0: no limit."""
    epochs_this_job: NonNegativeFloat = 0.0
    """Number of epochs after which this job saves a checkpoint and ends; later jobs that continue the run do not have
    this limit. The learning rate schedule does not depend on it. 0: no limit."""
    max_rejected: NonNegativeInt = 100
    """Maximum number of unreadable utterances. With more of them, or if more than half of all utterances are unreadable
    or silent in spite of a text, the run stops. rejected.jsonl lists them."""
    max_failed: PositiveInt = 200
    """Number of consecutive updates with non-finite values at which the run stops. Such an update changes nothing."""


@settings
class Training:
    """Length and precision of a run, computation of an update, validation, checkpoints and logging."""

    num_updates: NonNegativeInt = 0
    """Number of updates of the run, including voided ones. 0: num_epochs sets the length. If both are set, the run ends
    at the lower limit. Imported models have 0 for both; training needs one of them (python -m asr_jax.import uses a
    published model without training)."""
    num_epochs: NonNegativeFloat = 0.0
    """Number of epochs of the run. 0: num_updates sets the length."""
    accumulate: PositiveInt = 1
    """Number of batches whose gradients are accumulated for one update."""
    split: PositiveInt = 1
    """Number of parts of equal numbers of rows in which each batch is computed, one after another, to use less memory.
    Utterances, random numbers and losses of an update do not depend on it. Exceptions are layers that use statistics of
    all rows of a part: batch norm, Zipformer's regularisers, masks of equal counts, and the quantiser's diversity."""
    pre_allocate: bool = False
    """Whether the gradient of a batch of noise of every shape is computed before the first update, so that the device
    has allocated its memory and tuned its kernels (pre_allocate_range). The training state does not change."""
    pass_states: StatePassing = StatePassing()
    """Random state passing between batches, for models with LSTMs (rsp_seq_len_freq in CAIMAN-ASR)."""
    epoch_end: Literal["carried", "flushed", "dropped"] = "carried"
    """Treatment of the last batches of an epoch if fewer than `accumulate` remain. carried: they are part of the next
    epoch's first update. flushed: they form a smaller update. dropped: they are not used."""
    precision: Precision = "f32"
    """Precision of activations. Parameters, losses and statistics are always float32 (core/precision.py)."""
    loss_scale: LossScale = LossScale()
    """Scaling of the loss with precision f16."""
    ema: EMA = EMA()
    """Exponential moving average of the parameters, which evaluation uses."""
    kernels: tuple[str, ...] = ()
    """Kernels that replace programs of XLA in training, validation and evaluation, as NAME=IMPLEMENTATION, such as
    ctc_sweep=triton (documentation: accelerators). Evaluation on other devices ignores them."""
    validation: Validation = Validation()
    """Settings of validation."""
    saving: Saving = Saving()
    """Settings of checkpoints."""
    limits: Limits = Limits()
    """Conditions under which a job ends before the run is complete."""
    log_every: PositiveInt = 50
    """Number of updates between progress lines, train_step events and TensorBoard points. Several processes also check
    then whether one of them has received a signal."""
    profile: str = ""
    """Updates of a job to trace with the XLA profiler, as BEGIN:END; 10:15 traces the 11th to the 15th update. Empty:
    no trace."""
    profile_processes: str = "0"
    """Numbers of the processes that write a trace, such as 0,3, or all. Each has a folder of its own if there are
    several."""

    def problems(self) -> Iterator[str]:
        try:
            selected_kernels(self.kernels)
        except ValueError as error:
            yield f"kernels: {error}"
        if self.profile and profiled(self.profile) is None:
            yield f"profile is {self.profile!r}: expected BEGIN:END with BEGIN < END, or nothing"
        if not re.fullmatch(r"all|\d+(,\d+)*", self.profile_processes):
            yield f"profile_processes is {self.profile_processes!r}: expected numbers such as 0,3, or all"


def profiled(text: str) -> tuple[int, int] | None:
    """Parses `Training.profile`.

    Returns:
        Indices of the updates before which the trace begins and ends (0 is the job's first update); None if `text` is
        not BEGIN:END with BEGIN < END.
    """
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found or int(found[1]) >= int(found[2]):
        return None
    return int(found[1]), int(found[2])


ENDINGS_OF_WEIGHTS = (".nemo", ".pt", ".safetensors")


@settings
class Init:
    """Pre-trained weights that a run starts from."""

    path: UserPath = ""
    """Path of the weights: the folder of a run (the averaged parameters of its best checkpoint), one of its
    checkpoints, a .safetensors file with this package's names or another system's, another system's PyTorch file (.pt),
    a .nemo file, or a Hugging Face folder (config.json and weights). Of a config.json, or a folder with this file
    alone, configs take the sizes, and the weights are random. Empty: random initialisation."""
    strict: bool = True
    """Whether missing weights, unused weights and weights of another shape are an error. A head with another vocabulary
    is not: the rows of the labels that both vocabularies have are loaded."""
    new: tuple[str, ...] = ()
    """Regular expressions for whole parameter paths that `strict` does not check. Such parameters stay random if the
    weights lack them or have another shape, and are ignored if the model lacks them. Example: heads_.* for a new head
    on a pre-trained encoder."""
    tokenizer: UserPath = ""
    """Tokenizer that the weights were trained with, for files of other systems, which do not contain it: a tokenizer
    folder, or a vocabulary as in data.tokenizer.path. Empty: the tokenizer of the weights, if they have one."""

    def problems(self) -> Iterator[str]:
        if self.tokenizer and not self.path:
            yield f"tokenizer is {self.tokenizer!r} and path is empty: expected the path of its weights"
        for pattern in self.new:
            try:
                re.compile(pattern)
            except re.error as error:
                yield f"new: {pattern!r} is not a regular expression: {error}"

    def check_exists(self) -> None:
        """Checks that `path` exists.

        Raises:
            UserError: If it does not. For a name of Hugging Face, the message has the command that downloads it.
        """
        if not self.path or Path(self.path).exists():
            return
        name = re.fullmatch(r"[\w-]+/([\w.-]+)", self.path)
        if name and not self.path.endswith(ENDINGS_OF_WEIGHTS) and not Path(self.path).parent.exists():
            raise UserError(
                f"--init-from {self.path} does not exist. Names of Hugging Face are not downloaded: run hf download "
                f"{self.path} --local-dir {name[1]}, and then use --init-from {name[1]}"
            )
        raise UserError(
            f"--init-from {self.path} does not exist: expected the path of weights (relative paths start at "
            f"{os.getcwd()})"
        )


DEVICES = "devices"
NAMED = {
    DEVICES: (DEVICES,),
    "accumulation": ("training.split",),
    "precision": ("training.precision", "training.loss_scale"),
}
"""Settings that the names of `Resume.allow` stand for, if a name is not a setting itself. The number of devices is not
a setting."""
RESUMABLE = (*NAMED, "optim", "training", "model.augment")
"""Names that `Resume.allow` can have. A change of other settings, such as the model's sizes, does not fit a
checkpoint."""


@settings
class Resume:
    """Changes of settings with which a run may be continued."""

    allow: tuple[str, ...] = ()
    """Changes that are allowed, separated by spaces or commas: devices (another number of devices or processes),
    accumulation (training.split), precision, or names of changed settings: optim, training, model.augment, or fields in
    them; for the learning rate: optim, or optim.schedule. The optimizer state and the position in the data are kept."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "allow", tuple(name for each in self.allow for name in each.split(",") if name))
        check(self)

    def problems(self) -> Iterator[str]:
        for name in self.allow:
            if not is_among(name, RESUMABLE) or (name.partition(".")[0] in NAMED and name not in NAMED):
                yield (
                    f"allow: {name!r} cannot change when a run continues; expected {', '.join(RESUMABLE)}, or fields "
                    "in them"
                )

    def allows(self, name: str) -> bool:
        """Returns whether the setting may change. The optimizer itself may not: its state would not fit."""
        return name != "optim.class" and any(is_of(name, allowed) for allowed in self.allow)


@settings
class Experiment:
    """All settings of a run. The run's folder and every checkpoint contain them as JSON."""

    name: str
    """Name of the run. Its folder is runs/NAME unless run_dir is set."""
    model: Model
    """Front-end, augmentation, encoder and heads."""
    data: Data
    """Manifests, tokenizer, filters and batches."""
    optim: Optimizer = field(default_factory=AdamW)
    """Optimizer and learning rate schedule."""
    init: Init = Init()
    """Weights to start from, for fine-tuning."""
    lora: LoRA = LoRA()
    """Low-rank adaptation, for fine-tuning."""
    training: Training = field(default_factory=lambda: Training(num_updates=1000))
    """Length, precision, validation and logging."""
    mesh: MeshSizes = MeshSizes()
    """Number of devices along each axis of the mesh, over which rows, parameters and layers are spread."""
    resume: Resume = Resume()
    """Changes of settings with which the run may be continued."""
    upload: Upload = Upload()
    """Upload of the best checkpoint to the Hugging Face Hub."""
    seed: NonNegativeInt = 0
    """Random seed of initial parameters, data order, augmentation and dropout."""
    run_dir: UserPath = ""
    """Folder of the run. Training in the folder of an existing run continues it. RUN/checkpoints/N: a new run in a
    folder next to RUN (RUN-2, RUN-3 …) begins from that checkpoint. Empty: runs/NAME."""
    fresh: bool = False
    """Whether to start a new run in a new folder beside the existing one: the folder's name with -2, -3 … appended.
    Nothing is deleted."""
    dry_run: bool = False
    """Whether to plan, compile and compute one batch of each shape, print the results and write nothing."""

    def problems(self) -> Iterator[str]:
        learning = [name for name, head in self.model.heads.items() if head.recognises]
        if learning and self.data.tokenizer.kind == "none":
            yield (
                f"data.tokenizer.kind is none and model.heads.{learning[0]} learns from labels: expected another kind, "
                "such as characters, or only heads for pre-training"
            )
        if not learning and (every := self.training.validation.sample_every):
            yield f"training.validation.sample_every is {every} and the model has no recognising head: expected 0"
        known = [name for name, head in self.model.heads.items() if head.search_settings and learning]
        others = [name for name in known if name != self.model.recognising]
        if wrong := [name for name in self.training.validation.heads if name not in others]:
            yield (
                f"training.validation.heads has {wrong[0]!r}: expected recognising heads beside the primary one, of "
                f"{', '.join(others) or 'which there is none'}"
            )
        yield from (f"{name} is not a number" for name, value in _leaves(to_json(self)) if value != value)

    @property
    def folder(self) -> Path:
        return Path(self.run_dir or Path("runs") / self.name)

    @property
    def primary_decoding(self) -> Decoding | None:
        """Decoding of the primary head; None for a model without a recognising head."""
        return self.model.decoding_of(self.model.recognising) if self.model.recognises else None

    def with_decoding(self, decoding: Decoding) -> "Experiment":
        """Returns the experiment with another decoding of the primary head."""
        return dataclasses.replace(self, model=self.model.with_decoding(self.model.recognising, decoding))


# Settings that may change when a run continues. They affect its length, output and speed, but not the updates so far.
# A change of any other setting is refused.
MAY_CHANGE = (
    "run_dir",
    "fresh",
    "dry_run",
    "resume",
    "upload",
    "training.num_updates",
    "training.num_epochs",
    "training.log_every",
    "training.validation",
    "training.saving",
    "training.limits",
    "training.profile",
    "training.profile_processes",
    "training.pre_allocate",
    "data.train",
    "data.validation",  # only the paths: a checkpoint has the fingerprint of the data (training/setup.py)
    "data.root",
    "data.workers",
    "data.threads",
    "data.cache",
    "data.check_all",
    "data.allow_pipes",
    "data.max_removed_share",
    "data.batching.devices",
    "data.batching.rows_product",  # a checkpoint has the fingerprint of the batches
    "mesh",
    "model.encoder.remat",
    "model.encoder.attention",
    "model.heads.*.decoding",
)
# Settings that may differ between the processes of a run.
OF_MACHINE = (
    "run_dir",
    "fresh",
    "data.train",
    "data.validation",
    "data.root",
    "data.workers",
    "data.threads",
    "data.cache",
    "data.check_all",
    "data.allow_pipes",
)


def leaves(settings: Any) -> list[tuple[str, Any]]:
    """Returns the dotted name and the value of every setting."""
    return list(_leaves(to_json(settings)))


def classes(settings: Any) -> set[str]:
    """Returns the names of all classes in the settings, as in `to_json`."""
    return {value for name, value in _leaves(to_json(settings)) if name.rpartition(".")[2] == "class"}


def to_json(settings: Any) -> Any:
    """Converts settings to JSON values. Dataclasses and named tuples become objects with their class under `class`."""
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
    """Converts the output of `to_json` back to settings. Arrays become tuples.

    Raises:
        UserError: If a class or a field does not exist in this version.
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
        raise UserError(f"the experiment names {values['class']}, which is not a settings class")
    try:
        return cls(**fields)
    except (TypeError, ValueError) as error:
        raise UserError(f"the experiment's {values['class']} does not fit this version: {error}") from error


def _has_fields(cls: Any) -> bool:
    """Returns whether `cls` is a settings class: a dataclass or a named tuple."""
    is_tuple = isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")
    return isinstance(cls, type) and (dataclasses.is_dataclass(cls) or is_tuple)


def of_run(experiment: Experiment) -> Experiment:
    """Returns the settings that a run stores: paths are absolute, and settings of a single job have their defaults."""
    training = experiment.training
    limits = dataclasses.replace(training.limits, epochs_this_job=0.0)
    training = dataclasses.replace(training, limits=limits, profile="")
    data = dataclasses.replace(experiment.data, root=experiment.data.root or os.getcwd())
    kept = dataclasses.replace(
        experiment, training=training, data=data, resume=Resume(), run_dir=str(experiment.folder)
    )
    return with_paths(kept, lambda path: path if URL.match(path) else os.path.abspath(path))


def located(experiment: Experiment, folder: Path) -> Experiment:
    """Returns the settings of a run with the places of its files, if its folder was moved together with them.

    Args:
        experiment: Settings from `of_run`.
        folder: Folder of the run. Files that are not in their place any more are looked for at the same place as seen
            from this folder.
    """
    before, now = experiment.run_dir, os.path.abspath(folder)
    if not os.path.isabs(before) or before == now:
        return experiment

    def there(path: str) -> str:
        moved = os.path.normpath(os.path.join(now, os.path.relpath(path, before))) if os.path.isabs(path) else path
        return moved if not matches(path) and matches(moved) else path

    return dataclasses.replace(with_paths(experiment, there), run_dir=now)


def save_experiment(experiment: Experiment, path: Path) -> None:
    write_whole(path, json.dumps(to_json(experiment), indent=2) + "\n")


RESTORED = (
    "restore the file, or remove it and repeat the command that started the run, with --config and --run-dir: it is "
    "written again, and compared with the newest checkpoint"
)


def load_experiment(path: Path) -> Experiment:
    """Loads an experiment from its JSON file.

    Raises:
        UserError: If the file is missing or is not an experiment.
    """
    try:
        experiment = from_json(json.loads(read_text(path)))
    except FileNotFoundError as error:
        why = f"it has no {path.name}" if path.parent.exists() else "there is no such file or folder"
        raise UserError(f"{path.parent} is not a run: {why}; expected the folder of a training run") from error
    except (OSError, json.JSONDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}; {RESTORED}") from error
    if not isinstance(experiment, Experiment):
        raise UserError(f"{path} contains no Experiment: expected the experiment.json of a run; {RESTORED}")
    return located(experiment, path.parent)


def experiment_of(path: str) -> Experiment | None:
    """Returns the experiment of a run or of one of its checkpoints (RUN/checkpoints/NUMBER); None for other paths.

    Raises:
        UserError: If the run's experiment cannot be read.
    """
    run = _run_of(path)
    return load_experiment(run / EXPERIMENT) if path and (run / EXPERIMENT).is_file() else None


def _run_of(path: str) -> Path:
    """Returns the folder of a run, given it or one of its checkpoints."""
    folder = Path(at_home(path))
    return folder.parents[1] if folder.parent.name == CHECKPOINTS else folder


def model_of(path: str) -> tuple[EncoderSettings, FrontEnd] | None:
    """Returns the encoder and the front-end of a run or of a published model, for configs that fine-tune them.

    Args:
        path: Folder of a run or of one of its checkpoints, or file or folder of a published model.

    Returns:
        The settings; None if `path` is empty or has none.

    Raises:
        UserError: If the settings cannot be read.
    """
    path = at_home(path)
    if run := experiment_of(path):
        return run.model.encoder, run.model.front_end
    return (encoder_of(path), front_end_of(path)) if describes_itself(path) else None


def tokenizer_of(path: str) -> str:
    """Returns the path of the tokenizer of a run or of a published model; empty if `path` is neither."""
    path, run = at_home(path), _run_of(path)
    if path and (run / TOKENIZER).is_dir():
        return str(run / TOKENIZER)
    return str(folder_of(path)) if describes_itself(path) else ""


def differences(before: Experiment, after: Experiment) -> list[tuple[str, Any, Any]]:
    """Returns the dotted names and both values of the fields that differ and that a run keeps."""
    old, new = dict(_leaves(to_json(of_run(before)))), dict(_leaves(to_json(of_run(after))))
    names = sorted(old.keys() | new.keys())
    return [(name, old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)]


def may_change(name: str) -> bool:
    """Returns whether the field may change when a run continues."""
    return is_among(name, MAY_CHANGE)


def is_of(name: str, allowed: str) -> bool:
    """Returns whether a field belongs to one of the names that `Resume.allow` can have."""
    return is_among(name, NAMED.get(allowed, (allowed,)))


def is_among(name: str, fields: Sequence[str]) -> bool:
    """Returns whether a field is one of `fields` or is nested in one of them.

    Args:
        fields: Dotted names; the part `*` matches any name.
    """
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
