"""Synthetic speech that a toy recogniser learns in seconds: letters are tones, and spaces are pauses with a hum."""

import numpy as np

from asr_jax.audio.io import write_flac
from asr_jax.config import Experiment, Training, Validation
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.training.loop import train
from tests.training.toy import toy_model

RATE_HZ = 16000
LETTERS = "abcdef"
LETTER_S, BETWEEN_S, SPACE_S = 0.08, 0.06, 0.3


def words_of(rng, num):
    return ["".join(rng.choice(list(LETTERS), rng.integers(2, 5))) for _ in range(num)]


def silence(rng, seconds):
    return rng.normal(0, 10, round(seconds * RATE_HZ))


def tone(number):
    time = np.arange(round(LETTER_S * RATE_HZ)) / RATE_HZ
    return 6000 * np.sin(2 * np.pi * (400 + 550 * number) * time)


def toned(words, rng, *, space_s=SPACE_S):
    """Samples of some words, and the start and end of each word in seconds."""
    parts, spans = [silence(rng, space_s)], []
    hum, around = tone(len(LETTERS)) / 6, (space_s - LETTER_S) / 2
    for word in words:
        parts += [silence(rng, around), hum, silence(rng, around)] if spans else []
        start = sum(map(len, parts)) / RATE_HZ
        for number, letter in enumerate(word):
            parts += [silence(rng, BETWEEN_S)] if number else []
            parts.append(tone(LETTERS.index(letter)) + silence(rng, LETTER_S))
        spans.append((start, sum(map(len, parts)) / RATE_HZ))
    parts.append(silence(rng, space_s))
    return np.concatenate(parts).astype(np.int16), spans


def write_toned(folder, name, words, rng, *, space_s=SPACE_S):
    """Writes the audio of some words; returns the utterance, and the start and end of each word in seconds."""
    samples, spans = toned(words, rng, space_s=space_s)
    write_flac(folder / f"{name}.flac", samples, RATE_HZ)
    utterance = Utterance(name, str(folder / f"{name}.flac"), " ".join(words), len(samples) / RATE_HZ, speaker="tone")
    return utterance, spans


def toned_run(folder, *, num_updates=60, num_long=0):
    """Trains a run on this speech and returns its folder. The last `num_long` validation utterances have 16 words."""
    rng = np.random.default_rng(0)
    utterances = [write_toned(folder, f"t{number}", words_of(rng, 4), rng)[0] for number in range(52)]
    long = [write_toned(folder, f"long{number}", words_of(rng, 16), rng)[0] for number in range(num_long)]
    write_manifest(folder / "train.jsonl", utterances[:48])
    write_manifest(folder / "validation.jsonl", utterances[48:] + long)
    data = Data(
        train=(str(folder / "train.jsonl"),),
        validation=(str(folder / "validation.jsonl"),),
        batching=Batching.planned(num_buckets=1, seconds=16.0, row_multiple=4),
    )
    experiment = Experiment(
        name="toned",
        model=toy_model(dim=64, norm=True),
        data=data,
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=2e-2, warmup_updates=10)),
        training=Training(
            num_updates=num_updates,
            validation=Validation(every=num_updates, max_duration_s=8.0),
            log_every=50,
            ema=EMA(0.9),
        ),
        run_dir=str(folder / "run"),
    )
    train(experiment)
    return folder / "run"
