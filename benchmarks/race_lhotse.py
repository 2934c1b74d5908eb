"""Compares our loader with lhotse's in one run: `python benchmarks/race_lhotse.py --data MANIFEST [--json OUT]`.

lhotse runs in the environment of scripts/setup_reference.sh. Each measurement is its own process; the two systems take
turns, and the results are medians. `read` measures reading of audio files to padded batches with the same number of
worker processes (the same files, 16 kHz FLAC, decoded by libsndfile in both): audio seconds per second, and seconds to
the first batch. `plan` measures synthetic metadata similar to the 281,241 utterances of LibriSpeech: seconds to the
first batch and to the end of a shuffled epoch, padding, and the number of different shapes, which is the number of
compilations of XLA.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
THEIRS = [str(ROOT / ".venv-reference/bin/python"), str(ROOT / "benchmarks/lhotse_side.py")]
OURS = [sys.executable, __file__, "--side"]


def plan(manifest: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Our side: plans a training set like a run, and goes through an epoch without reading audio."""
    started = time.perf_counter()
    from asr_jax.audio.features import KaldiFbank
    from asr_jax.data.batching.batch_plan import BatchPlan
    from asr_jax.data.batching.batching import Batching
    from asr_jax.data.batching.buckets import make_buckets
    from asr_jax.data.batching.index import build_index, scale_of
    from asr_jax.data.manifests.reading import read_utterances
    from asr_jax.text.characters import CharacterTokenizer

    start = time.perf_counter()
    scale = scale_of(KaldiFbank(), of_features=False)
    tokenizer = CharacterTokenizer.train((), alphabet="abcdefghijklmnopqrstuvwxyz' ", normaliser="none")
    index, _ = build_index(read_utterances([manifest]), scale=scale, tokenizer=tokenizer)
    settings = Batching.planned(num_buckets=given.buckets, seconds=given.batch_seconds, row_multiple=1)
    found = BatchPlan(index.entries(), make_buckets(index.entries(), settings))
    _ = found[0]
    first_s = time.perf_counter() - start
    for position in range(found.batches_per_epoch):
        _ = found[position]
    padded = float(found.padded_by_bucket().sum()) / scale.per_s
    return {
        "import_s": start - started, "first_s": first_s, "epoch_s": time.perf_counter() - start,
        "batches": found.batches_per_epoch,
        "shapes": len({(b.batch_size, b.length, b.num_tokens) for b in found.buckets}),
        "padding": found.padding_share, "batch_s": padded / found.batches_per_epoch,
    }  # fmt: skip


def read(manifest: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Our side: reads batches of audio and labels with worker processes."""
    started = time.perf_counter()
    from asr_jax.cli.benchmark.loading import index_of, source_of
    from asr_jax.data.loading.source import open_batches

    start = time.perf_counter()
    source = source_of(index_of([str(manifest)]), batch_seconds=given.batch_seconds, num_buckets=given.buckets)
    with open_batches(source, workers=given.workers, threads=1) as batches:
        next(batches)
        first_s = time.perf_counter() - start
        for _ in range(given.skip - 1):
            next(batches)
        begun, samples = time.perf_counter(), 0
        while time.perf_counter() - begun < given.seconds:
            samples += int(next(batches).batch.lengths.sum())
        rate = samples / 16000 / (time.perf_counter() - begun)
    return {"import_s": start - started, "first_s": first_s, "audio_s_per_s": rate}


def race(what: str, ours: Path, theirs: Path, given: argparse.Namespace, **options: float) -> dict[str, Any]:
    """Measures both systems in turn; returns all figures and their medians."""
    from asr_jax.observe.tables import print_table

    flags = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", f"{value:g}")]
    found: dict[str, list[dict[str, Any]]] = {"asr_jax": [], "lhotse": []}
    for repeat in range(given.repeats):
        for side, command in (("asr_jax", [*OURS, what, str(ours)]), ("lhotse", [*THEIRS, what, str(theirs)])):
            found[side].append(_run([*command, *flags]))
            print(what, repeat, side, json.dumps(found[side][-1]), flush=True)
    result: dict[str, Any] = {"options": options}
    for side, figures in found.items():
        medians = {name: statistics.median(f[name] for f in figures) for name in figures[0]}
        # Our first process reads the manifest; the later ones map its cache.
        result[side] = medians | {"cold_first_s": figures[0]["first_s"], "all": figures}
    rows = [{"loader": side} | {name: result[side][name] for name in result[side] if name != "all"} for side in found]
    print_table(rows, title=f"{what}: medians of {given.repeats}")
    return result


def _run(command: list[str]) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="JSONL manifest of 16 kHz audio, in a subfolder of the data set")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--smoke", action="store_true", help="use tiny sizes, to test only whether it runs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--batch-seconds", type=float, default=240.0)
    parser.add_argument("--buckets", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--skip", type=int, default=20)
    parser.add_argument("--side", nargs=2, metavar=("WHAT", "MANIFEST"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        what, manifest = given.side
        print(json.dumps({"plan": plan, "read": read}[what](Path(manifest), given)), flush=True)
        return

    from benchmarks.made_up import write_manifest

    figures: dict[str, Any] = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ASR_JAX_INDEX_CACHE"] = f"{folder}/cache"
        made_up, cuts = Path(folder) / "manifests" / "made_up.jsonl", Path(folder) / "made_up_cuts.jsonl"
        made_up.parent.mkdir()
        write_manifest(made_up, 2000 if given.smoke else 281_241)
        subprocess.run([*THEIRS, "prepare", str(made_up), str(cuts)], check=True)
        figures["plan"] = race("plan", made_up, cuts, given, batch_seconds=1600.0, buckets=given.buckets)
        if given.data:
            real = Path(folder) / "real_cuts.jsonl"
            subprocess.run([*THEIRS, "prepare", str(given.data), str(real)], check=True)
            figures["read"] = race(
                "read", given.data, real, given, batch_seconds=given.batch_seconds, buckets=4, workers=given.workers,
                seconds=1.0 if given.smoke else given.seconds, skip=4 if given.smoke else given.skip,
            )  # fmt: skip
    if given.json:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
