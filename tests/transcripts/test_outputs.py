"""Outputs of transcripts: unique file names, folders with the origin of their files, and interruptions."""

import errno
import io
import json
import os
import re
import sys
import tempfile
import unicodedata
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.audio_inputs import listed
from asr_jax.data.manifests.identity import identities
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.transcripts import outputs
from asr_jax.transcripts.files import FORMS, NamedRecording
from asr_jax.transcripts.outputs import open_output
from asr_jax.transcripts.transcript import Transcript, Word

MAKER = {
    "run": "/runs/one", "checkpoint": 2, "weights": "live", "head": "ctc", "decoding": "beam 4", "digest": "beam-1"
}  # fmt: skip


CHARACTERS = st.one_of(st.sampled_from("aA/.é\u0301\0#2\udcff\n"), st.characters())


def named(utterance):
    return NamedRecording.of(utterance, Transcript((Word("w", 0.0, 0.5, 1.0),), -1.0))


def opened(form, out, names, *, force=False, maker=MAKER):
    """An output for recordings, and these. A name is the id and the location, or a tuple of both."""
    utterances = [Utterance(*(name if isinstance(name, tuple) else (name, name))) for name in names]
    made_of = partial(identities, utterances, with_texts=True)
    return open_output(form, out, utterances, force=force, maker=lambda: maker, made_of=made_of), utterances


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["../p/x.wav", "p/x.wav"], ["p/x.wav#2.json", "p/x.wav.json"]),
        (["a.wav", "a.ogg", "a.wav.flac"], ["a.ogg.json", "a.wav.flac.json", "a.wav.json"]),
        (["a.wav", "a.wav.flac"], ["a.json", "a.wav.flac.json"]),
        (["../x", "x", "x#2", "b.wav"], ["b.json", "x#2.json", "x#3.json", "x.json"]),
        (["..", "."], ["_#2.json", "_.json"]),
        (["A.wav", "a.wav", "d/x.wav", "D/x.wav"], ["A.wav.json", "D/x.wav#2.json", "a.wav#2.json", "d/x.wav.json"]),
        (["\u00e9", "e\u0301"], ["e\u0301#2.json", "\u00e9.json"]),
        (["a.wav", "a.json/b.wav", "A.json.flac"], ["A.json.json", "a#2.json", "a.json/b.json"]),
        (["a\0.wav", "\udcff.wav", "-n\n.wav", "dot..wav"], ["-n\n.json", "\\udcff.json", "a_.json", "dot..json"]),
    ],
)
def test_every_recording_has_a_file_of_its_own(names, expected, tmp_path):
    output, utterances = opened("json", tmp_path / "out", names)
    with output:
        for utterance in utterances:
            assert not output.has(utterance.id)
            assert output.write(named(utterance)) == ""
    paths = [path for path in (tmp_path / "out").rglob("*.json") if path.is_file()]
    assert sorted(str(path.relative_to(tmp_path / "out")) for path in paths) == expected
    for name in names:
        assert output.has(name)


