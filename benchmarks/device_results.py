"""Figures of a device: `python -m benchmarks.device_results collect PARTS --out FOLDER`, then `… fastest`.

`machine` writes versions, clocks and memory. `collect` writes the JSON files in PARTS of benchmarks/gpu_check.py to
FOLDER/DEVICE.json.
Other parts of an existing file are kept if they were measured with the same sources of the package. `fastest` reads all
benchmarks/results/DEVICE.json and writes asr_jax/kernels/fastest.json, which implementation="auto" of kernels uses: the
kernels that took at most 0.8 of the time of all other implementations in each operation and precision, on devices on
which the tests passed.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.programs import SOURCES
from asr_jax.core.targets import name_of
from asr_jax.kernels.implementations import FASTEST, KERNELS, SELECTABLE
from benchmarks.gpu_check import planned_batch

RESULTS = Path(__file__).with_name("results")
TEXTS = TESTS, OMITTED = "tests.txt", "omitted.txt"
"""Files of the parts: the output of the tests, and a line for each part that was not run or failed, with the reason."""
PRECISIONS = ("f32", "bf16")
GAIN = 0.8
"""Largest time of a kernel as a share of the next implementation's. In a model, XLA fuses its own operations with
others, but not calls of kernels."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect")
    collecting.add_argument("parts", type=Path, help="folder of the JSON files")
    collecting.add_argument("--out", type=Path, default=RESULTS, help="folder for the file of the device: %(default)s")
    commands.add_parser("fastest")
    describing = commands.add_parser("machine")
    describing.add_argument("--data", required=True, help="folder of the manifests, or synthetic")
    describing.add_argument("--json", type=Path, required=True, help="file to write")
    given = parser.parse_args()
    if given.command == "collect":
        try:
            print(collect(given.parts, given.out))
        except UserError as error:
            sys.exit(f"error: {error}")
        return
    if given.command == "machine":
        write_whole(given.json, json.dumps(machine(given.data), indent=1) + "\n")
        return
    found = fastest(map(json.loads, (path.read_text() for path in device_files())))
    write_whole(FASTEST, json.dumps(found, indent=1) + "\n")
    print(f"{FASTEST.name}: {found or 'no kernel was faster, or no device was measured'}")


def collect(parts: Path, out: Path) -> Path:
    """Writes the figures of a device to one file. Figures of training include the memory that was planned for an H100.

    Args:
        parts: Folder of JSON files of benchmarks, of one device.
        out: Folder for the file, whose name is that of the device.

    Raises:
        UserError: If there is no file, or the files are of several devices.
    """
    lines = {name: (parts / name).read_text().splitlines() if (parts / name).exists() else [] for name in TEXTS}
    omitted, figures, devices = lines[OMITTED], dict[str, Any](), set[str]()
    for path in sorted(parts.glob("*.json")):
        try:
            found = json.loads(path.read_text())
        except ValueError:
            omitted.append(f"{path.stem}: {path.name} is not JSON")
            continue
        if kind := found.get("device") or found.get("machine", {}).get("device"):
            devices.add(kind)
        if plan := planned(path.stem.removeprefix("train_")):
            found["planned_for_h100"] = plan
        figures[path.stem] = _without_times(found)
    if len(devices) != 1:
        names = ", ".join(sorted(devices)) or "no device"
        raise UserError(f"{parts}: the figures are of {names}; expected figures of one device")
    (kind,) = devices
    path = out / f"{re.sub('[^a-z0-9]+', '-', name_of(kind).lower()).strip('-')}.json"
    content = {
        "device": kind, "sources": SOURCES[:12], "date": time.strftime("%Y-%m-%d"), "tests": lines[TESTS][-1:],
        "omitted": omitted, "figures": figures,
    }  # fmt: skip
    before = json.loads(path.read_text()) if path.exists() else {}
    if before.get("sources") == content["sources"]:
        content["tests"] = content["tests"] or before["tests"]
        kept = [line for line in before["omitted"] if line.partition(":")[0] not in {*figures, "tests"}]
        content["omitted"] = [*dict.fromkeys((*kept, *omitted))]
        content["figures"] = before["figures"] | figures
    out.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(content, indent=1) + "\n")
    return path


