"""Everything that is shown of a run or of an extraction, from its events alone."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from asr_jax.core.names import counted
from asr_jax.metrics.measure import deciding_text
from asr_jax.observe.events import Event
from asr_jax.observe.health import count_rejected
from asr_jax.observe.progress import clock, left_s
from asr_jax.observe.tables import percent, quantity, validation_name
from asr_jax.observe.timeline import best_of, lines_of, of_used_weights, series, timeline

Data = dict[str, Any]
UNUSED = ("batch_start",)
"""Events of which nothing is shown. They are half of a file."""
DOING = {
    "run_start": "starting",
    "compile_start": "compiling",
    "compiled": "compiling",
    "compile": "starting",
    "train_step": "training",
    "validation_start": "validating",
    "validation": "training",
    "run_complete": "complete",
    "job_stopped": "stopped",
    "run_failed": "FAILED",
    "extraction_start": "extracting",
    "extraction": "extracting",
    "extracted": "extracting",
    "extraction_complete": "complete",
}
"""Work that follows an event. Other events do not change it."""
ENDS = ("complete", "stopped", "FAILED")
"""Values of `DOING` after which no event follows, unless another job continues the run."""

Line = tuple[np.ndarray, np.ndarray]
"""Positions and values of a curve, such as updates and losses."""


@dataclass(frozen=True)
class Curve:
    """One picture with lines."""

    title: str
    lines: Mapping[str, Line]
    """Lines with their names, without empty ones."""
    may_be_logarithmic: bool = False
    """Whether the scale is logarithmic if the values span a large range."""


@dataclass(frozen=True)
class Sample:
    """A transcript of a validation."""

    id: str
    reference: str
    hypothesis: str


@dataclass(frozen=True)
class State:
    """Everything that is shown of a run, or of an extraction."""

    name: str = ""
    doing: str = ""
    """One of the values of `DOING`; empty before the first event."""
    detail: str = ""
    """Number of compiled shapes, or reason of the end."""
    done: float = 0.0
    """Updates or utterances that are done."""
    total: float = 0.0
    """Updates or utterances of the whole. 0: unknown."""
    place: str = ""
    """The same as text, such as `update 300/1,000`."""
    left: str = ""
    """Estimated time to the end as h:mm:ss. Empty: unknown, or over."""
    figures: Mapping[str, str] = field(default_factory=dict)
    """Numbers with their units; the keys are their names."""
    curves: tuple[Curve, ...] = ()
    samples_title: str = ""
    samples: tuple[Sample, ...] = ()
    """Transcripts of the last validation. An extraction has only a title, with its last utterance."""
    rejected: Mapping[str, int] = field(default_factory=dict)
    """Number of rejected utterances by reason."""
    warnings: tuple[str, ...] = ()
    """Problems, the last one first."""
    timestamp_ms: int = 0
    """Time of the last event in Unix milliseconds."""

    @property
    def is_over(self) -> bool:
        """Whether the last job has ended."""
        return self.doing in ENDS


def state_of(events: Sequence[Event], *, name: str = "") -> State:
    """Returns what is shown of a run with these events.

    Args:
        name: Name to show if the events have none, such as that of the folder.
    """
    if not events:
        return State(name=name)
    doing = next((DOING[event["event"]] for event in reversed(events) if event["event"] in DOING), "")
    of_extraction = any(event["event"] == "extraction_start" for event in events)
    shown: Data = {"name": name} | (_extraction(events) if of_extraction else _training(events))
    if doing in ENDS:
        shown["left"] = ""
    return State(
        **shown,
        doing=doing,
        detail=_detail(events),
        warnings=_warnings(events),
        timestamp_ms=events[-1]["timestamp_ms"],
    )


def _detail(events: Sequence[Event]) -> str:
    last = next((event for event in reversed(events) if event["event"] in DOING), None)
    if last is None:
        return ""
    data = last["data"]
    if last["event"] in ("compile_start", "compiled"):
        return f"{data.get('number', 0)} of {counted(data['shapes'], 'batch shape')}"
    return str(data.get("reason") or "") if DOING[last["event"]] in ENDS else ""


def _warnings(events: Sequence[Event]) -> tuple[str, ...]:
    """Returns warnings, failed uploads, late compilations and voided updates, each with its update."""
    texts = {
        "warning": lambda data: data["message"],
        "upload_failed": lambda data: f"not uploaded: {data['reason']}",
        "recompiled": lambda data: f"compiled after the first update: {data['function']}: {data['reason']}",
        "voided": lambda data: f"{counted(data['count'], 'update')} with values that are not finite changed nothing",
    }
    found = []
    for event in events:
        if text := texts.get(event["event"]):
            update = event["data"].get("update")
            found.append((f"update {update:,}: " if update is not None else "") + text(event["data"]))
    return tuple(reversed(found))


def _training(events: Sequence[Event]) -> Data:
    by_name = timeline(events)
    steps, validations = by_name.get("train_step", []), by_name.get("validation", [])
    starts = [number for number, event in enumerate(events) if event["event"] == "run_start"]
    run: Data = events[starts[-1]]["data"] if starts else {}
    of_job = [event["data"] for event in events[starts[-1] if starts else 0 :] if event["event"] == "train_step"]
    last: Data = steps[-1]["data"] if steps else {}
    left = left_s(of_job[0], of_job[-1], run.get("num_updates")) if of_job else None
    samples: Data = _last_samples(by_name)
    return {
        **({"name": run["run"]} if run.get("run") else {}),
        "done": float(last.get("update", 0)),
        "total": float(run.get("num_updates") or 0),
        "place": f"update {last.get('update', 0):,}" + (f"/{run['num_updates']:,}" if run.get("num_updates") else ""),
        "left": "" if left is None else clock(left),
        "figures": _figures(events, run, last, by_name, num_jobs=len(starts)),
        "curves": _curves(steps, validations),
        "samples_title": samples.get("title", ""),
        "samples": samples.get("samples", ()),
        "rejected": dict(count_rejected(events)[0].most_common()),
    }


def _last_samples(by_name: Mapping[str, Sequence[Event]]) -> Data:
    """Returns the transcripts of the last validation that has some, or of the last samples between validations."""
    used = of_used_weights(by_name.get("validation", [])) + list(by_name.get("samples", []))
    found = [event for event in used if event["data"].get("samples")]
    if not found:
        return {}
    last = max(found, key=lambda event: event["data"]["update"])
    data = last["data"]
    is_validation = last["event"] == "validation"
    of = f"{validation_name(data) if is_validation else 'samples'} at {data['update']:,}"
    of += f": {deciding_text(data)}" if is_validation else ""
    texts = tuple(Sample(str(each.get("id", "")), each["reference"], each["hypothesis"]) for each in data["samples"])
    return {"title": of, "samples": texts}


def _figures(
    events: Sequence[Event], run: Data, last: Data, by_name: Mapping[str, Sequence[Event]], *, num_jobs: int
) -> dict[str, str]:
    speed, memory = last.get("throughput", {}), last.get("memory", {})
    shares = [percent(speed.get(f"{kind}_share"), digits=0) for kind in ("waiting", "host", "device")]
    compiled = [
        event["data"]["memory"] for event in events if event["event"] == "compile" and "memory" in event["data"]
    ]
    epochs = math.ceil(run.get("num_epochs") or 0)
    best = best_of(by_name.get("validation", []))
    saved = by_name.get("checkpoint_saved", [])
    of_validation = of_used_weights(by_name.get("validation", []))
    found = {
        "epoch": f"{last['epoch']:,}" + (f" of {epochs:,}" if epochs else "") if "epoch" in last else "",
        "loss": _number(last.get("losses", {}).get("total"), ".4g") if last else "",
        "learning rate": _number(last.get("learning_rate"), ".3g") if last else "",
        "gradient norm": _number(last.get("gradient_norm"), ".3g") if last else "",
        "throughput": f"{speed['audio_s_per_s']:,.1f} audio-s/s" if speed.get("audio_s_per_s") else "",
        "padding": percent(speed["padding_share"], digits=1) if speed.get("padding_share") is not None else "",
        "waiting": shares[0] if speed else "",
        "host, device": f"{shares[1]}, {shares[2]}" if speed else "",
        "memory": _memory(memory),
        "compiled for": _of(compiled[-1]["maximum_bytes"], compiled[-1]["limit_bytes"]) if compiled else "",
        "devices": str(run.get("on", "")),
        "last": deciding_text(of_validation[-1]["data"]) if of_validation else "",
        "best": f"{deciding_text(best['data'])} at {best['data']['update']:,}" if best else "",
        "checkpoint": f"update {saved[-1]['data']['update']:,}" if saved else "",
        "voided": f"{last['voided']:,}" if last.get("voided") else "",
        "elapsed": clock(events[-1]["data"].get("elapsed_s", 0.0)) + (f" in {num_jobs} jobs" if num_jobs > 1 else ""),
        "parameters": quantity(run["num_parameters"]) if run.get("num_parameters") else "",
        "data": f"{run['hours']:,.3g} h, {counted(run['utterances'], 'utterance')}" if run.get("hours") else "",
    }
    return {name: text for name, text in found.items() if text}


def _memory(memory: Data) -> str:
    host, device = memory.get("host_bytes"), memory.get("device_peak_bytes")
    parts = [f"device {_of(device, memory.get('device_limit_bytes'))}"] if device else []
    return ", ".join(parts + ([f"host {quantity(host, 'B')}"] if host else []))


def _of(used_bytes: int, limit_bytes: int | None) -> str:
    return quantity(used_bytes, "B") + (f" of {quantity(limit_bytes, 'B')}" if limit_bytes else "")


def _curves(steps: Sequence[Event], validations: Sequence[Event]) -> tuple[Curve, ...]:
    terms = dict.fromkeys(name for event in steps for name in event["data"].get("losses", {}))
    several = len(terms) > 2  # total and a single term are equal
    losses = {"total" if several else "training": series(steps, "losses", "total")}
    if several:
        losses |= {name.removesuffix("/loss"): series(steps, "losses", name) for name in terms if name != "total"}
    losses |= {
        f"validation {_short(name)}".strip(): series(events, "loss")
        for name, events in lines_of(of_used_weights(validations)).items()
    }
    return (
        _curve("loss", losses, logarithmic=True),
        _errors(steps, validations),
        _curve("learning rate", {"learning rate": series(steps, "learning_rate")}),
        _curve("gradient norm", {"gradient norm": series(steps, "gradient_norm")}, logarithmic=True),
        _curve("audio-s/s", {"audio-s/s": series(steps, "throughput", "audio_s_per_s")}),
        _curve(
            "padding, waiting (%)",
            {kind: _percents(series(steps, "throughput", f"{kind}_share")) for kind in ("padding", "waiting")},
        ),
    )


def _short(name: str) -> str:
    """Returns the name of a line of validations in the form that fits below a picture, such as `ema`."""
    return {"validation": "", "validation (ema)": "ema"}.get(name, name)


def _errors(steps: Sequence[Event], validations: Sequence[Event]) -> Curve:
    """Returns error rates, or the accuracy of pre-training if there are none."""
    if any("wer" in event["data"] for event in validations) or not validations:
        lines = lines_of(validations)
        names = {
            f"{key.upper()} {_short(name)}".strip(): _percents(series(events, key))
            for name, events in lines.items()
            for key in ("wer", "cer")
        }
        return _curve("errors (%)", names, logarithmic=True)
    of = {"training": steps, "validation": of_used_weights(validations)}
    accuracies = {
        name: _percents(series(events, "metrics", metric))
        for name, events in of.items()
        for metric in sorted({metric for event in events for metric in event["data"].get("metrics", {})})
        if metric.endswith("/accuracy")
    }
    return _curve("accuracy (%)", accuracies)


def _curve(title: str, lines: Mapping[str, Line], *, logarithmic: bool = False) -> Curve:
    return Curve(title, {name: line for name, line in lines.items() if len(line[0])}, logarithmic)


def _percents(line: Line) -> Line:
    return line[0], 100 * line[1]


def _extraction(events: Sequence[Event]) -> Data:
    """Returns the state of the output that is written, or was written last, and its curves."""
    first = max(number for number, event in enumerate(events) if event["event"] == "extraction_start")
    start: Data = events[first]["data"]
    steps = [event["data"] for event in events[first:] if event["event"] == "extraction"]
    ends = [event["data"] for event in events[first:] if event["event"] == "extracted"]
    last: Data = steps[-1] if steps else {}
    total: int = start["utterances"]
    done: int = (last or start)["done"]
    left = None
    if last.get("elapsed_s", 0.0) > start["elapsed_s"] and done > start["done"]:
        left = (total - done) * (last["elapsed_s"] - start["elapsed_s"]) / (done - start["done"])
    figures = {
        "decoded": f"{done:,} of {total:,}",
        "skipped, long": f"{start['skipped_long']:,}",
        "in windows": f"{last.get('long', 0):,}",
        "rejected": f"{(ends[-1] if ends else last).get('rejected', 0):,}",
        "shard": str(last.get("shard", "")),
        "speed": f"{last['audio_s_per_s']:,.1f} audio-s/s" if last else "",
        "rate": f"{last['utterances_per_s']:,.1f} utterances/s" if last else "",
        "workers": f"{start['workers']} {start['kind']}" + (f", {last['reading']:.2g} reading" if last else ""),
        "devices": str(start.get("on", "")),
        "elapsed": clock(events[-1]["data"].get("elapsed_s", 0.0)),
        "output": str(start["output"]),
    }
    utterance: Data = last.get("last", {})
    title = f"{utterance['id']} ({utterance['duration_s']:.1f} s)\n{utterance['text'] or ''}" if utterance else ""
    counts = np.array([step["done"] for step in steps], np.float64)

    def line(name: str) -> Line:
        return counts, np.array([step[name] for step in steps], np.float64)

    return {
        "done": float(done),
        "total": float(total),
        "place": f"utterance {done:,}/{total:,}",
        "left": "" if left is None else clock(left),
        "figures": {name: shown for name, shown in figures.items() if shown},
        "curves": (
            _curve("utterances/s", {"utterances/s": line("utterances_per_s")}),
            _curve("audio-s/s", {"audio-s/s": line("audio_s_per_s")}),
            _curve("workers that read", {"reading": line("reading")}),
        ),
        "samples_title": title,
        "rejected": {"longer than --reject-above": start["skipped_long"]} if start["skipped_long"] else {},
    }


def _number(value: float | None, form: str) -> str:
    return "not finite" if value is None else format(value, form)
