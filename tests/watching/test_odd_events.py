"""Events that lack fields, or whose fields have other types: they are counted, and nothing that shows a run fails."""

import copy
import io
import json
import math

import pytest

from asr_jax.observe.event_fields import EVENTS, LARGEST_COUNT, fits, is_complete
from asr_jax.watching import panels
from asr_jax.watching.plain import print_events
from asr_jax.watching.state import state_of
from asr_jax.watching.tail import Tail
from tests.watching.recorded_runs import event, extraction, failed, finished, others, start, step, validation, write

RECORDED = [*finished(), *failed()[-2:], *extraction()[:2], *others()]
EACH = list({(each["event"], each["data"].get("measure")): each for each in RECORDED}.values())
"""One event of each kind, and of each measure of validations."""
ODD = [None, True, -1, 10**400, math.nan, "\ud800\x1b", [], [1], {}, {"a": 1}]
BEFORE = [start("mine"), step(50, 50.0), validation(50, 51, 0.1)]
BEFORE[-1]["data"]["samples"] = []


def places(value, above=()):
    """Keys of all fields of an event, and of the first elements of its lists."""
    for key in value if isinstance(value, dict) else range(min(len(value), 1)) if isinstance(value, list) else ():
        yield (*above, key)
        yield from places(value[key], (*above, key))


def changed(event, place):
    """A copy of an event without a field, and copies with other values of it."""
    for odd in [..., *ODD]:
        copied = copy.deepcopy(event)
        within = copied
        for key in place[:-1]:
            within = within[key]
        if odd is ...:
            del within[place[-1]]
        else:
            within[place[-1]] = odd
        yield copied


def read(path, lines):
    path.write_text("".join(line + "\n" for line in lines))
    tail = Tail(path)
    tail.read()
    return tail


def test_recorded_events_are_complete(tmp_path):
    assert {each["event"] for each in RECORDED} == set(EVENTS)
    tail = read(tmp_path / "events.jsonl", map(json.dumps, RECORDED))
    assert tail.damage == ""
    assert len(tail.events) == len([each for each in RECORDED if each["event"] != "batch_start"])


def test_odd_fields(tmp_path):
    """Events with odd fields are left out, or can be shown: fields that nothing shows may have any type."""
    shown = [*BEFORE]
    for each in EACH:
        num_damaged = 0
        for place in places(each):
            tail = read(tmp_path / "events.jsonl", map(json.dumps, changed(each, place)))
            num_damaged += tail.num_damaged
            shown += tail.events[:3]
            for accepted in tail.events[:3]:
                state = state_of([*BEFORE, accepted])
                panels.head(state, number="", problem="", now_ms=0.0)
                panels.figures(state.figures)
                panels.samples(state.samples_title, state.samples, width=30)
        assert num_damaged > 3 * len(ODD), each["event"]
    panels.notes(state_of(shown), damage="")
    path = write(tmp_path / "events.jsonl", [*shown, event("run_failed", 99, reason="x")])
    print_events([path], ["x"], stream=io.StringIO())


def test_missing_fields_are_damage():
    for each in EACH:
        kinds = EVENTS[each["event"]].fields
        names = {"elapsed_s", *(name for name in (kinds[0] if isinstance(kinds, tuple) else kinds) if name[-1] != "?")}
        for name in names & set(each["data"]):
            data = {key: value for key, value in each["data"].items() if key != name}
            assert not is_complete({**each, "data": data}), f"{each['event']}: {name}"
        for name in each:
            assert not is_complete({key: value for key, value in each.items() if key != name}), name


def test_the_meaning_names_the_fields():
    for name, kind in EVENTS.items():
        fields = kind.fields[0] if isinstance(kind.fields, tuple) else kind.fields
        missing = [field for field in fields if field.rstrip("?") not in kind.meaning]
        assert not missing, name


def test_lines_that_are_no_objects(tmp_path):
    tail = read(
        tmp_path / "events.jsonl", ["[" * 100_000, "1" * 10_000, "null", '"x"', "{}", "\0", json.dumps(start("a"))]
    )
    assert (tail.num_damaged, len(tail.events)) == (6, 1)
    assert tail.damage == "left out 6 lines: no event, or a field is missing or has another type"


def test_events_of_a_later_version_are_no_damage(tmp_path):
    tail = read(tmp_path / "events.jsonl", [json.dumps(event("of_a_later_version", 1.0, fields=[1]))])
    assert (tail.num_damaged, tail.events) == (0, [])


def test_lines_that_are_left_out_are_printed(tmp_path):
    path, stream = write(tmp_path / "events.jsonl", finished(), rest='{"event": "train_step"}\n'), io.StringIO()
    print_events([path], ["x"], stream=stream)
    assert stream.getvalue().startswith(f"{path}: left out 1 line: no event, ")


@pytest.mark.parametrize(
    ("kind", "fitting", "others"),
    [
        (int, (0, 1, LARGEST_COUNT), (-1, LARGEST_COUNT + 1, 1.0, True, None, "1")),
        (float, (0, -1.5, 1e100), (1.1e100, 10**400, math.nan, -math.inf, True, None)),
        ((str, None), ("", None), (0, [])),
        ({"wer"}, ("wer",), ("loss", 0, [])),
        ([int], ([], [1, 2]), ([1, "2"], {}, None)),
        ({str: int}, ({}, {"a": 1}), ({"a": None}, [])),
        ({"a": int, "b?": str}, ({"a": 1}, {"a": 1, "b": "", "c": None}), ({}, {"a": 1, "b": None}, [])),
    ],
    ids=repr,
)
def test_types(kind, fitting, others):
    assert all(fits(value, kind) for value in fitting)
    assert not any(fits(value, kind) for value in others)
