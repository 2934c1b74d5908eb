"""A run on real speech: `python -m benchmarks.first_run --data MANIFESTS --folder FOLDER --json OUT [--smoke]`.

Trains a small Zipformer with CTC in bfloat16, kills a second run with the same settings after a checkpoint, continues
it, and compares all arrays of the last checkpoints and the losses bit by bit. Then evaluates the checkpoint on the
device and on the CPU, and compares the texts. With `--deterministic`, XLA has `--xla_gpu_deterministic_ops`, and both
runs use the compiled programs in FOLDER/compiled, because XLA may choose other kernels in each compilation. Otherwise,
each run has its own programs, as by default, and the figures say whether the runs are equal nevertheless. OUT is
written after each step.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from asr_jax.core.files import write_whole

ROOT = Path(__file__).resolve().parent.parent
DETERMINISTIC = "--xla_gpu_deterministic_ops=true"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of train.jsonl, val.jsonl and test.jsonl")
    parser.add_argument("--folder", type=Path, required=True, help="folder for the runs, which are new")
    parser.add_argument("--json", type=Path, required=True, help="file for the figures")
    parser.add_argument("--updates", type=int, default=150, help="updates of each run: %(default)s")
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="set XLA's deterministic operations for GPUs, and one folder of programs",
    )
    parser.add_argument("--smoke", action="store_true", help="train 6 updates")
    given = parser.parse_args()
    updates = 6 if given.smoke else given.updates
    environment = dict(os.environ)
    compiled = given.folder / "compiled"
    if given.deterministic:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(compiled.absolute())
        environment["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {DETERMINISTIC}".strip()
    figures: dict[str, Any] = {
        "device": device(), "updates": updates, "xla_flags": environment.get("XLA_FLAGS", ""),
        "compiled": os.path.relpath(compiled, ROOT) if given.deterministic else "RUN/compiled",
    }  # fmt: skip

    def step(name: str, action: Callable[[], Any]) -> Any:
        began = time.monotonic()
        figures[name] = action()
        figures[f"{name}_s"] = round(time.monotonic() - began, 1)
        write_whole(given.json, json.dumps(figures, indent=1) + "\n")
        print(f"first_run: {name}: {figures[name]}", flush=True)
        return figures[name]

    unbroken, killed = given.folder / "unbroken", given.folder / "killed"
    options = [
        *("--config", "configs/read_speech.py", "--data.train", given.data / "train.jsonl"),
        *("--data.validation", given.data / "val.jsonl", "--training.precision", "bf16", "--updates", updates),
        *("--training.validation.every", updates // 2, "--training.log-every", max(1, updates // 20)),
        *("--training.validation.live", False),
        # Each bucket is a program, and compilation takes most of the time.
        *("--data.batching.budget", 20 if given.smoke else 160, "--data.batching.num-buckets", 1),
    ]
    step("unbroken", lambda: trained(unbroken, options, environment))
    step("killed", lambda: killed_after_a_checkpoint(killed, options, environment))
    step("resumed", lambda: trained(killed, options, environment))
    step("equal", lambda: compared(unbroken, killed, updates))
    step("evaluated", lambda: evaluated(unbroken, given.data / "test.jsonl", "device", environment))
    on_cpu = environment | {"JAX_PLATFORMS": "cpu"}
    step("evaluated_cpu", lambda: evaluated(unbroken, given.data / "test.jsonl", "cpu", on_cpu))
    step("equal_texts", lambda: same_texts(unbroken))
    step("transcribed", lambda: transcribed(unbroken, given.data, environment))
    if figures["equal"]["different"] and (given.deterministic or given.smoke):
        sys.exit("error: the resumed run differs from the unbroken one")


def command(module: str, *arguments: Any) -> list[str]:
    return [sys.executable, "-m", f"asr_jax.{module}", *map(str, arguments)]


def device() -> str:
    """Returns JAX's name of the device, in a process that then frees it."""
    code = "import jax; print(jax.devices()[0].device_kind)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def events(run: Path, kind: str) -> list[dict[str, Any]]:
    """Returns the data of the events of a kind. A last line that is not complete is ignored."""
    path = run / "events.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [event["data"] for event in map(json.loads, lines) if event["event"] == kind]


