"""Batch source: padded arrays equal the files, unreadable utterances have weight 0 and a reason, the order is fixed."""

import os
import pickle
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from recordings import noise

from asr_jax.audio.io import read_audio, write_flac
from asr_jax.core.environment import NUM_CORES, READING_THREADS, reading_threads
from asr_jax.core.layout import Layout
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import Scale, make_buckets
from asr_jax.data.batching.filters import Filters
from asr_jax.data.batching.index import build_index
from asr_jax.data.loading.source import BatchSource, LoadedBatch, open_batches
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.reading import Utterances, read_utterances
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.text.characters import CharacterTokenizer
from tests.support import approx

RATE = 16000
SCALE = Scale(RATE, 160, 80)
LETTERS = CharacterTokenizer(symbols=("a", None), normaliser="none")
NUM = 23


def make_utterances(folder: Path, num: int = NUM) -> list[Utterance]:
    """Files of random samples; the length of an utterance's text depends on its number."""
    rng = np.random.default_rng(0)
    utterances = []
    for i in range(num):
        samples = rng.integers(-9000, 9000, int(rng.integers(500, 4000))).astype(np.int16)
        path = folder / f"{i}.flac"
        write_flac(path, samples, RATE)
        utterances.append(Utterance(f"u{i}", str(path), "a" * (i % 7 + 1), len(samples) / RATE))
    return utterances


def make_source(
    utterances: list[Utterance], *, seed: int = 1, processes: tuple[int, int] = (0, 1), **plan: Any
) -> BatchSource:
    given = [replace(utterance, labels=(len(utterance.text),) * len(utterance.text)) for utterance in utterances]
    index, rejections = build_index(
        Utterances.of(given), scale=SCALE, tokenizer=LETTERS, given_labels=True, filters=Filters.none()
    )
    assert not rejections.entries
    settings = Batching.planned(num_buckets=3, seconds=1.0, row_multiple=2)
    entries = index.entries(speeds=plan.pop("speeds", (1.0,)))
    batch_plan = BatchPlan(entries, make_buckets(entries, settings), seed=seed, **plan)
    layout = Layout(processes[1], process_index=processes[0], num_processes=processes[1])
    return BatchSource(index, batch_plan, layout)


def read_all(source: BatchSource, num: int, **options: Any) -> list[LoadedBatch]:
    with open_batches(source, stop=options.get("start", 0) + num, **options) as batches:
        return list(batches)


def all_identical(left: list[LoadedBatch], right: list[LoadedBatch]) -> bool:
    return all(identical(a, b) for a, b in zip(left, right, strict=True))


def identical(left: LoadedBatch, right: LoadedBatch) -> bool:
    names = ("audio", "lengths", "tokens", "token_lengths", "weights", "utterances")
    arrays = [(getattr(left.batch, name), getattr(right.batch, name)) for name in names]
    equal = all(type(b) is np.ndarray and a.dtype == b.dtype and (a == b).all() for a, b in arrays)
    return equal and left.position == right.position and left.rejected == right.rejected


@pytest.mark.parametrize("speeds", [(1.0,), (0.9, 1.1)])
def test_an_epoch_is_exactly_the_files(tmp_path: Path, speeds: tuple[float, ...]) -> None:
    utterances = make_utterances(tmp_path)
    source = make_source(utterances, speeds=speeds)
    plan = source.plan
    seen = []
    for position in range(plan.batches_per_epoch):
        loaded, planned = source[position], plan[position]
        batch, bucket = loaded.batch, plan.buckets[planned.bucket]
        assert (loaded.position, loaded.rejected, batch.features) == (position, (), None)
        assert batch.audio.shape == (bucket.batch_size, bucket.length)
        assert batch.tokens.shape == (bucket.batch_size, bucket.num_tokens)
        assert (batch.utterances == planned.rows).all()
        for i, (row, speed) in enumerate(zip(planned.rows.tolist(), planned.speeds.tolist(), strict=True)):
            samples = read_audio(utterances[row].location, speed=speed) if row >= 0 else np.zeros(0, np.int16)
            labels = [len(utterances[row].text)] * len(utterances[row].text) if row >= 0 else []
            assert batch.weights[i] == (row >= 0)
            assert batch.lengths[i] == len(samples)
            assert batch.token_lengths[i] == len(labels)
            assert (batch.audio[i, : len(samples)] == samples).all()
            assert not batch.audio[i, len(samples) :].any()
            assert batch.tokens[i].tolist() == labels + [0] * (bucket.num_tokens - len(labels))
            seen.append((row, speed))
    assert sorted(entry for entry in seen if entry[0] >= 0) == sorted((r, s) for r in range(NUM) for s in speeds)