def planned(config: str) -> dict[str, Any] | None:
    """Returns rows, seconds and memory of the largest batch that was compiled for an H100; None if there is none."""
    batch = planned_batch(config)
    return batch and {name: batch[name] for name in ("rows", "seconds")} | {"bytes": round(batch["memory GB"] * 1e9)}


def machine(data: str) -> dict[str, Any]:
    """Returns the device, its clocks and memory, the versions of packages and the speech that was found."""
    import jax

    fields = (
        "name,memory.total,driver_version,clocks.max.sm,clocks.max.memory,clocks.sm,clocks.mem,power.limit,"
        "temperature.gpu,compute_mode"
    )
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"]
    wanted = (
        "jax", "jaxlib", "jax-cuda13-plugin", "flax", "optax", "orbax-checkpoint", "numpy", "triton", "jax-triton",
        "torch", "torchaudio", "transformers", "grain",
    )  # fmt: skip
    manifests = sorted(Path(data).glob("*.jsonl"))
    entries = {path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in manifests}
    return {
        "device": jax.devices()[0].device_kind, "devices": len(jax.devices()), "cores": os.cpu_count(),
        "memory": jax.devices()[0].memory_stats(), "python": sys.version.split()[0],
        "nvidia_smi": subprocess.run(query, capture_output=True, text=True, check=False).stdout.splitlines()
        if shutil.which("nvidia-smi") else None,
        "versions": {name: each.version for each in distributions() if (name := each.metadata["Name"]) in wanted},
        "speech": {name: {"utterances": len(each), "hours": round(sum(e["duration"] for e in each) / 3600, 2)}
                   for name, each in entries.items()} or "synthetic",
    }  # fmt: skip


def device_files() -> Iterator[Path]:
    """Yields the files that `collect` wrote to `RESULTS`."""
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text())
        if isinstance(content, dict) and {"device", "tests", "omitted", "figures"} <= content.keys():
            yield path


def fastest(files: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Returns the kernels that are faster than all other implementations.

    A kernel is faster if its median time is at most `GAIN` of all others in each operation, with and without gradient,
    in float32 and in bfloat16. Recursions are measured in float32 without gradient. A kernel that cannot compute an
    operation is not faster. A device has none unless its tests passed and both precisions were measured to the end.

    Args:
        files: Contents of the files that `collect` wrote, one for each device.

    Returns:
        The implementation of each such kernel, by the name of the device (`core.targets.name_of`).
    """
    found = dict[str, dict[str, str]]()
    for content in files:
        figures = [content["figures"].get(f"kernels_{precision}") for precision in PRECISIONS]
        if not all(each and each["is_complete"] for each in figures) or not _have_passed(content["tests"]):
            continue
        cases = dict[str, dict[tuple[str, str], dict[str, float]]]()
        for each in figures:
            for row in each["rows"]:
                case = cases.setdefault(row["kernel"], {}).setdefault((row["operation"], each["precision"]), {})
                case[row["implementation"]] = row["ms"]
        for kernel, times in cases.items():
            names = {_fastest(case) for case in times.values()}
            if kernel in SELECTABLE and len(names) == 1 and names <= KERNELS.keys():
                found.setdefault(name_of(content["device"]), {})[kernel] = names.pop()
    return found


def _fastest(times: Mapping[str, float]) -> str:
    """Returns the implementation that takes at most `GAIN` of the time of each other; empty if there is none."""
    first, *others = sorted(times, key=times.__getitem__)
    return first if all(times[first] <= GAIN * times[other] for other in others) else ""


def _have_passed(last_lines: list[str]) -> bool:
    """Returns whether pytest's last line says that tests passed and none failed."""
    return any(re.search(r"\d+ passed", line) and not re.search("failed|error", line) for line in last_lines)


def _without_times(figures: Any) -> Any:
    """Removes the lists of the times of single calls, of which the median remains."""
    if isinstance(figures, dict):
        kept = {name: each for name, each in figures.items() if name != "times_s" or not isinstance(each, list)}
        return {name: _without_times(each) for name, each in kept.items()}
    return [_without_times(each) for each in figures] if isinstance(figures, list) else figures


if __name__ == "__main__":
    main()