@pytest.mark.parametrize(
    ("recordings", "expected"),
    [
        (["a.wav", "b.ogg", ("utt.1", "x/c.flac")], ["a 1", "b 1", "utt.1 1"]),
        (["a.wav", "a.ogg", "b.wav"], ["a.wav 1", "a.ogg 1", "b 1"]),
        (["d/a b.wav", "d/a_b.wav", "d/a_b.flac"], ["d/a_b.wav 1", "d/a_b.wav#2 1", "d/a_b.flac 1"]),
        (["a.wav", "a.wav.flac"], ["a 1", "a.wav 1"]),
        (["a.wav#channel=0", "a.wav#channel=1"], ["a 1", "a 2"]),
        (["a.wav#seconds=0+2", "a.wav#seconds=2+2"], ["a.wav#seconds=0+2 1", "a.wav#seconds=2+2 1"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("out", ["all.ctm", "folder"])
def test_every_recording_has_a_name_of_its_own_in_ctm(recordings, expected, out, tmp_path):
    output, utterances = opened("ctm", tmp_path / out, recordings)
    with output:
        for utterance in utterances:
            output.write(named(utterance))
    files = [tmp_path / out] if out == "all.ctm" else (tmp_path / out).rglob("*.ctm")
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert sorted(" ".join(line.split()[:2]) for line in lines) == sorted(expected)


def test_a_folder_knows_what_wrote_it(tmp_path):
    out = tmp_path / "out"
    output, (utterance,) = opened("json", out, ["a.wav"])
    with output:
        output.reject("b.wav", "b.wav", "gone")
    assert [path.name for path in out.iterdir()] == ["rejected.jsonl"]
    with output:
        output.write(named(utterance))
    assert json.loads((out / "made_by.jsonl").read_text()) == MAKER
    opened("text", out, ["b.wav"], maker=MAKER | {"decoding": "beam 4, the same files elsewhere"})
    opened("text", out, ["b.wav"], maker=MAKER | {"run": "/the/same/checkpoint/elsewhere"})
    for other in (
        {"checkpoint": 4},
        {"weights": "averaged"},
        {"head": "tdt"},
        {"decoding": "g", "digest": "g"},
    ):
        name, value = next(iter(other.items()))
        with pytest.raises(UserError, match=f"by {name} {MAKER[name]}.*this is {name} {value}.*--force"):
            opened("json", out, ["b.wav"], maker=MAKER | other)
    other = MAKER | {"checkpoint": 4}
    output, (utterance,) = opened("json", out, ["b.wav"], maker=other, force=True)
    with output:
        output.write(named(utterance))
    assert json.loads((out / "made_by.jsonl").read_text()) == other
    (out / "made_by.jsonl").write_text("[]")
    with pytest.raises(UserError, match=r"made_by\.jsonl cannot be read"):
        opened("json", out, ["b.wav"])


@pytest.mark.parametrize("out", ["new/all.json", "new/folder"])
@pytest.mark.parametrize("is_written", [False, True])
def test_what_is_broken_off_leaves_what_is_whole(out, is_written, tmp_path):
    output, (utterance, _) = opened("json", tmp_path / out, ["a.wav", "b.wav"])

    def breaks_off():
        with output:
            if is_written:
                output.write(named(utterance))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        breaks_off()
    left = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
    whole = {"new", *(f"new/folder{name}" for name in ("", "/a.json", "/made_by.jsonl", "/made_of.jsonl"))}
    assert left == (whole if is_written and out == "new/folder" else set())


def changed_in_place(audio):
    """Other bytes, with the size and the time of the former ones."""
    status = audio.stat()
    while audio.stat().st_ctime_ns == status.st_ctime_ns:  # its steps are some milliseconds
        audio.write_bytes(b"x" * status.st_size)
        os.utime(audio, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda day: os.utime(day / "a.wav"), ""),
        (lambda day: (day / "a.wav").write_bytes(b"first"), ""),
        (lambda day: day.rename(day.with_name("moved")), ""),
        (lambda day: changed_in_place(day / "a.wav"), "a.json was made before .*a.wav or its text changed"),
        (lambda day: day.with_name("other"), "a.json is of .*day/a.wav and not of .*other/a.wav"),
        (lambda day: (day.parent / "out/made_of.jsonl").unlink(), "a.json is not of an earlier command"),
        (lambda day: (day.parent / "out/made_of.jsonl").write_text('{"file": "a'), "is not of an earlier command"),
    ],
)  # fmt: skip
def test_a_file_in_a_folder_is_done_only_if_it_is_of_the_same_recording(change, reason, tmp_path):
    def again(day):
        return opened("json", tmp_path / "out", [("a.wav", str(day / "a.wav"))])

    day = tmp_path / "day"
    for folder, content in ((day, b"first"), (tmp_path / "other", b"other")):
        folder.mkdir(parents=True)
        (folder / "a.wav").write_bytes(content)
    output, (utterance,) = again(day)
    with output:
        output.write(named(utterance))
    assert again(day)[0].has("a.wav")
    moved = change(day)
    day = moved if isinstance(moved, Path) else day
    if not reason:
        assert again(day)[0].has("a.wav")
        return
    with pytest.raises(UserError, match=rf"out has 1 file of other recordings or texts: .*{reason}.*--force"):
        again(day)
    assert not opened("json", tmp_path / "out", [("a.wav", str(day / "a.wav"))], force=True)[0].has("a.wav")


def test_an_alignment_is_done_only_for_its_text(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"audio")
    utterance = Utterance("a.wav", str(tmp_path / "a.wav"), "two words")

    def output(*, of):
        made_of = partial(identities, [of], with_texts=True)
        return open_output("ctm", tmp_path / "out", [of], force=False, maker=lambda: MAKER, made_of=made_of)

    with output(of=utterance) as folder:
        folder.write(named(utterance))
    assert output(of=utterance).has("a.wav")
    with pytest.raises(UserError, match=r"a\.ctm was made before .*a\.wav or its text changed"):
        output(of=replace(utterance, text="two word"))


def test_what_two_jobs_say_differently_of_a_file_is_not_known(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"audio")
    output, (utterance,) = opened("json", tmp_path / "out", [("a.wav", str(tmp_path / "a.wav"))])
    with output:
        output.write(named(utterance))
    line = json.loads((tmp_path / "out/made_of.jsonl").read_text()) | {"digest": "other", "state": [1, 2, 3]}
    (tmp_path / "out/made_of-00000-of-00002.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(UserError, match=r"a\.json is not of an earlier command"):
        opened("json", tmp_path / "out", [("a.wav", str(tmp_path / "a.wav"))])


def test_a_line_of_a_killed_process_is_ignored(tmp_path):
    (tmp_path / "a.wav").write_bytes(b"audio")
    recordings = [("a.wav", str(tmp_path / "a.wav"))]
    output, (utterance,) = opened("json", tmp_path / "out", recordings)
    with output:
        output.write(named(utterance))
    with (tmp_path / "out/made_of.jsonl").open("ab") as file:
        file.write('{"file": "ü'.encode()[:-1])
    assert opened("json", tmp_path / "out", recordings)[0].has("a.wav")


def test_a_file_without_a_transcript_is_not_there(tmp_path):
    output, _ = opened("json", tmp_path / "all.json", ["a.wav"])
    with output:
        pass
    assert list(tmp_path.iterdir()) == []


def test_one_file_that_cannot_be_written_is_named_and_the_others_are_written(tmp_path):
    out = tmp_path / "out"
    (out / "folder.json").mkdir(parents=True)
    (out / "file").write_text("")
    output, utterances = opened("json", out, ["x" * 251, "folder.wav", "file/a.wav", "b.wav", "y" * 250])
    with output:
        assert not any(output.has(each.id) for each in utterances)
        long, folder, file, good, longest = map(output.write, map(named, utterances))
        assert (good, longest) == ("", "")
        assert re.search("/x+[.]json cannot be written: File name too long; rename", long)
        assert re.search(r"/folder[.]json cannot be written: Is a directory; rename", folder)
        assert re.search(r"/file/a[.]json cannot be written: (Not a directory|File exists); rename", file)
    assert [output.has(each.id) for each in utterances] == [False, False, False, True, True]


@pytest.mark.parametrize("name", ["x" * 250 + ".json", "中" * 83 + ".json"])
def test_one_file_may_have_the_longest_name(name, tmp_path):
    output, (utterance,) = opened("json", tmp_path / name, ["a.wav"])
    with output:
        output.write(named(utterance))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_full_disk_ends_the_work(tmp_path, monkeypatch):
    def full(path, content):
        if path.name != "made_by.jsonl":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(outputs, "write_whole", full)
    output, (utterance,) = opened("json", tmp_path / "out", ["a.wav"])
    with pytest.raises(OSError, match="No space left"), output:
        output.write(named(utterance))


def test_a_name_with_line_ends_is_on_one_line(tmp_path):
    output, (utterance,) = opened("text", tmp_path / "all.txt", ["a\tb\nc\u2028\x1b中\u3000é.wav"])
    with output:
        output.write(named(utterance))
    assert (tmp_path / "all.txt").read_text("utf-8") == r"a\tb\nc\u2028\x1b" + "中\u3000é.wav\tw\n"


@pytest.mark.slow
@settings(max_examples=500, deadline=None, database=None)
@given(
    st.lists(st.text(CHARACTERS, max_size=8), unique=True),
    st.sampled_from(list(FORMS.values())),
)
def test_names_of_files_never_collide(names, form):
    paths = outputs._paths(names, form.ending)
    equal = [unicodedata.normalize("NFC", path).casefold() for path in paths]
    parents = {"/".join(path.split("/")[:n]) for path in equal for n in range(1, path.count("/") + 1)}
    assert len(set(equal)) == len(paths)
    assert not parents & set(equal)
    for path in paths:
        assert path.endswith(form.ending)
        assert not {"", ".", ".."} & set(path.split("/"))
        assert b"\0" not in path.encode()


@pytest.mark.slow
@settings(max_examples=300, deadline=None, database=None)
@given(st.lists(st.binary(min_size=1, max_size=251).filter(lambda name: not set(name) & set(b"\0/")), max_size=6))
def test_recordings_of_any_legal_name_are_written_or_named(names):
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in", Path(folder) / "out"
        source.mkdir()
        names = {b"x" * name.startswith(b".") + name[:250] + b".wav" for name in names} if names else {b"a.wav"}
        for name in names:
            Path(os.fsdecode(os.path.join(os.fsencode(source), name))).touch()
        entries = listed([str(source)], read_stdin=io.BytesIO().read, folder=folder)
        assert len(entries) == len(names)
        good = [each for each in entries if isinstance(each, Utterance)]
        assert {os.fsencode(each.id) for each in good} == {name for name in names if is_utf8(name)}
        made_of = partial(identities, entries)
        with open_output("srt", out, entries, force=False, maker=lambda: MAKER, made_of=made_of) as output:
            reasons = [output.write(named(each)) for each in good]
        assert all(re.search("File name too long", reason) for reason in reasons if reason)
        assert len(list(out.rglob("*.srt"))) == reasons.count("")


def is_utf8(name):
    try:
        return bool(name.decode())
    except UnicodeDecodeError:
        return False


def test_what_cannot_be_written_is_refused(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for out in ("file", "file/all.json", "file/folder"):
        output, _ = opened("json", tmp_path / out, ["a.wav"])
        with pytest.raises(UserError, match=f"{out} cannot be written"), output:
            pytest.fail("the work begins")
    monkeypatch.setattr(sys, "stdout", None)
    output, _ = opened("json", None, ["a.wav"])
    with pytest.raises(UserError, match="standard output is closed"), output:
        pytest.fail("the work begins")