@pytest.mark.parametrize(
    ("seconds", "used_s", "reason"),
    [
        (1.0, 1.0, ""),
        (1.049, None, ""),  # a rounded duration, up to the end of the bucket
        (0.6, 0.6, "shorter than its manifest says: 0.60 s of 1.00 s"),
        (1.06, 1.0, "longer than its manifest says: 1.06 s, of which 1.00 s are used"),
        (5.0, 1.0, "longer than its manifest says: 5.00 s, of which 1.00 s are used"),
    ],
)
@pytest.mark.parametrize("speed", [1.0, 1.25])
def test_a_duration_is_that_of_the_beginning_of_the_file(tmp_path, seconds, used_s, reason, speed):
    write_flac(tmp_path / "a.flac", noise(0, round(seconds * RATE)), RATE)
    source = make_source([Utterance("u", str(tmp_path / "a.flac"), "ab", 1.0)], speeds=(speed,))
    (loaded,) = (source[position] for position in range(source.plan.batches_per_epoch))
    assert not loaded.rejected
    room = source.plan.buckets[0].length
    assert loaded.batch.lengths.max() == (approx(used_s * RATE / speed, abs=1) if used_s else room)
    assert [each.reason for each in loaded.differing] == [reason] * bool(reason)


def test_what_is_broken_has_weight_0_and_is_named(tmp_path: Path) -> None:
    utterances = make_utterances(tmp_path)
    paths = [Path(utterance.location) for utterance in utterances]
    paths[2].unlink()
    paths[5].write_bytes(paths[5].read_bytes()[:200])
    longer = noise(0, 60000)
    write_flac(paths[8], longer, RATE)
    soundfile.write(paths[11], np.zeros((0,), np.int16), RATE, format="WAV")
    source = make_source(utterances)
    loaded = [source[position] for position in range(source.plan.batches_per_epoch)]
    rejected = {entry.id: entry for one in loaded for entry in one.rejected}
    assert rejected.keys() == {"u2", "u5", "u11"}
    assert rejected["u2"] == Rejected("u2", str(paths[2]), "no such file", "audio")
    assert "truncated or damaged" in rejected["u5"].reason
    assert rejected["u11"].reason == "no samples"
    for one in loaded:
        broken = np.isin(one.batch.utterances, [2, 5, 11])
        assert len(one.rejected) == broken.sum()
        assert (one.batch.weights == ((one.batch.utterances >= 0) & ~broken)).all()
        for array in (one.batch.audio, one.batch.lengths, one.batch.tokens, one.batch.token_lengths):
            assert not array[broken].any()


def test_silence_with_a_text_is_rejected_and_clipped_samples_are_a_remark(tmp_path: Path) -> None:
    stereo = np.stack([noise(0, RATE), -noise(0, RATE)], axis=1)
    loud = (noise(1, RATE) / 32768).astype(np.float32)
    loud[9] = -1.02
    kinds = {"zeros": np.zeros(RATE, np.int16), "constant": np.full(RATE, 500, np.int16)}
    kinds |= {"cancel": stereo, "loud": loud}
    paths = {name: tmp_path / f"{name}.wav" for name in kinds}
    for name, samples in kinds.items():
        soundfile.write(paths[name], samples, RATE, subtype="FLOAT" if name == "loud" else "PCM_16")
    said = {"cancel": "its channels cancel out", "loud": "above full scale: the peak is 1.02"}
    for name, path in paths.items():
        loaded = make_source([Utterance(name, str(path), "ab", 1.0)], speeds=(1.1,))[0]
        assert loaded.batch.weights.sum() == (name == "loud")
        (entry,) = loaded.rejected + loaded.differing
        assert (entry.id, entry.stage) == (name, "used" if name == "loud" else "audio")
        assert entry.reason.startswith(said.get(name, "silent: all samples are equal, but the utterance has a text"))


