"""Trains a model here and its original in PyTorch with equal batches and initial weights; compares what they learn.

    python -m benchmarks.learning --model zipformer --seeds 0 1 2 --out DIR [--json OUT] [--plot OUT.png]

Needs AN4 (scripts/prepare_an4.py) and .venv-reference with .peers (scripts/setup_reference.sh, also with --peers). Our
model is trained by `asr_jax.train` with benchmarks/learning_an4.py. The original receives the features of the same
batches after SpecAugment, the initial weights under its own names, and the same learning rates. icefall's Zipformer is
trained with its ScaledAdam and Eden. NVIDIA's QuartzNet 5x5, with a quarter of the channels, is trained with NovoGrad
in the plain PyTorch of its repository instead of Apex's. Random numbers within the model (dropout, layer skipping) and
rounding differ. As in icefall, padding counts in Zipformer's regularisers and changes the last frames of a row; ours is
padded to the length of the bucket, and icefall's to that of the longest utterance. Both are decoded greedily, and the
texts are scored by the same function. Every training is kept in DIR; a second call computes only what is missing. The
features of all batches, at most 4 GB, are in DIR while the original is trained.
"""

import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from matplotlib.figure import Figure
from safetensors.numpy import save_file

from asr_jax.config import load_experiment
from asr_jax.core.batch import Batch
from asr_jax.core.errors import RunError
from asr_jax.core.options import parse
from asr_jax.core.random_streams import random_streams
from asr_jax.core.run_folder import EXPERIMENT
from asr_jax.data.loading.source import BatchSource
from asr_jax.inference.recognition import reference
from asr_jax.metrics.errors import word_errors
from asr_jax.observe.tables import print_table
from asr_jax.pretrained.formats import exported
from asr_jax.training.batches import open_data
from asr_jax.training.initial_state import initial_state, lower_initial_state
from asr_jax.training.setup import Setup, set_up
from benchmarks.model import REFERENCE, peer_of, sizes_of

CONFIG = Path(__file__).with_name("learning_an4.py")
SIDE = Path(__file__).with_name("learning_side.py")
NAMES = {"zipformer": "icefall", "quartznet": "NVIDIA"}
"""System of the original of each model."""
FORMATS = {"icefall": "icefall", "quartznet": "deeplearningexamples"}
"""Names of the weights for each original of benchmarks/model_side.py."""
UNITS = {"zipformer": "label", "quartznet": "utterance"}
"""Unit of each model's loss, which is a mean over the batch."""
SETS = ("dev", "test")
SMOOTHING = 25
"""Number of updates whose mean loss is one point of a curve."""


@dataclass(frozen=True, kw_only=True)
class LearningOptions:
    """Options of `benchmarks.learning`."""

    out: Path
    """Folder of the trainings."""
    model: Literal["zipformer", "quartznet"] = "zipformer"
    """Model to train."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the trainings."""
    config: Path = CONFIG
    """Config of our model. The environment variable MODEL is `model` when it is loaded."""
    json: Path | None = None
    """File to write the figures to, in JSON."""
    plot: Path | None = None
    """Picture of the loss curves to write."""


def main(arguments: Sequence[str]) -> None:
    options = parse(LearningOptions, arguments, prog="python -m benchmarks.learning", about=__doc__)
    rows: list[dict[str, Any]] = []
    losses: dict[str, list[list[float]]] = {}
    for seed in options.seeds:
        folder = options.out / f"{options.model}_{seed}"
        trained = {"asr_jax": _ours(folder / "run", seed, options), NAMES[options.model]: _theirs(folder)}
        for system, (of_system, rates) in trained.items():
            losses.setdefault(system, []).append(of_system)
            last = {"loss of the last 100": statistics.mean(of_system[-100:])}
            rows.append({"system": system, "seed": seed} | last | rates)
    print_table(rows, title=f"{options.model} on AN4, {len(losses['asr_jax'][0])} updates")
    if options.json:
        points = {name: _points(each) for name, each in losses.items()}
        figures = {"model": options.model, "trainings": rows, "losses": points}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    if options.plot:
        _draw(losses, options.plot, options)


def _ours(run: Path, seed: int, options: LearningOptions) -> tuple[list[float], dict[str, float]]:
    """Trains our model unless it is trained, and returns the loss of each update and the error rates."""
    command = [sys.executable, "-m", "asr_jax.train", "--config", options.config, "--run-dir", run]
    subprocess.run([*command, "--seed", str(seed)], check=True, env={**os.environ, "MODEL": options.model})
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    losses = {e["data"]["update"]: e["data"]["losses"]["total"] for e in events if e["event"] == "train_step"}
    last = [e["data"] for e in events if e["event"] == "validation"][-1]
    return list(losses.values()), {f"{name}, WER %": 100 * last["sets"][name]["wer"] for name in SETS}


