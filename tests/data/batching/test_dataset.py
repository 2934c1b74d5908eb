"""Data of a run: its sets in every notation, and limits that hold."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import write as audio

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.errors import UserError
from asr_jax.data.batching import sets as sets_module
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data, PlannedData, plan_training
from asr_jax.data.batching.filters import Filters
from asr_jax.data.batching.mixing import Mixing
from asr_jax.data.batching.sets import read_sets
from asr_jax.data.manifests import reading
from asr_jax.data.manifests.inputs import resolve
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.base import Tokenizer
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.tokenizers import TokenizerSettings

LETTERS = CharacterTokenizer(symbols=(*"abc", None), normaliser="none")


def write(path: Path, names: list[str], **fields: Any) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"id": name, "audio_path": f"{name}.flac", "text": "abc", "duration": 2.0} | fields for name in names]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def ids(utterances: Utterances) -> list[str]:
    return [utterance.id for utterance in utterances]


def plan(utterances: Utterances, data: Data, *, tokenizer: Tokenizer = LETTERS) -> PlannedData:
    def output_length(lengths: Any, *, of_features: bool) -> Any:
        return np.asarray(lengths) // (4 if of_features else 640)

    return plan_training(
        utterances,
        data,
        tokenizer=tokenizer,
        output_length=output_length,
        frames_needed=np.add,
        front_end=KaldiFbank(),
        seed=3,
    )


@pytest.mark.parametrize("name", ["val", "validation", "dev"])
@pytest.mark.parametrize("inner", ["", "manifests"])
def test_a_folder_of_manifests_has_both_sets(tmp_path: Path, name: str, inner: str) -> None:
    write(tmp_path / inner / "train.jsonl", ["a", "b"])
    write(tmp_path / inner / f"{name}.jsonl", ["c"])
    write(tmp_path / inner / "test.jsonl", ["d"])
    sets = read_sets(Data(train=(str(tmp_path),)), seed=0)
    assert (ids(sets.train), ids(sets.validation), sets.is_split) == (["a", "b"], ["c"], False)
    elsewhere = write(tmp_path / "else.jsonl", ["e"])
    sets = read_sets(Data(train=(elsewhere, str(tmp_path))), seed=0)
    assert sets.validation_paths == (str(tmp_path),)  # the only one that `input_of` counts
    sets = read_sets(Data(train=(str(tmp_path),), validation=(elsewhere,)), seed=0)
    assert ids(sets.validation) == ["e"]


def test_without_a_validation_set_a_tenth_is_cut_off_the_same_way_every_time(tmp_path: Path) -> None:
    train = write(tmp_path / "all.jsonl", [f"u{i}" for i in range(100)])
    sets = read_sets(Data(train=(train,)), seed=1)
    assert sets.is_split
    assert sorted(ids(sets.train) + ids(sets.validation)) == sorted(f"u{i}" for i in range(100))
    assert len(sets.validation) == 10
    assert ids(read_sets(Data(train=(train,)), seed=1).validation) == ids(sets.validation)
    assert ids(read_sets(Data(train=(train,)), seed=2).validation) != ids(sets.validation)
    assert len(read_sets(Data(train=(train,), validation_share=0.3), seed=1).validation) == 30


def test_only_some_records_are_taken_evenly_from_all_inputs(tmp_path: Path) -> None:
    one, two = write(tmp_path / "a.jsonl", ["a", "b", "c"]), write(tmp_path / "b.jsonl", ["d", "e", "f"])
    validation = write(tmp_path / "v.jsonl", ["x", "y"])
    data = Data(train=(one, two), validation=(validation,), max_train_utterances=2, max_validation_utterances=1)
    sets = read_sets(data, seed=0)
    assert (ids(sets.train), ids(sets.validation)) == (["a", "d"], ["x"])


def test_all_inputs_that_are_not_there_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        read_sets(Data(train=(str(tmp_path / "x.jsonl"),), validation=(str(tmp_path / "y"),)), seed=0)
    for part in ("data.train: ", "x.jsonl: no such file", "data.validation: ", "Ways to provide data"):
        assert part in str(error.value)
    with pytest.raises(UserError, match=r"data\.train is empty"):
        read_sets(Data(train=()), seed=0)


@pytest.mark.parametrize("name", ["train", "other"])
def test_a_start_walks_a_folder_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A walk of a million files takes seconds; the next start walks again, since files may have come."""
    for i in range(20):
        audio(tmp_path / "set" / name / f"{i}.wav", np.zeros(3000 + i, np.int16)).with_suffix(".txt").write_text("ab")
    walk, walked = os.walk, []
    monkeypatch.setattr(os, "walk", lambda folder, **options: walked.append(folder) or walk(folder, **options))
    for num in (20, 20, 21):
        if num == 21:
            audio(tmp_path / "set" / name / "20.wav", np.zeros(100, np.int16)).with_suffix(".txt").write_text("ab")
        walked.clear()
        sets = read_sets(Data(train=(str(tmp_path / "set"),), cache=str(tmp_path / "cache")), seed=0)
        assert len(sets.train) + len(sets.validation) == num
        assert str(tmp_path / "set") in walked
        assert len(walked) == len(set(walked))