def test_a_duration_that_was_rounded_is_not_too_long(tmp_path: Path) -> None:
    path = tmp_path / "a.flac"
    write_flac(path, noise(0, 16079), RATE)
    source = make_source([Utterance("a", str(path), "a", 1.0)])
    loaded = source[0]
    assert loaded.rejected == ()
    assert loaded.batch.lengths.max() == 16079


@pytest.mark.parametrize(
    ("duration_s", "num", "speed", "reason"),
    [
        (5.0, 8000, 1.0, "shorter than its manifest says: 0.50 s of 5.00 s; the file may be truncated"),
        (5.0, 8000, 1.1, "shorter than its manifest says: 0.50 s of 5.00 s; the file may be truncated"),
        (1.0, 7840, 1.0, "shorter than its manifest says: 0.49 s of 1.00 s"),
        (1.0, 8160, 1.0, ""),  # 0.5 s of rounding and padding
        (6.0, 5.45 * RATE, 1.0, ""),  # a tenth
    ],
)
def test_audio_that_is_shorter_than_its_manifest_says(
    tmp_path: Path, duration_s: float, num: float, speed: float, reason: str
) -> None:
    path = tmp_path / "a.flac"
    write_flac(path, noise(0, int(num)), RATE)
    loaded = make_source([Utterance("a", str(path), "a", duration_s)], speeds=(speed,))[0]
    assert loaded.batch.weights.sum() == (not reason)
    assert [entry.reason[: len(reason)] for entry in loaded.rejected] == [reason] * bool(reason)


def test_processes_load_their_rows(tmp_path: Path) -> None:
    utterances = make_utterances(tmp_path)
    whole = make_source(utterances)
    halves = [make_source(utterances, processes=(i, 2)) for i in range(2)]
    for position in range(5):
        parts = [half[position].batch for half in halves]
        for name in ("audio", "lengths", "tokens", "weights", "utterances"):
            joined = np.concatenate([getattr(part, name) for part in parts])
            assert (joined == getattr(whole[position].batch, name)).all()


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_order_and_resume_are_exact(tmp_path: Path, threads: int) -> None:
    source = make_source(make_utterances(tmp_path))
    num = 2 * source.plan.batches_per_epoch + 3
    expected = [source[position] for position in range(num)]
    assert all_identical(expected, read_all(source, num, threads=threads))
    for start in (1, source.plan.batches_per_epoch - 1, num - 2):
        rest = read_all(source, num - start, start=start, threads=threads)
        assert all_identical(expected[start:], rest)


def test_it_does_not_end_and_begins_far_away(tmp_path: Path) -> None:
    source = make_source(make_utterances(tmp_path, 4))
    far = 10**12
    with open_batches(source, start=far) as batches:
        assert [next(batches).position for _ in range(5)] == list(range(far, far + 5))


def test_worker_processes_give_the_same(tmp_path: Path) -> None:
    utterances = make_utterances(tmp_path)
    Path(utterances[3].location).unlink()
    source = make_source(utterances)
    num = 2 * source.plan.batches_per_epoch
    expected = [source[position] for position in range(3, num)]
    loaded = read_all(source, num - 3, start=3, workers=2)
    assert all_identical(expected, loaded)
    assert any(one.rejected for one in loaded)


def test_a_fault_in_a_thread_is_raised_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = make_source(make_utterances(tmp_path))
    monkeypatch.setattr(BatchSource, "__getitem__", lambda source, position: 1 / 0)
    with pytest.raises(ZeroDivisionError), open_batches(source) as batches:
        next(batches)


