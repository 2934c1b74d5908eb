"""Any spelling, unit, order and type of the fields of a part gives the same part in every reader, or names a field."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from part_readers import WRITERS, Row, part_of_entry, read_rows
from support import approx

from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.utterances import Rejected

pytestmark = pytest.mark.slow

RATE_HZ = 16000
STARTS = (
    "start",
    "start_time",
    "startTime",
    "begin",
    "begin_time",
    "beg",
    "offset",
    "onset",
    "segment_start",
    "t_start",
)
ENDS = ("end", "end_time", "endTime", "stop", "finish", "segment_end", "utt_end", "end_offset", "t_end")
DURATIONS = ("duration", "dur", "segment_duration")
PER_S = {"": 1, "_s": 1, "_sec": 1, "_seconds": 1, "_ms": 1000, "_msec": 1000, "_sample": RATE_HZ, "_frame": 100}
"""Units of names, and their number per second."""
OTHERS: Row = {"lang": "en", "segment": "Benchmark", "up_votes": 2, "from": "en", "weekend": 1, "channels": 2}
SETS = (
    ("start", "end"),
    ("start", "duration"),
    ("start", "end", "duration"),
    ("end", "duration"),
    ("end",),
    ("duration",),
)


@st.composite
def rows(draw: st.DrawFn, is_wrong: bool) -> tuple[Row, tuple[Any, ...], bool]:
    """Fields of a part in any order, the part, and whether all units are given by their names or are usual."""
    roles = ("start", "end", "duration") if is_wrong else draw(st.sampled_from(SETS))
    start, length = draw(st.integers(0, 40)) / 4, draw(st.integers(1, 40)) / 4
    start = start if roles != ("end",) else 0.0
    seconds = {"start": start, "end": start + length, "duration": length}
    if is_wrong:
        seconds[draw(st.sampled_from(roles))] += 44.0  # no usual rate makes this consistent
    fields, is_plain = Row(), True
    for role in roles:
        name = draw(st.sampled_from({"start": STARTS, "end": ENDS, "duration": DURATIONS}[role]))
        unit = draw(st.sampled_from([*PER_S][:6] if role == "duration" else [*PER_S]))
        is_plain = is_plain and unit not in ("_sample", "_frame") and (name != "stop" or unit != "")
        fields[name + unit] = _typed(draw, seconds[role] * PER_S[unit])
    channel = draw(st.sampled_from([None, 0, 1]))
    if channel is not None:
        fields[draw(st.sampled_from(("channel", "channel_id", "audio_channel")))] = _typed(draw, channel)
    if draw(st.booleans()):
        fields["sample_rate"] = _typed(draw, RATE_HZ)
    fields |= {name: OTHERS[name] for name in draw(st.lists(st.sampled_from([*OTHERS]), unique=True))}
    names = draw(st.permutations([*fields]))
    part = (
        (None, None, channel) if roles == ("duration",) else (start, None if roles == ("start",) else length, channel)
    )
    return {name: fields[name] for name in names}, (*part, length), is_plain


def _typed(draw: st.DrawFn, value: float) -> Any:
    """The number as an integer, a float or a string."""
    kinds: list[Any] = [float(value), str(float(value)), f" {value:g} ", f"{value:.6f}"]
    return draw(st.sampled_from([int(value), str(int(value)), *kinds] if value == int(value) else kinds))


@pytest.mark.parametrize("is_wrong", [False, True])
@pytest.mark.parametrize("write_rows", WRITERS, ids=lambda write: write.__name__)
def test_the_same_part_or_a_named_field(write_rows: Callable, is_wrong: bool) -> None:
    @settings(max_examples=300, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    @given(rows(is_wrong))
    def check(drawn: tuple[Row, tuple[Any, ...], bool]) -> None:
        row, (start_s, length_s, channel, duration_s), is_plain = drawn
        with tempfile.TemporaryDirectory() as folder:
            (entry,) = read_rows(write_rows, Path(folder), [row], ReadOptions())
        if isinstance(entry, Rejected):
            assert any(f'"{name}"'.lower() in entry.reason.lower() for name in row.keys() - OTHERS.keys())
            assert is_wrong or not is_plain, entry.reason
            return
        assert not is_wrong
        assert part_of_entry(entry) == (approx(start_s or 0.0), length_s and approx(length_s), channel)
        assert entry.duration_s == approx(duration_s)

    check()
