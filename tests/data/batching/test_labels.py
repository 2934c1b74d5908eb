"""Labels of all utterances: encoded once, written atomically, encoded again if they are damaged."""

import shutil
import tracemalloc
from pathlib import Path

import pytest
from recordings import jsonl, read

from asr_jax.data.batching.labels import encoded
from asr_jax.data.manifests import progress
from asr_jax.data.manifests.columns import AT_ONCE
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.characters import CharacterTokenizer

LETTERS = CharacterTokenizer(symbols=(*"abc", None), normaliser="none")
TEXTS = ["abc", "", "cab?", "a"] * 10


def made(folder: Path) -> Utterances:
    path = folder / "m.jsonl"
    if not path.exists():
        lines = [{"id": str(i), "audio_path": "/a.wav", "duration": 1, "text": text} for i, text in enumerate(TEXTS)]
        jsonl(path, *[line | {"tokens": [7]} for line in lines[:2]], *lines[2:])
    return read(folder, path)


def rows(utterances: Utterances, *, given: bool = False) -> list[list[int]]:
    labels, problems, *_ = encoded(utterances, LETTERS, given=given)
    assert {row: reason for row, (reason, _) in problems.items() if row > 1} == dict.fromkeys(
        range(2, 40, 4), "out of vocabulary"
    )
    return [labels[row].tolist() for row in range(len(labels))]


def test_by_text_or_as_they_are_given(tmp_path: Path) -> None:
    utterances = made(tmp_path)
    assert rows(utterances)[:4] == [[0, 1, 2], [], [], [0]]
    assert rows(utterances, given=True)[:4] == [[7], [7], [], [0]]


@pytest.mark.parametrize("name", ["labels.values.npy", "labels.offsets.npy", "repeats.npy", "problems.json"])
@pytest.mark.parametrize("is_cut", [False, True])
def test_damaged_ones_are_made_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, is_cut: bool) -> None:
    first = rows(made(tmp_path))
    (folder,) = (tmp_path / ".cache").rglob("labels-*")
    if is_cut:
        (folder / name).write_bytes((folder / name).read_bytes()[:-9])
    else:
        (folder / name).unlink()
    assert rows(made(tmp_path)) == first
    monkeypatch.setattr(CharacterTokenizer, "encode", lambda self, text: pytest.fail("encoded again"))
    assert rows(made(tmp_path)) == first


@pytest.mark.slow
@pytest.mark.parametrize("given", [False, True])
def test_processes_that_share_the_work_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    alone = rows(made(tmp_path), given=given)
    for folder in (tmp_path / ".cache").rglob("labels-*"):
        shutil.rmtree(folder)
    monkeypatch.setattr(progress, "IN_PROCESSES_FROM", 1)
    monkeypatch.setattr(progress, "ROWS_PER_PART", 7)
    monkeypatch.setattr(CharacterTokenizer, "encode", lambda self, text: pytest.fail("encoded in this process"))
    assert rows(made(tmp_path), given=given) == alone


def test_why_there_are_none(tmp_path: Path) -> None:
    """A text outside of the vocabulary is rejected whether or not there are token ids."""
    line = {"audio_path": "/a.wav", "duration": 1, "tokens": [7]}
    path = jsonl(tmp_path / "m.jsonl", line | {"text": "ab?"}, line | {"text": ""}, line | {"text": "ab"})
    problems = encoded(read(tmp_path, path), LETTERS, given=False).problems
    assert {row: reason for row, (reason, _) in problems.items()} == {
        0: "out of vocabulary", 1: "token ids without a text"
    }  # fmt: skip
    assert not encoded(read(tmp_path, path), LETTERS, given=True).problems


@pytest.mark.slow
def test_encoding_takes_little_more_room_than_the_labels() -> None:
    utterances = Utterances.of(Utterance(str(i), "/a.wav", "abc" * 40, 1.0) for i in range(8 * AT_ONCE))
    tracemalloc.start()
    labels = encoded(utterances, LETTERS, given=False).labels
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert labels.values.nbytes == 120 * len(utterances)
    assert peak < 120 * len(utterances) * 2 + 2500 * AT_ONCE


def test_who_comes_second_leaves_what_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process writes its labels while this one encodes."""
    utterances = made(tmp_path)
    encode, first = CharacterTokenizer.encode, []

    def slow(self: CharacterTokenizer, text: str) -> list[int]:
        if not first:
            first.append(True)
            rows(utterances)
        return encode(self, text)

    monkeypatch.setattr(CharacterTokenizer, "encode", slow)
    assert rows(utterances)[:4] == [[0, 1, 2], [], [], [0]]
    assert len(list((tmp_path / ".cache").rglob("labels-*"))) == 1
    assert not list((tmp_path / ".cache").rglob(".partial-*"))
