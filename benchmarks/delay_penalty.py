"""Trains a small streaming transducer with several delay penalties, and measures error rate and emission latency.

    python -m benchmarks.delay_penalty --digits DIR --out RUNS [--json OUT]

DIR has the recordings of scripts/prepare_digits.py. Strings of two to five digits are joined from recordings of three
speakers (FSDD), of which the last takes are for testing: the times of all words are known exactly, and speakers of the
test are those of the training. The model is an LSTM with frames of 60 ms, a transducer head and a CTC head. It is
trained without a penalty first, and then, from these weights, with each penalty for both heads. Takes 20 minutes on one
core. Trainings and evaluations are kept in RUNS; a second call computes only what is missing. This file is also the
config of the trainings.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.io import read_audio, write_flac
from asr_jax.audio.stages import Stack
from asr_jax.config import Experiment, Training, Validation
from asr_jax.core.options import parse
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Transducer
from asr_jax.models.base import Model
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.nn.recurrent.prediction import LSTMPrediction
from asr_jax.observe.tables import print_table
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.text.tokenizers import TokenizerSettings

RATE_HZ = 16000
SPEAKERS = ("fsdd-jackson", "fsdd-nicolas", "fsdd-theo")
FIRST_TEST_TAKE = 42
"""Number of the first take of a digit and speaker that is for testing, of 50."""
STRINGS = {"train": 2400, "validation": 100, "test": 400}
HEADS = ("transducer", "ctc")


@dataclass(frozen=True, kw_only=True)
class PenaltyOptions:
    """Options of `benchmarks.delay_penalty`."""

    digits: Path
    """Folder of the recordings, with `manifests/train.jsonl`."""
    out: Path
    """Folder of the strings and the trainings."""
    penalties: tuple[float, ...] = (0.0, 0.02, 0.1)
    """Delay penalties of both heads."""
    seeds: tuple[int, ...] = (0, 1)
    """Seeds of the trainings."""
    num_before: int = 1200
    """Updates without a penalty."""
    num_updates: int = 400
    """Updates with each penalty."""
    json: Path | None = None
    """File to write the figures to, in JSON."""


def experiment() -> Experiment:
    return Experiment(
        name="delay_penalty",
        model=Model(
            augment=(),
            front_end=KaldiFbank(then=(Stack(3, 3),)),
            encoder=LSTMEncoder(
                dim=96, layers_before=1, layers_after=2, dropout=0.1, weight_scale=1.0, batch_norm=True
            ),
            heads={
                "transducer": Transducer(
                    prediction=LSTMPrediction(32, num_layers=1, dropout=0.1, weight_scale=1.0),
                    joint_dim=64,
                    dropout=0.1,
                ),
                "ctc": CTC(dropout=0.1, scale=0.5),
            },
            primary="transducer",
        ),
        data=Data(
            train=("data/delay_penalty/train.jsonl",),
            validation=("data/delay_penalty/validation.jsonl",),
            tokenizer=TokenizerSettings(kind="words"),
            batching=Batching.planned(num_buckets=3, seconds=60.0, row_multiple=4),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=4e-3, warmup_updates=100, decay="cosine")),
        training=Training(num_updates=1200, ema=EMA(0.99), validation=Validation(every=500), log_every=100),
    )


def main(arguments: Sequence[str]) -> None:
    options = parse(PenaltyOptions, arguments, prog="python -m benchmarks.delay_penalty", about=__doc__)
    if not (options.out / "test.ctm").exists():
        make_strings(options.digits / "manifests/train.jsonl", options.out)
    rows = []
    for seed in options.seeds:
        before = options.out / f"before_{seed}"
        train(options, before, seed, "--training.num-updates", options.num_before)
        for penalty in options.penalties:
            run = options.out / f"{penalty:g}_{seed}"
            train(
                options, run, seed, "--training.num-updates", options.num_updates, "--init-from", before,
                "--optim.schedule.peak-lr", 1e-3, "--model.heads.transducer.penalties.delay", penalty,
                "--model.heads.ctc.delay-penalty", penalty,
            )  # fmt: skip
            rows += [{"penalty": penalty, "seed": seed} | each for each in evaluate(options, run)]
    means = [mean(rows, head, penalty) for head in HEADS for penalty in options.penalties]
    print_table(means, title=f"delay penalty, mean of seeds {', '.join(map(str, options.seeds))}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def make_strings(manifest: Path, out: Path) -> None:
    """Joins recordings to strings, and writes their manifests and the times of the words of the test set (CTM)."""
    recordings: dict[bool, dict[str, list[np.ndarray]]] = {False: {}, True: {}}
    for each in read_utterances([manifest]):
        if each.speaker in SPEAKERS:
            is_test = int(each.id.rsplit("_", 1)[1]) >= FIRST_TEST_TAKE
            samples = spoken_part(read_audio(each.location, rate_hz=RATE_HZ))
            recordings[is_test].setdefault(each.text, []).append(samples)
    for number, (name, size) in enumerate(STRINGS.items()):
        folder, utterances, lines = out / "audio" / name, [], list[str]()
        folder.mkdir(parents=True, exist_ok=True)
        for row in range(size):
            rng, key = np.random.default_rng((number, row)), f"{name}-{row:04d}"
            samples, spans = joined(recordings[name == "test"], rng)
            location = folder / f"{row:04d}.flac"
            write_flac(location, samples, RATE_HZ)
            text = " ".join(word for word, *_ in spans)
            utterances.append(Utterance(key, str(location.absolute()), text, len(samples) / RATE_HZ))
            lines += [f"{key} 1 {start:.3f} {end - start:.3f} {word}\n" for word, start, end in spans]
        write_manifest(out / f"{name}.jsonl", utterances)
        (out / f"{name}.ctm").write_text("".join(lines))


def spoken_part(samples: np.ndarray) -> np.ndarray:
    """Returns a recording without what is 30 dB below its loudest 10 ms at both ends."""
    size = RATE_HZ // 100
    power = np.square(samples[: len(samples) // size * size].astype(np.float64)).reshape(-1, size).mean(1)
    loud = np.flatnonzero(power > power.max() / 1000)
    return samples[loud[0] * size : (loud[-1] + 1) * size].astype(np.float64)


def joined(
    recordings: dict[str, list[np.ndarray]], rng: np.random.Generator
) -> tuple[np.ndarray, list[tuple[str, float, float]]]:
    """Returns the samples of a string, and its words with start and end in seconds. No word follows itself."""
    parts, spans, words = [gap(rng, 0.1, 0.5)], list[tuple[str, float, float]](), sorted(recordings)
    for _ in range(rng.integers(2, 6)):
        word = str(rng.choice([each for each in words if not spans or each != spans[-1][0]]))
        samples = recordings[word][rng.integers(len(recordings[word]))]
        start = sum(map(len, parts)) / RATE_HZ
        spans.append((word, start, start + len(samples) / RATE_HZ))
        parts += [samples * 3000 / np.sqrt(np.mean(samples**2)), gap(rng, 0.05, 0.5)]
    parts.append(gap(rng, 0.5, 0.8))  # late labels have frames, too
    samples = np.concatenate(parts)
    samples += rng.normal(0, 10, len(samples))
    return np.clip(np.rint(samples), -32768, 32767).astype(np.int16), spans


def gap(rng: np.random.Generator, least_s: float, most_s: float) -> np.ndarray:
    return np.zeros(int(rng.uniform(least_s, most_s) * RATE_HZ))


def train(options: PenaltyOptions, run: Path, seed: int, *flags: object) -> None:
    """Trains a model unless it is trained."""
    command(
        "train", "--config", Path(__file__), "--run-dir", run, "--seed", seed,
        "--data.train", options.out / "train.jsonl", "--data.validation", options.out / "validation.jsonl", *flags,
    )  # fmt: skip


def evaluate(options: PenaltyOptions, run: Path) -> list[dict[str, Any]]:
    """Returns error rate and latency of each head."""
    found = run / "test.json"
    if not found.exists():
        times = options.out / "test.ctm"
        command(
            "evaluate", run, "--data", options.out / "test.jsonl", "--head", *HEADS, "--latency", times, "--json", found
        )
    rows = []
    for result in json.loads(found.read_text())["runs"]:
        (figures,) = result["sets"].values()
        shown = {key: figures[key] for key in ("wer", "words")}
        rows.append({"head": result["head"]} | shown | {"latency": figures["latency"]})
    return rows


def command(name: str, *arguments: object) -> None:
    subprocess.run([sys.executable, "-m", f"asr_jax.{name}", *map(str, arguments)], check=True)


def mean(rows: Sequence[dict[str, Any]], head: str, penalty: float) -> dict[str, Any]:
    """Returns the means over the seeds, in percent and milliseconds."""
    of = [row for row in rows if (row["head"], row["penalty"]) == (head, penalty)]
    shown: dict[str, Any] = {"head": head, "penalty": penalty}
    shown["WER %"] = 100 * statistics.mean(row["wer"] for row in of)
    for key, title in {"mean": "emission, ms", "p50": "50 %", "p90": "90 %", "p99": "99 %"}.items():
        found = [row["latency"]["emission"] for row in of]
        shown[title] = 1000 * statistics.mean(each[key] for each in found if each)
    return shown


if __name__ == "__main__":
    from asr_jax.cli.command_line import run_command

    run_command(main)
