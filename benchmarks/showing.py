"""A model worth showing: `python -m benchmarks.showing --data MANIFESTS --folder FOLDER --json OUT [--seconds S]`.

Trains configs/read_speech_cr_ctc.py for S seconds less the time for what follows, makes a 3-gram of the training texts,
and evaluates the last checkpoint on the test set, with greedy search, with a beam and the 3-gram, and with the beam
alone. OUT is written after each step.
"""

import argparse
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from asr_jax.core.files import write_whole
from benchmarks.first_run import ROOT, command, device, events
from benchmarks.gpu_check import ZIPFORMER

AFTER_S = 120.0
"""Time for the last checkpoint, the 3-gram and the evaluations, in seconds."""
TINY = (
    *ZIPFORMER, "--data.tokenizer.vocab-size", "64", "--data.batching.num-buckets", "1", "--data.batching.budget", "40",
    "--data.batching.row-multiple", "1", "--data.workers", "1", "--updates", "3", "--training.log-every", "1",
)  # fmt: skip
"""Flags for --smoke."""
BEAM = ("--decoding.kind", "beam")
FUSION = (*BEAM, "--decoding.fusion.lm-weight", "0.5", "--decoding.fusion.kenlm")
ENDED, OUT_OF_TIME = 0, 75
"""Exit codes of training: the run is complete, and training.limits.max_hours have passed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of train.jsonl, val.jsonl and test.jsonl")
    parser.add_argument("--folder", type=Path, required=True, help="folder for the run and the 3-gram, which are new")
    parser.add_argument("--json", type=Path, required=True, help="file for the figures")
    parser.add_argument("--seconds", type=float, default=500.0, help="time of all steps: %(default)g")
    parser.add_argument("--smoke", action="store_true", help="train 3 updates of a tiny model")
    given = parser.parse_args()
    began, run, lm = time.monotonic(), given.folder / "run", given.folder / "lm.arpa"
    figures: dict[str, Any] = {"device": device(), "seconds": given.seconds}

    def add(**more: Any) -> None:
        figures.update(more, elapsed_s=round(time.monotonic() - began, 1))
        write_whole(given.json, json.dumps(figures, indent=1) + "\n")

    train_s = given.seconds - AFTER_S - (time.monotonic() - began)
    options = [
        *("--config", "configs/read_speech_cr_ctc.py", "--data.train", given.data / "train.jsonl"),
        *("--data.validation", given.data / "val.jsonl", "--run-dir", run),
        *("--training.limits.max-hours", f"{train_s / 3600:.5f}", *(TINY if given.smoke else ())),
    ]
    code = subprocess.run(command("train", *options), cwd=ROOT, check=False).returncode
    if code not in (ENDED, OUT_OF_TIME):
        raise SystemExit(f"error: training failed with exit code {code}")
    add(training=trained(run, given.data / "train.jsonl"))
    subprocess.run(command("ngram", "--input", given.data / "train.jsonl", "--output", lm), cwd=ROOT, check=True)
    for name, flags in (("greedy", ()), ("with_3gram", (*FUSION, lm)), ("beam", BEAM)):
        add(**{name: evaluated(run, given.data / "test.jsonl", given.folder / f"{name}.json", flags)})
        print(f"showing: {name}: {figures[name]}", flush=True)


def trained(run: Path, manifest: Path) -> dict[str, Any]:
    """Returns the length of a run, its speed and its validations."""
    steps, (compiled,) = events(run, "train_step"), events(run, "compile")
    throughput = {name: each for name, each in steps[-1]["throughput"].items() if name != "per_device"}
    hours = sum(json.loads(line)["duration"] for line in manifest.read_text(encoding="utf-8").splitlines()) / 3600
    return {
        "updates": int(max(os.listdir(run / "checkpoints"), key=int)), "hours_of_speech": round(hours, 2),
        "epoch": steps[-1]["epoch"], "compile_s": compiled["seconds"], "throughput": throughput,
        "losses": [{"update": each["update"], **each["losses"]} for each in steps[:: max(len(steps) // 20, 1)]],
        "validations": [{name: each[name] for name in ("update", "wer", "cer")} for each in events(run, "validation")],
    }  # fmt: skip


def evaluated(run: Path, manifest: Path, out: Path, flags: tuple[Any, ...]) -> dict[str, Any]:
    """Returns the error rates of the last checkpoint, with 95 % intervals, which are too narrow for few speakers."""
    last = max(os.listdir(run / "checkpoints"), key=int)
    began = time.monotonic()
    subprocess.run(
        command("evaluate", run, "--checkpoint", last, "--data", manifest, "--json", out, *flags), cwd=ROOT, check=True
    )
    (result,) = json.loads(out.read_text(encoding="utf-8"))["runs"]
    (counts,) = result["sets"].values()
    wanted = ("utterances", "words", "wer", "wer_interval", "cer", "cer_interval")
    found = {name: counts[name] for name in wanted if name in counts}
    return found | {"decoding": result["decoding"], "seconds": round(time.monotonic() - began, 1)}


if __name__ == "__main__":
    main()
