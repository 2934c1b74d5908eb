"""Trains configs/an4.py with several seeds and evaluates each model: `python -m benchmarks.an4 --out DIR [--json OUT]`.

Needs AN4 (scripts/prepare_an4.py) and the extra `lm`, and takes 3.5 hours on one core (NPROC=1). Each model is decoded
greedily and by beam search with a 3-gram of the training texts. Every training and every evaluation is kept in DIR; a
second call computes only what is missing.
"""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from asr_jax.core.options import parse
from asr_jax.observe.tables import print_table

MANIFESTS = Path("data/an4/manifests")
BEAM_WIDTHS = {"ctc": 50, "transducer": 8}
SEARCHES = ("greedy", "3-gram")
RATES = {"wer": "WER", "cer": "CER"}


@dataclass(frozen=True, kw_only=True)
class AN4Options:
    """Options of `benchmarks.an4`."""

    out: Path
    """Folder of the trainings and of the language model."""
    models: tuple[Literal["ctc", "transducer"], ...] = ("ctc", "transducer")
    """Values of MODEL in configs/an4.py."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Seeds of the trainings."""
    sets: tuple[Literal["dev", "test"], ...] = ("dev", "test")
    """Manifests to evaluate on. Choose settings with `--sets dev` alone."""
    json: Path | None = None
    """File to write the figures to, in JSON."""


def main(arguments: Sequence[str]) -> None:
    options = parse(AN4Options, arguments, prog="python -m benchmarks.an4", about=__doc__)
    lm = options.out / "lm.arpa"
    if not lm.exists():
        options.out.mkdir(parents=True, exist_ok=True)
        _run("ngram", "--input", MANIFESTS / "train.jsonl", "--output", lm)
    rows: list[dict[str, Any]] = []
    for model in options.models:
        width = BEAM_WIDTHS[model]
        fused = ("--decoding.kind", "beam", "--decoding.beam-width", width, "--decoding.fusion.kenlm", lm)
        for seed in options.seeds:
            run = options.out / f"{model}_{seed}"
            training = {"model": model, "seed": seed} | _trained(model, seed, run)
            for search, arguments_of_search in zip(SEARCHES, ((), fused), strict=True):
                scores = {name: _scores(run, name, search, arguments_of_search) for name in options.sets}
                rows.append(training | {"search": search} | scores)
    means = [_mean(rows, model, search, options.sets) for model in options.models for search in SEARCHES]
    print_table(means, title=f"AN4, mean of seeds {', '.join(map(str, options.seeds))}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def _run(command: str, *arguments: object, **environment: str) -> None:
    words = [sys.executable, "-m", f"asr_jax.{command}", *map(str, arguments)]
    subprocess.run(words, check=True, env=os.environ | environment)


def _trained(model: str, seed: int, run: Path) -> dict[str, Any]:
    """Trains a model unless it is trained, and returns its size, updates and the minutes of its training."""
    _run("train", "--config", "configs/an4.py", "--run-dir", run, "--seed", seed, MODEL=model)
    events = map(json.loads, (run / "events.jsonl").read_text().splitlines())
    (summary,) = (event["data"] for event in events if event["event"] == "run_complete")
    sizes = {"parameters": summary["parameters"], "updates": summary["update"]}
    return sizes | {"minutes": round(summary["seconds"] / 60, 1)}


def _scores(run: Path, name: str, search: str, arguments: Sequence[object]) -> dict[str, Any]:
    """Returns WER, its interval and CER of a set."""
    found = run / f"{name}_{search}.json"
    if not found.exists():
        _run("evaluate", run, "--data", MANIFESTS / f"{name}.jsonl", *arguments, "--json", found)
    (of_set,) = json.loads(found.read_text())["runs"][0]["sets"].values()
    return {key: of_set[key] for key in ("wer", "wer_interval", "cer", "words")}


def _mean(rows: Sequence[dict[str, Any]], model: str, search: str, sets: Sequence[str]) -> dict[str, Any]:
    """Returns the means over the seeds, error rates in percent."""
    of_search = [row for row in rows if (row["model"], row["search"]) == (model, search)]
    shown = {"model": model, "search": search, "minutes": statistics.mean(row["minutes"] for row in of_search)}
    for name in sets:
        for rate, title in RATES.items():
            shown[f"{name}, {title} %"] = 100 * statistics.mean(row[name][rate] for row in of_search)
    return shown


if __name__ == "__main__":
    from asr_jax.cli.command_line import run_command

    run_command(main)
