"""Measures everything that needs a GPU: `python3 benchmarks/gpu_check.py [PART …] [--call N] [--out FOLDER]`.

Each part is a process with a time limit and writes one file. After each part, benchmarks/results/DEVICE.json is written
and copied to FOLDER, with the ends of the parts' output in parts.txt, so that nothing is lost if the call is cut off.
Parts that fail, that run over their limit or that do not fit into SECONDS are named in the file, and the others are not
affected. A later call with other parts adds to the same file.

The parts are divided into three calls. The machine is lent for 30 minutes in all, and each start of it takes one to two
of them. Call 1 trains a run that is killed and resumed, and measures the most important models, with PyTorch beside
them. Call 2 trains a model worth showing. Call 3 has the other parts; those that do not fit are omitted. `--call N`
runs the parts of a call, and the PARTs that are named as well. `--plan` prints the parts with their limits.

Packages that this Python lacks are installed from .carry/wheels, and speech is read from .carry/data
(scripts/gpu_carry.py prepare); without it, from ASR_JAX_SHARED; without both, batches are synthetic. That speech is
Ogg Opus, which is decoded more slowly than a GPU trains; the parts read a copy of it in FLAC, the format of
LibriSpeech, and the part `decoding` has the speeds of all formats. `--smoke` runs all parts in tiny sizes on a CPU.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CARRY, PARTS = ROOT / ".carry", ROOT / "benchmarks/results/parts"
OMITTED = "omitted.txt"
SHOWN = 25
"""Number of the last lines of output that are printed if a part fails."""
LEAST_S = 15
"""Time below which no part is started, in seconds."""
FLAC_S = 60
"""Time limit of the copy of the speech in FLAC, in seconds."""
SHOWN_BYTES = 20_000
"""Number of the last bytes of the output of each part that are in parts.txt."""
CALL_S = {1: 540, 2: 585, 3: 345}
"""Time of each call in seconds. With three starts of the machine, their sum is below the 30 minutes."""
FAMILIES = ("zipformer", "fastconformer_librispeech", "rnnt_base")
"""Configs to train in the first call, the most important ones first."""
OTHER_FAMILIES = (
    "w2v_bert_finetune", "conformer_librispeech", "quartznet_librispeech", "paraformer_rust",
    "squeezeformer_librispeech", "zipformer_transducer", "wav2vec2_finetune",
)  # fmt: skip
"""Configs to train in the third call, after wav2vec 2.0."""
TRACED = ("zipformer", "rnnt_base")
LIMIT_S = 120
"""Time limit of a part that compiles a large model, in seconds: half a minute to a minute and a half, and the start."""
TRAINING_S = {"zipformer": 200, "zipformer_transducer": 200, "squeezeformer_librispeech": 160}
"""Time limits of training where compilation takes longer."""


def folder(name: str) -> str:
    """Returns the path of a folder of a part, relative to the checkout, since figures contain it."""
    return os.path.relpath(PARTS / name, ROOT)


def flags(**fields: str) -> tuple[str, ...]:
    """Returns the flags of fields of the encoder."""
    each = ((f"--model.encoder.{name.replace('_', '-')}", *value.split()) for name, value in fields.items())
    return tuple(part for flag in each for part in flag)


ZIPFORMER = flags(
    downsampling="1 2", dims="64 64", num_layers="1 1", unmasked_dims="48 48", feedforward_dims="64 64",
    num_heads="4 4", query_dims="8 8", value_dims="8 8", position_dims="4 4", kernel_sizes="15 15",
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
    call: int = 3
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
    yield Part("machine", 60, (*device, *json_of("machine")), call=1)
    run = "-m", "benchmarks.first_run", "--data", str(data)
    if data:
        more = "--deterministic", "--folder", folder("first_run")
        yield Part("first_run", 200, (*run, *more, *json_of("first_run")), ("--smoke",), call=1)
    for family in FAMILIES[:2]:
        yield training(family, data, smoke, json_of(f"train_{family}"), call=1)
    yield from beside_pytorch(json_of)
    for family in FAMILIES[2:]:
        yield training(family, data, smoke, json_of(f"train_{family}"), call=1)
    if data:
        yield Part(
            "decoding", 60,
            ("-m", "benchmarks.decoding", "--data", str(data / "train.jsonl"), "--threads", "1", "8", "16",
             "--minutes", "3", "--repeats", "3", *json_of("decoding")),
            ("--minutes", "0.5", "--repeats", "1"), call=1,
        )  # fmt: skip
        yield Part(
            "showing", 560,
            ("-m", "benchmarks.showing", "--data", str(data), "--folder", folder("showing"), "--seconds", "510",
             *json_of("showing")),
            ("--smoke",), call=2,
        )  # fmt: skip
    yield inference("fastconformer", data, smoke, json_of("inference_fastconformer"))
    yield training("wav2vec2_pretrain", data, smoke, json_of("train_wav2vec2_pretrain"))
    yield inference("transducer", data, smoke, json_of("inference_transducer"))
    yield Part(
        "tests", 240,
        ("-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", *(() if smoke else ("-n", "6")),
         "tests/test_gpu.py"),
        environment=(("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),),  # each process takes the memory that it needs
    )  # fmt: skip
    for precision in ("bf16", "f32"):
        name = f"kernels_{precision}"
        yield Part(
            name, LIMIT_S, ("-m", "asr_jax.benchmark", "kernels", "--precision", precision, *json_of(name)),
            ("--batch", "2", "--seq-len", "16", "--channels", "8", "--labels", "4", "--iterations", "2",
             "--warm-ups", "1"),
        )  # fmt: skip
    for family in OTHER_FAMILIES:
        yield training(family, data, smoke, json_of(f"train_{family}"))
    yield inference("conformer", data, smoke, json_of("inference_conformer"))
    yield Part(
        "frontend", 40,
        ("-m", "benchmarks.front_ends", "--seconds", "20", "--rows", "64", *json_of("frontend")),
        ("--seconds", "1", "--rows", "2", "--repeats", "1"),
    )  # fmt: skip
    if data:
        more = "--folder", folder("first_run_default")
        yield Part("first_run_default", 120, (*run, *more, *json_of("first_run_default")), ("--smoke",))


def beside_pytorch(json_of: Callable[[str], tuple[str, str]]) -> Iterator[Part]:
    """Yields the parts that measure transformers' models beside ours, on equal batches in bfloat16."""
    for name, config, rows, vocabulary, tiny in (
        ("torch_fastconformer", "configs/fastconformer_librispeech.py", 64, 257, CONFORMER),
        ("torch_wav2vec2_base", "benchmarks/wav2vec2_base_ctc.py", 32, 32, WAV2VEC2),
    ):
        yield Part(
            name, LIMIT_S,
            ("-m", "benchmarks.model", "--config", config, "--rows", str(rows), "--seconds", "15", "--vocabulary",
             str(vocabulary), "--training.precision", "bf16", "--repeats", "15", "--settling-s", "1", "--peer",
             *json_of(name)),
            ("--rows", "2", "--seconds", "1", "--labels", "3", "--repeats", "1", "--settling-s", "0", *tiny),
            call=1,
        )  # fmt: skip


