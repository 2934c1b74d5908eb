"""A trained run, loaded for evaluation: model, tokenizer, weights, and the limits of its batches."""

import json
import math
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jax.sharding import Mesh

from asr_jax.audio.features import FrontEnd
from asr_jax.checkpoints.store import checkpoint_to_evaluate, restore_meta
from asr_jax.config import Experiment, load_experiment
from asr_jax.core.environment import CACHES
from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.meshes import data_mesh
from asr_jax.core.precision import Precision
from asr_jax.core.pytrees import Tree
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT, PLAN, SPLIT, TOKENIZER
from asr_jax.core.text_files import read_text
from asr_jax.data.batching.buckets import Bucket, Scale
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.batching.evaluation import plan_evaluation
from asr_jax.data.batching.index import scale_of
from asr_jax.data.batching.limits import BatchLimits
from asr_jax.data.batching.sets import Sets
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.reading import Utterances
from asr_jax.inference.batches import BatchOptions
from asr_jax.inference.calibration import read_calibration
from asr_jax.inference.decoder import Decoder
from asr_jax.inference.losses import Losses
from asr_jax.inference.model import make_model, programs_of, variable_shapes
from asr_jax.inference.weights import WeightKind, restore_weights
from asr_jax.models.base import Recogniser
from asr_jax.models.encoder import Context, StreamingEncoder
from asr_jax.search.base import Decoding
from asr_jax.text.tokenizers import Tokenizer, load_tokenizer
from asr_jax.transcripts.state_resets import StateResets

WHOLE = 4
"""Longest audio that evaluation and alignment compute at once, as a multiple of training's longest. Longer audio is
computed in windows (`inference.long_audio`). A shape of ten minutes took more than 16 GB."""

IMPORTED = "imported"
"""Folder of imported models in the user's cache."""


