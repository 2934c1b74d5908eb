"""Prepares a GPU machine without a network, and rehearses its check: `python scripts/gpu_carry.py prepare|rehearse`.

`prepare` writes to .carry what the machine needs beside the checkout: wheels of the packages that its Python lacks, and
a part of the read speech of ASR_JAX_SHARED (default: ../shared). It fails if the checkout and .carry exceed 64 MiB.

`rehearse` makes the environment of benchmarks/device_packages.txt in .venv-device (6 GB), copies what would be carried
to an empty folder, and runs benchmarks/gpu_check.py there in smoke sizes on a CPU, without a network. It fails if a
part fails or is omitted.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CARRY = ROOT / ".carry"
MOST_BYTES = 64 << 20
HOURS = 3.9
WHEELS = (
    "array-record", "beartype", "cffi", "docstring-parser", "flax", "grain", "jax-triton==0.3.1", "optax",
    "orbax-checkpoint", "portpicker", "pycparser", "rapidfuzz", "soundfile", "soxr", "tensorboardx", "typeguard",
    "tyro",
)  # fmt: skip
"""Packages of pyproject.toml that benchmarks/device_packages.txt lacks, and their dependencies, in the versions of
constraints.txt. The machine has flax, optax and orbax-checkpoint in unknown versions. icu4py (16 MB) is left out,
because the speech is English. jax-triton 0.3.1 is the newest one for the machine's JAX."""
PLATFORMS = (
    "manylinux_2_28_x86_64", "manylinux_2_27_x86_64", "manylinux_2_24_x86_64", "manylinux2014_x86_64",
    "manylinux1_x86_64", "any",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("prepare", "rehearse"))
    parser.add_argument("parts", nargs="*", help="parts of gpu_check.py for the rehearsal; default: all")
    given = parser.parse_args()
    if given.command == "prepare":
        prepare()
    else:
        rehearse(given.parts)


def prepare() -> None:
    shutil.rmtree(CARRY, ignore_errors=True)
    versions = dict(re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    wheels = [each if "==" in each else f"{each}=={versions[each]}" for each in WHEELS]
    platforms = [option for each in PLATFORMS for option in ("--platform", each)]
    subprocess.run(
        [
            *(ROOT / ".venv/bin/python", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"),
            *("--python-version", "3.12", *platforms, "--dest", CARRY / "wheels", *wheels),
        ],
        check=True,
    )
    build_kenlm(f"kenlm=={versions['kenlm']}", CARRY / "wheels")
    shared = Path(os.environ.get("ASR_JAX_SHARED", ROOT.parent / "shared"))
    slice_corpus(shared / "data/read_speech_6h", CARRY / "data", HOURS)
    check_size(carried())


def build_kenlm(package: str, out: Path) -> None:
    """Builds a wheel of kenlm, which is published as source code only; without symbols, it has 0.4 MB instead of 3."""
    subprocess.run(
        [ROOT / ".venv/bin/python", "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", out, package],
        check=True,
    )
    (wheel,) = out.glob("kenlm*.whl")
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(wheel, folder, "zip")
        subprocess.run(["strip", *Path(folder).glob("*.so")], check=True)
        shutil.move(shutil.make_archive(str(out / "kenlm"), "zip", folder), wheel)


def check_size(files: list[Path]) -> None:
    """Prints the size of files. Exits with an error if it is above `MOST_BYTES`."""
    size = sum(path.stat().st_size for path in files)
    print(f"gpu_carry: {size / 2**20:.1f} MiB of at most {MOST_BYTES >> 20} MiB in {len(files)} files")
    if size > MOST_BYTES:
        sys.exit("error: the checkout and .carry are too large; reduce HOURS in scripts/gpu_carry.py")


def slice_corpus(corpus: Path, out: Path, hours: float) -> None:
    """Copies evenly spaced utterances of a training set, and all of the other sets, with their files.

    Args:
        corpus: Folder with `manifests/*.jsonl`, whose audio paths are relative to it.
        out: New folder.
        hours: Most hours of the training set.
    """
    (out / "manifests").mkdir(parents=True)
    for manifest in sorted((corpus / "manifests").glob("*.jsonl")):
        entries = [json.loads(line) for line in manifest.read_text().splitlines()]
        total = sum(each["duration"] for each in entries)
        share = min(1.0, hours * 3600 / total) if manifest.stem == "train" else 1.0
        kept = [each for i, each in enumerate(entries) if int((i + 1) * share) > int(i * share)]
        for each in kept:
            target = out / each["audio_path"]
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(corpus / each["audio_path"], target)
        (out / "manifests" / manifest.name).write_text("".join(f"{json.dumps(each)}\n" for each in kept))


def carried() -> list[Path]:
    """Returns the files to copy to the machine: all files of .carry, and of the checkout without ignored ones."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    files = [ROOT / name for name in names if name]
    return [path for path in (*files, *CARRY.rglob("*")) if path.is_file()]


def rehearse(parts: list[str]) -> None:
    python = environment()
    with tempfile.TemporaryDirectory() as folder:
        checkout, out = Path(folder) / "checkout", Path(folder) / "out"
        for path in carried():
            target = checkout / path.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
        alone = {"PATH": "/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8", "JAX_PLATFORMS": "cpu"}
        done = subprocess.run(
            [*without_network(), python, "benchmarks/gpu_check.py", "--smoke", "--out", out, *parts],
            cwd=checkout, env=alone, check=False,
        )  # fmt: skip
    if done.returncode:
        sys.exit(f"error: the rehearsal failed with exit code {done.returncode}")


def environment() -> Path:
    """Makes .venv-device with the packages of benchmarks/device_packages.txt and no others; returns its Python."""
    folder, listed = ROOT / ".venv-device", ROOT / "benchmarks/device_packages.txt"
    python, installed = folder / "bin/python", folder / ".installed"
    if not installed.exists() or installed.read_text() != listed.read_text():
        subprocess.run([ROOT / ".venv/bin/python", "-m", "venv", "--clear", folder], check=True)
        pip = [python, "-m", "pip"]
        subprocess.run([*pip, "install", "--quiet", "--no-compile", "-r", listed], check=True)
        kept = {line.partition("==")[0] for line in listed.read_text().splitlines()} | {"pip"}
        found = subprocess.run([*pip, "list", "--format", "json"], capture_output=True, text=True, check=True).stdout
        others = {re.sub("[-_.]+", "-", each["name"]).lower() for each in json.loads(found)} - kept
        if others:  # dependencies of listed packages that the machine does not have
            subprocess.run([*pip, "uninstall", "--quiet", "--yes", *sorted(others)], check=True)
        installed.write_text(listed.read_text())
    return python


def without_network() -> list[str]:
    """Returns the command that starts another one without a network, if this user may do that."""
    command = ["unshare", "--net", "--map-root-user"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        print("gpu_carry: the rehearsal has the network, because unshare is not permitted", file=sys.stderr)
        return []
    return command


if __name__ == "__main__":
    main()