def trained(run: Path, options: list[Any], environment: dict[str, str]) -> dict[str, Any]:
    subprocess.run(command("train", *options, "--run-dir", run), cwd=ROOT, env=environment, check=True)
    steps, validations = events(run, "train_step"), events(run, "validation")
    return {
        "losses": [steps[0]["losses"]["total"], steps[-1]["losses"]["total"]],
        "error_rates": [each["wer"] for each in validations],
        "resumed_at": [each["update"] for each in events(run, "resumed")],
        "throughput": steps[-1]["throughput"],
    }


def killed_after_a_checkpoint(run: Path, options: list[Any], environment: dict[str, str]) -> dict[str, Any]:
    """Kills the run with SIGKILL once it has trained on after its first checkpoint."""
    process = subprocess.Popen(command("train", *options, "--run-dir", run), cwd=ROOT, env=environment)
    while process.poll() is None:
        saved, steps = events(run, "checkpoint_saved"), events(run, "train_step")
        if saved and steps and steps[-1]["update"] > saved[0]["update"]:
            process.kill()
            process.wait()
            return {"saved": saved[0]["update"], "killed_after": steps[-1]["update"]}
        time.sleep(0.05)
    sys.exit(f"error: the run ended before it was killed, with exit code {process.returncode}")


def compared(unbroken: Path, killed: Path, updates: int) -> dict[str, Any]:
    """Compares the arrays of the last checkpoints, and the losses after the kill, bit by bit."""
    first, second = (arrays(run / "checkpoints" / str(updates)) for run in (unbroken, killed))
    different = [name for name in first if first[name] != second.get(name)]
    losses = [{each["update"]: each["losses"] for each in events(run, "train_step")} for run in (unbroken, killed)]
    return {
        "arrays": len(first), "different": different[:10], "num_different": len(different),
        "different_losses": [update for update, each in losses[1].items() if losses[0][update] != each],
    }  # fmt: skip


def arrays(checkpoint: Path) -> dict[str, bytes]:
    """Returns the bytes of all arrays of a checkpoint; read on the CPU, since the device may be in use."""
    os.environ["JAX_PLATFORMS"] = "cpu"

    import jax
    import numpy as np
    import orbax.checkpoint as ocp

    from asr_jax.core.meshes import abstract, data_mesh, replicated
    from asr_jax.core.pytrees import flatten

    found = {}
    for item in ("state", "average"):
        path = (checkpoint / item).absolute()
        with ocp.StandardCheckpointer() as reader:
            tree = reader.restore(path, abstract(reader.metadata(path).item_metadata, replicated(data_mesh(1))))
        found |= {f"{item}/{name}": np.asarray(jax.device_get(leaf)).tobytes() for name, leaf in flatten(tree).items()}
    return found


def evaluated(run: Path, data: Path, name: str, environment: dict[str, str]) -> dict[str, Any]:
    """Evaluates in float32; writes the texts beside the run."""
    out = run.with_name(f"evaluated_{name}.json")
    texts = run.with_name(f"texts_{name}.jsonl")
    subprocess.run(
        command("evaluate", run, "--data", data, "--precision", "f32", "--json", out, "--predictions", texts),
        cwd=ROOT, env=environment, check=True,
    )  # fmt: skip
    return json.loads(out.read_text())


def same_texts(run: Path) -> dict[str, int]:
    device, cpu = (
        [json.loads(line)["hypothesis"] for line in run.with_name(f"texts_{name}.jsonl").read_text().splitlines()]
        for name in ("device", "cpu")
    )
    return {"texts": len(cpu), "equal": sum(a == b for a, b in zip(device, cpu, strict=True))}


def transcribed(run: Path, data: Path, environment: dict[str, str]) -> list[str]:
    """Transcribes the first three files of the test set."""
    lines = (data / "test.jsonl").read_text().splitlines()[:3]
    files = [data.parent / json.loads(line)["audio_path"] for line in lines]
    done = subprocess.run(
        command("transcribe", run, *files), cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return [line.partition("\t")[2] for line in done.stdout.splitlines()]


if __name__ == "__main__":
    main()
