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
    body = "\n".join(line for line in _lines(found) if line)
    imports = []
    for line in IMPORTS.split("\n"):
        module, _, names = line.partition(" import ")
        if used := [name for name in names.split(", ") if re.search(rf"\b{name}\b", body)]:
            imports.append(f"{module} import {', '.join(used)}")
    about, lines = _about(found), "\n".join(imports)
    return f'"""{about}"""\n\nfrom pathlib import Path\n\n{lines}\n\nFOLDER = Path(__file__).parent\n\n\n{body}\n'


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
    return (
        time,
        f"{trial.memory_bytes / 1e9:.2f} GB{limit}, by XLA's analysis of the largest batch with the training state",
    )


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


def _reasons(found: Suggestion) -> dict[str, str]:
    """Returns the reasons for some settings, for the comments."""
    survey, hours = found.survey, found.survey.train.hours
    size_h = MEDIUM_H if found.size == "medium" else SMALL_H
    size = f"{'less than' if found.size == 'tiny' else 'at least'} {size_h:g} h of audio"
    if found.machine.is_cpu:
        size = "a CPU trains larger models too slowly"
    front_end = "80 mels; each utterance is normalised"
    if survey.is_telephone:
        front_end = "the audio has nothing above 4 kHz; new audio of another rate is resampled"
    epochs = f"{found.epochs:.1f} epochs" if found.trial else "few epochs in a short time"
    augment = f"off: {epochs} are too few for it (it helps from about {AUGMENTED_EPOCHS})"
    if found.is_augmented:
        augment = f"strong, since the same {hours:.2g} h are used in {found.epochs:.0f} epochs"
    labels = {
        "words": f"a closed vocabulary of {counted(len(survey.texts.words), 'word')}; others cannot be recognised",
        "characters": "a label for each character: a script without spaces"
        if survey.texts.without_spaces
        else f"a label for each character; pieces of SentencePiece from {PIECES_H:g} h of texts",
        "sentencepiece": f"{hours:,.0f} h of texts are enough for pieces",
    }[found.labels]
    return {"size": size, "front_end": front_end, "augment": augment, "labels": labels}


def _lines(found: Suggestion) -> list[str]:
    """Lines of the function `experiment`. Empty ones are settings that are not needed."""
    survey, machine, tiny, why = found.survey, found.machine, found.size == "tiny", _reasons(found)
    seconds, (low, high) = durations([survey.train]), survey.chars_per_s
    num_long = int((seconds > found.limits_s[1]).sum())
    why_case = "lower case" + " without punctuation" * (found.normaliser == "words.v1")
    memory = f": {found.trial.memory_bytes / 1e9:.2f} GB of memory" if found.trial else ""
    return [
        "def experiment() -> Experiment:",
        "    return Experiment(",
        f'        name="{found.name}",',
        "        model=Model(",
        f"            # {why['front_end']}",
        f"            front_end={found.front_end},",
        f"            # Augmentation is {why['augment']}",
        f"            augment={found.augment},",
        f"            # {found.parameters}: {why['size']}",
        f"            encoder={found.encoder},",
        "            # A second loss after two of the four layers: fewer updates are needed" if tiny else "",
        f"            heads={found.heads},",
        '            primary="ctc",' if tiny else "",
        "        ),",
        "        data=Data(",
        '            train=(str(FOLDER / "train.jsonl"),),',
        '            validation=(str(FOLDER / "validation.jsonl"),),',
        f"            # {why['labels']}",
        f'            # {why_case}; normaliser="none" keeps the texts as they are',
        f"            tokenizer=TokenizerSettings({found.tokenizer}),",
        "            filters=Filters(",
        f"                # Rejects {num_long:,} of {len(seconds):,} utterances; 99 % have at most "
        f"{np.percentile(seconds, 99):.1f} s, the longest has {seconds.max():.1f} s",
        f"                max_duration_s={found.limits_s[1]:g},",
        "                # Texts with other rates look as if they belonged to other audio",
        f"                min_chars_per_s={low:.3g},",
        f"                max_chars_per_s={high:.4g},",
        "            ),",
        f"            # {found.batch_s:g} s of audio in a batch{memory}",
        f"            batching=Batching.planned(num_buckets={found.num_buckets}, seconds={found.batch_s:g}, "
        f"row_multiple={found.row_multiple}),",
        f"            speeds={'(0.9, 1.0, 1.1)' if found.is_augmented else '(1.0,)'},",
        f"            max_validation_utterances={found.max_validated},  # time is short" if found.max_validated else "",
        f"            workers={found.workers},  # "
        + counted(machine.cores, "core")
        + ("; threads read the audio" * machine.is_cpu),
        "        ),",
        f"        optim={found.optim},",
        "        training=Training(",
        f"            num_updates={found.num_updates},"
        + (
            f"  # {counted(round(found.epochs, 1), 'epoch')}, in about {_clock(found.planned_s)}" if found.trial else ""
        ),
        f"            split={found.split},  # parts of a batch, so that it fits the memory" if found.split > 1 else "",
        f'            precision="{"f32" if machine.is_cpu else "bf16"}",',
        f"            ema=EMA({found.ema:g}),  # the averaged parameters are validated and used",
        f"            validation=Validation(every={math.ceil(found.num_updates / found.num_validations)}, live=False),",
        f"            log_every={max(min(found.num_updates // 20, 50), 1)},",
        "        ),",
        "    )",
    ]


def _wrapped(title: str, text: str) -> list[str]:
    return textwrap.wrap(text, 115, initial_indent=title, subsequent_indent=" " * len(title), break_long_words=False)


def _clock(seconds: float) -> str:
    hours, minutes = seconds / 3600, seconds / 60
    return f"{hours:.1f} h" if hours >= 1.5 else f"{minutes:.1f} min"
