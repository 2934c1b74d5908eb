"""Prints a health report of a run from its events: `python -m asr_jax.observe.health RUN_DIR`."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from asr_jax.core.files import size_of
from asr_jax.core.names import counted
from asr_jax.core.options import parse, run_report
from asr_jax.core.run_folder import CHECKPOINTS, REJECTED, VOIDED
from asr_jax.core.settings import command_options
from asr_jax.metrics.measure import deciding, deciding_text, measure_of, shown
from asr_jax.observe.events import FILE_NAME, Event, read_events
from asr_jax.observe.progress import clock
from asr_jax.observe.tables import percent, quantity
from asr_jax.observe.timeline import best_of, of_used_weights, timeline

ENDS = ("run_complete", "job_stopped", "run_failed")


def health(events_path: str | PathLike[str]) -> list[str]:
    """Returns a report of a run.

    The lines are the end of the run, the time in training, warnings, uploads if there are any, voided updates, rejected
    utterances, the size of the folder and the best checkpoint. Updates that were repeated after a resume count once.

    Raises:
        UserError: If the events cannot be read.
    """
    events = list(read_events(events_path))
    by_name, folder = timeline(events), Path(events_path).parent  # The run may have been moved: events have old paths.
    steps, validations = by_name.get("train_step", []), by_name.get("validation", [])
    # Warnings of refused checkpoints, for example, belong to no update.
    of_no_update = [each for each in events if each["event"] == "warning" and each["data"].get("update") is None]
    return [
        _ending(events, steps),
        _speed(steps, [event for event in events if event["event"] == "compile"]),
        _detectors([*by_name.get("warning", []), *of_no_update]),
        *_uploads(events),
        _voided(steps, by_name.get("voided", []), events, folder),
        _rejected(events, folder),
        _size(folder),
        _best(validations, by_name.get("checkpoint_saved", []), folder),
    ]


def _ending(events: Sequence[Event], steps: Sequence[Event]) -> str:
    jobs = sum(event["event"] == "run_start" for event in events)
    place = max((number for number, event in enumerate(events) if event["event"] in ENDS), default=-1)
    last = events[place] if place >= 0 else None
    goes_on = last is None or any(event["event"] == "run_start" for event in events[place:])
    kind = {"run_complete": "complete", "job_stopped": "stopped", "run_failed": "FAILED"}
    end = "not yet, or the job was killed" if goes_on or last is None else kind[last["event"]]
    reason = f" ({last['data'].get('reason', '')})" if last and not goes_on else ""
    updates = max((event["data"]["update"] for event in steps), default=0)
    if last and not goes_on:  # updates that a killed job made after its last checkpoint may not have been repeated
        updates = last["data"].get("update", updates)
    seconds = events[-1]["data"].get("elapsed_s", 0.0) if events else 0.0
    return f"ended: {end}{reason}; {counted(updates, 'update')} in {counted(jobs, 'job')}, {clock(seconds)}"


def _speed(steps: Sequence[Event], compiled: Sequence[Event]) -> str:
    rates = [event["data"].get("throughput", {}) for event in steps]
    spent = dict.fromkeys(("waiting", "host", "device"), 0.0)
    for rate in rates:
        wall_s = (rate.get("batch_s") or 0.0) * (rate.get("num_batches") or 0)
        for kind in spent:
            spent[kind] += wall_s * (rate.get(f"{kind}_share") or 0.0)
    total = sum(spent.values())
    if not total:
        return "time: no training yet"
    shares = ", ".join(f"{kind} {percent(seconds / total, digits=0)}" for kind, seconds in spent.items())
    compiling = f"; compiling: {clock(sum(event['data'].get('seconds', 0) for event in compiled))}" if compiled else ""
    lost = f"lost to waiting for data: {clock(spent['waiting'])}{_slowest(steps)}"
    return f"time in training: {clock(total)}: {shares}; {lost}{compiling}"


def _slowest(steps: Sequence[Event]) -> str:
    """Returns the process with the longest waits for batches, with several processes; otherwise nothing."""
    found = [event["data"]["processes"]["waiting_s"] for event in steps if "processes" in event["data"]]
    if not found:
        return ""
    longest = defaultdict[int, list[float]](list)
    for each in found:
        longest[each["process"]].append(each["max"])
    process, waits = max(longest.items(), key=lambda item: sum(item[1]))
    return (
        f" (mean of the processes {clock(sum(each['mean'] for each in found))}; process {process} waited longest in "
        f"{len(waits)} of {len(found)} lines, {clock(sum(waits))} in these)"
    )


def _detectors(warnings: Sequence[Event]) -> str:
    if not warnings:
        return "detectors: nothing"
    kinds = Counter(event["data"].get("detector") or "other" for event in warnings)
    return "detectors: " + ", ".join(f"{kind} ×{num}{_first(warnings, kind)}" for kind, num in kinds.items())


def _first(warnings: Sequence[Event], kind: str) -> str:
    of_kind = [event["data"] for event in warnings if (event["data"].get("detector") or "other") == kind]
    updates = [data["update"] for data in of_kind if data.get("update") is not None]
    processes = sorted({data["process"] for data in of_kind if "process" in data})
    who = f"process {', '.join(map(str, processes))}, " if processes else ""
    return f" ({who}first at update {min(updates):,})" if updates else ""


def _uploads(events: Sequence[Event]) -> list[str]:
    """Returns a line on the uploads; none if there were none."""
    done, failed = (
        [each["data"] for each in events if each["event"] == name] for name in ("uploaded", "upload_failed")
    )
    if not done and not failed:
        return []
    last = f"the last one is checkpoint {done[-1]['update']:,} at {done[-1]['url']}" if done else "none succeeded"
    reason = f"; the last of {counted(len(failed), 'failure')}: {failed[-1]['reason']}" if failed else ""
    return [f"uploads: {len(done)}, {last}{reason}"]


def _voided(steps: Sequence[Event], voided: Sequence[Event], events: Sequence[Event], folder: Path) -> str:
    number = steps[-1]["data"].get("voided", 0) if steps else 0
    where = f"; their batches are in {folder / VOIDED}" if voided else ""
    late = sum(event["event"] == "recompiled" for event in events)
    return f"updates that changed nothing: {number}{where}; programs compiled after the first update: {late}"


def count_rejected(events: Sequence[Event]) -> tuple[Counter[str], int, str]:
    """Counts rejected utterances, once each over the jobs of a run.

    Returns:
        The number for each reason, the number of utterances that are used with remarks on their audio, and the name of
        the file that lists all of them.
    """
    reasons: Counter[str] = Counter()
    path, num_differing = REJECTED, 0
    for place, event in enumerate(events):
        if event["event"] == "run_start":
            after = next((e["event"] for e in events[place + 1 :] if e["event"] in ("resumed", "train_step")), "")
            if after != "resumed":  # restarted before the first checkpoint
                reasons.clear()
                num_differing = 0
        if event["event"] == "rejected":
            reasons.update(event["data"].get("reasons", {}))
            path = Path(event["data"].get("path", REJECTED)).name
        if event["event"] == "differing":
            num_differing += event["data"]["count"]
    return reasons, num_differing, path


def _rejected(events: Sequence[Event], folder: Path) -> str:
    reasons, num_differing, path = count_rejected(events)
    more = f"; utterances used with remarks on their audio: {num_differing}" if num_differing else ""
    if not reasons:
        return f"rejected utterances: none{more}"
    parts = ", ".join(f"{num} {reason}" for reason, num in reasons.most_common(5))
    return f"rejected utterances: {sum(reasons.values())}: {parts}; all in {folder / path}{more}"


def _size(folder: Path) -> str:
    checkpoints = folder / CHECKPOINTS
    names = sorted((int(path.name) for path in checkpoints.glob("*") if path.name.isdecimal()), key=int)
    text = f"size: {quantity(size_of(folder), 'B')}"
    if not names:
        return text
    updates = ", ".join(map(str, names))
    return f"{text}, of which checkpoints {quantity(size_of(checkpoints), 'B')} (after updates {updates})"


def _best(validations: Sequence[Event], saved: Sequence[Event], folder: Path) -> str:
    used: list[dict[str, Any]] = [event["data"] for event in of_used_weights(validations)]
    if not (found := best_of(validations)):
        return "best checkpoint: no validation yet"
    best = found["data"]
    path = folder / CHECKPOINTS / str(best["update"])
    where = path if path.exists() or any(e["data"]["update"] == best["update"] for e in saved) else "not kept"
    measure = measure_of(best)
    last = shown(measure, deciding(used[-1])[measure])
    return f"best checkpoint: {deciding_text(best)} at update {best['update']:,}, {where}; the last validation: {last}"


@command_options
class HealthOptions:
    """Options of `asr_jax.observe.health`."""

    run_dir: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of the run, which contains events.jsonl."""


def main(arguments: Sequence[str]) -> None:
    options = parse(HealthOptions, arguments, prog="python -m asr_jax.observe.health", about=__doc__)
    print("\n".join(health(options.run_dir / FILE_NAME)))


if __name__ == "__main__":
    run_report(main)
