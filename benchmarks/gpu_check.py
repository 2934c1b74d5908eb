"""Measures everything that needs a GPU: `python3 benchmarks/gpu_check.py [PART …] [--out FOLDER] [--smoke]`.

Each part is a process with a time limit and writes one file. After each part, benchmarks/results/DEVICE.json is written
and copied to FOLDER, so that nothing is lost if the call is cut off. Parts that fail, that run over their limit or that
do not fit into SECONDS are named in the file, and the others are not affected. A later call with other parts adds to
the same file. `--plan` prints the parts with their limits.

Packages that this Python lacks are installed from .carry/wheels, and speech is read from .carry/data
(scripts/gpu_carry.py prepare); without it, from ASR_JAX_SHARED; without both, batches are synthetic. `--smoke` runs all
parts in tiny sizes on a CPU.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARRY, PARTS = ROOT / ".carry", ROOT / "benchmarks/results/parts"
OMITTED = "omitted.txt"
SHOWN = 25
"""Number of the last lines of output that are printed if a part fails."""
LEAST_S = 15
"""Time below which no part is started, in seconds."""
FAMILIES = (
    "zipformer", "fastconformer_librispeech", "rnnt_base", "wav2vec2_pretrain", "quartznet_librispeech",
    "w2v_bert_finetune", "conformer_librispeech", "squeezeformer_librispeech", "paraformer_rust",
    "zipformer_transducer", "wav2vec2_finetune",
)  # fmt: skip
"""Configs to train, the most important ones first."""
TRACED = ("zipformer", "rnnt_base")


def flags(**fields: str) -> tuple[str, ...]:
    """Returns the flags of fields of the encoder."""
    each = ((f"--model.encoder.{name.replace('_', '-')}", *value.split()) for name, value in fields.items())
    return tuple(part for flag in each for part in flag)


ZIPFORMER = flags(
    dims="64 64 64 64 64 64", num_layers="1 1 1 1 1 1", unmasked_dims="48 48 48 48 48 48",
    feedforward_dims="64 64 64 64 64 64",
)  # fmt: skip
CONFORMER = flags(dim="16", num_layers="1", subsampling_channels="8")
WAV2VEC2 = flags(dim="48", num_layers="1", num_heads="4", feedforward_dim="64", position_groups="4")
TINY = {
    "zipformer": ZIPFORMER, "zipformer_transducer": ZIPFORMER, "quartznet_librispeech": flags(copies="1"),
    "conformer_librispeech": CONFORMER, "fastconformer_librispeech": CONFORMER,
    "squeezeformer_librispeech": flags(dim="32", num_layers="4"),
    "w2v_bert_finetune": flags(dim="64", num_layers="1", num_heads="4", feedforward_dim="64"),
    "wav2vec2_finetune": WAV2VEC2,
    "wav2vec2_pretrain": (*WAV2VEC2, "--model.encoder.hourglass.before", "0", "--model.encoder.hourglass.middle", "0",
                          "--model.encoder.hourglass.after", "0"),
    "rnnt_base": (*flags(dim="32", layers_before="1", layers_after="1"), "--model.heads.transducer.joint-dim", "16",
                  "--model.heads.transducer.prediction.dim", "16"),
    "paraformer_rust": (*flags(dim="32", num_layers="1", num_heads="4", feedforward_dim="64"),
                        "--model.heads.paraformer.decoder.num-layers", "1",
                        "--model.heads.paraformer.decoder.num-heads", "4",
                        "--model.heads.paraformer.decoder.feedforward-dim", "64"),
}  # fmt: skip
"""Flags of each family for --smoke."""


@dataclass(frozen=True)
class Part:
    """A part of the check."""

    name: str
    limit_s: int
    """Time limit on a GPU, in seconds."""
    arguments: tuple[str, ...]
    """Arguments of Python."""
    smoke: tuple[str, ...] = ()
    """Additional arguments with --smoke."""
    environment: tuple[tuple[str, str], ...] = ()


def parts(data: Path | None, smoke: bool) -> Iterator[Part]:
    """Yields all parts in the order of their value.

    Args:
        data: Folder of train.jsonl, val.jsonl and test.jsonl; None: batches are synthetic.
        smoke: Whether sizes are tiny, for a CPU.
    """

    def json_of(name: str) -> tuple[str, str]:
        return "--json", str(PARTS / f"{name}.json")

    device = "-m", "benchmarks.device_results", "machine", "--data", str(data or "synthetic")
    yield Part("machine", 30, (*device, *json_of("machine")))
    run = "-m", "benchmarks.first_run", "--data", str(data)
    if data:
        more = "--deterministic", "--folder", str(PARTS / "first_run")
        yield Part("first_run", 150, (*run, *more, *json_of("first_run")), ("--smoke",))
    for family in FAMILIES:
        yield training(family, data, smoke, json_of(f"train_{family}"))
    for model in ("fastconformer", "conformer"):
        noise = "--batch-sizes", "64", "256", "--seconds", "16.7", "--steps", "30", "--precision", "bf16"
        if data and model == "fastconformer":
            noise = *noise, "--data", str(data / "train.jsonl"), "--workers", "8"
        yield Part(
            f"inference_{model}", 60,
            ("-m", "asr_jax.benchmark", "inference", "--config", f"configs/{model}_librispeech.py", *noise,
             *json_of(f"inference_{model}")),
            ("--batch-sizes", "1", "--seconds", "1", "--steps", "1", "--warm-ups", "1", "--model.dim", "16",
             "--model.num-layers", "1", "--model.subsampling-channels", "8"),
        )  # fmt: skip
    for precision in ("f32", "bf16"):
        name = f"kernels_{precision}"
        yield Part(
            name, 60, ("-m", "asr_jax.benchmark", "kernels", "--precision", precision, *json_of(name)),
            ("--batch", "2", "--seq-len", "16", "--channels", "8", "--labels", "4", "--iterations", "2",
             "--warm-ups", "1"),
        )  # fmt: skip
    yield Part(
        "frontend", 40,
        ("-m", "benchmarks.front_ends", "--seconds", "20", "--rows", "64", *json_of("frontend")),
        ("--seconds", "1", "--rows", "2", "--repeats", "1"),
    )  # fmt: skip
    yield Part("tests", 120, ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/test_gpu.py"))
    if data:
        more = "--folder", str(PARTS / "first_run_default")
        yield Part("first_run_default", 120, (*run, *more, *json_of("first_run_default")), ("--smoke",))


def training(family: str, data: Path | None, smoke: bool, json_of: tuple[str, str]) -> Part:
    """Returns the part that trains a family: one bucket, with the batch that was compiled for an H100 in advance."""
    seconds = 32 if smoke else planned_seconds(family)
    read = "--synthetic", "16", "--batch", str(seconds // 16)
    if data:
        read = "--data.train", str(data / "train.jsonl"), "--data.validation", str(data / "val.jsonl")
    options: tuple[str, ...] = ()
    if family == "wav2vec2_pretrain":
        options = "--model.sub-batches", "1"  # the config's batch has parts for 64 GPUs
    elif not family.startswith(("quartznet", "wav2vec2", "w2v_bert")):  # these have characters
        options = "--data.tokenizer.vocab-size", "500"
    if family in TRACED and not smoke:
        options = *options, "--trace", str(PARTS / f"trace_{family}")
    tiny = "--warm-ups", "1", "--updates", "2", *TINY[family]
    return Part(
        f"train_{family}", 90,
        ("-m", "asr_jax.benchmark", "train", "--config", f"configs/{family}.py", *read,
         "--data.batching.num-buckets", "1", "--data.batching.unit", "padded-seconds",
         "--data.batching.budget", str(seconds), "--data.batching.max-rows", "1024",
         "--data.batching.row-multiple", "1", "--training.accumulate", "1",
         "--num-devices", "1", "--warm-ups", "5", "--updates", "20", "--data.workers", "8", *options,
         *json_of),
        tiny,
    )  # fmt: skip


def planned_seconds(family: str) -> int:
    """Returns the seconds of padded audio of the largest batch in benchmarks/results/compiled_programs.json."""
    rows = json.loads((ROOT / "benchmarks/results/compiled_programs.json").read_text())
    found = [
        row["rows"] * row["seconds"]
        for row in rows
        if row["config"] == family and row["target"] == "h100" and row["program"] == "gradient"
    ]
    return int(max(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="names of parts, or their beginnings; default: all")
    parser.add_argument("--out", type=Path, help="folder to which the file is copied after each part")
    parser.add_argument("--seconds", type=int, default=540, help="time limit of all parts on a GPU: %(default)s")
    parser.add_argument("--smoke", action="store_true", help="run in tiny sizes on a CPU, without time limits")
    parser.add_argument("--plan", action="store_true", help="print the parts with their limits, and do nothing")
    given = parser.parse_args()
    data = speech()
    chosen = [each for each in parts(data, given.smoke) if chosen_by(each.name, given.parts)]
    if len(chosen) == 1 and given.parts not in ([], ["machine"]):
        sys.exit(f"error: no part is named {' or '.join(given.parts)}; --plan prints the names")
    print_plan(chosen, data, given.seconds)
    if given.plan:
        return
    environment = prepared(given.smoke)
    shutil.rmtree(PARTS, ignore_errors=True)
    PARTS.mkdir(parents=True)
    results = PARTS / "smoke" if given.smoke else PARTS.parent
    began, failed = time.monotonic(), False
    for part in chosen:
        left = given.seconds - (time.monotonic() - began)
        reason = run(part, None if given.smoke else min(part.limit_s, left), given.smoke, environment)
        if reason:
            failed = True
            with (PARTS / OMITTED).open("a") as file:
                file.write(f"{part.name}: {reason}\n")
        print(f"gpu_check: {part.name}: {reason or 'done'}, {time.monotonic() - began:.0f} s in total", flush=True)
        failed |= not collect(results, given.out, environment)
    sys.exit(int(failed))


def chosen_by(name: str, wanted: list[str]) -> bool:
    return not wanted or name == "machine" or any(name.startswith(each) for each in wanted)


def speech() -> Path | None:
    """Returns the folder of the manifests, or None."""
    folders = [CARRY / "data/manifests"]
    if shared := os.environ.get("ASR_JAX_SHARED"):
        folders.append(Path(shared) / "data/read_speech_6h/manifests")
    return next((each for each in folders if (each / "train.jsonl").exists()), None)


def print_plan(chosen: list[Part], data: Path | None, seconds: int) -> None:
    total = 0
    print(f"gpu_check: speech: {data or 'none was found, batches are synthetic'}; {seconds} s for all parts")
    for part in chosen:
        total += part.limit_s
        print(f"  {part.name:32} at most {part.limit_s:4} s, {total:5} s in total")


def prepared(smoke: bool) -> dict[str, str]:
    """Installs the missing packages of .carry/wheels, and returns the environment of the parts."""
    packages = CARRY / "packages"
    wheels = sorted((CARRY / "wheels").glob("*.whl"))
    if wheels and not packages.exists():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile"]
        subprocess.run([*install, "--target", packages, *wheels], check=True)
    paths = [str(ROOT), *([str(packages)] if packages.exists() else []), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
    environment.pop("XLA_PYTHON_CLIENT_MEM_FRACTION", None)  # JAX refuses to start if both names are set
    return environment | {"JAX_PLATFORMS": "cpu" if smoke else "cuda,cpu"}


def run(part: Part, limit_s: float | None, smoke: bool, environment: dict[str, str]) -> str:
    """Runs a part; its output is in PARTS/NAME.txt. Returns why it failed, or an empty text."""
    if limit_s is not None and limit_s < LEAST_S:
        return "no time left"
    command = [sys.executable, *part.arguments, *(part.smoke if smoke else ())]
    with (PARTS / f"{part.name}.txt").open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes of the loader
            process.wait()
            return f"time limit of {limit_s:.0f} s"
    if code:
        lines = (PARTS / f"{part.name}.txt").read_text(errors="replace").strip().splitlines()
        print("\n".join(lines[-SHOWN:]), flush=True)
        return f"exit code {code}: {''.join(lines[-1:])[:300]}"
    return ""


def collect(results: Path, out: Path | None, environment: dict[str, str]) -> bool:
    """Writes the file of the device, and copies it to `out`. Returns whether this was possible."""
    command = [sys.executable, "-m", "benchmarks.device_results", "collect", PARTS, "--out", results]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"gpu_check: no file of the device: {done.stderr.strip()[-500:]}", flush=True)
        return False
    if out:
        out.mkdir(parents=True, exist_ok=True)
        shutil.copy(done.stdout.strip().splitlines()[-1], out)
    return True


if __name__ == "__main__":
    main()