@dataclass(frozen=True)
class Trained:
    """The parts of a run that evaluation and transcription need."""

    experiment: Experiment
    model: Recogniser
    tokenizer: Tokenizer
    variables: Tree
    longest_s: float
    """Longest utterance of training in seconds."""
    limits: BatchLimits
    """Limits of the batches, without a longest audio if the default of the command applies."""
    folder: Path
    """Folder of the run."""
    updates: int
    """Number of the checkpoint."""
    weights: WeightKind
    mesh: Mesh
    resets: StateResets | None = None
    """Windows of long audio that are joined as in CAIMAN-ASR's state resets. None: other windows, joined by seams."""

    @property
    def name(self) -> str:
        """Path of the run; that of the published model if it was imported into the cache."""
        is_cached = self.folder.parent.parent == Path(CACHES) / IMPORTED
        return self.experiment.init.path if is_cached else str(self.folder)

    def with_resets(self, sizes: tuple[float, float]) -> "Trained":
        """Returns the run with state resets in long audio.

        Args:
            sizes: Length and overlap of windows in seconds. (0, 0): no state resets.

        Raises:
            UserError: If the sizes are not numbers that windows can have.
        """
        window_s, overlap_s = sizes
        if not window_s and not overlap_s:
            return self
        if not 0 <= overlap_s < window_s < math.inf:
            raise UserError(
                f"state_resets is {window_s:g} {overlap_s:g}: expected the length of windows in seconds, and an "
                "overlap of 0 or more that is shorter, such as 15 3"
            )
        return replace(self, resets=StateResets(window_s, overlap_s))

    def decoder(
        self, decoding: Decoding | None = None, *, head: str = "", is_raw: bool = False, **options: Any
    ) -> Decoder:
        """Returns a decoder for a head.

        Args:
            decoding: Settings of the search. None: those of the head.
            head: Name of the head. Empty: the primary head.
            is_raw: Whether confidences are not calibrated even if the run has a calibration.
            **options: Further arguments of `Decoder`.

        Raises:
            UserError: If the head does not recognise text, or a language model or a lexicon cannot be read.
        """
        head = head or self.model.recognising
        decoding = decoding or self.experiment.model.decoding_of(head)
        calibration = None
        if not is_raw:
            other = self.other_than_primary(head)
            calibration = read_calibration(self.folder, self.updates, self.weights, decoding, head=other)
        return Decoder(
            self.model,
            self.tokenizer,
            mesh=self.mesh,
            variables=self.variables,
            decoding=decoding,
            head=head,
            calibration=calibration,
            programs=programs_of(self.experiment, self.tokenizer),
            **options,
        )

    def description(self, decoder: Decoder | None = None) -> dict[str, Any]:
        """Returns the origin of a result, for JSON.

        Args:
            decoder: Decoder of texts. None: the result has no texts.

        Returns:
            Run, checkpoint, weights, precision, and chunks of attention and state resets if there are any; with a
            decoder also head, decoding, normaliser, and whether confidences are calibrated.
        """
        found: dict[str, Any] = {
            "run": self.name,
            "checkpoint": self.updates,
            "weights": self.weights,
            "precision": self.experiment.training.precision,
        }
        encoder = self.experiment.model.encoder
        if isinstance(encoder, StreamingEncoder) and encoder.contexts[0].chunk_frames:
            found["context"] = asdict(encoder.contexts[0])
        if self.resets:
            found["state_resets"] = [self.resets.window_s, self.resets.overlap_s]
        if decoder:
            found |= {
                "head": decoder.head,
                "decoding": str(decoder.search.decoding),
                "normaliser": self.tokenizer.normaliser,
                "calibrated": decoder.calibration is not None,
            }
        return found

    def other_than_primary(self, head: str) -> str:
        """Returns the name of a head; "" for the primary head."""
        return "" if head == self.model.recognising else head

    def losses(self) -> Losses:
        """Returns the compiled losses, for `inference.losses.measure`."""
        scales = {name: head.scale for name, head in self.experiment.model.heads.items()}
        programs = programs_of(self.experiment, self.tokenizer)
        return Losses(self.model, scales, mesh=self.mesh, variables=self.variables, programs=programs)

    def for_sets(self) -> BatchLimits:
        """Returns the limits of the batches of evaluation and alignment."""
        limits = of_sets(self.limits, self.longest_s)
        return replace(limits, longest_s=min(limits.longest_s, self.resets.window_s)) if self.resets else limits

    def plan(self, utterances: Utterances) -> PlannedData:
        """Plans utterances for recognition or for `inference.losses.measure`.

        Audio that is too long for a batch is left to windows; if the model does not recognise text, it is divided into
        pieces.
        """
        recognises = self.experiment.model.recognises
        return plan_evaluation(
            utterances,
            self.for_sets(),
            front_end=self.model.front_end,
            tokenizer=self.tokenizer,
            takes_ids=self.experiment.data.tokenizer.takes_ids,
            num_devices=self.mesh.size if recognises else 1,  # losses are those of validation on any devices
            piece_s=0.0 if recognises else min(self.longest_s, self.limits.longest_s),
        )


def load_trained(
    folder: Path,
    *,
    updates: int | None = None,
    precision: Precision | None = None,
    live: bool = False,
    batches: BatchOptions | None = None,
    context: Context | None = None,
) -> Trained:
    """Loads a run for evaluation.

    Args:
        updates: Number of the checkpoint. None: the best one by validation.
        precision: Precision of computations. None: that of training.
        live: Whether the live parameters are used instead of the averaged ones. A run without averages only has these.
        batches: Sizes of batches. None: those that fit the device.
        context: Context of attention. None: the first one of the model.

    Raises:
        UserError: If the folder is not a run, or has no such checkpoint, if a size of batches is not above 0, or if the
            encoder has no contexts.
    """
    experiment = load_experiment(folder / EXPERIMENT)
    if context:
        experiment = replace(experiment, model=experiment.model.with_context(context))
    if precision:
        experiment = replace(experiment, training=replace(experiment.training, precision=precision))
    chosen = checkpoint_to_evaluate(folder / CHECKPOINTS, updates)
    if not (folder / TOKENIZER).exists():
        _restore_tokenizer(folder, chosen)
    check_tokenizer(folder, chosen)
    tokenizer = load_tokenizer(folder / TOKENIZER)
    model = make_model(experiment, tokenizer)
    mesh = data_mesh()
    shapes = variable_shapes(model, programs_of(experiment, tokenizer))
    kept: WeightKind = "live" if live else "averaged"
    variables = restore_weights(folder, chosen, experiment, shapes, mesh=mesh, weights=kept)
    longest_s, batch_s = lengths_of_training(folder, experiment.model.front_end)
    front_end, recognises = experiment.model.front_end, experiment.model.recognises
    limits = (batches or BatchOptions()).limits(mesh, front_end, most_s=math.inf if recognises else batch_s)
    if not recognises:  # the loss may depend on the rows of a batch, which are then those of training
        limits = replace(limits, multiple=experiment.data.batching.row_multiple)
    return Trained(
        experiment=experiment,
        model=model,
        tokenizer=tokenizer,
        variables=variables,
        longest_s=longest_s,
        limits=limits,
        folder=folder,
        updates=chosen,
        weights=weights_of(experiment, live=live),
        mesh=mesh,
    )


