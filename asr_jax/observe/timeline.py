"""The events of a run as one line of updates, whatever was stopped and done again: what curves and reports read."""

from collections.abc import Iterable, Sequence
from typing import Any

from asr_jax.metrics.measure import measure_of
from asr_jax.observe.events import Event


def timeline(events: Iterable[Event]) -> dict[str, list[Event]]:
    """Events that hold an `update`, by name and in order of update. Where a resumed run did updates again, only the
    later ones are left: an event takes the place of all earlier ones of its kind at its update or beyond.
    """
    kinds: dict[tuple[Any, ...], list[Event]] = {}
    for event in events:
        data = event["data"]
        if (update := data.get("update")) is None:
            continue
        for earlier in kinds.values() if event["event"] == "resumed" else ():
            _drop_from(earlier, update + 1)
        same_kind = kinds.setdefault((event["event"], *(data.get(name) for name in ("set", "weights", "detector"))), [])
        _drop_from(same_kind, update)
        same_kind.append(event)
    by_name: dict[str, list[Event]] = {}
    for (name, *_), kept in kinds.items():
        by_name.setdefault(name, []).extend(kept)
    return {name: sorted(kept, key=lambda event: event["data"]["update"]) for name, kept in by_name.items()}


def of_used_weights(validations: Sequence[Event]) -> list[Event]:
    """Validations with a measure of the weights that evaluation uses: the averaged ones where there are any."""
    known = [event for event in validations if event["data"].get(measure_of(event["data"])) is not None]
    return [event for event in known if event["data"].get("weights") == "ema"] or known


def best_of(validations: Sequence[Event]) -> Event | None:
    """The validation of lowest measure, of those that the decoding of the last one found: others do not compare. Of
    equal ones the last, as evaluation takes it.
    """
    used = of_used_weights(validations)
    alike = [event for event in used if event["data"].get("decoding") == used[-1]["data"].get("decoding")]
    return min(reversed(alike), key=lambda event: event["data"][measure_of(event["data"])]) if alike else None


def _drop_from(events: list[Event], update: int) -> None:
    while events and events[-1]["data"]["update"] >= update:
        events.pop()
