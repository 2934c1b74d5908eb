"""Settings that fit a corpus and a machine, with the reasons for them."""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from asr_jax.data.manifests.survey import Survey, durations
from asr_jax.text.normalise import normalise
from asr_jax.training.trial import Trial

Size = Literal["tiny", "small", "medium"]
SMALL_H, MEDIUM_H = 5.0, 100.0
"""Hours of training audio from which a small and a medium model are chosen, on GPUs and TPUs."""
EPOCHS, MOST_EPOCHS = 100, 1000
"""Number of times that the audio is used, if there is time, and with little audio."""
LEAST_AUDIO_H = 24.0
"""Least hours of audio in all epochs, if there is time, up to MOST_EPOCHS. The quickstart has as many."""
LEARNING_AUDIO_H = 6.0
"""Hours of audio in all epochs below which a model has hardly learned words."""
AUGMENTED_EPOCHS = 20
"""Least number of epochs with augmentation. With fewer, it delays learning more than it helps."""
CLOSED_WORDS, REPEATED = 60, 20
"""A vocabulary is closed if it has at most as many words, and each occurs as often on average."""
PIECES_H, MANY_PIECES_H = 100.0, 1000.0
"""Hours of training audio from which labels are 500 and 1,000 SentencePiece pieces."""
INDENT = " " * 12
"""Indentation of the settings of the model in the config."""
OF_MEMORY = 0.8
"""Largest share of a device's memory that a batch may need."""
BATCH_S: dict[Size, float] = {"tiny": 36.0, "small": 600.0, "medium": 1200.0}
SHORT_BATCH_S, SHORT_H = 20.0, 0.5
"""Seconds of audio of a batch of tiny models, if the run has less time than these hours: more updates help more."""


@dataclass(frozen=True)
class Machine:
    """Devices that a run will use."""

    platform: str
    """JAX's name of the kind: cpu, gpu or tpu."""
    devices: int
    cores: int
    description: str

    @property
    def is_cpu(self) -> bool:
        return self.platform == "cpu"


