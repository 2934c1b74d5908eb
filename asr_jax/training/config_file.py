"""The Python file of a suggested config, with the reason for each setting beside it."""

import math
import re
import textwrap

import numpy as np

from asr_jax.core.names import counted
from asr_jax.data.manifests.survey import durations
from asr_jax.training.suggestion import AUGMENTED_EPOCHS, MEDIUM_H, PIECES_H, SMALL_H, Suggestion

IMPORTS = """
from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.specaugment import SpecAugment, TimeWarp, VocalTract
from asr_jax.audio.stages import Normalise
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.filters import Filters
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.zipformer import Zipformer
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW, ScaledAdam
from asr_jax.optim.schedules import Eden, WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings
""".strip()
"""Imports of all configs; a config has those that it uses."""


def text_of(found: Suggestion) -> str:
    """Text of the config. Its manifests are in the folder of the file."""
    settings = "".join(of(found) for of in (_model, _data, _training))
    lines = f'    return Experiment(\n        name="{found.name}",{settings}\n    )'.split("\n")
    body = "\n".join(["def experiment() -> Experiment:", *filter(str.strip, lines)])  # blank: not needed
    imports = []
    for line in IMPORTS.split("\n"):
        module, _, names = line.partition(" import ")
        if used := [name for name in names.split(", ") if re.search(rf"\b{name}\b", body)]:
            imports.append(f"{module} import {', '.join(used)}")
    head = [f'"""{_about(found)}"""', "from pathlib import Path", "\n".join(imports), "FOLDER = Path(__file__).parent"]
    return "\n\n".join(head) + f"\n\n\n{body}\n"


def planned(found: Suggestion) -> tuple[str, str]:
    """Sentences on the planned time and memory of the run, for the config and the console. Empty without a trial."""
    trial = found.trial
    if trial is None:
        return "", ""
    time = (
        f"{_clock(found.planned_s)} for {counted(found.num_updates, 'update')} of {trial.padded_s:.0f} s of audio, "
        f"{trial.update_s:.2f} s each, as measured with the largest batch on {found.machine.description}, and for "
        f"{counted(found.num_validations, 'validation')}; before it about {_clock(trial.start_s)} for the start and "
        f"compilation of {counted(trial.num_shapes, 'shape')}"
    )
    limit = f" of {trial.limit_bytes / 1e9:.1f} GB" if trial.limit_bytes else ""
    batch = f"{trial.memory_bytes / 1e9:.2f} GB"
    analysis = "by XLA's analysis of the largest batch with the training state"
    if trial.process_bytes:
        process = f"{trial.process_bytes / 1e9:.2f} GB{limit} for the process, by the trial"
        return time, f"{process}; of it {batch} {analysis}"
    return time, f"{batch}{limit}, {analysis}"


def figures_of(found: Suggestion) -> dict[str, float]:
    """Planned figures of the run for programs: times in seconds, memory in bytes. Empty without a trial."""
    if found.trial is None:
        return {}
    return {
        "updates": found.num_updates,
        "start_s": found.trial.start_s,
        "training_s": found.planned_s,
        "batch_bytes": found.trial.memory_bytes,
        "memory_bytes": found.trial.process_bytes or found.trial.memory_bytes,
    }


def _about(found: Suggestion) -> str:
    """Docstring of the config."""
    survey, (time, memory) = found.survey, planned(found)
    sets = ", ".join(f"{role} {each.hours:.2f} h ({len(each):,})" for role, each in survey.sets.items() if len(each))
    return "\n".join(
        [
            f"{found.encoder.partition('(')[0].partition('.')[0]} for {found.name}, written by {found.command}",
            "",
            *_wrapped("Data      ", f"{sets}; {survey.split or 'sets as given'}"),
            *_wrapped("Time      ", time or "not measured"),
            *_wrapped("Memory    ", memory or "not measured"),
            "",
        ]
    )


