"""Data in folders and files of any legal names, which are names and never patterns, commands or addresses."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from recordings import jsonl, noise, read, write

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.audio_inputs import listed
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Rejected, Utterance
from tests.support import approx

SPECIAL = [
    *"[]*?{}#&=+~|\\%$'\"`;:@!<>()-. ,\n\t",
    "_OP_0..3_CL_",
    "#pipe=touch x",
    "#channel=1",
    "http:",
    "é",
    "日",
    "a",
]
NAMES = st.lists(st.one_of(st.sampled_from(SPECIAL), st.characters(codec="utf-8")), min_size=1, max_size=12)


def opens(entry: Utterance) -> bool:
    return Location.parse(entry.location).info().duration_s == approx(0.1)


def no_stdin(num_bytes: int) -> bytes:
    raise AssertionError("standard input is read")


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(NAMES.map("".join).filter(lambda name: not {*"/\0"} & {*name} and name[0] != "."))
@example("a#pipe=touch x")
@example("b|")
@example("~")
@example("[x]*")
def test_audio_and_manifests_are_found_by_their_names(name: str) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place, name)
        write(folder / "u.wav", noise(1, 1600))
        write(Path(place, "in", f"{name}.wav"), noise(1, 1600))
        jsonl(folder / "m.jsonl", {"audio_path": "u.wav", "text": "a"})
        for path in (folder / "m.jsonl", folder / "*.jsonl"):
            (utterance,) = read(Path(place), path)
            assert opens(utterance)
        for given_path in (folder / "u.wav", Path(place, "in"), Path(place, "in", f"{name}.wav")):
            found = listed([str(given_path)], read_stdin=no_stdin, folder=f"{place}/unpacked")
            (entry,) = found
            assert isinstance(entry, Rejected) or opens(entry)
            assert isinstance(entry, Utterance) or not name.isprintable()
        assert not any(path.name == "x" for path in Path.cwd().iterdir()), "a name was run as a command"


def test_a_file_whose_name_looks_like_a_command_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in" / "a#pipe=touch run.wav", noise(1, 1600))
    (tmp_path / "in" / "a").write_text("the input of the command")
    (entry,) = listed(["in"], read_stdin=no_stdin, folder=str(tmp_path / "unpacked"))
    assert isinstance(entry, Utterance)
    assert opens(entry)
    (tmp_path / "in" / "a#pipe=touch run.txt").write_text("text")
    (utterance,) = read(tmp_path, tmp_path / "in")
    assert opens(utterance)
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == ["in"]


def test_a_path_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    manifest = jsonl(tmp_path / os.fsdecode(b"\xff") / "m.jsonl", {"audio_path": "u.wav", "text": "a"})
    with pytest.raises(UserError, match=r"\\udcff/m.jsonl' is not UTF-8: rename the file or the folder"):
        read(tmp_path, manifest)