@dataclass(frozen=True)
class Suggestion:
    """Settings of a run, which `config_file.text_of` writes. Those of its length follow from a trial."""

    name: str
    command: str
    """Command that made the config."""
    survey: Survey
    machine: Machine
    size: Size
    normaliser: str
    labels: str
    """Kind of labels as in the settings of tokenizers."""
    batch_s: float
    limits_s: tuple[float, float]
    """Shortest and longest utterance of training in seconds."""
    hours: float | None
    """Longest time of the run in hours. None: as long as the recipe says."""
    num_updates: int = 1000
    num_validations: int = 5
    max_validated: int = 0
    split: int = 1
    epochs: float = EPOCHS
    """Number of times that the audio is used. Before the trial, a guess."""
    trial: Trial | None = None

    @property
    def is_augmented(self) -> bool:
        return self.epochs >= AUGMENTED_EPOCHS

    @property
    def num_buckets(self) -> int:
        return 8 if not self.machine.is_cpu else 2 if self.hours and self.hours < SHORT_H else 4

    @property
    def row_multiple(self) -> int:
        """Divisor of the rows of a batch: 1 if few of the longest utterances, at their slowest speed, fill it."""
        least = 4 if self.size == "tiny" else 8
        return math.lcm(least if 1.25 * least * self.limits_s[1] <= self.batch_s else 1, self.machine.devices)

    @property
    def lacking(self) -> float:
        """Hours of audio that a model needs to learn words, divided by the run's hours of audio. Needs the trial."""
        return LEARNING_AUDIO_H / max(self.epochs * self.survey.train.hours, 1e-9)

    @property
    def _warmup(self) -> int:
        return max(min(self.num_updates // 10, 300 if self.size == "tiny" else 2000), 1)

    @property
    def front_end(self) -> str:
        if self.survey.is_telephone:
            return "KaldiFbank(rate_hz=8000, num_mels=40, high_hz=-200.0, then=(Normalise(),))"
        return "KaldiFbank(then=(Normalise(),))"

    @property
    def augment(self) -> str:
        if not self.is_augmented:
            return "()"
        if self.size == "medium":
            return "(TimeWarp(), SpecAugment())"
        ramp = f"ramp_updates={max(min(self.num_updates // 8, 500), 1)}"
        masks = f"max_freq_bins={8 if self.survey.is_telephone else 15}, num_time_masks=2, max_time_frames=40"
        # Distorted spectra from the start delay learning, so their probability rises during the first updates.
        lines = [
            "(",
            f"    VocalTract(max_warp=0.2, {ramp}),",
            f"    SpecAugment({masks},",
            f"                max_time_share=0.25, {ramp}),",
            ")",
        ]
        return f"\n{INDENT}".join(lines)

    @property
    def parameters(self) -> str:
        return {"tiny": "1 M", "small": "13 M", "medium": "64 M"}[self.size] + " parameters"

    @property
    def encoder(self) -> str:
        name, settings = {
            "tiny": ("Conformer.tiny", ["subsampling_channels=32", 'taps=("layer_1",)']),
            "small": ("Conformer.small", []),
            "medium": ("Zipformer.medium", [f"batches_per_update={self.batch_s / 600:g}"]),
        }[self.size]
        return f"{name}({', '.join([*settings, *['num_mels=40'] * self.survey.is_telephone])})"

    @property
    def heads(self) -> str:
        inner = ', "inner": CTC(dropout=0.1, tap="layer_1", scale=0.3)' if self.size == "tiny" else ""
        return f'{{"ctc": CTC(dropout=0.1){inner}}}'

    @property
    def tokenizer(self) -> str:
        size = 1000 if self.survey.train.hours >= MANY_PIECES_H else 500
        of_pieces = f", vocab_size={size}" if self.labels == "sentencepiece" else ""
        return f'kind="{self.labels}", normaliser="{self.normaliser}"{of_pieces}'

    @property
    def optim(self) -> str:
        if self.size == "medium":
            return "ScaledAdam(schedule=Eden(peak_lr=0.045, warmup_start=0.1))"
        rate = 2e-3 if self.size == "tiny" else 1e-3
        return f'AdamW(schedule=WarmupHoldDecay(peak_lr={rate:g}, warmup_updates={self._warmup}, decay="cosine"))'

    @property
    def ema(self) -> float:
        """Decay of the average, over about a twentieth of the run."""
        return min(max(round(1 - 20 / max(self.num_updates, 1), 4), 0.9), 0.9999)

    @property
    def workers(self) -> int:
        return 0 if self.machine.is_cpu else max(min(self.machine.cores // 2, 8), 1)

    @property
    def planned_s(self) -> float:
        """Planned time of updates and validations in seconds. Needs the trial."""
        assert self.trial is not None
        num = len(self.survey.sets["validation"])
        validated_s = self.trial.validation_s * (min(self.max_validated / num, 1.0) if self.max_validated else 1.0)
        return self.num_updates * self.trial.update_s + self.num_validations * self.trial.validation_time_s(validated_s)


def suggest(survey: Survey, machine: Machine, *, name: str, command: str, hours: float | None) -> Suggestion:
    """Chooses the settings that do not depend on the speed of the machine."""
    audio_h, texts = survey.train.hours, survey.texts
    size: Size = "tiny" if machine.is_cpu or audio_h < SMALL_H else "small" if audio_h < MEDIUM_H else "medium"
    plain = not texts.has_punctuation and all(
        each.kind not in ("full_width", "apostrophes") for each in survey.findings
    )
    normaliser = "lower.v1" if plain and not texts.without_spaces else "words.v1"
    labels = "characters"
    if _is_closed(survey, normaliser):
        labels = "words"
    elif audio_h >= PIECES_H and not texts.without_spaces:
        labels = "sentencepiece"
    short = size == "tiny" and hours is not None and hours < SHORT_H
    seconds = durations([survey.train])
    longest = min(float(seconds.max()), 20.0 if machine.is_cpu else 30.0)
    if longest > 3 * (usual := float(np.percentile(seconds, 99))):
        longest = 2 * usual  # single long recordings would need a batch shape of their own
    return Suggestion(
        name,
        command,
        survey,
        machine,
        size,
        normaliser,
        labels,
        batch_s=SHORT_BATCH_S if short else BATCH_S[size] * machine.devices,
        limits_s=(0.1, math.ceil(10 * longest) / 10),
        hours=hours,
        num_validations=2 if hours is not None and hours < SHORT_H else 5,
        epochs=0.0 if short else EPOCHS,
    )


def fitted(suggestion: Suggestion, trial: Trial) -> Suggestion:
    """Chooses the length of the run and the parts of a batch by the measured time and memory."""
    hours = suggestion.survey.train.hours
    audio_s = min(max(EPOCHS * hours, LEAST_AUDIO_H), MOST_EPOCHS * hours) * 3600
    wanted = max(round(audio_s / (trial.epoch_s / trial.updates_per_epoch)), 10)
    found = replace(suggestion, trial=trial, num_updates=wanted, max_validated=0)
    if suggestion.hours is not None and found.planned_s > suggestion.hours * 3600:
        budget_s = suggestion.hours * 3600
        # A tenth of the time at most is for validation.
        validations_s = suggestion.num_validations * trial.validation_time_s(trial.validation_s)
        if (share := 0.1 * budget_s / validations_s) < 1:
            num = len(suggestion.survey.sets["validation"])
            found = replace(found, max_validated=max(math.ceil(share * num), min(20, num)))
        least_s = replace(found, num_updates=0).planned_s
        found = replace(found, num_updates=max(math.floor((budget_s - least_s) / trial.update_s), 10))
    epochs = found.num_updates * trial.epoch_s / trial.updates_per_epoch / (suggestion.survey.train.hours * 3600)
    return replace(found, epochs=epochs)


def more_split(suggestion: Suggestion, trial: Trial) -> int:
    """Number of parts of a batch with which it fits the memory, by the memory that was measured for one."""
    split = suggestion.split
    while trial.limit_bytes and trial.memory_bytes * suggestion.split / split > OF_MEMORY * trial.limit_bytes:
        split *= 2
    return split


def _is_closed(survey: Survey, normaliser: str) -> bool:
    """Whether all texts are of few words, which the training texts all have."""
    words = survey.texts.words
    if len(words) > CLOSED_WORDS or words.total() < REPEATED * len(words) or survey.texts.without_spaces:
        return False
    known, others = (
        {word for role in roles for text in survey.sets[role].texts() for word in normalise(text, normaliser).split()}
        for roles in (("train",), ("validation", "test"))
    )
    return others <= known
