"""Faults of storage: stalls, halves of files, and a source that dies; each loses no more than itself."""

import threading
import time

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from recordings import jsonl, noise, write

from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import Scale, make_buckets
from asr_jax.data.batching.index import build_index
from asr_jax.data.loading.source import BatchSource, open_batches
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.data.manifests.storage import Reads, Storage

SCALE = Scale(per_s=16000, hop=160, num_values=80)
NUM = 12
STORAGE = Storage(max_wait_s=1.0, retries=2)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("asr_jax.data.manifests.storage.BACKOFF_S", 0.02)


class Faulty(MemoryFileSystem):
    """File system in memory whose faults are functions of the path."""

    protocol, store, pseudo_dirs = "faulty", {}, [""]
    fault = staticmethod(lambda path: None)
    """Called before each read; returns the share of the content that is sent, or None for all of it."""

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.removeprefix("faulty://").strip("/")

    def cat_file(self, path, start=None, end=None, **options):
        share = type(self).fault(path)
        content = super().cat_file(path, start=start, end=end, **options)
        return content if share is None else content[: int(len(content) * share)]


fsspec.register_implementation("faulty", Faulty, clobber=True)


@pytest.fixture
def batches(tmp_path, monkeypatch):
    """Function that reads an epoch with a fault: ids of the rows that were read, rejected ones, and longest wait."""
    system, lines = Faulty(), []
    for number in range(NUM):
        content = write(tmp_path / f"{number}.flac", noise(number)).read_bytes()
        bucket = "good" if number % 2 else "bad"
        system.pipe_file(f"/{bucket}/{number}.flac", content)
        lines.append({"id": str(number), "audio_path": f"faulty://{bucket}/{number}.flac", "duration": 0.1875})
    manifest = jsonl(tmp_path / "m.jsonl", *[line | {"text": "a"} for line in lines])
    index, _ = build_index(read_utterances([manifest], cache=str(tmp_path)), scale=SCALE, tokenizer=None)
    buckets = make_buckets(index.entries(), Batching.planned(num_buckets=1, seconds=0.8))

    def read(fault, epochs=1, storage=STORAGE):
        monkeypatch.setattr(Faulty, "fault", staticmethod(fault))
        plan = BatchPlan(index.entries(), buckets)
        found, rejected, longest_s = [], {}, 0.0
        source = BatchSource(index, plan, storage=storage)
        with open_batches(source, stop=epochs * plan.batches_per_epoch, threads=2, read_ahead=1) as opened:
            then_s = time.monotonic()
            for loaded in opened:
                longest_s, then_s = max(longest_s, time.monotonic() - then_s), time.monotonic()
                rows = loaded.batch.utterances[loaded.batch.weights > 0].tolist()
                found += [int(index.utterances[row].id) for row in rows]
                for row in np.flatnonzero(loaded.batch.weights):
                    name = int(index.utterances[int(loaded.batch.utterances[row])].id)
                    np.testing.assert_array_equal(loaded.batch.audio[row, :3000], noise(name))
                rejected |= {int(each.id): each.reason for each in loaded.rejected}
        return found, rejected, longest_s

    return read


def number_of(path):
    return int(path.rpartition("/")[2].partition(".")[0])


def test_half_of_a_file_is_read_again(batches):
    seen = set()

    def fault(path):
        if path in seen:
            return None
        seen.add(path)
        return 0.5

    found, rejected, _ = batches(fault)
    assert sorted(found) == list(range(NUM))
    assert not rejected


def test_a_file_of_which_half_is_there_is_rejected_alone(batches):
    found, rejected, _ = batches(lambda path: 0.5 if number_of(path) == 4 else None)
    assert sorted(found) == [n for n in range(NUM) if n != 4]
    assert rejected[4].startswith("faulty://bad fails: truncated: the storage sent")


def test_a_file_that_stalls_is_rejected_alone(batches):
    released = threading.Event()

    def fault(path):
        if number_of(path) == 3:
            released.wait(20)

    found, rejected, longest_s = batches(fault)
    released.set()
    assert sorted(found) == [n for n in range(NUM) if n != 3]
    assert rejected[3].startswith("faulty://good does not answer for this file")
    assert longest_s < 2 * STORAGE.max_wait_s


def test_a_source_that_stalls_is_dead_until_it_answers(batches):
    """Training waits for it once. The other source loses nothing, and after the stall nothing is lost."""
    released, started_s = threading.Event(), time.monotonic()

    def fault(path):
        if "/bad/" in path:
            released.wait(20)

    storage = Storage(max_wait_s=1.01, retries=2)
    found, rejected, _ = batches(fault, storage=storage)
    assert time.monotonic() - started_s < 2.5 * storage.max_wait_s
    assert sorted(found) == list(range(1, NUM, 2))
    assert set(rejected) == set(range(0, NUM, 2))
    assert all("faulty://bad does not answer" in reason for reason in rejected.values())
    assert any("reads since" in reason for reason in rejected.values()), "the reads are counted"
    released.set()
    time.sleep(0.3)
    found, rejected, _ = batches(fault, storage=storage)
    assert sorted(found) == list(range(NUM))


def test_a_source_that_dies_is_named_and_costs_its_retries_once(batches):
    attempts = []

    def fault(path):
        if "/bad/" in path:
            attempts.append(path)
            raise ConnectionResetError("gone")

    found, rejected, longest_s = batches(fault, epochs=2)
    assert sorted(set(found)) == list(range(1, NUM, 2))
    assert all(reason == "faulty://bad fails: ConnectionResetError: gone" for reason in rejected.values())
    assert len(attempts) <= NUM + 2 * 2 * STORAGE.retries, "retries of a source that fails"
    assert longest_s < STORAGE.max_wait_s


def test_a_missing_file_is_no_fault_of_the_storage():
    reads, calls = Reads(STORAGE), []

    def missing():
        calls.append(1)
        from asr_jax.data.manifests.locations import Location

        return Location("faulty://good/none.flac").content()

    with pytest.raises(ValueError, match=r"none.flac: no such file"):
        reads("faulty://good/none.flac", missing)
    assert len(calls) == 1
    assert reads("faulty://good/a", lambda: 7) == 7


def test_settings_are_checked():
    for wrong in ({"max_wait_s": 0}, {"retries": -1}):
        with pytest.raises(ValueError, match="expected"):
            Storage(**wrong)
