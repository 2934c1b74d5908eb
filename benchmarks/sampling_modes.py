"""Compares the sampling modes: `python benchmarks/sampling_modes.py [--data MANIFEST] [--peer PYTHON] [--json OUT]`.

The sets are the training manifest after --data (such as that of read_speech_6h), and the durations of
`made_up.durations_s`, which have the published percentiles of the 281,241 utterances of LibriSpeech's 960 h. Labels
are a quarter of the characters, about as many as those of a few hundred word pieces. Every mode has the same budget for
a batch on one device: --seconds of padded audio, or as many utterances as this is of the longest one; for `duration`,
audio without padding, and at least three longest utterances; for `2D-bucketing`, the memory of the largest step of
`1D-bucketing-dyn`.

For each mode: padding in T and U (share of all frames and labels of all batches), the mean batch, shapes, microseconds
to plan a batch, the memory of the largest step by XLA's analysis, and utterances per second: those of an epoch divided
by the time of its steps on this machine, from the time of a step of every shape. The steps are those of a transducer of
about 1 M parameters, on noise. --peer is the Python of an environment with lhotse (scripts/setup_reference.sh): its
DynamicBucketingSampler with the same budget, by durations, and with the bins and rows of `2D-bucketing` (with
--no-steps: of `2D-bucketing-fixed`), in the same run.
"""

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from asr_jax.audio.features import KaldiFbank
from asr_jax.cli.benchmark.systems import tokenizer_without_data
from asr_jax.config import Experiment, Training
from asr_jax.core.layout import Layout
from asr_jax.core.meshes import data_mesh, global_batch
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import Bucket, Entries, make_buckets
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.index import scale_of
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.heads.transducer import Transducer
from asr_jax.inference.model import make_model, programs_of
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.nn.recurrent.prediction import LSTMPrediction
from asr_jax.observe.tables import print_table
from asr_jax.training.batches import noise_of
from asr_jax.training.initial_state import abstract_state, initial_state, lower_initial_state
from asr_jax.training.memory_fit import ANY_LENGTH, MemoryFit
from asr_jax.training.programs import compile_steps
from asr_jax.training.recipe import make_recipe
from benchmarks import made_up

SIDE = Path(__file__).with_name("sampling_modes_side.py")
SCALE = scale_of(KaldiFbank(), of_features=False)
CHARS_PER_LABEL, VOCABULARY = 4, 128
WARM_UPS, TIMED = 1, 3


def experiment(*, is_smoke: bool) -> Experiment:
    head = Transducer(prediction=LSTMPrediction(64, num_layers=1), joint_dim=64)
    encoder = Conformer.tiny(num_layers=1, dim=16) if is_smoke else Conformer.tiny()
    model = Model(encoder=encoder, heads={"transducer": head}, augment=())
    return Experiment("sampling_modes", model, Data(train=("none",)), training=Training(num_updates=1))


class Steps:
    """Training steps of the transducer: their memory and their time."""

    def __init__(self, *, is_smoke: bool) -> None:
        settings = experiment(is_smoke=is_smoke)
        self._tokenizer = tokenizer_without_data(settings.data.tokenizer, VOCABULARY)
        self._mesh = data_mesh(1)
        self._programs = programs_of(settings, self._tokenizer, length=ANY_LENGTH)
        self._recipe = make_recipe(settings, make_model(settings, self._tokenizer), ANY_LENGTH)
        lowered = lower_initial_state(self._recipe, seed=0, programs=self._programs)
        self._shapes = abstract_state(lowered, self._mesh)
        self._state, self._average = initial_state(lowered.compile(), self._mesh)

    def fit(self, budget_bytes: float) -> MemoryFit:
        return MemoryFit(
            budget_bytes, self._recipe, Layout(), self._mesh, accumulate=1, seed=0, programs=self._programs
        )

    def measured(self, buckets: Sequence[Bucket]) -> tuple[int, list[float]]:
        """Memory of the largest step in bytes, and seconds of a step of each bucket."""
        steps = compile_steps(
            self._recipe, buckets, self._shapes, scale=SCALE, mesh=self._mesh, programs=self._programs
        )  # fmt: skip
        seconds = []
        for bucket in buckets:
            made = noise_of(bucket, SCALE, np.arange(VOCABULARY - 1))
            part, times = (bucket, global_batch(made, self._mesh), np.int32(0)), []
            for _ in range(WARM_UPS + TIMED):
                state, average = jax.tree.map(jnp.copy, (self._state, self._average))  # a step donates them
                jax.block_until_ready((state, average))
                begun = time.perf_counter()
                jax.block_until_ready(steps.apply_update(state, average, steps.accumulate(state, [part])))
                times.append(time.perf_counter() - begun)
            seconds.append(statistics.median(times[WARM_UPS:]))
        return int(steps.memory["maximum_bytes"] or 0), seconds


