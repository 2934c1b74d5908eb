"""Timeline of a run: its events without the updates that were repeated after a resume, for curves and reports."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from asr_jax.metrics.measure import ALL, MEAN, by_set, deciding, measure_of
from asr_jax.observe.events import Event
from asr_jax.observe.tables import validation_name


def timeline(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Returns the events that have an `update`, in order of update, by the name of the event.

    An event replaces earlier ones of its kind at its update or later. Of updates that a resumed run repeated, only the
    last ones therefore remain. Kinds differ in name, parameters and detector.
    """
    kinds: dict[tuple[Any, ...], list[Event]] = {}
    for event in events:
        data = event["data"]
        if (update := data.get("update")) is None:
            continue
        for earlier in kinds.values() if event["event"] == "resumed" else ():
            _drop_from(earlier, update + 1)
        same_kind = kinds.setdefault((event["event"], *(data.get(name) for name in ("weights", "detector"))), [])
        _drop_from(same_kind, update)
        same_kind.append(event)
    by_name: dict[str, list[Event]] = {}
    for (name, *_), kept in kinds.items():
        by_name.setdefault(name, []).extend(kept)
    return {name: sorted(kept, key=lambda event: event["data"]["update"]) for name, kept in by_name.items()}


def of_used_weights(validations: Sequence[Event]) -> list[Event]:
    """Returns the measured validations of the parameters that evaluation uses: the averaged ones if there are any."""
    known = [event for event in validations if _value(event) is not None]
    return [event for event in known if event["data"].get("weights") == "ema"] or known


def best_of(validations: Sequence[Event]) -> Event | None:
    """Returns the validation with the lowest measure, the last one of equals, or None if there is no validation.

    Only validations with the decoding, `best_of` and measure of the last one are considered, because others are not
    comparable.
    """
    used = of_used_weights(validations)
    alike = [event for event in used if _compared_by(event) == _compared_by(used[-1])]
    return min(reversed(alike), key=_value) if alike else None


def series(events: Sequence[Event], *path: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns updates and values of the field at `path`, of events in which it exists and is finite."""
    points = []
    for event in events:
        value: Any = event["data"]
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if value is not None:
            points.append((event["data"]["update"], value))
    pairs = np.array(points, np.float64).reshape(-1, 2)
    return pairs[:, 0], pairs[:, 1]


def lines_of(validations: Sequence[Event]) -> dict[str, list[Event]]:
    """Returns the figures of each line of validations in a picture, by its name.

    The lines are live and averaged parameters. With several validation sets, they are the sets and all of them
    together, of the parameters that evaluation uses, and the mean of the sets if it chooses the best checkpoint.
    """
    has_sets = any("sets" in event["data"] for event in validations)
    lines: dict[str, list[Event]] = {}
    for event in of_used_weights(validations) if has_sets else validations:
        data = event["data"]
        for name, figures in by_set(data).items():
            if name != MEAN or data["best_of"] == MEAN:
                part: Event = {**event, "data": {**figures, "update": data["update"]}}
                lines.setdefault(name if has_sets else validation_name(data), []).append(part)
    return lines


def _value(event: Event) -> Any:
    """Returns the measure that chooses the best checkpoint; None if it was not finite."""
    return deciding(event["data"]).get(measure_of(event["data"]))


def _compared_by(event: Event) -> tuple[Any, str, str]:
    return event["data"].get("decoding"), event["data"].get("best_of", ALL), measure_of(event["data"])


def _drop_from(events: list[Event], update: int) -> None:
    while events and events[-1]["data"]["update"] >= update:
        events.pop()