def _theirs(folder: Path) -> tuple[list[float], dict[str, float]]:
    """Trains the original unless it is trained, and returns the loss of each update and the error rates."""
    setup = set_up(load_experiment(folder / "run" / EXPERIMENT), folder / "run")
    result, given = folder / "theirs.json", folder / "given"
    if not result.exists():
        _write(setup, given)
        if subprocess.run([REFERENCE, SIDE, given, result], check=False).returncode:
            raise RunError(f"{SIDE.name} failed; scripts/setup_reference.sh, also with --peers, installs what it needs")
        shutil.rmtree(given)
    found = json.loads(result.read_text())
    return found["losses"], _error_rates(setup, found["hypotheses"])


def _error_rates(setup: Setup, labels: Mapping[str, Sequence[int]]) -> dict[str, float]:
    """Returns the WER of each validation set.

    Args:
        labels: Recognised labels by row of the index.
    """
    utterances, tokenizer = setup.data.validation.index.utterances, setup.data.tokenizer
    errors, words = [0, 0], [0, 0]
    for row, utterance in enumerate(utterances):
        counts = word_errors(reference(utterance, tokenizer), tokenizer.decode(labels[str(row)]))
        number = utterances.columns.input_of[utterances.rows[row]]
        errors[number] += counts.errors
        words[number] += counts.words
    return {f"{name}, WER %": 100 * e / n for name, e, n in zip(SETS, errors, words, strict=True)}


def _write(setup: Setup, folder: Path) -> None:
    """Writes what the original needs: initial weights, training batches, both evaluation sets and settings."""
    folder.mkdir(parents=True, exist_ok=True)
    experiment, model = setup.experiment, setup.experiment.model
    peer = peer_of(model.encoder)
    assert peer, "the config has a model with an original"
    lowered = lower_initial_state(setup.recipe, seed=experiment.seed, programs=setup.programs)
    state, _ = initial_state(lowered.compile(), setup.mesh)
    weights = exported(setup.recipe.of_model(state), model, FORMATS[peer])
    save_file({name: np.ascontiguousarray(value) for name, value in weights.items()}, folder / "weights.safetensors")

    @functools.partial(jax.jit, static_argnames="trains")
    def features(batch: Batch, update: Any, *, trains: bool) -> tuple[Any, Any]:
        streams = random_streams(state.key, update) if trains else {}
        step = update if trains else None
        frames = setup.model.apply({}, batch, step=step, method="augmented", rngs=streams)
        return frames.values, frames.lengths

    def save(name: str, batch: Batch, update: int, *, trains: bool) -> None:
        values, lengths = features(batch, np.int32(update), trains=trains)
        arrays = {"features": values, "lengths": lengths, "tokens": batch.tokens, "token_lengths": batch.token_lengths}
        arrays |= {"utterances": batch.utterances, "weights": batch.weights}
        np.savez(folder / name, **{key: np.asarray(array) for key, array in arrays.items()})

    with open_data(setup, 0, None) as batches:
        for update, loaded in zip(range(setup.num_updates), batches, strict=False):
            save(f"train_{update:05}", loaded.batch, update, trains=True)
    validation = setup.data.validation
    source = BatchSource(validation.index, validation.plan)
    for position in range(validation.plan.batches_per_epoch):
        save(f"validation_{position:03}", source[position].batch, 0, trains=False)
    rates = jax.vmap(setup.recipe.updater.rate)(np.arange(setup.num_updates, dtype=np.int32))
    settings = {
        "peer": peer, "sizes": sizes_of(experiment, peer),
        "vocabulary": setup.data.tokenizer.vocab_size, "seed": experiment.seed,
        "optimizer": asdict(experiment.optim), "schedule": asdict(experiment.optim.schedule),
        "updates_per_epoch": setup.updates_per_epoch,
        "batch_count_per_update": getattr(model.encoder, "batches_per_update", 1.0),
        "rates": np.asarray(rates).tolist(),
    }  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(settings))


def _points(losses: Sequence[Sequence[float]]) -> list[list[float]]:
    """Returns the mean loss of every `SMOOTHING` updates, for each training."""
    return [[statistics.mean(each[i : i + SMOOTHING]) for i in range(0, len(each), SMOOTHING)] for each in losses]


def _draw(losses: Mapping[str, Sequence[Sequence[float]]], out: Path, options: LearningOptions) -> None:
    """Draws the loss curves of all trainings."""
    figure = Figure(figsize=(8, 4.5), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for (system, trainings), color in zip(losses.items(), ("#3a8f5c", "#c0562b"), strict=True):
        for number, points in enumerate(_points(trainings)):
            updates = [(i + 0.5) * SMOOTHING for i in range(len(points))]
            style = ("-", "--", ":")[number % 3]
            axes.plot(updates, points, style, color=color, linewidth=1.2, label="" if number else system)
    unit = UNITS[options.model]
    axes.set(xlabel="update", ylabel=f"CTC loss per {unit}, mean of {SMOOTHING} updates", yscale="log")
    axes.set_title(
        f"{options.model} on AN4, seeds {', '.join(map(str, options.seeds))} (solid, dashed, dotted)", loc="left"
    )
    axes.legend()
    figure.savefig(out)


if __name__ == "__main__":
    from asr_jax.cli.command_line import run_command

    run_command(main)