RECOGNISED = {
    "fastconformer": ("fastconformer_librispeech", (), CONFORMER),
    "conformer": ("conformer_librispeech", (), CONFORMER),
    # Random weights find a label in each frame, so that this is the longest time of the search.
    "transducer": ("rnnt_base", ("--vocabulary", "500", "--model.heads.transducer.decoding.max-symbols", "1"),
                   TINY["rnnt_base"]),
}  # fmt: skip
"""Config, flags, and flags for --smoke, of each greedy recognition."""


def inference(name: str, data: Path | None, smoke: bool, json_of: tuple[str, str]) -> Part:
    """Returns the part of a greedy recognition: from files to texts, or of noise if there is no speech."""
    config, options, tiny = RECOGNISED[name]
    what: tuple[str, ...] = "--seconds", "16.7", "--steps", "30"
    if data:
        files = str(data / ("test.jsonl" if smoke else "train.jsonl"))
        what = "--data", files, "--workers", "12", "--repeats", "2", "--warm-up-repeats", "1"
    return Part(
        f"inference_{name}", LIMIT_S,
        ("-m", "asr_jax.benchmark", "inference", "--config", f"configs/{config}.py", "--batch-sizes",
         *(("4",) if smoke else ("64", "256")), "--precision", "bf16", *what, *options, *json_of),
        ("--workers", "1", *tiny),
    )  # fmt: skip


