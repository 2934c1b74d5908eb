"""The source: padded arrays are exactly the files, what is broken has weight 0 and a reason, order never changes."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from asr_jax.audio.io import read_audio, write_flac
from asr_jax.data.buckets import Buckets, make_buckets
from asr_jax.data.filters import Filters
from asr_jax.data.index import Index, build_index
from asr_jax.data.manifest import Record
from asr_jax.data.plan import BatchPlan
from asr_jax.data.source import BatchSource, LoadedBatch, open_batches

RATE = 16000
NUM = 23


def make_records(folder: Path, num: int = NUM) -> list[Record]:
    """Files of random samples; the record's text is its number in letters."""
    rng = np.random.default_rng(0)
    records = []
    for i in range(num):
        samples = rng.integers(-9000, 9000, int(rng.integers(500, 4000))).astype(np.int16)
        path = folder / f"{i}.flac"
        write_flac(path, samples, RATE)
        records.append(Record(f"u{i}", str(path), "a" * (i % 7 + 1), len(samples) / RATE))
    return records


def make_source(
    records: list[Record], *, seed: int = 1, processes: tuple[int, int] = (0, 1), **plan: Any
) -> BatchSource:
    index, dropped = build_index(records, encode=lambda text: [len(text)] * len(text), filters=Filters.none())
    assert not dropped.entries
    settings = Buckets(num=3, batch_seconds=1.0, batch_multiple=2)
    num_labels = index.labels.lengths()
    speeds = plan.get("speeds", (1.0,))
    buckets = make_buckets(index.samples, num_labels, settings, rate_hz=RATE, hop_samples=160, speeds=speeds)
    batch_plan = BatchPlan(index.samples, num_labels, buckets, seed=seed, **plan)
    return BatchSource(index, batch_plan, process_index=processes[0], num_processes=processes[1])


def read_all(source: BatchSource, num: int, **options: Any) -> list[LoadedBatch]:
    with open_batches(source, stop=options.get("start", 0) + num, **options) as batches:
        return list(batches)


def all_identical(left: list[LoadedBatch], right: list[LoadedBatch]) -> bool:
    return all(identical(a, b) for a, b in zip(left, right, strict=True))


def identical(left: LoadedBatch, right: LoadedBatch) -> bool:
    names = ("audio", "lengths", "tokens", "token_lengths", "weights", "records")
    arrays = [(getattr(left.batch, name), getattr(right.batch, name)) for name in names]
    equal = all(type(b) is np.ndarray and a.dtype == b.dtype and (a == b).all() for a, b in arrays)
    return equal and left.position == right.position and left.skipped == right.skipped


@pytest.mark.parametrize("speeds", [(1.0,), (0.9, 1.1)])
def test_an_epoch_is_exactly_the_files(tmp_path: Path, speeds: tuple[float, ...]) -> None:
    records = make_records(tmp_path)
    source = make_source(records, speeds=speeds)
    plan = source.plan
    seen = []
    for position in range(plan.batches_per_epoch):
        loaded, planned = source[position], plan[position]
        batch, bucket = loaded.batch, plan.buckets[planned.bucket]
        assert (loaded.position, loaded.skipped, batch.features) == (position, (), None)
        assert batch.audio.shape == (bucket.batch_size, bucket.num_samples)
        assert batch.tokens.shape == (bucket.batch_size, bucket.num_tokens)
        assert (batch.records == planned.rows).all()
        for i, (row, speed) in enumerate(zip(planned.rows.tolist(), planned.speeds.tolist(), strict=True)):
            samples = read_audio(records[row].audio_path, speed=speed) if row >= 0 else np.zeros(0, np.int16)
            labels = [len(records[row].text)] * len(records[row].text) if row >= 0 else []
            assert batch.weights[i] == (row >= 0)
            assert batch.lengths[i] == len(samples)
            assert batch.token_lengths[i] == len(labels)
            assert (batch.audio[i, : len(samples)] == samples).all()
            assert not batch.audio[i, len(samples) :].any()
            assert batch.tokens[i].tolist() == labels + [0] * (bucket.num_tokens - len(labels))
            seen.append((row, speed))
    assert sorted(entry for entry in seen if entry[0] >= 0) == sorted((r, s) for r in range(NUM) for s in speeds)


