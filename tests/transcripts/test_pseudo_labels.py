"""Pseudo-labels: long recordings are cut at pauses, and all audio is either kept or listed with a reason."""

import itertools
import json

import numpy as np
import pytest
from recordings import RATE, noise, read, write

from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.transcripts.pseudo_labels import PseudoLabels, cut_at_pauses
from asr_jax.transcripts.transcript import Transcript, Word
from tests.support import approx


def words(*places, confidence=0.95):
    return tuple(Word(f"w{n}", start_s, end_s, confidence) for n, (start_s, end_s) in enumerate(places))


def test_pieces_are_the_whole_recording_cut_at_pauses():
    spoken = words((2.0, 2.5), (2.6, 3.0), (4.5, 5.0), (5.1, 9.0))
    found = cut_at_pauses(spoken, 12.0, most_s=6.0)
    assert [(piece.start_s, piece.end_s, len(piece.words)) for piece in found] == [
        (0.0, 1.5, 0), (1.5, 3.5, 2), (3.5, 4.0, 0), (4.0, 9.5, 2), (9.5, 12.0, 0)
    ]  # fmt: skip
    assert cut_at_pauses((), 3.0, most_s=6.0) == [(0.0, 3.0, ())]


def test_without_pauses_the_longest_gap_is_taken_and_no_word_is_lost():
    rng = np.random.default_rng(0)
    gaps, lengths = rng.uniform(0.02, 0.3, 400), rng.uniform(0.1, 0.5, 400)
    ends = np.cumsum(gaps + lengths)
    spoken = words(*zip((ends - lengths).tolist(), ends.tolist(), strict=True))
    found = cut_at_pauses(spoken, float(ends[-1]) + 0.1, most_s=8.0)
    assert tuple(word for piece in found for word in piece.words) == spoken
    assert found[0].start_s == 0.0
    assert found[-1].end_s == float(ends[-1]) + 0.1
    for piece, after in itertools.pairwise(found):
        assert piece.end_s == after.start_s
    for piece in found:
        assert piece.end_s - piece.start_s <= 8.0
        assert all(piece.start_s <= word.start_s and word.end_s <= piece.end_s for word in piece.words)
    at_cuts = [b.words[0].start_s - a.words[-1].end_s for a, b in itertools.pairwise(found) if a.words and b.words]
    assert np.mean(at_cuts) > 0.25, "gaps of 0.02 to 0.3 s: the longest of many"


def test_a_word_that_is_longer_than_a_piece():
    (piece,) = cut_at_pauses(words((0.2, 20.0)), 20.2, most_s=6.0)
    assert (piece.start_s, piece.end_s, len(piece.words)) == (0.0, 20.2, 1)


def test_what_is_written_is_read_by_training_and_the_rest_is_named(tmp_path):
    long, short = (
        write(tmp_path / "a" / "long.flac", noise(0, RATE * 12)),
        write(tmp_path / "short.wav", noise(1, RATE)),
    )
    with PseudoLabels(tmp_path / "out.jsonl", min_confidence=0.9) as labels:
        spoken = words((2.0, 2.5), (2.6, 3.0)) + words((4.5, 5.0), (5.1, 9.0), confidence=0.5)
        utterance = Utterance("long", str(long), "", 12.0, speaker="anna")
        labels.add(utterance, Transcript(spoken, 0.0), most_s=6.0)
        labels.add(Utterance("short", str(short), "old", 1.0), Transcript(words((0.1, 0.9)), 0.0), most_s=6.0)
        labels.add(Utterance("still", str(short), "", 1.0), Transcript((), 0.0), most_s=6.0)
        labels.add(Utterance("one", str(long), "", 12.0), Transcript(words((0.1, 11.9)), 0.0), most_s=6.0)
        labels.reject("gone", "gone.wav", "no such file")
        assert not labels.path.exists()
    kept = list(read(tmp_path, labels.path))
    assert [(utterance.id, utterance.text, utterance.speaker) for utterance in kept] == [
        ("long-00001", "w0 w1", "anna"), ("short", "w0", "")
    ]  # fmt: skip
    np.testing.assert_array_equal(
        Location.parse(kept[0].location).audio(rate_hz=RATE), noise(0, RATE * 12)[RATE * 3 // 2 : RATE * 7 // 2]
    )
    lines = [json.loads(line) for line in labels.path.read_text().splitlines()]
    assert [line["confidence"] for line in lines] == [0.95, 0.95]
    assert (lines[0]["offset"], lines[0]["duration"], lines[0]["audio_path"]) == (1.5, 2.0, "a/long.flac")
    left_out = [json.loads(line) for line in (tmp_path / "out.rejected.jsonl").read_text().splitlines()]
    assert [(line["id"], line["reason"]) for line in left_out] == [
        ("long-00000", "no words"), ("long-00002", "no words"), ("long-00003", "confidence 0.5000 below 0.9"),
        ("long-00004", "no words"), ("still", "no words"),
        ("one-00000", "12 s without a pause between words, longer than 6 s"), ("gone", "no such file"),
    ]  # fmt: skip
    total_s = sum(utterance.duration_s for utterance in kept) + sum(line["duration"] for line in left_out)
    assert total_s == approx(26.0, abs=0.01)
    assert "2 kept (0.001 h), 1 below the confidence (0.002 h), 4 without words" in labels.summary()
    assert "1 too long (0.003 h)" in labels.summary()


def test_nothing_is_there_of_what_was_broken_off(tmp_path):
    def breaks_off():
        with PseudoLabels(tmp_path / "out.jsonl", min_confidence=0.9) as labels:
            labels.reject("a", "b", "c")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        breaks_off()
    assert list(tmp_path.iterdir()) == []


def test_what_nothing_of_could_be_read_is_named_without_a_manifest(tmp_path):
    with PseudoLabels(tmp_path / "out.jsonl", min_confidence=0.9) as labels:
        labels.reject("a", "b", "c")
    (line,) = (tmp_path / "out.rejected.jsonl").read_text().splitlines()
    assert json.loads(line)["reason"] == "c"
    assert not (tmp_path / "out.jsonl").exists()