def training(family: str, data: Path | None, smoke: bool, json_of: tuple[str, str], *, call: int = 3) -> Part:
    """Returns the part that trains a family: one bucket, with the batch that was compiled for an H100 in advance.

    Only utterances of at least 12 s are read, so that this bucket has little padding: about a sixth of it, and a
    quarter with three speeds.
    """
    seconds = 32 if smoke else planned_seconds(family)
    read = "--synthetic", "16", "--batch", str(seconds // 16)
    if data:
        read = "--data.train", str(data / "train.jsonl"), "--data.validation", str(data / "val.jsonl")
        read = *read, "--data.filters.min-duration-s", "12"
    options: tuple[str, ...] = ()
    if family == "wav2vec2_pretrain":
        options = "--model.sub-batches", "1"  # the config's batch has parts for 64 GPUs
    elif not family.startswith(("quartznet", "wav2vec2", "w2v_bert")):  # these have characters
        options = "--data.tokenizer.vocab-size", "500"
    if family in TRACED:
        options = *options, "--trace", folder(f"trace_{family}")
    tiny = "--warm-ups", "1", "--updates", "2", *TINY[family]
    return Part(
        f"train_{family}", TRAINING_S.get(family, LIMIT_S),
        ("-m", "asr_jax.benchmark", "train", "--config", f"configs/{family}.py", *read,
         "--data.batching.num-buckets", "1", "--data.batching.unit", "padded-seconds",
         "--data.batching.budget", str(seconds), "--data.batching.max-rows", "1024",
         "--data.batching.row-multiple", "1", "--training.accumulate", "1",
         "--num-devices", "1", "--warm-ups", "3", "--updates", "10", "--data.workers", "12", *options,
         *json_of),
        (*tiny, "--data.workers", "1"), call=call,
    )  # fmt: skip


def planned_seconds(family: str) -> int:
    """Returns the seconds of padded audio of the largest batch that was compiled for an H100 in advance."""
    batch = planned_batch(family)
    assert batch, f"benchmarks/results/compiled_programs.json has no batch of {family}"
    return int(batch["rows"] * batch["seconds"])


def planned_batch(config: str) -> dict[str, Any] | None:
    """Returns the row of the largest batch in benchmarks/results/compiled_programs.json; None if there is none."""
    rows = json.loads((ROOT / "benchmarks/results/compiled_programs.json").read_text())
    found = [row for row in rows if (row["config"], row["target"], row.get("program")) == (config, "h100", "gradient")]
    return max(found, key=lambda row: row["rows"] * row["seconds"], default=None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="names of parts, or their beginnings; default: all")
    parser.add_argument("--call", type=int, choices=CALL_S, help="run the parts of a call; default: of all calls")
    parser.add_argument("--out", type=Path, help="folder to which the files are copied after each part")
    parser.add_argument("--seconds", type=int, help="time limit of all parts on a GPU; default: 540, or of the call")
    parser.add_argument("--smoke", action="store_true", help="run in tiny sizes on a CPU, without time limits")
    parser.add_argument("--plan", action="store_true", help="print the parts with their limits, and do nothing")
    given = parser.parse_args()
    seconds, data = given.seconds or CALL_S[given.call or 1], speech()
    chosen = chosen_parts(data, given)
    names = [part.name for part in parts(data, given.smoke)]
    if unknown := [each for each in given.parts if not any(name.startswith(each) for name in names)]:
        sys.exit(f"error: no part is named {' or '.join(unknown)}; --plan prints the names")
    print_plan(chosen, data, seconds)
    if given.plan:
        return
    began, failed = time.monotonic(), False
    environment = prepared(given.smoke)
    shutil.rmtree(PARTS, ignore_errors=True)
    PARTS.mkdir(parents=True)
    if data:
        chosen = chosen_parts(in_flac(data, environment, share=0.1 if given.smoke else 1.0), given)
    results = PARTS / "smoke" if given.smoke else PARTS.parent
    for part in chosen:
        left = seconds - (time.monotonic() - began)
        reason = run(part, None if given.smoke else min(part.limit_s, left), given.smoke, environment)
        if reason:
            failed = True
            with (PARTS / OMITTED).open("a") as file:
                file.write(f"{part.name}: {reason}\n")
        print(f"gpu_check: {part.name}: {reason or 'done'}, {time.monotonic() - began:.0f} s in total", flush=True)
        if given.out:
            write_outputs(chosen, given.out)
        failed |= not collect(results, given.out, environment)
    sys.exit(int(failed))


def chosen_parts(data: Path | None, given: argparse.Namespace) -> list[Part]:
    """Returns the parts of the chosen call and the named parts, or all parts; the machine is always described."""
    every = [*parts(data, given.smoke)]
    if not given.call and not given.parts:
        return every
    return [
        each for each in every
        if each.name.startswith(("machine", *given.parts)) or each.call == given.call
    ]  # fmt: skip


def speech() -> Path | None:
    """Returns the folder of the manifests, or None."""
    folders = [CARRY / "data/manifests"]
    if shared := os.environ.get("ASR_JAX_SHARED"):
        folders.append(Path(shared) / "data/read_speech_6h/manifests")
    found = (each for each in folders if (each / "train.jsonl").exists())
    return next((Path(os.path.relpath(each, ROOT)) for each in found), None)  # figures name the sets by their paths


def print_plan(chosen: list[Part], data: Path | None, seconds: int) -> None:
    print(f"gpu_check: speech: {data or 'none was found, batches are synthetic'}; {seconds} s for all parts")
    for call, limit_s in CALL_S.items():
        of_call, total = [part for part in chosen if part.call == call], 0
        for part in of_call:
            total += part.limit_s
            print(f"  call {call}: {part.name:32} at most {part.limit_s:4} s, {total:5} s in total")
        if total > limit_s:
            print(f"  call {call} has {limit_s} s: its last parts are omitted if the others take their limits")


def in_flac(data: Path, environment: dict[str, str], *, share: float) -> Path:
    """Copies a share of the speech to PARTS in FLAC; returns the manifests of the copy, or `data` if that fails."""
    copy = Path(folder("flac"))
    command = [sys.executable, "-m", "benchmarks.flac_copy", data, copy, "--share", str(share)]
    with (PARTS / "flac.txt").open("w") as output:
        try:
            subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=output, check=True, timeout=FLAC_S)
        except subprocess.SubprocessError as error:
            print(f"gpu_check: the speech was not copied in FLAC: {error}", flush=True)
            return data
    return copy / "manifests"


