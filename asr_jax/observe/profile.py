"""Prints a summary of the XLA traces of a run: `python -m asr_jax.observe.profile RUN`.

It reads the newest trace of each process that `--profile 10:15` has written: operations that take most of the time,
the share of collectives, the time in which a device is idle, and the host's time in waiting for data.
"""

import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from jax.profiler import ProfileData
from tyro.conf import Positional, arg

from asr_jax.core.errors import UserError
from asr_jax.core.hlo import COLLECTIVES, RUNS
from asr_jax.core.options import parse, run_report
from asr_jax.core.run_folder import PROFILE
from asr_jax.core.settings import command_options
from asr_jax.metrics.throughput import TRACED
from asr_jax.observe.tables import percent, print_table

OPERATIONS, STREAM = "XLA Ops", "Stream"
"""Name of the line of a device's operations, which has other lines of programs, steps and scopes, and beginning of the
names of a GPU's streams, which are read in its absence."""


class TracedOperation(NamedTuple):
    """One execution of an operation on a device."""

    device: str
    program: str
    name: str
    begin_ns: float
    end_ns: float

    @property
    def is_collective(self) -> bool:
        """Whether devices exchange data. On a CPU and a GPU, its time includes waiting for the other devices."""
        return self.name.startswith(COLLECTIVES)


@dataclass(frozen=True)
class Trace:
    """Operations of the devices of a process, and seconds of its training loop by kind."""

    operations: list[TracedOperation]
    """Without loops, conditionals and calls, which contain others."""
    host_s: dict[str, float]
    """Seconds of waiting, of host work and of waiting for the device: the kinds of `Throughput.timed`."""

    @property
    def seconds(self) -> float:
        """Time from the beginning of the first operation to the end of the last one."""
        begin = min(each.begin_ns for each in self.operations)
        return (max(each.end_ns for each in self.operations) - begin) / 1e9


def read_trace(path: Path) -> Trace:
    """Reads a trace of one process.

    Raises:
        UserError: If the file is not a trace, or has no operations of a device.
    """
    host_s = defaultdict[str, float](float)
    operations = list[TracedOperation]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the types of the reader have no module
        try:
            planes = list(ProfileData.from_file(str(path)).planes)
        except Exception as error:  # the reader's errors have no common type
            raise UserError(f"{path}: not an XLA trace ({error}); write another with --profile 10:15") from error
        for plane in planes:
            is_device = plane.name.startswith("/device:")
            for line in _lines(plane, is_device=is_device):
                for event in line.events:
                    if event.name.startswith(TRACED):
                        host_s[event.name.removeprefix(TRACED)] += event.duration_ns / 1e9
                    elif operation := _operation(event, plane.name if is_device else ""):
                        operations.append(operation)
    if not operations:
        raise UserError(f"{path}: the trace has no operations of a device; write another with --profile 10:15")
    return Trace(operations, dict(host_s))


def _lines(plane: Any, *, is_device: bool) -> list[Any]:
    """Returns the lines with operations of a device, or all lines of a host."""
    lines = list(plane.lines)
    if not is_device:
        return lines
    return [line for line in lines if line.name == OPERATIONS] or [
        line for line in lines if line.name.startswith(STREAM)
    ]


def _operation(event: Any, device: str) -> TracedOperation | None:
    """Returns the operation of an event. None: it is not one, or contains others."""
    stats = {name: value for name, value in event.stats if name in ("hlo_op", "hlo_module", "device_ordinal")}
    if not device and "hlo_op" not in stats:
        return None
    name = str(stats.get("hlo_op") or event.name.removeprefix("%").split(" ")[0])
    if name.split(".")[0] in RUNS:
        return None
    device = device.removeprefix("/device:") or f"CPU:{stats.get('device_ordinal', 0)}"
    return TracedOperation(device, str(stats.get("hlo_module", "")), name, event.start_ns, event.end_ns)


def largest(trace: Trace, number: int) -> list[dict[str, Any]]:
    """Returns the operations with the longest total time: share of the time of all operations, time and calls."""
    by_name = defaultdict[tuple[str, str], list[TracedOperation]](list)
    for each in trace.operations:
        by_name[each.name, each.program].append(each)
    seconds = {key: _total_s(operations) for key, operations in by_name.items()}
    total = sum(seconds.values())
    return [
        {
            "operation": key[0],
            "program": key[1],
            "share": seconds[key] / total,
            "ms": 1e3 * seconds[key],
            "calls": len(by_name[key]),
        }
        for key in sorted(seconds, key=seconds.__getitem__, reverse=True)[:number]
    ]


def devices(trace: Trace) -> list[dict[str, Any]]:
    """Returns the shares of each device: idle in the time of the trace, and collectives in the time of operations."""
    by_device = defaultdict[str, list[TracedOperation]](list)
    for each in trace.operations:
        by_device[each.device].append(each)
    return [
        {
            "device": device,
            "busy_s": (busy := _union_s(operations)),
            "idle_share": 1 - busy / trace.seconds,
            "collectives_share": _total_s(each for each in operations if each.is_collective) / _total_s(operations),
        }
        for device, operations in sorted(by_device.items())
    ]


def _total_s(operations: Iterable[TracedOperation]) -> float:
    return sum(each.end_ns - each.begin_ns for each in operations) / 1e9


def _union_s(operations: list[TracedOperation]) -> float:
    """Returns the time in which at least one operation runs."""
    union_ns, until_ns = 0.0, 0.0
    for begin_ns, end_ns in sorted((each.begin_ns, each.end_ns) for each in operations):
        union_ns += max(end_ns - max(begin_ns, until_ns), 0.0)
        until_ns = max(until_ns, end_ns)
    return union_ns / 1e9


def host_line(trace: Trace) -> str:
    """Returns the host's time in the training loop as one line."""
    total = sum(trace.host_s.values())
    if not total:
        return "host: the trace has no updates of the training loop"
    names = {"waiting": "waiting for data", "host": "host work", "device": "waiting for the device"}
    parts = [
        f"{name} {trace.host_s.get(kind, 0.0):.3f} s ({percent(trace.host_s.get(kind, 0.0) / total, digits=0)})"
        for kind, name in names.items()
    ]
    return f"host: {', '.join(parts)}"


def newest_traces(folder: Path) -> list[Path]:
    """Returns the newest trace of each process of a run.

    Raises:
        UserError: If there is none, or no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; expected the folder of a training run")
    found = {path.parents[3]: path for path in sorted((folder / PROFILE).rglob("*.xplane.pb"))}  # by time
    if not found:
        raise UserError(f"{folder / PROFILE} has no trace; the next job writes one with --profile 10:15")
    return list(found.values())


@command_options
class ProfileOptions:
    """Options of `asr_jax.observe.profile`."""

    run_dir: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of the run, which contains profile/."""
    operations: int = 15
    """Number of operations to print."""


def main(arguments: Sequence[str]) -> None:
    options = parse(ProfileOptions, arguments, prog="python -m asr_jax.observe.profile", about=__doc__)
    for path in newest_traces(options.run_dir):
        trace = read_trace(path)
        print(f"{path}: {trace.seconds:.3f} s")
        print_table(largest(trace, options.operations), title="operations")
        print_table(devices(trace), title="devices")
        print(host_line(trace))


if __name__ == "__main__":
    run_report(main)