def weights_of(experiment: Experiment, *, live: bool) -> WeightKind:
    """Returns the kind of weights that is used; `live`: whether the live ones are requested."""
    return "averaged" if experiment.training.ema.decay and not live else "live"


def save_plan(train: PlannedData, folder: Path) -> None:
    """Writes the shapes of training into a run's folder."""
    buckets = [asdict(bucket) for bucket in train.plan.buckets]
    plan = {"of_features": train.index.scale.of_features, "buckets": buckets}
    write_whole(folder / PLAN, json.dumps(plan, indent=2) + "\n")


def save_split(sets: Sets, folder: Path) -> None:
    """Writes the manifests of a validation set that was split from the training data, and of the rest."""
    for name, utterances in (("train", sets.train), ("validation", sets.validation)):
        write_manifest(folder / SPLIT / f"{name}.jsonl", utterances)


def check_tokenizer(folder: Path, updates: int) -> None:
    """Checks that a run's tokenizer is the one that a checkpoint was made with.

    Otherwise its ids would stand for other symbols.

    Raises:
        UserError: If it is another one.
    """
    files = tokenizer_files(folder)
    made_with = restore_meta(folder / CHECKPOINTS, updates)["tokenizer"]
    if any(files.get(name) != content for name, content in made_with.items()):
        raise UserError(
            f"{folder / TOKENIZER} is not the tokenizer that checkpoint {updates} was made with; delete that folder, "
            "and it is restored from the checkpoint"
        )


def tokenizer_files(folder: Path) -> dict[str, str]:
    """Returns the contents of the files of a run's tokenizer in base64 by file name, for its checkpoints."""
    return {
        path.name: b64encode(path.read_bytes()).decode()
        for path in sorted((folder / TOKENIZER).iterdir())
        if path.is_file()
    }


def _restore_tokenizer(folder: Path, updates: int) -> None:
    """Writes the tokenizer of a checkpoint into a run's folder that has none."""
    (folder / TOKENIZER).mkdir()
    for name, content in restore_meta(folder / CHECKPOINTS, updates)["tokenizer"].items():
        write_whole(folder / TOKENIZER / name, b64decode(content))


def lengths_of_training(folder: Path, front_end: FrontEnd) -> tuple[float, float]:
    """Returns the longest utterance and the largest batch, with padding, of a run's training in seconds.

    Raises:
        UserError: If the file cannot be read.
    """
    try:
        plan = json.loads(read_text(folder / PLAN))
        buckets = tuple(Bucket(**bucket) for bucket in plan["buckets"])
        return longest_and_batch_s(buckets, scale_of(front_end, of_features=plan["of_features"]))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(
            f"{folder / PLAN} cannot be read: {error!r}; continue the training, which writes it again"
        ) from error


def longest_and_batch_s(buckets: Sequence[Bucket], scale: Scale) -> tuple[float, float]:
    """Returns the longest utterance and the largest batch, with padding, of buckets in seconds."""
    longest, batch = (max(each) for each in zip(*((b.longest, b.length * b.batch_size) for b in buckets), strict=True))
    return longest / scale.per_s, batch / scale.per_s


def of_sets(limits: BatchLimits, longest_s: float) -> BatchLimits:
    """Returns limits with the default of the longest audio of evaluation and alignment."""
    return limits if limits.longest_s < math.inf else replace(limits, longest_s=WHOLE * longest_s)
