"""Validation while a run goes on: of the averaged and of the live weights, samples, and whether anything is gained."""

from collections.abc import Callable
from typing import Any

import jax

from asr_jax.core.errors import RunError
from asr_jax.core.meshes import global_batch
from asr_jax.core.pytrees import Tree
from asr_jax.data.source import BatchSource
from asr_jax.observe.events import EventLog
from asr_jax.training.evaluate import BrokenOff, Decoder, Recognition, evaluate, samples, without_labels
from asr_jax.training.reporting import report_skipped
from asr_jax.training.run import SKIPPED
from asr_jax.training.setup import Setup
from asr_jax.training.state import TrainState

NO_GAIN = "no gain"
LEFT_OUT = ("by_speaker", "by_length", "bootstrap", "confidence", "empty_reference_ids", "empty_hypothesis_ids")
"""Of a result, what an event does not hold: it may be long, and `asr_jax.evaluate` gives it."""


class Validator:
    """Validates and writes events; knows how many validations in a row brought no better error rate."""

    def __init__(
        self, setup: Setup, log: EventLog, decoder: Decoder, shapes: TrainState, *, best_wer: float | None, num: int
    ) -> None:
        """`shapes`: of the state; `best_wer`, `num`: the best error rate so far, and validations without gain since."""
        self._setup, self._log, self._decoder = setup, log, decoder
        self._evaluated: Any = setup.recipe.evaluated
        if setup.recipe.lora.rank:  # adapters are added to their kernels: compiled before anything runs
            self._evaluated = jax.jit(setup.recipe.evaluated).lower(shapes).compile()
        self.best_wer, self.num_without_gain = best_wer, num

    def validate(
        self, state: TrainState, average: Tree, update: int, *, is_stopped: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """Error rates of the weights that evaluation uses; those of the live ones are told as well. None where
        `is_stopped`, asked between batches, broke it off.

        Raises: RunError where nothing could be scored.
        """
        training = self._setup.experiment.training
        num, used = training.num_samples, "ema" if training.ema.decay else "live"
        try:
            if training.ema.decay and training.validate_live:
                self._of(self._evaluated(state), "live", update, num_samples=0, is_stopped=is_stopped)
            counts = self._of(average, used, update, num_samples=num, is_stopped=is_stopped)
        except BrokenOff:
            return None
        is_better = self.best_wer is None or counts["wer"] < self.best_wer
        self.num_without_gain = 0 if is_better else self.num_without_gain + 1
        self.best_wer = counts["wer"] if is_better else self.best_wer
        return counts

    def no_gain(self) -> str:
        """Why the run ends where it gained nothing for long; empty where it goes on."""
        patience = self._setup.experiment.training.patience
        if not patience or self.num_without_gain < patience:
            return ""
        return f"{NO_GAIN} in {self.num_without_gain} validations"

    def show_samples(self, average: Tree, update: int) -> None:
        """Transcripts of the first batch of the validation set."""
        setup, tokenizer = self._setup, self._setup.tokenizer
        data = setup.validation
        source = BatchSource(
            data.index, data.plan, process_index=jax.process_index(), num_processes=jax.process_count()
        )  # fmt: skip
        found = self._decoder(average, global_batch(without_labels(source[0].batch), setup.mesh))
        recognition = Recognition(self._decoder.whole(self._decoder.finish(found)), [])
        shown = samples(data, recognition, tokenizer, setup.experiment.training.num_samples)
        self._log.write("samples", update=update, samples=shown)

    def _of(
        self, weights: Tree, name: str, update: int, *, num_samples: int, is_stopped: Callable[[], bool]
    ) -> dict[str, Any]:
        setup, data = self._setup, self._setup.validation
        self._log.write("validation_start", update=update, weights=name, utterances=len(data.index))
        threads = setup.experiment.data.threads
        counts, found = evaluate(self._decoder, weights, data, workers=0, threads=threads, is_stopped=is_stopped)
        shown = samples(data, found, setup.tokenizer, num_samples)
        report_skipped(setup.folder, self._log, found.skipped)
        if counts["wer"] is None:
            raise RunError(
                "no word of the validation set could be scored: none of its audio can be read, or its texts are empty; "
                f"see {setup.folder / SKIPPED}"
            )
        counts = {name: value for name, value in counts.items() if name not in LEFT_OUT}
        empty_share = counts["empty_hypotheses"] / counts["utterances"]
        counts |= {"epoch": setup.groups.epoch(update), "empty_share": empty_share}
        counts["decoding"] = setup.experiment.decoding.digest()
        self._log.write("validation", update=update, weights=name, samples=shown, **counts)
        return counts
