"""Prepares training data for `configs/digits.py` from recordings of isolated spoken digits.

    python scripts/prepare_digits.py --digits DIR [--out data/digits]

DIR contains `manifests/{train,val,test,connected}.jsonl`. Writes
`OUT/manifests/{train,validation,test,connected}.jsonl` and the audio of joined strings and of synthetic speech;
recordings are not copied. The training set consists of three
parts: the recordings, strings of recordings joined across speakers and sources with background noise, and synthetic
digit strings of eSpeak NG, which add voices. Only recordings of train.jsonl are joined. If few speakers say a word, or
the speakers of a source say only some of the words, a model learns the speakers instead of the words; strings of words
from all sources, with all words equally frequent, prevent this. Half of the strings and of the synthetic speech is
limited to 4 kHz, like one of the sources.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soxr

from asr_jax.audio.io import read_audio, write_flac
from asr_jax.cli.command_line import run_command
from asr_jax.core.errors import UserError
from asr_jax.core.options import parse
from asr_jax.data.corpora.sentences import Corpus
from asr_jax.data.corpora.synthetic import make_corpus
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.data.manifests.utterances import Utterance

RATE_HZ = 16000
STRINGS = tuple(" ".join(["{digit}"] * number) for number in (2, 3, 4))
LEVEL_DB = (-38.0, -14.0)  # root mean square of the words in a string, relative to full scale
NOISE_DB = (-80.0, -45.0)  # background noise: the quietest 0.25 s of a recording, repeated
SHARE_OF_ONE = 0.35  # share of the strings that have one word


def joined(utterances: list[Utterance], number: int, audio: Path, seed: int) -> list[Utterance]:
    """Makes strings of one to four recordings; all words, and all sources of a word, are equally likely.

    Args:
        utterances: Recordings of one word each.
        number: Number of strings.
        audio: Folder to write to.
        seed: Seed of the random choices.
    """
    by_word: dict[str, dict[str, list[Utterance]]] = {}
    for utterance in utterances:
        by_word.setdefault(utterance.text, {}).setdefault(utterance.source, []).append(utterance)
    audio.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor() as pool:
        noises = [noise for noise in pool.map(_noise, utterances) if noise is not None]
        rows = range(number)
        return list(
            pool.map(lambda row: _string(by_word, noises, row, audio, np.random.default_rng((seed, row))), rows)
        )


def _noise(utterance: Utterance) -> np.ndarray | None:
    """Quietest 0.25 s, scaled to a root mean square of 1; None if the recording is too short or silent there."""
    samples, size = read_audio(utterance.location, rate_hz=RATE_HZ).astype(np.float64), RATE_HZ // 4
    if len(samples) < 3 * size:
        return None
    power = np.convolve(samples**2, np.ones(size) / size, "valid")
    start = int(power.argmin())
    return samples[start : start + size] / np.sqrt(power[start]) if power[start] > 1 else None


def _string(
    by_word: dict[str, dict[str, list[Utterance]]],
    noises: list[np.ndarray],
    row: int,
    audio: Path,
    rng: np.random.Generator,
) -> Utterance:
    words, parts = [], [_gap(rng)]
    for _ in range(1 if rng.random() < SHARE_OF_ONE else rng.integers(2, 5)):
        word = str(rng.choice(sorted(by_word)))
        of_source = by_word[word][str(rng.choice(sorted(by_word[word])))]
        samples = read_audio(of_source[rng.integers(len(of_source))].location, rate_hz=RATE_HZ).astype(np.float64)
        level = 32768 * 10 ** (rng.uniform(*LEVEL_DB) / 20) / max(float(np.sqrt(np.mean(samples**2))), 1.0)
        parts += [samples * min(level, 32000 / max(float(np.abs(samples).max()), 1.0)), _gap(rng)]
        words.append(word)
    samples = np.concatenate(parts)
    noise = noises[rng.integers(len(noises))]
    there_and_back = np.concatenate([noise, noise[::-1]])  # no discontinuity where the noise repeats
    samples += np.resize(there_and_back, len(samples)) * 32768 * 10 ** (rng.uniform(*NOISE_DB) / 20)
    return _written(
        Utterance(f"joined-{row:05d}", str(audio / f"{row:05d}.flac"), " ".join(words), 0.0, "", "joined"), samples, rng
    )


def _written(utterance: Utterance, samples: np.ndarray, rng: np.random.Generator) -> Utterance:
    """Writes the audio of an utterance, with a probability of 0.5 limited to 4 kHz."""
    if rng.random() < 0.5:
        samples = soxr.resample(soxr.resample(samples, RATE_HZ, 8000), 8000, RATE_HZ)
    write_flac(utterance.location, np.clip(np.rint(samples), -32768, 32767).astype(np.int16), RATE_HZ)
    return replace(utterance, duration_s=len(samples) / RATE_HZ)


def _gap(rng: np.random.Generator) -> np.ndarray:
    return np.zeros(int(rng.uniform(0.0, 0.25) * RATE_HZ))


def made(folder: Path, minutes: float) -> list[Utterance]:
    """Makes digit strings with eSpeak NG, in all voices of the synthetic corpus."""
    make_corpus(folder, Corpus(minutes=minutes, sentences=STRINGS))
    splits = [list(read_utterances([folder / f"manifests/{split}.jsonl"])) for split in ("train", "validation", "test")]
    limited = (folder / "limited").absolute()
    limited.mkdir(exist_ok=True)
    found = []
    for row, utterance in enumerate(utterance for utterances in splits for utterance in utterances):
        samples = read_audio(utterance.location, rate_hz=RATE_HZ).astype(np.float64)
        new = replace(utterance, id=f"made-{utterance.id}", location=str(limited / f"{utterance.id}.flac"))
        found.append(_written(new, samples, np.random.default_rng((1, row))))
    return found


def prepare(digits: Path, out: Path, *, strings: int, minutes: float, seed: int) -> None:
    """Writes all manifests and the audio of joined and synthetic strings.

    Args:
        digits: Folder of the recordings.
        out: Folder to write to.
        strings: Number of joined strings.
        minutes: Amount of synthetic speech in minutes.
        seed: Seed of the joined strings.

    Raises:
        UserError: If a manifest is missing.
    """
    manifests = {
        name: list(read_utterances([digits / "manifests" / f"{name}.jsonl"]))
        for name in ("train", "val", "test", "connected")
    }
    train = manifests.pop("train")
    parts = {
        "recordings": train,
        "joined": joined(train, strings, (out / "audio" / "joined").absolute(), seed),
        "made": made(out / "made", minutes),
    }
    for name, utterances in parts.items():
        print(
            f"{name}: {len(utterances)} utterances, "
            f"{sum(utterance.duration_s for utterance in utterances) / 3600:.2f} h"
        )
    write_manifest(
        out / "manifests/train.jsonl", [utterance for utterances in parts.values() for utterance in utterances]
    )
    for name, utterances in manifests.items():
        write_manifest(out / f"manifests/{'validation' if name == 'val' else name}.jsonl", utterances)


@dataclass(frozen=True, kw_only=True)
class DigitsOptions:
    """Options of `scripts/prepare_digits.py`."""

    digits: Path
    """Folder of the recordings."""
    out: Path = Path("data/digits")
    """Folder to write to."""
    strings: int = 5000
    """Number of joined strings."""
    minutes: float = 80.0
    """Amount of synthetic speech in minutes."""
    seed: int = 0
    """Seed of the joined strings."""


def main(arguments: Sequence[str]) -> None:
    given = parse(DigitsOptions, arguments, prog="python scripts/prepare_digits.py", about=__doc__)
    if given.strings < 0 or not 0 < given.minutes <= 6000 or given.seed < 0:
        raise UserError(
            f"--strings {given.strings}, --minutes {given.minutes:g}, --seed {given.seed}: expected --strings and "
            "--seed of 0 or more, and --minutes above 0 and up to 6000"
        )
    prepare(given.digits, given.out, strings=given.strings, minutes=given.minutes, seed=given.seed)


if __name__ == "__main__":
    run_command(main)
