"""Times of words, which files of all formats need in order, apart and within the audio."""

import itertools
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from asr_jax.transcripts.files import FORMS, NamedRecording
from asr_jax.transcripts.subtitles import CueRules, cues
from asr_jax.transcripts.transcript import Token, Transcript, Word, apart, with_valid_times
from tests.support import SHARED, approx

NAN, INF = float("nan"), float("inf")


def in_us(seconds: float) -> int:
    """Returns a time in microseconds."""
    return round(1e6 * seconds)


def intervals(text):
    """Intervals of each tier of a TextGrid: start, end, text."""
    tiers = []
    for tier in text.split('class = "IntervalTier"')[1:]:
        found = re.findall(r'xmin = (\S+)\s+xmax = (\S+)\s+text = "((?:[^"]|"")*)"\n', tier)
        assert f"intervals: size = {len(found)}\n" in tier
        tiers.append([(float(start), float(end), mark) for start, end, mark in found])
    return tiers


def assert_valid(tiers, end_s):
    """What Praat requires of intervals."""
    for tier in tiers:
        assert tier[0][0] == 0
        assert tier[-1][1] == approx(end_s, abs=5e-5)
        assert all(start < end for start, end, _ in tier)
        assert all(before[1] == after[0] for before, after in itertools.pairwise(tier))


def test_words_of_a_frame_share_its_time():
    found = apart([(0.0, 0.04), (0.0, 0.04), (0.04, 0.08), (0.06, 0.1)], tick_s=0.001)
    assert found == [(0.0, 0.02), (0.02, 0.04), (0.04, 0.06), (0.06, 0.1)]


@pytest.mark.parametrize(
    ("spans", "last_s", "expected"),
    [
        ([(0.5, 0.5), (0.5, 0.5), (0.7, 0.6)], NAN, [(0.5, 0.501), (0.501, 0.502), (0.7, 0.701)]),
        ([(-2.0, -1.0), (1.0, 2.0)], 1.5, [(0.0, 0.001), (1.0, 1.5)]),
        ([(2.0, 3.0), (1.0, 2.5)], INF, [(2.0, 2.5), (2.5, 2.501)]),
        ([(9.0, 9.5), (9.5, 9.9)], 9.0, [(8.998, 8.999), (8.999, 9.0)]),
        ([(NAN, 1.0), (0.5, INF)], 1.0, [(0.0, 0.5), (0.5, 0.501)]),
        ([(0.0, 0.0)] * 3, 0.0, [(0.0, 0.001), (0.001, 0.002), (0.002, 0.003)]),
        ([], 1.0, []),
    ],
)
def test_any_times_become_valid(spans, last_s, expected):
    assert apart(spans, tick_s=0.001, last_s=last_s) == expected


def test_a_textgrid_of_words_in_the_same_frame():
    path = SHARED / "cases" / "textgrid" / "test-00054.TextGrid"
    if not path.is_file():
        pytest.skip(f"no {path}")
    (given,) = intervals(path.read_text())
    words = tuple(Word(text, start, end, 0.5) for start, end, text in given if text)
    (found,) = intervals(FORMS["textgrid"].write(NamedRecording("a", "a.wav", 3.008, Transcript(words, 0.0))))
    assert_valid([found], 3.008)
    assert [text for _, _, text in found if text] == [word.text for word in words]


TIMES = st.one_of(st.floats(-1, 40), st.sampled_from([0.0, 0.035, 0.04, 1.0, 7.0, 39.0, 1e6, -1e6, NAN, INF, -INF]))
TEXTS = st.sampled_from(["a", "bc", "你", "今，", "สวัสดี", "x" * 50, 'q"', "<b>"])
WORDS = st.lists(st.tuples(TEXTS, TIMES, TIMES, st.booleans()), max_size=40)
DURATIONS = st.one_of(st.floats(0, 60), st.just(NAN))
many = settings(max_examples=400, deadline=None, derandomize=True, database=None)


@pytest.mark.slow
@many
@given(WORDS, DURATIONS)
def test_files_of_any_times_are_valid(items, duration_s):
    words = tuple(Word(text, start, end, 0.5, space) for text, start, end, space in items)
    tokens = tuple(Token(text, start, end, -0.5) for text, start, end, _ in items)
    named = NamedRecording("a", "a.wav", duration_s, Transcript(words, 0.0), tokens=tokens)
    tiers = intervals(FORMS["textgrid"].write(named))
    assert [[text for _, _, text in tier if text] for tier in tiers] == [
        [word.text.replace('"', '""') for word in words]
    ] * len(tiers)
    known = duration_s == duration_s
    last_s = max(round(duration_s, 4), 1e-4, len(words) * 1e-4) if known else tiers[0][-1][1]
    assert_valid(tiers, last_s)
    fields = json.loads(FORMS["json"].write(named))
    rows = [line.split() for line in FORMS["ctm"].write(named).splitlines()]
    of_ctm = [(float(row[2]), float(row[2]) + float(row[3])) for row in rows]
    for times in ([(word["start_s"], word["end_s"]) for word in fields["words"]], of_ctm):
        assert len(times) == len(words)
        assert all(0 <= start < end for start, end in times)
        assert all(in_us(before[1]) <= in_us(after[0]) for before, after in itertools.pairwise(times))
        if known and times:
            assert in_us(times[-1][1]) <= max(1000 * round(1000 * duration_s), 1000 * len(words))


@pytest.mark.slow
@many
@given(WORDS, DURATIONS, st.floats(0.05, 9), st.integers(5, 50), st.integers(1, 3))
def test_cues_of_any_times_are_valid(items, duration_s, max_s, max_chars, max_lines):
    words = tuple(Word(text, start, end, 0.5, space) for text, start, end, space in items)
    rules = CueRules(max_s=max_s, min_s=min(1.0, max_s), max_chars=max_chars, max_lines=max_lines)
    found = cues(Transcript(words, 0.0), rules, duration_s=duration_s)
    assert all(0 <= cue.start_s < cue.end_s and in_us(cue.end_s - cue.start_s) <= in_us(max_s) + 1000 for cue in found)
    assert all(before.end_s <= after.start_s for before, after in itertools.pairwise(found))
    if duration_s == duration_s and found:
        assert in_us(found[-1].end_s) <= max(1000 * round(1000 * duration_s), 1000 * len(words))
    texts = {word.text for word in words}
    assert all(cell_len(line) <= max_chars or line in texts for cue in found for line in cue.lines)
    assert all(len(cue.lines) <= max_lines for cue in found)
    assert "".join(line for cue in found for line in cue.lines).replace(" ", "") == "".join(word.text for word in words)


@pytest.mark.slow
@many
@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 3000)), max_size=30))
def test_valid_times_stay(lengths):
    spans, at = [], 0
    for length, gap in lengths:
        spans.append(((at + gap) / 1000, (at + gap + length) / 1000))
        at += gap + length
    words = [Word("a", start, end, 1.0) for start, end in spans]
    assert [(word.start_s, word.end_s) for word in with_valid_times(words, at / 1000)] == spans
