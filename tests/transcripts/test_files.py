"""Transcripts in six formats: FFmpeg reads the subtitles, and the tests read JSON and CTM by their definitions."""

import json
import math

import av
import pytest

from asr_jax.transcripts.files import FORMS, NamedRecording
from asr_jax.transcripts.subtitles import CueRules, cues
from asr_jax.transcripts.transcript import ScoredText, Token, Transcript, Word
from tests.support import approx


def words_of(text, *, start_s=0.0, each_s=0.3, gap_s=0.1):
    places = [start_s + i * (each_s + gap_s) for i in range(len(text.split()))]
    return tuple(Word(word, at, at + each_s, 0.9) for word, at in zip(text.split(), places, strict=True))


def named(words, **more):
    fields = {"name": "a b.flac", "path": "x/a b.flac", "duration_s": 9.0, "transcript": Transcript(tuple(words), -1.5)}
    return NamedRecording(**(fields | more))


SPOKEN = (
    *words_of("turn the lights on in the kitchen and in every other room that has any of them please " * 2),
    *words_of("then & <unk> a > b {x} é", start_s=20.0),
    *words_of("end", start_s=3725.25),
)


def by_ffmpeg(path):
    """Start and end in seconds and the lines of every cue, as FFmpeg reads them."""
    found = []
    with av.open(path) as container:
        for packet in container.demux(subtitles=0):
            if packet.pts is not None:
                start_s = float(packet.pts * packet.time_base)
                lines = bytes(packet).decode().splitlines()
                found.append((start_s, start_s + float(packet.duration * packet.time_base), tuple(lines)))
    return found


@pytest.mark.parametrize("form", ["srt", "vtt"])
def test_subtitles_are_read_as_they_were_meant(form, tmp_path):
    path = tmp_path / f"a.{form}"
    path.write_text(FORMS[form].write(named(SPOKEN, duration_s=4000.0)), encoding="utf-8")
    expected, found = cues(Transcript(SPOKEN, 0.0)), by_ffmpeg(path)
    for cue, (start_s, end_s, lines) in zip(expected, found, strict=True):
        assert (start_s, end_s) == approx((cue.start_s, cue.end_s), abs=1e-6)
        if form == "vtt":
            lines = tuple(line.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&") for line in lines)
        assert tuple(line.replace("\u2060", "") for line in lines) == cue.lines
    assert found[-1][0] == 3725.25


def test_signs_of_tags_are_escaped():
    text = FORMS["vtt"].write(named(SPOKEN, duration_s=4000.0))
    assert "then &amp; &lt;unk&gt; a &gt; b {x} é" in text
    assert text.startswith("WEBVTT\n\n00:00:00.000 --> 00:00:")
    assert "<\u2060unk> a > b {\u2060x}" in FORMS["srt"].write(named(SPOKEN, duration_s=4000.0))
    assert "\n01:02:05,250 --> 01:02:06,250\nend\n" in FORMS["srt"].write(named(SPOKEN, duration_s=4000.0))


def test_cues_keep_all_words_and_the_rules():
    rules = CueRules()
    found = cues(Transcript(SPOKEN, 0.0), rules)
    assert " ".join(line for cue in found for line in cue.lines) == " ".join(word.text for word in SPOKEN)
    for cue, after in zip(found, [*found[1:], None], strict=True):
        assert len(cue.lines) <= rules.max_lines
        assert all(len(line) <= rules.max_chars for line in cue.lines)
        assert cue.end_s - cue.start_s <= rules.max_s
        if after:
            assert cue.end_s <= after.start_s
        else:
            assert cue.end_s - cue.start_s >= rules.min_s
    assert any(cue.start_s == 20.0 for cue in found), "a pause begins a cue"


def test_cues_of_impossible_words():
    long = "a" * 60
    words = (
        Word(long, 0.0, 9.0, 1.0),
        Word("b", 9.0, 9.04, 1.0),
        Word("c", 9.0, 9.04, 1.0),
        Word("d", 12.0, 12.1, 1.0),
    )
    found = cues(Transcript(words, 0.0))
    assert [cue.lines for cue in found] == [(long,), ("b c",), ("d",)]
    assert all(cue.start_s < cue.end_s for cue in found)
    assert found[0].end_s == CueRules().max_s
    assert found[1].end_s == 10.0  # min_s
    assert [cue.end_s for cue in cues(Transcript(words, 0.0), duration_s=12.5)][1:] == [10.0, 12.5]
    assert cues(Transcript(words[-1:], 0.0), duration_s=12.05)[0].end_s == 12.05  # not after the audio
    assert cues(Transcript((), 0.0)) == []
    with pytest.raises(ValueError, match="min_s is 9"):
        CueRules(min_s=9)


def test_json_says_everything_on_one_line():
    transcript = Transcript(SPOKEN, -math.inf, (ScoredText("x", -2.0), ScoredText("y", -3.0)))
    line = FORMS["json"].write(named(SPOKEN, transcript=transcript, duration_s=math.nan))
    assert line.count("\n") == 1
    fields = json.loads(line, parse_constant=pytest.fail)
    assert (fields["id"], fields["path"], fields["duration"], fields["score"]) == ("a b.flac", "x/a b.flac", None, None)
    assert fields["text"].split() == [word["text"] for word in fields["words"]]
    assert fields["words"][-1] == {"text": "end", "start_s": 3725.25, "end_s": 3725.55, "confidence": 0.9}
    assert fields["n_best"] == [{"text": "x", "score": -2.0}, {"text": "y", "score": -3.0}]


def test_ctm_has_six_fields_a_word_in_order():
    rows = [line.split() for line in FORMS["ctm"].write(named(SPOKEN, channel=1, duration_s=4e3)).splitlines()]
    assert all(row[:2] == ["a_b", "2"] and len(row) == 6 for row in rows)
    for row, word in zip(rows, SPOKEN, strict=True):
        assert (row[4], float(row[5])) == (word.text, word.confidence)
        assert (float(row[2]), float(row[2]) + float(row[3])) == approx((word.start_s, word.end_s), abs=1.5e-3)
    assert FORMS["ctm"].write(named(SPOKEN[:1], name=";;x", path="p")).startswith("_;;x 1 0.000 0.300 turn 0.9000")
    assert FORMS["ctm"].write(named(())) == ""


def test_text_alone():
    assert FORMS["text"].write(named(words_of("one two"))) == "one two\n"


def test_tokens_and_textgrids():
    spoken, tokens = (Word('say"', 0.5, 0.75, 0.9), Word("so", 1.0, 1.25, 1.0)), (Token("s", 1.0, 1.1, -0.5),)
    fields = json.loads(FORMS["json"].write(named(spoken, tokens=tokens)))
    assert fields["tokens"] == [{"text": "s", "start_s": 1.0, "end_s": 1.1, "log_prob": -0.5}]
    assert "tokens" not in json.loads(FORMS["json"].write(named(spoken)))
    lines = [
        line.strip() for line in FORMS["textgrid"].write(named(spoken, tokens=tokens, duration_s=2.0)).splitlines()
    ]
    assert lines[:2] == ['File type = "ooTextFile"', 'Object class = "TextGrid"']
    assert [line for line in lines if line.startswith("text")][:5] == [
        'text = ""', 'text = "say"""', 'text = ""', 'text = "so"', 'text = ""',
    ]  # fmt: skip
    assert lines.count("xmax = 2.0000") == 5  # the file's, each tier's and each one's last interval
    assert "size = 2" in lines
    assert "xmax = 1.2500" in FORMS["textgrid"].write(named(spoken, duration_s=math.nan))
