"""The index: every rule counts and names what it drops, and what is kept is as it came."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from asr_jax.data.filters import Filters
from asr_jax.data.index import Ragged, build_index, repeats
from asr_jax.data.manifest import Record

RATE = 100
GOOD = Record("good", "/a/good.wav", "abba", 2.0, "s", "set")


def encode(text: str) -> list[int]:
    """a = 0, b = 1 …; anything else is out of vocabulary."""
    if bad := set(text) - set("abcdefghij"):
        raise ValueError(f"not in the alphabet: {sorted(bad)}")
    return [ord(letter) - ord("a") for letter in text]


def frames(samples: Any) -> Any:
    return samples // 10


def build(*records: Record, **options: Any) -> Any:
    return build_index(records, **({"encode": encode, "output_length": frames, "rate_hz": RATE} | options))


def test_columns_hold_what_the_records_say() -> None:
    other = Record("zwei", "/b/ö.wav", "jja", 1.234, "", "else")
    index, dropped = build(GOOD, other, replace(GOOD, id="three"))
    assert not dropped.entries
    assert len(index) == 3
    assert index.samples.tolist() == [200, 123, 200]
    assert index.hours == pytest.approx(5.23 / 3600)
    assert [index.labels[row].tolist() for row in range(3)] == [[0, 1, 1, 0], [9, 9, 0], [0, 1, 1, 0]]
    assert index.labels.values.dtype == np.uint8
    assert index.labels.lengths().tolist() == [4, 3, 4]
    assert [index.ids.text(row) for row in range(3)] == ["good", "zwei", "three"]
    assert index.audio_paths.text(1) == "/b/ö.wav"
    assert index.texts.text(1) == "jja"
    assert [index.source(row) for row in range(3)] == ["set", "else", "set"]


FILTERS = Filters(min_duration_s=0.5, max_duration_s=10.0, min_chars_per_s=1.0, max_chars_per_s=5.0)


@pytest.mark.parametrize(
    ("changes", "reason", "value", "limit"),
    [
        ({"duration_s": 0.4}, "too short", 0.4, 0.5),
        ({"duration_s": -1.0}, "too short", -1.0, 0.5),
        ({"duration_s": 10.5}, "too long", 10.5, 10.0),
        ({"duration_s": math.nan}, "no duration in the manifest, and the audio: no such file", None, None),
        ({"text": "a"}, "too few characters per second", 0.5, 1.0),
        ({"text": "abcdefghija"}, "too many characters per second", 5.5, 5.0),
        ({"text": "ab!"}, "out of vocabulary", "not in the alphabet: ['!']", None),
        ({"text": "aaaaaaaaaa", "duration_s": 2.0}, None, None, None),
        ({"text": "aabb", "duration_s": 0.85}, None, None, None),
    ],
)
def test_each_rule(changes: dict[str, Any], reason: str | None, value: Any, limit: Any) -> None:
    record = replace(GOOD, id="x", **changes)
    index, dropped = build(GOOD, record, filters=FILTERS)
    expected = {"id": "x", "audio_path": "/a/good.wav", "reason": reason, "value": value, "limit": limit}
    assert dropped.entries == ([expected] if reason else [])
    assert len(index) == 1 + (reason is None)


def test_empty_text_is_dropped_where_labels_are_needed() -> None:
    silent = replace(GOOD, text="")
    index, dropped = build(silent)
    assert [entry["reason"] for entry in dropped.entries] == ["empty text"]
    assert (len(index), len(index.ids), index.labels.lengths().tolist()) == (0, 0, [])
    index, dropped = build(silent, replace(GOOD, text="!!"), encode=None, filters=Filters.none())
    assert not dropped.entries
    assert index.labels.lengths().tolist() == [0, 0]
    assert index.texts.text(1) == "!!"


@pytest.mark.parametrize(("max_speed", "kept"), [(1.0, [0, 1]), (1.25, [0])])
def test_what_no_ctc_path_fits_is_dropped(max_speed: float, kept: list[int]) -> None:
    # abba: 4 labels and 1 repeat need 5 frames of 10 samples; aaa needs 5, ab needs 2.
    records = [
        replace(GOOD, id="0", duration_s=0.7),
        replace(GOOD, id="1", duration_s=0.5, text="aaa"),
        replace(GOOD, id="2", duration_s=0.49, text="abba"),
    ]
    index, dropped = build(*records, max_speed=max_speed, filters=Filters.none())
    assert [int(index.ids.text(row)) for row in range(len(index))] == kept
    assert index.labels[len(kept) - 1].tolist() == encode(records[kept[-1]].text)
    last = dropped.entries[-1]
    assert (last["id"], last["reason"]) == ("2", "fewer frames than labels and repeats")
    assert (last["value"], last["limit"]) == (int(49 / max_speed) // 10, 5)


def test_dropped_records_are_counted_with_their_hours() -> None:
    _, dropped = build(
        *[replace(GOOD, duration_s=3600.0)] * 3, replace(GOOD, text="?"), replace(GOOD, duration_s=math.nan)
    )
    assert list(dropped.records.values()) == [3, 1, 1]
    assert dropped.hours["too long"] == 3
    assert dropped.lines()[:2] == ["3 too long (3.00 h)", "1 out of vocabulary (0.00 h)"]


def test_repeats_by_counting_pairs() -> None:
    rng = np.random.default_rng(1)
    rows = [rng.integers(0, 2, n) for n in (0, 1, 5, 0, 0, 9, 2, 0)]
    labels = Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)]))
    expected = [sum(a == b for a, b in pairwise(row)) for row in rows]
    assert repeats(labels).tolist() == expected
    assert repeats(Ragged(np.zeros(0, np.int32), np.zeros(1, np.int64))).tolist() == []


def test_many_labels_need_a_wider_type() -> None:
    index, _ = build(GOOD, encode=lambda text: [3, 70000])
    assert index.labels[0].tolist() == [3, 70000]


def test_durations_in_milliseconds_are_dropped_even_without_filters() -> None:
    index, dropped = build(
        GOOD, replace(GOOD, duration_s=90_000.0), replace(GOOD, duration_s=1e12), filters=Filters.none()
    )
    assert (len(index), dropped.records) == (1, {"too long": 2})
    with pytest.raises(ValueError, match="expected at most a day"):
        Filters(max_duration_s=1e6)


@pytest.mark.parametrize(
    "options", [{"min_duration_s": 5.0, "max_duration_s": 5.0}, {"min_chars_per_s": -1.0}, {"max_duration_s": math.nan}]
)
def test_impossible_filters_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="expected 0 ≤ min < max"):
        Filters(**options)