def write_outputs(chosen: list[Part], out: Path) -> None:
    """Writes the ends of the output of all parts so far to one file."""
    out.mkdir(parents=True, exist_ok=True)
    with (out / "parts.txt").open("wb") as file:
        for path in [PARTS / f"{name}.txt" for name in ("flac", *(part.name for part in chosen))]:
            if path.exists():
                file.write(f"===== {path.stem}\n".encode() + path.read_bytes()[-SHOWN_BYTES:] + b"\n")


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
    if smoke:  # with the two threads of two cores, convolutions of JAX 0.11.2 have waited for each other forever
        of_cpu = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_backend_optimization_level=0", "NPROC": "8"}
        return environment | of_cpu
    return environment | {"JAX_PLATFORMS": "cuda,cpu"}


def run(part: Part, limit_s: float | None, smoke: bool, environment: dict[str, str]) -> str:
    """Runs a part; its output is in PARTS/NAME.txt. Returns why it failed, or an empty text."""
    if limit_s is not None and limit_s < LEAST_S:
        return "no time left"
    command = [sys.executable, *part.arguments, *(part.smoke if smoke else ())]
    with (PARTS / f"{part.name}.txt").open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment | dict(part.environment), stdout=output, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            end(process)
            return f"time limit of {limit_s:.0f} s"
    if code:
        lines = (PARTS / f"{part.name}.txt").read_text(errors="replace").strip().splitlines()
        print("\n".join(lines[-SHOWN:]), flush=True)
        return f"exit code {code}: {''.join(lines[-1:])[:300]}"
    return ""


def end(process: subprocess.Popen[bytes]) -> None:
    """Ends a part with its processes, and waits until all have ended and have freed the memory of the GPU."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with suppress(ProcessLookupError):
        for _ in range(150):
            os.killpg(process.pid, 0)
            time.sleep(0.1)


def collect(results: Path, out: Path | None, environment: dict[str, str]) -> bool:
    """Writes the file of the device, and copies it to `out`. Returns whether this was possible."""
    command = [sys.executable, "-m", "benchmarks.device_results", "collect", PARTS, "--out", results]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"gpu_check: no file of the device: {done.stderr.strip()[-500:]}", flush=True)
        return False
    if out:
        shutil.copy(done.stdout.strip().splitlines()[-1], out)
    return True


if __name__ == "__main__":
    main()