def test_ready_features_come_as_they_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(frames, 4)).astype(np.float32) for frames in (3, 9, 5, 12, 7)]
    utterances = []
    for number, array in enumerate(arrays):
        np.save(tmp_path / f"{number}.npy", array)
        location = Location(str(tmp_path / f"{number}.npy"), shape=array.shape, form="npy")
        utterances.append(Utterance(str(number), str(location), "a", 1.0, num_frames=len(array), num_values=4))
    (tmp_path / "2.npy").unlink()
    scale = Scale(10, 1, 4, of_features=True)
    index, _ = build_index(Utterances.of(utterances), scale=scale, tokenizer=LETTERS)
    entries = index.entries()
    plan = BatchPlan(entries, make_buckets(entries, Batching.planned(num_buckets=2, row_multiple=1)))
    source, read, rejected = BatchSource(index, plan), set(), []
    for position in range(plan.batches_per_epoch):
        loaded = source[position]
        batch = loaded.batch
        rejected += loaded.rejected
        assert batch.audio is None
        assert batch.features.shape == (plan.buckets[plan[position].bucket].batch_size, batch.features.shape[1], 4)
        for row in np.flatnonzero(batch.weights):
            utterance, num = int(batch.utterances[row]), int(batch.lengths[row])
            assert (batch.features[row, :num] == arrays[utterance]).all()
            assert not batch.features[row, num:].any()
            read.add(utterance)
    assert read == {0, 1, 3, 4}
    assert [(entry.id, entry.reason) for entry in rejected] == [("2", "no such file")]


SCRIPT = """
import time
from asr_jax.data.batching.buckets import Bucket, Buckets, Scale
from asr_jax.data.batching.index import build_index
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.data.loading.source import BatchSource, open_batches
if __name__ == "__main__":
    utterances = Utterances.of([Utterance("a", AUDIO, "a", 0.125)])
    index, _ = build_index(utterances, scale=Scale(16000, 160, 80), tokenizer=None)
    plan = BatchPlan(index.entries(), Buckets((Bucket(2000, 8, 1, 2000),)))
    with open_batches(BatchSource(index, plan), workers=1, stop=STOP) as batches:
        held = [batch for batch, _ in zip(batches, range(3))]
        print("ready", flush=True)
        time.sleep(SLEEP_S)
"""


def start_script(folder: Path, sleep_s: int, stop: int | None = None) -> subprocess.Popen[str]:
    """Starts a process that reads with a worker, prints "ready" and sleeps before it exits."""
    write_flac(folder / "a.flac", np.ones(2000, np.int16), RATE)
    script = folder / "run.py"
    script.write_text(
        SCRIPT.replace("AUDIO", repr(str(folder / "a.flac")))
        .replace("SLEEP_S", str(sleep_s))
        .replace("STOP", str(stop))
    )
    return subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("stop", [None, 3, 2])
def test_an_end_with_workers_is_silent(tmp_path: Path, stop: int | None) -> None:
    run = start_script(tmp_path, 0, stop)
    assert run.communicate() == ("ready\n", "")
    assert run.returncode == 0


@pytest.mark.slow
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
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]) == parent
    except OSError:
        return False


def test_columns_that_are_kept_travel_as_the_names_of_their_files(tmp_path: Path) -> None:
    utterances = make_utterances(tmp_path)
    write_manifest(tmp_path / "a.jsonl", [replace(utterance, text="a" * 10_000) for utterance in utterances])
    kept = read_utterances([tmp_path / "a.jsonl"], cache=str(tmp_path / "cache"))
    index, _ = build_index(kept, scale=SCALE, tokenizer=None, filters=Filters.none())
    plan = BatchPlan(index.entries(), make_buckets(index.entries(), Batching()))
    pickled = pickle.dumps(BatchSource(index, plan))
    assert len(pickled) < 10_000
    again: BatchSource = pickle.loads(pickled)
    assert identical(again[0], BatchSource(index, plan)[0])


def test_threads_follow_cores_and_workers() -> None:
    assert reading_threads(5) == reading_threads(5, workers=3) == 5
    assert reading_threads(0, workers=3) == 2
    assert reading_threads(0) == READING_THREADS == min(NUM_CORES, 8)


@pytest.mark.slow
def test_workers_leave_gpus_alone() -> None:
    lines = ("import jax", "from asr_jax.data.loading import source", "source._begin_worker(0, 1)")
    code = "\n".join((*lines, "print(jax.config.jax_platforms)"))
    environment = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "cpu\n"