def test_what_is_broken_has_weight_0_and_is_named(tmp_path: Path) -> None:
    records = make_records(tmp_path)
    paths = [Path(record.audio_path) for record in records]
    paths[2].unlink()
    paths[5].write_bytes(paths[5].read_bytes()[:200])
    longer = np.ones(60000, np.int16)
    write_flac(paths[8], longer, RATE)
    soundfile.write(paths[11], np.zeros((0,), np.int16), RATE, format="WAV")
    source = make_source(records)
    loaded = [source[position] for position in range(source.plan.batches_per_epoch)]
    skipped = {entry["id"]: entry for one in loaded for entry in one.skipped}
    assert skipped.keys() == {"u2", "u5", "u8", "u11"}
    assert skipped["u2"] == {"id": "u2", "audio_path": str(paths[2]), "reason": "no such file"}
    assert "truncated or damaged" in skipped["u5"]["reason"]
    assert "longer than its manifest says: 3.75 s" in skipped["u8"]["reason"]
    assert skipped["u11"]["reason"] == "no samples"
    for one in loaded:
        broken = np.isin(one.batch.records, [2, 5, 8, 11])
        assert len(one.skipped) == broken.sum()
        assert (one.batch.weights == ((one.batch.records >= 0) & ~broken)).all()
        for array in (one.batch.audio, one.batch.lengths, one.batch.tokens, one.batch.token_lengths):
            assert not array[broken].any()


def test_a_duration_that_was_rounded_is_not_too_long(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    write_flac(path, np.ones(16079, np.int16), RATE)
    source = make_source([Record("a", str(path), "a", 1.0)])
    loaded = source[0]
    assert loaded.skipped == ()
    assert loaded.batch.lengths.max() == 16079


def test_processes_load_their_rows(tmp_path: Path) -> None:
    records = make_records(tmp_path)
    whole = make_source(records)
    halves = [make_source(records, processes=(i, 2)) for i in range(2)]
    for position in range(5):
        parts = [half[position].batch for half in halves]
        for name in ("audio", "lengths", "tokens", "weights", "records"):
            joined = np.concatenate([getattr(part, name) for part in parts])
            assert (joined == getattr(whole[position].batch, name)).all()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_order_and_resume_are_exact(tmp_path: Path, threads: int) -> None:
    source = make_source(make_records(tmp_path))
    num = 2 * source.plan.batches_per_epoch + 3
    expected = [source[position] for position in range(num)]
    assert all_identical(expected, read_all(source, num, threads=threads))
    for start in (1, source.plan.batches_per_epoch - 1, num - 2):
        rest = read_all(source, num - start, start=start, threads=threads)
        assert all_identical(expected[start:], rest)


def test_it_does_not_end_and_begins_far_away(tmp_path: Path) -> None:
    source = make_source(make_records(tmp_path, 4))
    far = 10**12
    with open_batches(source, start=far) as batches:
        assert [next(batches).position for _ in range(5)] == list(range(far, far + 5))


def test_worker_processes_give_the_same(tmp_path: Path) -> None:
    records = make_records(tmp_path)
    Path(records[3].audio_path).unlink()
    source = make_source(records)
    num = source.plan.batches_per_epoch + 2
    expected = [source[position] for position in range(3, num)]
    loaded = read_all(source, num - 3, start=3, workers=2)
    assert all_identical(expected, loaded)
    assert any(one.skipped for one in loaded)


def test_a_fault_in_a_thread_is_raised_here(tmp_path: Path) -> None:
    source = make_source(make_records(tmp_path))
    source._rate_hz = "fast"
    with pytest.raises(Exception, match="fast"), open_batches(source) as batches:
        next(batches)


SCRIPT = """
import time
from asr_jax.data.buckets import Bucket
from asr_jax.data.index import build_index
from asr_jax.data.manifest import Record
from asr_jax.data.plan import BatchPlan
from asr_jax.data.source import BatchSource, open_batches
if __name__ == "__main__":
    index, _ = build_index([Record("a", AUDIO, "a", 0.125)], encode=None)
    plan = BatchPlan(index.samples, index.labels.lengths(), [Bucket(2000, 8, 1, 2000)])
    with open_batches(BatchSource(index, plan), workers=1) as batches:
        held = [next(batches) for _ in range(3)]
        print("ready", flush=True)
        time.sleep(SLEEP_S)
"""


def start_script(folder: Path, sleep_s: int) -> subprocess.Popen[str]:
    """A process that reads with a worker, says "ready" and then sleeps before it ends."""
    write_flac(folder / "a.flac", np.ones(2000, np.int16), RATE)
    script = folder / "run.py"
    script.write_text(SCRIPT.replace("AUDIO", repr(str(folder / "a.flac"))).replace("SLEEP_S", str(sleep_s)))
    return subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_an_end_with_workers_is_silent(tmp_path: Path) -> None:
    run = start_script(tmp_path, 0)
    assert run.communicate() == ("ready\n", "")
    assert run.returncode == 0


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    with start_script(tmp_path, 60) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        children = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_child(int(pid), run.pid)]
        assert children
        run.kill()
    end = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in children):
        assert time.monotonic() < end, "worker processes are still there"
        time.sleep(0.1)


def is_child(pid: int, parent: int) -> bool:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == parent
    except OSError:
        return False


def test_the_index_travels_without_its_texts(tmp_path: Path) -> None:
    source = make_source(make_records(tmp_path))
    assert not any(isinstance(value, Index) for value in vars(source).values())