def _model(found: Suggestion) -> str:
    """Settings of the model."""
    machine, tiny, hours = found.machine, found.size == "tiny", found.survey.train.hours
    front_end = "80 mels; each utterance is normalised"
    if found.survey.is_telephone:
        front_end = "the audio has nothing above 4 kHz; new audio of another rate is resampled"
    epochs = f"{found.epochs:.1f} epochs" if found.trial else "few epochs in a short time"
    augment = f"off: {epochs} are too few for it (it helps from about {AUGMENTED_EPOCHS})"
    if found.is_augmented and not found.trial:
        augment = "strong, for many epochs of little audio"
    elif found.is_augmented:
        augment = f"strong, since the same {hours:.2g} h are used in {found.epochs:.0f} epochs"
    size = f"{'less than' if tiny else 'at least'} {MEDIUM_H if found.size == 'medium' else SMALL_H:g} h of audio"
    if machine.is_cpu:
        size = "a CPU trains larger models too slowly"
    return f"""
        model=Model(
            # {front_end}
            front_end={found.front_end},
            # Augmentation is {augment}
            augment={found.augment},
            # {found.parameters}: {size}
            encoder={found.encoder},
            {"# A second loss after two of the four layers: fewer updates are needed" if tiny else ""}
            heads={found.heads},
            {'primary="ctc",' if tiny else ""}
        ),"""


def _data(found: Suggestion) -> str:
    """Settings of the data."""
    survey, is_cpu = found.survey, found.machine.is_cpu
    seconds, (low, high) = durations([survey.train]), survey.chars_per_s
    labels = {
        "words": f"a closed vocabulary of {counted(len(survey.texts.words), 'word')}; others cannot be recognised",
        "characters": "a label for each character"
        + (": a script without spaces" if survey.texts.without_spaces else f"; pieces from {PIECES_H:g} h of texts"),
        "sentencepiece": f"{survey.train.hours:,.0f} h of texts are enough for pieces",
    }[found.labels]
    memory = f": {found.trial.memory_bytes / 1e9:.2f} GB of memory" if found.trial else ""
    validated = f"max_validation_utterances={found.max_validated},  # time is short" if found.max_validated else ""
    return f"""
        data=Data(
            train=(str(FOLDER / "train.jsonl"),),
            validation=(str(FOLDER / "validation.jsonl"),),
            # {labels}
            # lower case{" without punctuation" * (found.normaliser == "words.v1")}; \
normaliser="none" keeps the texts as they are
            tokenizer=TokenizerSettings({found.tokenizer}),
            filters=Filters(
                # Rejects {int((seconds > found.limits_s[1]).sum()):,} of {len(seconds):,} utterances; \
99 % have at most {np.percentile(seconds, 99):.1f} s, the longest has {seconds.max():.1f} s
                max_duration_s={found.limits_s[1]:g},
                # Texts with other rates look as if they belonged to other audio
                min_chars_per_s={low:.3g},
                max_chars_per_s={high:.4g},
            ),
            # {found.batch_s:g} s of audio in a batch{memory}
            batching=Batching.planned(num_buckets={found.num_buckets}, seconds={found.batch_s:g}, \
row_multiple={found.row_multiple}),
            speeds={"(0.9, 1.0, 1.1)" if found.is_augmented else "(1.0,)"},
            {validated}
            workers={found.workers},  # {counted(found.machine.cores, "core")}{"; threads read the audio" * is_cpu}
        ),"""


def _training(found: Suggestion) -> str:
    """Settings of the optimiser and of the training."""
    length = (
        f"  # {counted(round(found.epochs, 1), 'epoch')}, in about {_clock(found.planned_s)}" if found.trial else ""
    )
    split = f"split={found.split},  # parts of a batch, so that it fits the memory" if found.split > 1 else ""
    return f"""
        optim={found.optim},
        training=Training(
            num_updates={found.num_updates},{length}
            {split}
            precision="{"f32" if found.machine.is_cpu else "bf16"}",
            ema=EMA({found.ema:g}),  # the averaged parameters are validated and used
            validation=Validation(every={math.ceil(found.num_updates / found.num_validations)}, live=False),
            log_every={max(min(found.num_updates // 20, 50), 1)},
        ),"""


def _wrapped(title: str, text: str) -> list[str]:
    return textwrap.wrap(text, 115, initial_indent=title, subsequent_indent=" " * len(title), break_long_words=False)


def _clock(seconds: float) -> str:
    hours, minutes = seconds / 3600, seconds / 60
    return f"{hours:.1f} h" if hours >= 1.5 else f"{minutes:.1f} min"