def test_inputs_are_resolved_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train, validation = write(tmp_path / "a.jsonl", ["a", "b"]), write(tmp_path / "v.jsonl", ["c"])
    resolved = []

    def recording(paths: list[str], role: str, options: ReadOptions) -> Any:
        resolved.append((paths, role))
        return resolve(paths, role, options)

    monkeypatch.setattr(sets_module, "resolve", recording)
    monkeypatch.setattr(reading, "resolve", recording)
    sets = read_sets(Data(train=(train, train), validation=(validation,)), seed=0)
    assert resolved == [([train], "train"), ([train], "train"), ([validation], "validation")]
    assert sets.train.columns.input_of.tolist() == [0, 0, 1, 1]
    assert ids(sets.validation) == ["c"]


def test_an_epoch_mixes_its_inputs_by_their_weights(tmp_path: Path) -> None:
    few, many = write(tmp_path / "few.jsonl", ["x", "y"]), write(tmp_path / "many.jsonl", [f"u{i}" for i in range(40)])
    data = Data(
        train=(few, many), validation=(few,), mixing=Mixing("absolute", weights=(1.0, 3.0)),
        batching=Batching(row_multiple=2),
    )  # fmt: skip
    planned = plan(read_sets(data, seed=0).train, data)
    for epoch in range(3):
        span = range(epoch * planned.plan.batches_per_epoch, (epoch + 1) * planned.plan.batches_per_epoch)
        rows = np.concatenate([planned.plan[position].rows for position in span])
        assert sorted(rows[(rows >= 0) & (rows < 2)].tolist()) == [0, 1]
        assert (rows >= 2).sum() == 6
    with pytest.raises(ValueError, match="2 numbers for 1 entries of train"):
        Data(train=(few,), mixing=Mixing("absolute", weights=(1.0, 3.0)))


def test_the_filters_of_the_settings_and_the_fastest_speed_count() -> None:
    utterances = Utterances.of(
        Utterance(name, f"/{name}.flac", "abc", seconds)
        for name, seconds in (("short", 0.5), ("good", 2.0), ("long", 9.0))
    )
    kept = plan(utterances, Data(train=("x",), filters=Filters(min_duration_s=1.0, max_duration_s=5.0)))
    assert ids(kept.index.utterances) == ["good"]
    assert kept.rejections.utterances == {"too short": 1, "too long": 1}
    tight = Utterances.of([Utterance("tight", "/a.flac", "abcabcabca", 0.4), Utterance("good", "/b.flac", "abc", 2.0)])
    assert len(plan(tight, Data(train=("x",))).index) == 2  # 10 frames for 10 labels
    assert ids(plan(tight, Data(train=("x",), speeds=(1.0, 1.5))).index.utterances) == ["good"]


