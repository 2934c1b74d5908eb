"""Figures of a device: `python -m benchmarks.device_results collect PARTS --out FOLDER`, then `… fastest`.

`collect` writes the JSON files of the benchmarks in PARTS, as scripts/gpu_check.sh leaves them, to FOLDER/DEVICE.json.
`fastest` reads all benchmarks/results/DEVICE.json and writes asr_jax/kernels/fastest.json, which implementation="auto"
of kernels uses: the kernels that took less time than all other implementations in each operation and precision.
"""

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.kernels.implementations import FASTEST, KERNELS, SELECTABLE

RESULTS = Path(__file__).with_name("results")
TEXTS = TESTS, OMITTED = "tests.txt", "omitted.txt"
"""Files of the parts: the output of the tests, and a line for each part that was not run or failed, with the reason."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collecting = commands.add_parser("collect")
    collecting.add_argument("parts", type=Path, help="folder of the JSON files")
    collecting.add_argument("--out", type=Path, default=RESULTS, help="folder for the file of the device: %(default)s")
    commands.add_parser("fastest")
    given = parser.parse_args()
    if given.command == "collect":
        print(collect(given.parts, given.out))
        return
    found = fastest(map(json.loads, (path.read_text() for path in device_files())))
    write_whole(FASTEST, json.dumps(found, indent=1) + "\n")
    print(f"{FASTEST.name}: {found or 'no kernel was faster, or no device was measured'}")


def collect(parts: Path, out: Path) -> Path:
    """Writes the figures of a device to one file.

    Args:
        parts: Folder of JSON files of benchmarks, of one device.
        out: Folder for the file, whose name is that of the device.

    Raises:
        UserError: If there is no file, or the files are of several devices.
    """
    found = {path.stem: _without_times(json.loads(path.read_text())) for path in sorted(parts.glob("*.json"))}
    devices = {device for each in found.values() if (device := _device_of(each))}
    if len(devices) != 1:
        raise UserError(f"{parts} has figures of {len(devices)} devices: expected those of one device")
    (device,) = devices
    lines = {name: (parts / name).read_text().splitlines() if (parts / name).exists() else [] for name in TEXTS}
    content = {"device": device, "tests": lines[TESTS][-1:], "omitted": lines[OMITTED], "figures": found}
    path = out / f"{re.sub('[^a-z0-9]+', '-', device.lower()).strip('-')}.json"
    write_whole(path, json.dumps(content, indent=1) + "\n")
    return path


def device_files() -> Iterator[Path]:
    """Yields the files that `collect` wrote to `RESULTS`."""
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text())
        if isinstance(content, dict) and {"device", "omitted", "figures"} <= content.keys():
            yield path


def fastest(files: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, str]]:
    """Returns the kernels that are faster than all other implementations.

    A kernel is faster if its median time is less in each measured operation, with and without gradient, and in each
    precision. A kernel that cannot compute one of them is not faster.

    Args:
        files: Contents of the files that `collect` wrote.

    Returns:
        The implementation of each such kernel, by `jax.Device.device_kind`.
    """
    found = dict[str, dict[str, str]]()
    for content in files:
        rows = dict[str, dict[tuple[str, str], dict[str, float]]]()
        for name, figures in content["figures"].items():
            for row in figures["rows"] if name.startswith("kernels_") else ():
                case = rows.setdefault(row["kernel"], {}).setdefault((row["operation"], figures["precision"]), {})
                case[row["implementation"]] = row["ms"]
        for kernel, cases in rows.items():
            names = {min(times, key=times.__getitem__) for times in cases.values()}
            if kernel in SELECTABLE and len(names) == 1 and names <= KERNELS.keys():
                found.setdefault(content["device"], {})[kernel] = names.pop()
    return found


def _device_of(figures: Any) -> str:
    """Returns JAX's name of the device of the figures; empty if they have none."""
    if not isinstance(figures, dict):
        return ""
    machine = figures.get("machine", {})
    return str(figures.get("device") or machine.get("device", ""))


def _without_times(figures: Any) -> Any:
    """Removes the lists of the times of single calls, of which the median remains."""
    if isinstance(figures, dict):
        kept = {name: each for name, each in figures.items() if name != "times_s" or not isinstance(each, list)}
        return {name: _without_times(each) for name, each in kept.items()}
    return [_without_times(each) for each in figures] if isinstance(figures, list) else figures


if __name__ == "__main__":
    main()