def modes(
    seconds_s: Float[np.ndarray, " R"], labels: Int[np.ndarray, " R"], given: argparse.Namespace
) -> dict[str, Batching]:
    """Settings of each mode with the same budget."""
    longest, rows = float(seconds_s.max()) + 0.001, max(int(given.seconds / seconds_s.max()), 1)
    edges, num = tuple(float(edge) for edge in np.linspace(0, longest, given.buckets + 1)[1:]), given.buckets
    planned = Batching.planned(num_buckets=num, seconds=given.seconds, row_multiple=1)
    return {
        "planned": planned,
        "planned, by labels": dataclasses.replace(planned, num_by_labels=2),
        "fixed": Batching.fixed(rows=rows),
        "fixed, buckets": Batching.fixed(rows=rows, num_buckets=num),
        "duration": Batching.duration(seconds=max(given.seconds, 3 * longest)),
        "1D-bucketing": Batching.bucketing_1d(edges_s=edges, seconds=given.seconds),
        "1D-bucketing-dyn": Batching.bucketing_1d_dyn(num_buckets=num, seconds=given.seconds),
        "2D-bucketing": Batching.bucketing_2d(num, memory_gb=1.0),  # replaced later
        "2D-bucketing-fixed": Batching.bucketing_2d_fixed(num, rows=rows),
        "2D-bucketing-singlet": Batching.bucketing_2d_singlet(seconds=longest, labels=int(labels.max()), rows=rows),
    }


def plan_of(batching: Batching, lengths: np.ndarray, labels: np.ndarray, fit: MemoryFit | None) -> BatchPlan:
    """Plans a set in a mode, on one device."""
    entries = Entries(lengths, labels, SCALE)
    return BatchPlan(entries, make_buckets(entries, batching, fit_rows=fit))


def figures(plan: BatchPlan, labels: np.ndarray, given: argparse.Namespace, steps: Steps) -> dict[str, Any]:
    """Figures of the first epoch of a plan."""
    begun = time.perf_counter()
    batches = [plan[position] for position in range(plan.batches_per_epoch)]
    plan_s = time.perf_counter() - begun
    number = np.bincount([batch.bucket for batch in batches], minlength=len(plan.buckets))
    used = [k for k in range(len(plan.buckets)) if number[k]]
    rows = np.array([bucket.batch_size for bucket in plan.buckets])
    room = [
        float((number * rows * np.array([getattr(bucket, name) for bucket in plan.buckets])).sum())
        for name in ("length", "num_tokens")
    ]
    real = np.concatenate([batch.rows[batch.rows >= 0] for batch in batches])
    found: dict[str, Any] = {
        "padding_share": 1 - plan.length_per_epoch / room[0],
        "padding_u_share": 1 - float(labels[real].sum()) / room[1],
        "batch_s": plan.length_per_epoch / SCALE.per_s / len(batches), "batch_utterances": len(real) / len(batches),
        "batches": len(batches), "shapes": len(used), "us_per_batch": 1e6 * plan_s / len(batches),
    }  # fmt: skip
    if given.no_steps:
        return found
    memory, seconds = steps.measured([plan.buckets[k] for k in used])
    total_s = sum(int(number[k]) * each for k, each in zip(used, seconds, strict=True))
    return found | {"memory_bytes": memory, "utterances_per_s": len(real) / total_s}