def test_records_that_are_not_used_do_not_count_as_unknown() -> None:
    texts = ["ab", "ba", "abba", "baab"] * 5
    pieces = SentencePieceTokenizer.train(
        texts, vocab_size=8, pieces="unigram", character_coverage=1.0, normaliser="none"
    )
    used = [Utterance(str(i), f"/{i}.flac", text, 2.0) for i, text in enumerate(texts)]
    unused = [Utterance(f"u{i}", f"/u{i}.flac", "X Y Z", 50.0) for i in range(20)]
    assert len(plan(Utterances.of([*used, *unused]), Data(train=("x",)), tokenizer=pieces).index) == 20


def test_buckets_are_made_for_what_an_epoch_draws() -> None:
    """An epoch has 5 utterances of each of 40 short, 10 medium and 5 long ones."""
    sizes = ((40, 1.0), (10, 2.0), (5, 4.0))
    utterances = Utterances.of(
        Utterance(f"{seconds}-{i}", f"/{seconds}-{i}.flac", "abc", seconds)
        for num, seconds in sizes
        for i in range(num)
    )
    columns = replace(utterances.columns, input_of=np.repeat(np.arange(3, dtype=np.int32), (40, 10, 5)))
    data = Data(
        train=("a", "b", "c"), mixing=Mixing("absolute", (1.0, 1.0, 1.0)),
        batching=Batching.planned(num_buckets=3, seconds=60.0, row_multiple=2),
    )  # fmt: skip
    planned = plan(replace(utterances, columns=columns), data)
    assert [bucket.batch_size for bucket in planned.plan.buckets] == [6, 6, 6]
    assert planned.plan.padding_share < 0.2


def test_ready_features_are_not_played_faster() -> None:
    utterances = Utterances.of([Utterance("a", "/a#features=90x80.f32", "abc", 0.9, num_frames=90, num_values=80)])
    planned = plan(utterances, Data(train=("x",)))
    assert (planned.index.lengths.tolist(), planned.index.scale.of_features) == ([90], True)
    assert planned.plan.buckets[0].length == 91
    with pytest.raises(UserError, match="the speed of ready features cannot be changed"):
        plan(utterances, Data(train=("x",), speeds=(0.9, 1.1)))


def test_nothing_left_says_why() -> None:
    utterances = Utterances.of([Utterance("a", "/a.flac", "abc", 99.0)])
    with pytest.raises(UserError, match=r"1 too long \(0\.03 h\)"):
        plan(utterances, Data(train=("x",)))


def test_more_than_a_tenth_rejected_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    for num_long, is_warned in ((11, False), (12, True)):
        caplog.clear()
        lengths = [9.0] * num_long + [2.0] * (110 - num_long)
        utterances = Utterances.of([Utterance(f"u{i}", f"{i}.flac", "a", s) for i, s in enumerate(lengths)])
        plan(utterances, Data(train=("x",), filters=Filters(max_duration_s=5.0)))
        assert (f"{num_long} of 110 training utterances are rejected, more than a tenth" in caplog.text) == is_warned


def test_training_labels_are_sampled_in_each_epoch(tmp_path: Path) -> None:
    texts = ["the three threads of the thread", "read the other thread there"]
    pieces = SentencePieceTokenizer.train(
        texts * 3, vocab_size=40, pieces="unigram", character_coverage=1.0, normaliser="lower.v1"
    )
    path = write(tmp_path / "train.jsonl", ["a", "b"], text=texts[0])
    settings = TokenizerSettings(kind="sentencepiece", sampling=0.5)
    data = Data(train=(path,), tokenizer=settings)
    index = plan(read_sets(replace(data, validation=(path,)), seed=0).train, data, tokenizer=pieces).index
    best = index.labels[0].tolist()
    drawn = [index.labels_of(0, position=position, most=20).tolist() for position in range(9)]
    assert [index.labels_of(0, position=position, most=20).tolist() for position in range(9)] == drawn
    assert {pieces.decode(labels) for labels in drawn} == {texts[0]}
    assert len({str(labels) for labels in drawn}) > 2
    assert index.labels_of(0, position=0, most=len(best) - 1).tolist() == best
