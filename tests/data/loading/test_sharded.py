"""Batches of shards in their order: every item once per epoch, exact resumption, disjoint processes, damage."""

import io
import json
import random
import shutil
import tarfile
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import fsspec
import msgpack
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from array_record_files import example, write_records
from recordings import noise, write

from asr_jax.core.errors import UserError
from asr_jax.core.layout import Layout
from asr_jax.data.batching.buckets import Bucket, Scale
from asr_jax.data.batching.filters import Filters
from asr_jax.data.loading import sharded
from asr_jax.data.loading.sharded import ShardReader, State, Stream, open_sharded
from asr_jax.data.manifests import items
from asr_jax.data.manifests.items import from_place, items_at, sampled, shards_of
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.storage import Storage
from asr_jax.text.characters import CharacterTokenizer

SHARDS, EACH = 4, 9
LETTERS = CharacterTokenizer(symbols=(*"ab c", None), normaliser="none")
BUCKETS = (Bucket(2000, 8, 4, 2000), Bucket(4000, 8, 3, 4000))
PATIENT = Storage(max_wait_s=60.0, retries=2)  # for machines that do other work


def samples(number):
    return noise(number, 1000 + 97 * (number * 7 % 31))


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Folder with the same items in tars, in Parquet files, and in ArrayRecord files of both kinds of records."""
    folder = tmp_path_factory.mktemp("shards")
    for shard in range(SHARDS):
        rows = []
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for number in range(shard * EACH, (shard + 1) * EACH):
                content = write(folder / "a.flac", samples(number)).read_bytes()
                text = "ab c"[: 1 + number % 4].strip()
                about = {"text": text, "duration": len(samples(number)) / 16000} if number % 2 else {"text": text}
                for ending, of_member in (("flac", content), ("json", json.dumps(about).encode())):
                    member = tarfile.TarInfo(f"u{number}.{ending}")
                    member.size = len(of_member)
                    tar.addfile(member, io.BytesIO(of_member))
                rows.append({"id": f"u{number}", "audio": {"bytes": content, "path": "a.flac"}, **about})
        table = pyarrow.Table.from_pylist([{"duration": None} | row for row in rows])
        pyarrow.parquet.write_table(table, folder / f"{shard}.parquet", row_group_size=4)
        flat = [row | {"audio": row["audio"]["bytes"]} for row in rows]
        write_records(folder / f"{shard}.array_record", map(example if shard % 2 else msgpack.packb, flat))
    return folder


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("asr_jax.data.manifests.storage.BACKOFF_S", 0.01)


def stream(folder, ending="tar", **more):
    given = {
        "shards": tuple(str(folder / f"{shard}.{ending}") for shard in range(SHARDS)), "buckets": BUCKETS,
        "shares": np.array([0.4, 0.6]), "scale": Scale(16000, 160, 80), "layout": Layout(), "tokenizer": LETTERS,
        "filters": Filters.none(), "output_length": lambda n: n // 160, "frames_needed": np.add, "window": 8,
        "epochs": 2, "storage": Storage(max_wait_s=2.0, retries=2),
    }  # fmt: skip
    return Stream(**given | more)


def batches(of, state=None, start=0):
    with open_sharded(of, state, start=start) as opened:
        return list(opened)


def same(one, other):
    for name, array in vars(one.batch).items():
        np.testing.assert_array_equal(array, getattr(other.batch, name))
    assert (one.position, one.bucket, one.ids, one.state) == (other.position, other.bucket, other.ids, other.state)


@pytest.mark.parametrize("ending", ["tar", "parquet", "array_record"])
def test_every_item_once_per_epoch(shards, ending):
    found = batches(stream(shards, ending))
    names = [name for loaded in found for name in loaded.ids]
    assert Counter(names) == dict.fromkeys((f"u{n}" for n in range(SHARDS * EACH)), 2)
    assert names != sorted(names, key=lambda name: int(name[1:]))
    for loaded in found:
        rows = np.flatnonzero(loaded.batch.weights)
        assert len(rows) == len(loaded.ids)
        for row, name in zip(rows, loaded.ids, strict=True):
            expected = samples(int(name[1:]))
            assert loaded.batch.lengths[row] == len(expected) <= BUCKETS[loaded.bucket].length
            np.testing.assert_array_equal(loaded.batch.audio[row, : len(expected)], expected)
            text = "ab c"[: 1 + int(name[1:]) % 4].strip()
            assert loaded.batch.tokens[row, : loaded.batch.token_lengths[row]].tolist() == LETTERS.encode(text)


@pytest.mark.parametrize("ending", ["tar", "parquet", "array_record"])
def test_resumption_from_every_state_is_exact(shards, ending):
    of = stream(shards, ending, speeds=(0.9, 1.0, 1.1), buckets=tuple(replace(each, num_tokens=9) for each in BUCKETS))
    whole = batches(of)
    for number in range(0, len(whole), 3 if ending == "tar" else 9):
        state = json.loads(json.dumps(whole[number].state))
        rest = batches(of, state, start=number + 1)
        assert len(rest) == len(whole) - number - 1
        for one, other in zip(rest, whole[number + 1 :], strict=True):
            same(one, other)


@pytest.mark.parametrize("num", [2, 3])
def test_processes_read_disjoint_shards_in_batches_of_equal_shapes(shards, num):
    layouts = [Layout(num, process_index=process, num_processes=num) for process in range(num)]
    found = [batches(stream(shards, layout=layout, epochs=1)) for layout in layouts]
    names = [name for of_process in found for loaded in of_process for name in loaded.ids]
    assert Counter(names) == dict.fromkeys((f"u{n}" for n in range(SHARDS * EACH)), 1)
    for of_step in zip(*found, strict=False):
        assert len({(loaded.bucket, loaded.batch.audio.shape) for loaded in of_step}) == 1
    with pytest.raises(UserError, match="4 shards for 5 processes"):
        stream(shards, layout=Layout(5, num_processes=5))


def test_items_are_read_from_any_place(shards):
    for ending in ("tar", "parquet", "array_record"):
        path = str(shards / f"1.{ending}")
        whole = list(items_at(path, from_place(0), ReadOptions()))
        assert [item.entry.id for item in whole] == [f"u{n}" for n in range(EACH, 2 * EACH)]
        for number in (0, 4, 8):
            assert next(items_at(path, from_place(whole[number].place), ReadOptions())) == whole[number]


def test_a_damaged_shard_loses_its_rest_alone(shards, tmp_path):
    for shard in range(SHARDS):
        (tmp_path / f"{shard}.tar").write_bytes((shards / f"{shard}.tar").read_bytes())
    content = (tmp_path / "2.tar").read_bytes()
    (tmp_path / "2.tar").write_bytes(content[: len(content) // 2])
    (tmp_path / "0.tar").unlink()
    found = batches(stream(tmp_path, epochs=1))
    names = {int(name[1:]) for loaded in found for name in loaded.ids}
    assert names >= {*range(EACH, 2 * EACH), *range(3 * EACH, 4 * EACH)}
    assert 2 * EACH in names
    reasons = {entry.id: entry.reason for loaded in found for entry in loaded.rejected}
    assert reasons[str(tmp_path / "0.tar")] == "the rest of the shard: no such file"
    assert "the rest of the shard:" in reasons[str(tmp_path / "2.tar")]


def test_tars_that_are_joined_to_one_are_named(shards, tmp_path):
    path = tmp_path / "joined.tar"
    path.write_bytes((shards / "0.tar").read_bytes() + (shards / "1.tar").read_bytes())
    (entry,) = [each for loaded in batches(stream(tmp_path, shards=(str(path),), epochs=1)) for each in loaded.rejected]
    assert entry.id == str(path)
    assert "the rest of the shard: damaged shard: more files follow after its end at byte" in entry.reason
    assert "several tars are joined to one" in entry.reason
    (of_sample,) = sampled([str(path)], 99, ReadOptions(), Storage())[1]
    assert entry.reason == f"the rest of the shard: {of_sample.reason}"


def test_invalid_items_are_named(shards):
    found = batches(stream(shards, epochs=1, filters=replace(Filters.none(), max_chars=3), buckets=BUCKETS[:1]))
    reasons = {entry.id: entry.reason for loaded in found for entry in loaded.rejected}
    assert "too many characters (4, needs 3)" in reasons["u3"]
    read = {name for loaded in found for name in loaded.ids}
    assert read | set(reasons) == {f"u{n}" for n in range(SHARDS * EACH)}
    assert any(reason.startswith("fits no bucket") for reason in reasons.values())


@pytest.fixture
def write_rows(tmp_path):
    def write_rows(number, *rows):
        """Writes a shard of rows with the audio of `samples(number)`, and returns its path."""
        content = write(tmp_path / "a.flac", samples(number)).read_bytes()
        more = {"offset": None, "duration": None, "text": "a", "audio": {"bytes": content, "path": "a.flac"}}
        table = pyarrow.Table.from_pylist([{"id": f"r{place}", **more, **row} for place, row in enumerate(rows)])
        pyarrow.parquet.write_table(table, tmp_path / f"{number}.parquet")
        return str(tmp_path / f"{number}.parquet")

    return write_rows


def test_a_row_may_be_a_part_of_its_audio(write_rows):
    shard = write_rows(0, {"offset": 0.01, "duration": 0.03}, {"offset": 0.02})
    (loaded,) = batches(stream(Path(), shards=(shard,), epochs=1))
    expected = {"r0": samples(0)[160:640], "r1": samples(0)[320:]}
    for row, name in zip(np.flatnonzero(loaded.batch.weights), loaded.ids, strict=True):
        assert loaded.batch.lengths[row] == len(expected[name])
        np.testing.assert_array_equal(loaded.batch.audio[row, : len(expected[name])], expected[name])


def test_other_durations_than_in_the_metadata_are_named(write_rows):
    shard = write_rows(1, {"duration": 0.02}, {"duration": 0.2}, {"duration": 5.0})
    buckets = (Bucket(90_000, 8, 4, 90_000),)
    (loaded,) = batches(stream(Path(), shards=(shard,), epochs=1, buckets=buckets, shares=np.ones(1)))
    there_s = len(samples(1)) / 16000
    reasons = {entry.id: entry.reason for entry in loaded.differing}
    assert reasons == {
        "r0": f"longer than its manifest says: {there_s:.2f} s, of which 0.02 s are used",
        "r1": f"shorter than its manifest says: {there_s:.2f} s of 0.20 s",
    }
    assert [(entry.id, entry.stage) for entry in loaded.rejected] == [("r2", "audio")]
    of_row = dict(zip(loaded.ids, loaded.batch.lengths, strict=False))
    assert of_row == {"r0": 320, "r1": len(samples(1)), "r2": 0}


def test_array_records_behind_urls(shards):
    system = fsspec.filesystem("memory")
    for shard in range(SHARDS):
        content = (shards / f"{shard}.array_record").read_bytes()
        system.pipe_file(f"/records/{shard}.array_record", content)
        system.pipe_file("/records/damaged.array_record", content[: len(content) // 2])
    expected = batches(stream(shards, "array_record"))
    found = batches(
        stream(shards, shards=tuple(shards_of(["memory://records/?.array_record"], ReadOptions())), storage=PATIENT)
    )
    for one, other in zip(found, expected, strict=True):
        assert one.ids == other.ids
        np.testing.assert_array_equal(one.batch.audio, other.batch.audio)
    flipped = bytearray(content)
    flipped[content.rindex(b"fLaC") + 500] ^= 1  # in the audio of the last item
    system.pipe_file("/flipped/0.array_record", bytes(flipped))
    of = stream(shards, shards=("memory://flipped/0.array_record", str(shards / "0.tar")), epochs=1, storage=PATIENT)
    found = batches(of)
    (entry,) = [entry for loaded in found for entry in loaded.rejected]
    assert entry.reason.startswith("the rest of the shard: damaged shard: damaged at record ")
    assert len({name for loaded in found for name in loaded.ids}) == 2 * EACH - 1
    of = stream(
        shards, shards=("memory://records/damaged.array_record", str(shards / "0.tar")), epochs=1, storage=PATIENT
    )
    (entry,) = [entry for loaded in batches(of) for entry in loaded.rejected]
    assert entry.reason == "the rest of the shard: damaged shard: not a complete ArrayRecord file"


def test_shards_without_any_usable_item_are_an_error(shards):
    with pytest.raises(UserError, match=r"no item of the 4 shards of this process can be used; .*\n.*fits no bucket"):
        batches(stream(shards, epochs=None, buckets=(Bucket(100, 8, 4, 100),)))


def test_a_read_that_was_left_behind_takes_nothing_of_the_next_shard(shards, monkeypatch, tmp_path):
    """A read stalls where it opens the first shard again, until the reader is in the second one."""
    is_over, items_of = threading.Event(), items.items_at

    def stalled(path, places, options):
        if path.endswith("stalled.tar"):
            is_over.wait(30)
        yield from items_of(path, places, options)

    monkeypatch.setattr(items, "items_at", stalled)
    shutil.copy(shards / "0.tar", tmp_path / "stalled.tar")
    of = stream(shards, storage=Storage(max_wait_s=1.0), epochs=1)
    paths = [*of.shards, ""]
    first = ShardReader(replace(of, shards=tuple(paths)), State()).shards_of(0)[0]
    paths[first], paths[-1] = str(tmp_path / "stalled.tar"), paths[first]
    reader, found = ShardReader(replace(of, shards=tuple(paths)), State(step=1, num_read=1)), []
    while (member := reader.next()) is not None:
        found.append(member.item.entry.id)
        if not is_over.is_set():
            is_over.set()
            time.sleep(0.2)  # the read that was left behind ends here
    assert sorted(found) == sorted(f"u{number}" for number in range(SHARDS * EACH))
    assert "does not answer for this file" in reader.rejected[0].reason


@pytest.mark.parametrize("ending", ["tar", "parquet"])
def test_a_window_is_restored_with_one_pass_over_each_shard(shards, ending, monkeypatch):
    """Shards are opened once and row groups are read once, except after an interruption."""
    system, opens, groups, interruptions = fsspec.filesystem("memory"), [], [], []
    for shard in range(SHARDS):
        system.pipe_file(f"/held/{shard}.{ending}", (shards / f"{shard}.{ending}").read_bytes())
    urls = tuple(f"memory://held/{shard}.{ending}" for shard in range(SHARDS))
    of = stream(shards, ending, shards=urls, window=20, buckets=BUCKETS[1:], shares=np.ones(1))
    before = sharded.ShardedBatches(of, State())
    next(iter(before))
    state, table = before.state(), pyarrow.parquet.ParquetFile
    held = set(state.held)
    assert len(held) == len(state.held) > 15

    class Counted(io.BytesIO):
        def read(self, *given):
            if interruptions and opens and self.tell() > 5000:
                raise ConnectionResetError(interruptions.pop(), "reset")
            return super().read(*given)

    def counted_open(self, path, mode):
        opens.append(path)
        return Counted(self.cat_file(path))

    def read_group(self, *given, row_groups, **more):
        groups.extend(row_groups)
        return iterate(self, *given, row_groups=row_groups, **more)

    iterate = table.iter_batches
    monkeypatch.setattr(table, "iter_batches", read_group)
    monkeypatch.setattr(type(system), "open", counted_open)
    restored = sharded.ShardedBatches(of, state)
    assert len(opens) == len({shard for shard, _ in held})
    assert len(groups) == (len({(shard, place // 4) for shard, place in held}) if ending == "parquet" else 0)
    interruptions.append(104)
    interrupted = sharded.ShardedBatches(of, state)
    assert not interruptions
    for other in (restored, interrupted):
        assert other.state() == state
        same(next(iter(other)), next(iter(sharded.ShardedBatches(of, state))))


def test_a_shard_without_an_item_of_the_checkpoint_is_named(shards):
    with pytest.raises(UserError, match=r"1.parquet has changed since the checkpoint: it has no item at 9"):
        sharded.ShardedBatches(stream(shards, "parquet"), State(held=((1, 8), (0, 2), (1, 9))))


def test_shards_behind_urls_with_interruptions(shards, monkeypatch):
    """An interrupted shard is opened again at the last item; nothing is lost or repeated."""
    system, faults = fsspec.filesystem("memory"), random.Random(0)
    for shard in range(SHARDS):
        system.pipe_file(f"/shards/{shard}.tar", (shards / f"{shard}.tar").read_bytes())

    class Interrupted(io.BytesIO):
        def read(self, *given):
            if faults.random() < 0.01:
                raise ConnectionResetError(104, "reset")
            return super().read(*given)

    expected = batches(stream(shards))
    monkeypatch.setattr(type(system), "open", lambda self, path, mode: Interrupted(self.cat_file(path)))
    urls = tuple(f"memory://shards/{shard}.tar" for shard in range(SHARDS))
    found = batches(stream(shards, shards=urls))
    assert [loaded.ids for loaded in found] == [loaded.ids for loaded in expected]
    assert not [entry for loaded in found for entry in loaded.rejected]
    assert faults.random() != random.Random(0).random()
    utterances, rejected = sampled(urls, SHARDS * EACH, ReadOptions(), stream(shards).storage)
    assert [each.id for each in utterances] == [f"u{number}" for number in range(SHARDS * EACH)]
    assert rejected == []


def test_a_sample_goes_on_after_an_item_without_audio(write_rows):
    bad = {"bytes": b"no audio", "path": "a.flac"}
    shard = write_rows(0, {}, {"audio": bad}, {"audio": bad, "duration": 0.1}, {})
    utterances, rejected = sampled([shard], 9, ReadOptions(), Storage())
    assert [each.id for each in utterances] == ["r0", "r2", "r3"]
    assert [(each.id, each.stage) for each in rejected] == [("r1", "audio")]
