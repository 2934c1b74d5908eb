"""Compiles the training programs of configs for absent devices: `python benchmarks/compiled_programs.py [--json OUT]`.

For each config and target: the gradient of its largest batch and the update, with processor time of the compiler,
memory of a device, products, bytes, collectives and the time that these allow at least. The batches are those of
LibriSpeech's published durations (`made_up.lengths`), with a quarter as many pieces as characters. Each config and
target is a process of its own, which is stopped after --limit seconds. Nothing is run. The environment needs the extras
cuda12 and tpu. The JSON keeps its rows of other configs and targets, and of the other setting of --quick.
"""

import asr_jax.core.environment  # noqa: F401, I001  must be first

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from benchmarks import made_up
from asr_jax.cli.benchmark.systems import tokenizer_without_data
from asr_jax.cli.command_line import load_config
from asr_jax.cli.plan_target import TargetSteps
from asr_jax.config import Experiment
from asr_jax.core.targets import ACCELERATORS, target_of
from asr_jax.data.batching.buckets import Bucket, Entries, Scale, largest_first, make_buckets
from asr_jax.data.batching.index import scale_of
from asr_jax.observe.tables import print_table
from asr_jax.optim.schedules import RunLength

ROOT = Path(__file__).parents[1]
UTTERANCES, PIECES_PER_CHARACTER = 28_000, 0.25
LENGTH = RunLength(100_000, 2_000)
TARGETS = ("h100", "v5e", "v5e:16x16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=sorted(path.stem for path in (ROOT / "configs").glob("*.py")))
    parser.add_argument("--targets", nargs="+", default=TARGETS)
    parser.add_argument(
        "--seconds", type=float, help="only the bucket of utterances of this length; default: the largest"
    )
    parser.add_argument("--quick", action="store_true", help="compile with the least effort, as plan --quick")
    parser.add_argument("--operations", action="store_true", help="also the ten largest operations of each program")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds of a config and target")
    parser.add_argument("--json", type=Path, default=Path("compiled_programs.json"))
    parser.add_argument("--one", nargs=2, metavar=("CONFIG", "TARGET"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        for row in compiled(*given.one, seconds=given.seconds, quick=given.quick, operations=given.operations):
            print(json.dumps(row), flush=True)
        return
    options = ["--quick"] * given.quick + ["--operations"] * given.operations
    if given.seconds:
        options += ["--seconds", str(given.seconds)]
    rows: list[dict[str, Any]] = json.loads(given.json.read_text()) if given.json.exists() else []
    for target in given.targets:
        for config in given.configs:
            new = in_process(config, target, options, limit_s=given.limit)
            named = (config, target, given.quick)
            rows = [row for row in rows if (row["config"], row["target"], row["quick"]) != named] + new
            given.json.write_text(json.dumps(rows, indent=1) + "\n")
            print_table([{name: value for name, value in row.items() if name != "largest"} for row in new])


def in_process(config: str, target: str, options: Sequence[str], *, limit_s: float) -> list[dict[str, Any]]:
    """Returns the rows of a config and target, or one row with the reason why there are none."""
    command = [sys.executable, __file__, "--one", config, target, *options]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    name = {"config": config, "target": target, "quick": "--quick" in options}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=environment, check=False)
        output, failure = done.stdout, done.stderr.strip().splitlines()[-1:] if done.returncode else []
    except subprocess.TimeoutExpired as stopped:
        output = stopped.stdout.decode() if stopped.stdout else ""
        failure = [f"stopped after {limit_s:g} s"]
    found = [name | json.loads(line) for line in output.splitlines() if line.startswith("{")]
    return found + [name | {"failure": line[:300]} for line in failure]


def compiled(config: str, target: str, *, seconds: float | None, quick: bool, operations: bool) -> list[dict[str, Any]]:
    """Compiles the gradient of a batch and the update for all devices of a target.

    A device has the rows of the config's batch for one device, or fewer in the proportion of its memory to that of an
    H100. They are halved until they fit, by smaller batches, and then by `training.split` where the model has
    micro-batches.
    """
    experiment, devices = load_config(ROOT / "configs" / f"{config}.py"), target_of(target)
    scale = scale_of(experiment.model.front_end, of_features=False)
    buckets = librispeech_buckets(experiment, scale)
    if seconds is None:
        chosen = buckets[largest_first(buckets)[0]]
    else:
        chosen = min(buckets, key=lambda bucket: abs(bucket.length / scale.per_s - seconds))
    tokenizer = tokenizer_without_data(experiment.data.tokenizer, None)
    parts, size = experiment.model.row_parts, devices.mesh.size
    share = min(devices.accelerator.memory_gb / ACCELERATORS["h100"].memory_gb, 1.0)
    units = max(int(share * chosen.batch_size / parts), 1)
    while True:
        bucket = replace(chosen, batch_size=units * parts * size)
        steps = TargetSteps(experiment, tokenizer, LENGTH, devices, (bucket,), scale, quick, 10 if operations else 0)
        rows = steps.rows_on(devices.mesh, lambda message: None)
        fits, split = "✗" not in rows[0].get("of memory", "✗"), 2 * experiment.training.split
        if not fits and units > 1:
            units //= 2
        elif not fits and experiment.model.sub_batches % split == 0:
            experiment = replace(experiment, training=replace(experiment.training, split=split))
        else:
            break
    for row in rows:
        row["audio_s"] = rows[0]["rows"] * bucket.length / scale.per_s
        row |= {"split": experiment.training.split} if experiment.training.split > 1 else {}
    return rows


def librispeech_buckets(experiment: Experiment, scale: Scale) -> tuple[Bucket, ...]:
    """Buckets that training on one device makes of LibriSpeech."""
    data = experiment.data
    lengths = made_up.lengths(UTTERANCES)
    characters = made_up.num_labels(lengths)
    kept = lengths / made_up.RATE_HZ <= data.filters.max_duration_s
    factor = {"sentencepiece": PIECES_PER_CHARACTER, "none": 0.0}.get(data.tokenizer.kind, 1.0)
    labels = (characters * factor).astype("int32")
    entries = Entries(lengths[kept], labels[kept], scale)
    return make_buckets(entries, data.batching, row_parts=experiment.model.row_parts).shapes


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_compilation_cache", False)  # times are those without it
    main()