def peer(
    lengths: np.ndarray, labels: np.ndarray, bins_of: tuple[str, BatchPlan], given: argparse.Namespace
) -> dict[str, dict[str, Any]]:
    """lhotse's figures by durations, and by durations and labels with the bins and rows of a mode's plan."""
    mode, plan = bins_of
    bins = [[each.longest / SCALE.per_s, each.num_tokens, each.batch_size] for each in plan.buckets]
    ways = {"lhotse, durations": [], f"lhotse, bins of {mode}": [f"--bins={json.dumps(bins)}"]}
    with tempfile.TemporaryDirectory() as folder:
        manifest = Path(folder) / "utterances.jsonl"
        lines = zip(lengths.tolist(), labels.tolist(), strict=True)
        manifest.write_text("".join(json.dumps({"samples": n, "labels": u}) + "\n" for n, u in lines))
        command = [given.peer, str(SIDE), str(manifest), f"--seconds={given.seconds}", f"--buckets={given.buckets}"]
        done = {
            name: subprocess.run([*command, *way], check=True, stdout=subprocess.PIPE, text=True).stdout
            for name, way in ways.items()
        }
    return {name: json.loads(output.splitlines()[-1]) for name, output in done.items()}


def compare(name: str, seconds_s: np.ndarray, labels: np.ndarray, given: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the table of a set."""
    lengths, rows, steps = np.rint(seconds_s * SCALE.per_s).astype(np.int32), [], Steps(is_smoke=given.smoke)
    bins_of, budget = None, 0
    for mode, settings in modes(seconds_s, labels, given).items():
        fit = None
        if mode == "2D-bucketing":
            if given.no_steps:
                continue
            fit, settings = steps.fit(budget), dataclasses.replace(settings, budget=budget / 1e9)
        plan = plan_of(settings, lengths, labels, fit)
        rows.append({"set": name, "mode": mode} | figures(plan, labels, given, steps))
        budget = rows[-1].get("memory_bytes", 0) if mode == "1D-bucketing-dyn" else budget
        if mode in ("2D-bucketing", "2D-bucketing-fixed") and bins_of is None:
            bins_of = mode, plan
        print(json.dumps(rows[-1]), flush=True)
    if given.peer and bins_of:
        for mode, found in peer(lengths, labels, bins_of, given).items():
            rows.append({"set": name, "mode": mode} | found)
            print(json.dumps(rows[-1]), flush=True)
    columns = ("mode", *(name for name in rows[0] if name not in ("set", "mode")))
    print_table([{name: row.get(name, "") for name in columns} for row in rows], title=name)
    return rows


def sets(given: argparse.Namespace) -> dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]]:
    """Functions that return the durations and the numbers of labels of each set."""

    def of_manifest() -> tuple[np.ndarray, np.ndarray]:
        utterances = read_utterances([given.data])
        columns = utterances.columns
        return columns.duration_s[utterances.rows], _labels(columns.num_chars[utterances.rows])

    def like_librispeech() -> tuple[np.ndarray, np.ndarray]:
        seconds = made_up.durations_s(200 if given.smoke else 281_241)
        return seconds, _labels(made_up.num_labels(np.rint(seconds * made_up.RATE_HZ).astype(np.int32)))

    of_data = {given.data.resolve().parents[1].name: of_manifest} if given.data else {}
    return of_data | {"like LibriSpeech": like_librispeech}


def _labels(chars: np.ndarray) -> np.ndarray:
    return np.maximum(np.asarray(chars) // CHARS_PER_LABEL, 1).astype(np.int32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="JSONL manifest, in a subfolder of the data set")
    parser.add_argument("--peer", help="Python of an environment with lhotse")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--seconds", type=float, default=120.0, help="padded audio of a batch in seconds")
    parser.add_argument("--buckets", type=int, default=4, help="number of buckets by duration, at least 2")
    parser.add_argument("--no-steps", action="store_true", help="only plan; 2D-bucketing is left out")
    parser.add_argument(
        "--smoke", action="store_true", help="use 200 utterances and a smaller model, to test only whether it runs"
    )
    given = parser.parse_args()
    rows = [row for name, of_set in sets(given).items() for row in compare(name, *of_set(), given)]
    if given.json:
        about = {
            "cores": os.cpu_count(), "load": os.getloadavg()[0], "device": jax.devices()[0].device_kind,
            "seconds": given.seconds, "buckets": given.buckets,
        }  # fmt: skip
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
