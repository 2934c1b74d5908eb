"""The align command with a run that is trained on tones, so that the times of all words are known."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support import approx, assert_within, relative

from asr_jax.cli import evaluate
from asr_jax.cli.align import AlignOptions, loaded, main
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.options import parse
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.reading import Utterances, read_utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference import aligning as alignment
from asr_jax.inference.batches import BatchOptions
from asr_jax.inference.trained import WHOLE, load_trained
from asr_jax.observe.events import read_events
from tests.toned import LETTER_S, RATE_HZ, toned_run, words_of, write_toned


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return str(toned_run(tmp_path_factory.mktemp("toned")))


@pytest.fixture(scope="module")
def recordings(tmp_path_factory):
    """Manifest of recordings of several lengths, and the words of each with their times in seconds."""
    folder, rng = tmp_path_factory.mktemp("recordings"), np.random.default_rng(9)
    made = [write_toned(folder, f"r{number}", words_of(rng, number), rng) for number in (1, 3, 4, 9)]
    write_manifest(folder / "m.jsonl", [utterance for utterance, _ in made])
    return folder / "m.jsonl", {utterance.id: (utterance.text.split(), spans) for utterance, spans in made}


@pytest.mark.slow
def test_validation_computes_long_utterances_in_windows(tmp_path):
    """They are counted and announced, and no program is compiled after the first update."""
    run = str(toned_run(tmp_path, num_long=2))
    events = list(read_events(Path(run) / "events.jsonl"))
    messages = [event["data"]["message"] for event in events if event["event"] == "data"]
    assert "2 of 6 utterances are longer than 8 s and are computed in windows" in messages
    (found,) = (
        event["data"] for event in events if event["event"] == "validation" and event["data"]["weights"] == "ema"
    )
    assert (found["utterances"], found["words"], found["rejected"]) == (6, 4 * 4 + 2 * 16, 0)
    assert found["wer"] < 0.1
    assert not [event for event in events if event["event"] == "recompiled"]
    out = tmp_path / "rates.json"
    manifest = str(Path(run).parent / "validation.jsonl")
    evaluate.main([run, "--data", manifest, "--max-duration", "8", "--json", str(out)])
    counts = json.loads(out.read_text())["runs"][0]["sets"][manifest]
    assert (counts["wer"], counts["max_duration_s"]) == (found["wer"], 8)
    assert counts["windowed_ids"] == ["long0", "long1"]


FRAME_S = 0.02


def check_times(starts, ends, spans):
    """Checks times within three frames: a frame covers 20 ms, and windows of 25 ms extend beyond the ends of a tone."""
    assert max(abs(found - start) for found, (start, _) in zip(starts, spans, strict=True)) <= 2 * FRAME_S
    assert max(abs(found - end) for found, (_, end) in zip(ends, spans, strict=True)) <= 3 * FRAME_S


def test_times_of_words_and_tokens(run, recordings, capsys):
    manifest, known = recordings
    main([run, "--data", str(manifest), "--tokens"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [line["id"] for line in lines] == list(known)
    for line in lines:
        words, spans = known[line["id"]]
        assert [word["text"] for word in line["words"]] == words
        check_times([word["start_s"] for word in line["words"]], [word["end_s"] for word in line["words"]], spans)
        assert all(0.5 < word["confidence"] <= 1 for word in line["words"])
        assert line["text"] == " ".join(words)
        assert "".join(token["text"] for token in line["tokens"]) == "|".join(words)
        assert all(token["start_s"] < token["end_s"] and token["log_prob"] <= 0 for token in line["tokens"])
        assert line["score"] < 0


@pytest.mark.slow
def test_ctm_and_textgrids(run, recordings, tmp_path):
    manifest, known = recordings
    main([run, "--data", str(manifest), "--format", "ctm", "--out", str(tmp_path / "all.ctm")])
    rows = [line.split() for line in (tmp_path / "all.ctm").read_text().splitlines()]
    for name, (words, spans) in known.items():
        own = [row for row in rows if row[0] == name]
        assert [row[4] for row in own] == words
        assert {row[1] for row in own} == {"1"}
        starts = np.array([float(row[2]) for row in own])
        check_times(starts, starts + [float(row[3]) for row in own], spans)
        assert all(0 < float(row[5]) <= 1 for row in own)
    main([run, "--data", str(manifest), "--format", "textgrid", "--out", str(tmp_path / "grids"), "--tokens"])
    assert {path.stem for path in (tmp_path / "grids").glob("*.TextGrid")} == set(known)
    grid = (tmp_path / "grids" / "r3.TextGrid").read_text()
    assert grid.startswith('File type = "ooTextFile"\nObject class = "TextGrid"\n')
    assert all(f'text = "{word}"' in grid for word in known["r3"][0])
    assert 'name = "tokens"' in grid
    (tmp_path / "grids" / "r3.TextGrid").unlink()
    (tmp_path / "grids" / "r4.TextGrid").write_text("kept")
    main([run, "--data", str(manifest), "--format", "textgrid", "--out", str(tmp_path / "grids"), "--tokens"])
    assert (tmp_path / "grids" / "r3.TextGrid").read_text() == grid
    assert (tmp_path / "grids" / "r4.TextGrid").read_text() == "kept"
    with pytest.raises(UserError, match=r"4 recordings: expected --out FOLDER.* textgrid "):
        main([run, "--data", str(manifest), "--format", "textgrid"])
    with pytest.raises(UserError, match=r"all\.ctm already exists"):
        main([run, "--data", str(manifest), "--format", "ctm", "--out", str(tmp_path / "all.ctm")])


def test_emission_latency_against_known_times_and_alignments(run, recordings, tmp_path, capsys):
    """Words end with a tone, whose label is emitted before the tone is over."""
    manifest, known = recordings
    lines = [
        f"{name} 1 {start} {end - start} {word}"
        for name, timed in known.items() if name != "r9"
        for word, (start, end) in zip(*timed, strict=True)
    ]  # fmt: skip
    times, out = tmp_path / "known.ctm", tmp_path / "rates.json"
    times.write_text("\n".join([";; start and duration", *lines, ""]))
    evaluate.main([run, "--data", str(manifest), "--latency", str(times), "--json", str(out)])
    figures = json.loads(out.read_text())["runs"][0]["sets"][str(manifest)]
    found = figures["latency"]
    assert (found["spoken_words"], found["utterances"], found["without_alignment"]) == (8, 3, 1)
    assert 6 <= found["words"] <= 8
    assert -LETTER_S - 2 * FRAME_S < found["tail"]["mean"] < 0
    assert abs(found["head"]["mean"]) < 2 * FRAME_S
    assert found["emission"]["mean"] == approx(found["tail"]["mean"] - FRAME_S / 2)
    printed = capsys.readouterr().out
    assert f"{manifest}: latency: emission {1000 * found['emission']['mean']:.0f} ms on average" in " ".join(
        printed.split()
    )
    main([run, "--data", str(manifest), "--out", str(tmp_path / "own.json")])
    evaluate.main([run, "--data", str(manifest), "--latency", str(tmp_path / "own.json"), "--json", str(out)])
    own = json.loads(out.read_text())["runs"][0]["sets"][str(manifest)]["latency"]
    assert (own["spoken_words"], own["without_alignment"]) == (figures["words"], 0)
    assert -LETTER_S - 2 * FRAME_S < own["tail"]["mean"] < 0


def test_what_cannot_be_aligned_is_named(run, recordings, tmp_path, capsys):
    good = read_utterances([recordings[0]])[3]
    broken = [
        Utterance("other", good.location, "abc xyz", good.duration_s),
        Utterance("long", good.location, "abc " * 200, good.duration_s),
        replace(good, id="gone", location=str(tmp_path / "gone.flac")),
        Utterance("silent", good.location, "", good.duration_s),
    ]
    write_manifest(tmp_path / "m.jsonl", [good, *broken])
    with pytest.raises(RunError, match="4 of 5 utterances") as error:
        main([run, "--data", str(tmp_path / "m.jsonl")])
    assert error.value.exit_code == 1
    output = capsys.readouterr()
    assert [json.loads(line)["id"] for line in output.out.splitlines() if line.startswith("{")] == [good.id]
    named = {line.split(":")[0]: line for line in output.err.splitlines() if line.startswith("rejected")}
    assert "out of vocabulary (outside of the vocabulary: 'x', 'y', 'z')" in named["rejected other"]
    assert "fewer frames than its labels need (" in named["rejected long"]
    assert "no such file" in named["rejected gone"]
    assert "empty text" in named["rejected silent"]
    write_manifest(tmp_path / "none.jsonl", broken[2:3])
    with pytest.raises(RunError, match="1 of 1 utterance could"):
        main([run, "--data", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "none.json")])
    assert not (tmp_path / "none.json").exists()
    write_manifest(tmp_path / "silent.jsonl", broken[3:])
    with pytest.raises(UserError, match="1 empty text"):
        main([run, "--data", str(tmp_path / "silent.jsonl"), "--out", str(tmp_path / "silent")])
    (line,) = (tmp_path / "silent" / "rejected.jsonl").read_text().splitlines()
    assert (json.loads(line)["id"], json.loads(line)["reason"]) == ("silent", "empty text")
    (tmp_path / "rejected.jsonl").write_text('{"id": "a"}\n')
    with pytest.raises(UserError):
        main([run, "--data", str(tmp_path / "rejected.jsonl")])


def test_texts_with_other_characters_than_labels_need_a_normaliser_which_is_named(run, recordings, tmp_path, capsys):
    good = read_utterances([recordings[0]])[3]
    written = replace(good, text=", ".join(good.text.title().split()) + "!")
    write_manifest(tmp_path / "m.jsonl", [written])
    given = [run, "--data", str(tmp_path / "m.jsonl")]
    with pytest.raises(UserError, match="1 out of vocabulary"):
        main(given)
    assert "1 text without labels: --normaliser english_letters.v1 gives them labels\n" in capsys.readouterr().err
    options = parse(AlignOptions, [*given, "--normaliser", "english_letters.v1"], prog="align", about="")
    trained = loaded(options)
    assert trained.tokenizer.normaliser == "english_letters.v1+lower.v1"
    data = alignment.plan(trained, Utterances.of([written]))
    assert trained.tokenizer.decode(data.index.labels_of(0).tolist()) == good.text
    with pytest.raises(UserError, match="--normaliser: unknown normaliser 'english'"):
        main([*given, "--normaliser", "english"])


def test_much_longer_audio_is_aligned_by_windows(run, recordings, tmp_path, capsys):
    """Long audio is computed in windows; word times are right, and the order is kept."""
    rng, trained = np.random.default_rng(11), load_trained(Path(run))
    longest_s = WHOLE * trained.longest_s
    whole, spans = write_toned(tmp_path, "whole", words_of(rng, 60), rng)
    short = read_utterances([recordings[0]])[0]
    gone, wrong = (
        replace(whole, id="gone", location=str(tmp_path / "gone.flac")),
        replace(whole, id="wrong", text="xyz"),
    )
    assert whole.duration_s > longest_s
    write_manifest(tmp_path / "m.jsonl", [whole, gone, wrong, short])
    data = alignment.plan(trained, read_utterances([tmp_path / "m.jsonl"]))
    assert [data.index.utterances[row].id for row in data.windowed_rows] == ["whole", "gone"]
    assert max(bucket.length for bucket in data.plan.buckets) <= longest_s * RATE_HZ
    letters_alone = replace(trained, tokenizer=replace(trained.tokenizer, normaliser="english_letters.v1"))
    numbered = replace(short, id="numbered", text="abc 2")
    data = alignment.plan(letters_alone, Utterances.of([short, numbered]))
    assert [utterance.id for utterance in data.index.utterances] == [short.id]
    assert data.rejections.entries[0].reason.startswith("'2' has no labels (english_letters.v1 leaves it out)")
    with pytest.raises(UserError, match=r"1 text .*normaliser"):
        alignment.plan(letters_alone, Utterances.of([numbered]))
    with pytest.raises(RunError, match="2 of 4 utterances"):
        main([run, "--data", str(tmp_path / "m.jsonl"), "--tokens"])
    output = capsys.readouterr()
    lines = [json.loads(line) for line in output.out.splitlines() if line.startswith("{")]
    assert [line["id"] for line in lines] == ["whole", short.id]
    words = lines[0]["words"]
    assert " ".join(word["text"] for word in words) == whole.text
    check_times([word["start_s"] for word in words], [word["end_s"] for word in words], spans)
    assert all(0.5 < word["confidence"] <= 1 for word in words)
    assert "".join(token["text"] for token in lines[0]["tokens"]) == "|".join(whole.text.split())
    assert lines[0]["score"] < 0
    assert "rejected gone: " in output.err
    assert "no such file" in output.err


@pytest.mark.slow
def test_an_alignment_by_windows_is_that_of_the_whole(run, tmp_path):
    """The model has a context of two frames, so windows have the same frames as the whole recording."""
    rng, trained = np.random.default_rng(12), load_trained(Path(run))
    utterance, _ = write_toned(tmp_path, "long", words_of(rng, 60), rng)
    (by_windows,) = alignment.aligned_utterances(trained, alignment.plan(trained, Utterances.of([utterance])))
    long = load_trained(Path(run), batches=BatchOptions(max_duration=100.0))
    data = alignment.plan(long, Utterances.of([utterance]))
    assert not data.windowed_rows
    (whole,) = alignment.aligned_utterances(long, data)
    for ours, theirs in zip(by_windows.tokens, whole.tokens, strict=True):
        assert replace(ours, log_prob=0) == replace(theirs, log_prob=0)
    scores = np.array([[each.transcript.score] for each in (by_windows, whole)])
    assert_within(relative(scores[0], scores[1]), 1e-5, what="score of windows beside the whole")


def piece_words(piece, spoken):
    """Words whose middle is in a piece."""
    end = piece["offset"] + piece["duration"]
    return [word for word, (start, stop) in spoken if piece["offset"] < (start + stop) / 2 < end]


def test_long_audio_is_cut_at_pauses(run, tmp_path, capsys):
    """40 words, 12 words that are not in the text, and 40 words before which the text has 10 words without audio."""
    rng = np.random.default_rng(3)
    first, foreign, unsaid, last = (words_of(rng, num) for num in (40, 12, 10, 40))
    utterance, spans = write_toned(tmp_path, "long", first + foreign + last, rng, space_s=0.4)
    (tmp_path / "long.txt").write_text("\n".join([" ".join(first + unsaid), "éé", " ".join(last)]))
    out, rejected = tmp_path / "out" / "pieces.jsonl", tmp_path / "rejected.jsonl"
    main([run, utterance.location, "--text", str(tmp_path / "long.txt"), "--segment", "--max-seconds", "6",
          "--out", str(out), "--rejected", str(rejected)])  # fmt: skip
    assert "pieces (0.0" in capsys.readouterr().out
    pieces = [json.loads(line) for line in out.read_text().splitlines()]
    spoken = list(zip(first + foreign + last, spans, strict=True))
    assert len(pieces) > 12
    for piece in pieces:
        assert piece["text"].split() == piece_words(piece, spoken)
        assert piece["duration"] <= 6
        assert -0.3 <= piece["score"] <= 0
        assert "reason" not in piece
        for place in (piece["offset"], piece["offset"] + piece["duration"]):  # not within a word
            assert not any(start + 0.03 < place < end - 0.03 for start, end in spans)
    kept = [word for piece in pieces for word in piece["text"].split()]
    rejected = [json.loads(line) for line in rejected.read_text().splitlines()]
    assert sorted(kept + " ".join(piece["text"] for piece in rejected).split()) == sorted(
        [*first, *unsaid, "éé", *last]
    )
    assert len(kept) >= 76
    reasons = " ".join(piece["reason"] for piece in rejected)
    assert "outside of the vocabulary: 'é'" in reasons
    assert any(piece["offset"] < spans[45][0] < piece["offset"] + piece["duration"] for piece in rejected)
    utterances = read_utterances([out])
    assert [utterance.text for utterance in utterances] == [piece["text"] for piece in pieces]
    assert utterances[0].speaker == ""


@pytest.mark.slow
def test_long_entries_of_manifests_and_a_score_that_nothing_reaches(run, recordings, tmp_path, capsys):
    out = tmp_path / "pieces.jsonl"
    main([run, "--data", str(recordings[0]), "--segment", "--out", str(out), "--max-seconds", "3"])
    pieces = [json.loads(line) for line in out.read_text().splitlines()]
    assert {piece["id"].rpartition("-")[0] for piece in pieces} == set(recordings[1])
    assert {piece["speaker"] for piece in pieces} == {"tone"}
    words = [word for words, _ in recordings[1].values() for word in words]
    assert [word for piece in pieces for word in piece["text"].split()] == words
    again = [run, "--data", str(recordings[0]), "--segment", "--out", str(out), "--min-score", "0"]
    before = out.read_text()
    with pytest.raises(UserError, match=r"pieces\.jsonl .*--out.* --force"):
        main(again)
    assert out.read_text() == before
    main([*again, "--force"])
    assert out.read_text() == ""
    rejected = [json.loads(line) for line in (tmp_path / "pieces.rejected.jsonl").read_text().splitlines()]
    assert all("below 0" in piece["reason"] and piece["score"] < 0 for piece in rejected)


def test_pieces_of_parts_count_from_the_files_beginning(run, tmp_path):
    rng = np.random.default_rng(5)
    utterance, spans = write_toned(tmp_path, "whole", words := words_of(rng, 8), rng)
    cut_s = (spans[3][1] + spans[4][0]) / 2
    length_s = utterance.duration_s - cut_s
    part = Utterance("part", f"{utterance.location}#seconds={cut_s!r}+{length_s!r}", " ".join(words[4:]), length_s)
    write_manifest(tmp_path / "m.jsonl", [part])
    main([run, "--data", str(tmp_path / "m.jsonl"), "--segment", "--out", str(tmp_path / "pieces.jsonl")])
    (piece,) = [json.loads(line) for line in (tmp_path / "pieces.jsonl").read_text().splitlines()]
    assert piece["text"].split() == piece_words(piece, list(zip(words, spans, strict=True)))
    assert cut_s <= piece["offset"] < spans[4][0]


CUT = ["--data", "m", "--segment", "--out", "no/p.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--text"),
        (["a.flac"], "--text"),
        (["a.flac", "--text", "t", "--data", "m"], "--text"),
        (["--data", "m", "--segment"], "--segment needs --out"),
        (["--data", "m", "--decoding.kind", "beam"], "--decoding.kind"),
        (["--data", "m", "--rejected", "r"], "--rejected without --segment"),
        (["--data", "m", "--min-score", "-1"], "--min-score without --segment"),
        (["--data", "m", "--max-seconds", "9"], "--max-seconds without --segment"),
        ([*CUT, "--format", "json"], "--format with --segment"),
        ([*CUT, "--tokens", "--format", "ctm"], "--format, --tokens with --segment"),
        ([*CUT, "--max-seconds", "0"], "max_seconds is 0"),
        ([*CUT, "--min-score", "0.5"], "min_score is 0.5"),
        ([*CUT, "--rejected", "no/p.jsonl"], "--out and --rejected are both no/p.jsonl"),
        ([*CUT, "--rejected", __file__], "test_align.py .*--rejected.* --force"),
        (["a.flac", "--text", "gone.txt"], "gone.txt cannot be read"),
    ],
)
def test_wrong_beginnings(arguments, message):
    with pytest.raises(UserError, match=message):
        main(["runs/none", *arguments])
