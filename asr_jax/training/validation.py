"""Validation during training: of the averaged and live parameters, samples of transcripts, and early stopping."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from asr_jax.core.environment import reading_threads
from asr_jax.core.errors import RunError
from asr_jax.core.layout import Layout
from asr_jax.core.meshes import global_batch
from asr_jax.core.names import counted
from asr_jax.core.pytrees import Tree
from asr_jax.core.run_folder import REJECTED
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.batching.evaluation import part_of
from asr_jax.data.loading.source import BatchSource
from asr_jax.inference.decoder import Decoder, without_labels
from asr_jax.inference.losses import Losses, measure
from asr_jax.inference.model import programs_of
from asr_jax.inference.recognition import BrokenOff, Recognition, recognised, samples, used_buckets
from asr_jax.inference.scored_sets import scored
from asr_jax.inference.trained import Trained, longest_and_batch_s
from asr_jax.inference.transcription import prepare_windows, recognise_all
from asr_jax.metrics.measure import ALL, deciding, mean_of, without_value
from asr_jax.metrics.scoring import score
from asr_jax.observe.events import EventLog
from asr_jax.training.initial_state import InitialState
from asr_jax.training.reporting import report_rejected
from asr_jax.training.run import RejectedFile
from asr_jax.training.run_data import validation_limits
from asr_jax.training.setup import Setup
from asr_jax.training.state import TrainState

NO_GAIN = "no gain"
LEFT_OUT = (
    "by_speaker",
    "by_length",
    "bootstrap",
    "confidence",
    "empty_reference_ids",
    "empty_hypothesis_ids",
    "windowed_ids",
)
"""Figures that validation events omit because they can be long. `asr_jax.evaluate` computes them."""
OF_HEADS = ("wer", "cer", "substitutions", "deletions", "insertions", "words", "utterances")
"""Figures of `training.validation.heads`."""


class Validator:
    """Validates, writes events and counts the consecutive validations without a better measure."""

    def __init__(self, setup: Setup, log: EventLog, shapes: InitialState, *, best: float | None, num: int) -> None:
        """Initialises the validator.

        Args:
            best: Best measure so far; None if there is none.
            num: Number of validations since the best one.
        """
        self._setup, self._log, self._shapes = setup, log, shapes
        self.best, self.num_without_gain = best, num
        self._rejected = RejectedFile(setup.folder)
        self._evaluated: Any = setup.recipe.evaluated
        programs = programs_of(setup.experiment, setup.data.tokenizer)
        of_model: dict[str, Any] = {"mesh": setup.mesh, "variables": shapes.average, "programs": programs}
        self._losses = None
        self._trained = Trained(
            experiment=setup.experiment,
            model=setup.model,
            tokenizer=setup.data.tokenizer,
            variables=shapes.average,
            longest_s=longest_and_batch_s(setup.data.train.plan.buckets, setup.data.train.index.scale)[0],
            limits=validation_limits(setup.data.train, setup.experiment.training, setup.experiment.data),
            folder=setup.folder,
            updates=0,
            weights="live",
            mesh=setup.mesh,
        )
        """The run. Validation replaces its variables by the given ones."""
        self._parts: dict[str, PlannedData] = {}
        """Each of several validation sets, for the loss."""
        self._decoders: dict[str, Decoder] = {}
        """Decoders of the primary head and of `training.validation.heads`; empty without a recognising head."""
        for head in (setup.head, *setup.experiment.training.validation.heads) if setup.recognises else ():
            decoding = setup.experiment.model.decoding_of(head)
            self._decoders[head] = Decoder(setup.model, setup.data.tokenizer, decoding=decoding, head=head, **of_model)
        if setup.data.for_losses:
            self._losses = Losses(setup.model, setup.recipe.scales, **of_model)
            # The loss of a set needs its own batches: heads draw masks and negatives for whole batches.
            rows = {name: setup.data.for_losses.rows_of(number) for number, name in enumerate(setup.data.set_names)}
            self._parts = {name: part_of(setup.data.for_losses, of_set) for name, of_set in rows.items() if len(of_set)}

    def prepare(self) -> None:
        """Starts to compile all programs of validation in the background."""
        setup = self._setup
        for decoder in self._decoders.values():
            decoder.prepare(used_buckets(setup.data.validation), setup.data.validation.index.scale)
            prepare_windows(self._trained, decoder, setup.data.validation)
        if self._losses and setup.data.for_losses:
            self._losses.prepare(used_buckets(setup.data.for_losses), setup.data.for_losses.index.scale)

    def wait(self) -> None:
        """Waits until the programs of `prepare` are compiled."""
        if self._setup.recipe.lora.rank:  # merging adapters is a program, too
            same = jax.tree.map(lambda leaf: leaf.sharding, self._shapes.average)  # that the programs are compiled for
            evaluated = jax.jit(self._setup.recipe.evaluated, out_shardings=same)
            self._evaluated = evaluated.lower(self._shapes.state).compile()
        for decoder in self._decoders.values():
            decoder.wait()
            decoder.of_this_process.wait()
        if self._losses:
            self._losses.wait()

    def validate(
        self, state: TrainState, average: Tree, update: int, *, epoch: int, is_stopped: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Validates the parameters that evaluation uses and, with training.validation.live, the live ones.

        Args:
            is_stopped: Called between batches; the validation stops if it returns True.

        Returns:
            Figures of the parameters that evaluation uses; None if the validation was stopped.

        Raises:
            RunError: If no utterance of the validation set could be measured.
        """
        training = self._setup.experiment.training
        num, used = training.validation.num_samples, "ema" if training.ema.decay else "live"
        try:
            if training.ema.decay and training.validation.live:
                self._of(self._evaluated(state), "live", update, epoch, num_samples=0, is_stopped=is_stopped)
            figures = self._of(average, used, update, epoch, num_samples=num, is_stopped=is_stopped)
        except BrokenOff:
            return None
        value = deciding(figures)[self._setup.measure]
        is_better = value < (math.inf if self.best is None else self.best)
        self.num_without_gain = 0 if is_better else self.num_without_gain + 1
        self.best = value if is_better else self.best
        return figures

    def no_gain(self) -> str:
        """Returns the reason to end the run if training.limits.patience is reached, otherwise an empty string."""
        patience = self._setup.experiment.training.limits.patience
        if not patience or self.num_without_gain < patience:
            return ""
        return f"{NO_GAIN} in {counted(self.num_without_gain, 'validation')}"

    def show_samples(self, average: Tree, update: int) -> None:
        """Writes a samples event with transcripts of the first batch of the validation set."""
        setup, tokenizer = self._setup, self._setup.data.tokenizer
        data, decoder = setup.data.validation, self._decoders[setup.head]
        if not data.plan.batches_per_epoch:  # all utterances are computed in windows
            return
        source = BatchSource(data.index, data.plan, Layout.of(setup.mesh), storage=setup.experiment.data.storage)
        found = decoder(average, global_batch(without_labels(source[0].batch), setup.mesh))
        recognition = Recognition(decoder.whole(decoder.finish(found)), [])
        shown = samples(data, recognition, tokenizer, setup.experiment.training.validation.num_samples)
        self._log.write("samples", update=update, samples=shown)

    def _of(
        self,
        weights: Tree,
        name: str,
        update: int,
        epoch: int,
        *,
        num_samples: int,
        is_stopped: Callable[[], bool],
    ) -> dict[str, Any]:
        setup = self._setup
        utterances = len(setup.data.validation.index)
        self._log.write("validation_start", update=update, weights=name, utterances=utterances)
        measured, rates = self._measured(weights, is_stopped), self._recognised(weights, num_samples, is_stopped)
        figures, *of_sets = (measured.get(name, {}) | rates.get(name, {}) for name in (ALL, *setup.data.set_names))
        if of_sets:
            sets = dict(zip(setup.data.set_names, of_sets, strict=True))
            figures |= {"sets": sets, "mean": mean_of(of_sets), "best_of": setup.best_of}
        figures["measure"] = setup.measure
        if missing := without_value(figures):
            names = "" if missing == [ALL] else f" {', '.join(missing)}"
            raise RunError(
                f"no utterance of the validation set{names} could be measured: its audio cannot be read, or its texts "
                f"are empty; see {setup.folder / REJECTED}"
            )
        self._log.write("validation", update=update, weights=name, epoch=epoch, **figures)
        return figures

    def _measured(self, weights: Tree, is_stopped: Callable[[], bool]) -> dict[str, dict[str, Any]]:
        """Returns the loss, its terms and the metrics, by set and of all sets; empty if the loss is not computed."""
        setup = self._setup
        if not self._losses or not setup.data.for_losses:
            return {}
        threads = reading_threads(setup.experiment.data.threads)
        figures, rejected, differing = measure(
            self._losses, weights, setup.data.for_losses, threads=threads, is_stopped=is_stopped
        )
        if not setup.recognises:  # otherwise `_recognised` reports them
            report_rejected(self._rejected, self._log, rejected)
            report_rejected(self._rejected, self._log, differing, are_used=True)
        found = {ALL: figures}
        for name, part in self._parts.items():
            found[name] = measure(self._losses, weights, part, threads=threads, is_stopped=is_stopped).figures
            del found[name]["rejected"]  # counted over all sets
        return {name: each | {"loss_utterances": each["utterances"]} for name, each in found.items()}

    def _recognised(self, weights: Tree, num_samples: int, is_stopped: Callable[[], bool]) -> dict[str, dict[str, Any]]:
        """Returns error rates, by set and of all sets, and samples of all sets; empty without a recognising head."""
        setup = self._setup
        if not self._decoders:
            return {}
        primary, *others = self._decoders.values()
        threads = reading_threads(setup.experiment.data.threads)
        trained = replace(self._trained, variables=weights)
        found = recognise_all(trained, primary, setup.data.validation, threads=threads, is_stopped=is_stopped)
        counts = scored(setup.data.validation, found, setup.data.tokenizer)
        report_rejected(self._rejected, self._log, setup.data.validation.rejections.entries + found.rejected)
        report_rejected(self._rejected, self._log, found.differing, are_used=True)
        shown = samples(setup.data.validation, found, setup.data.tokenizer, num_samples)
        figures = {ALL: _figures(counts) | {"head": setup.head, "decoding": setup.decoding_digest, "samples": shown}}
        if others:
            figures[ALL]["heads"] = {decoder.head: self._rates(trained, decoder, is_stopped) for decoder in others}
        for number, name in enumerate(setup.data.set_names):
            rows = setup.data.validation.rows_of(number).tolist()
            part = Recognition({row: found.transcripts[row] for row in rows if row in found.transcripts}, [])
            of_set = list(recognised(setup.data.validation, part, setup.data.tokenizer, has_tokens=True))
            figures[name] = _figures(score(of_set, normaliser=setup.data.tokenizer.normaliser))
        return figures

    def _rates(self, trained: Trained, decoder: Decoder, is_stopped: Callable[[], bool]) -> dict[str, Any]:
        """Returns the error rates of another head than the primary one, over all sets."""
        setup = self._setup
        threads = reading_threads(setup.experiment.data.threads)
        found = recognise_all(trained, decoder, setup.data.validation, threads=threads, is_stopped=is_stopped)
        figures = _figures(scored(setup.data.validation, found, setup.data.tokenizer))
        return {name: figures[name] for name in OF_HEADS} | {"decoding": decoder.search.decoding.digest()}


def _figures(counts: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of an event, without those that can be long."""
    figures = {name: value for name, value in counts.items() if name not in LEFT_OUT}
    return figures | {"empty_share": counts["empty_hypotheses"] / max(counts["utterances"], 1)}
