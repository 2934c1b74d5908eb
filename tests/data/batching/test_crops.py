"""Crops of long utterances: stretches that cover the audio, with places that seed, epoch and row determine."""

from typing import Any

import numpy as np
import pytest

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.io import write_flac
from asr_jax.core.errors import UserError
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data, PlannedData, plan_training
from asr_jax.data.batching.filters import Filters
from asr_jax.data.loading.source import BatchSource
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.tokenizers import TokenizerSettings, train_tokenizer

RATE = 16000
SECONDS = (1.0, 1.5, 3600.0, 0.4)
NO_TEXTS = train_tokenizer(TokenizerSettings(kind="none"), [])


def planned(utterances: list[Utterance], *, seed: int = 0, batch_seconds: float = 8.0, **changes: Any) -> PlannedData:
    settings = {"crop_s": 1.0, "tokenizer": TokenizerSettings(kind="none"), "filters": Filters(min_duration_s=0.5)}
    buckets = Batching.planned(num_buckets=2, seconds=batch_seconds, row_multiple=2)
    return plan_training(
        Utterances.of(utterances), Data(train=("x",), batching=buckets, **(settings | changes)), tokenizer=NO_TEXTS,
        output_length=lambda num, of_features: num // 160, frames_needed=np.add, front_end=KaldiFbank(), seed=seed,
    )  # fmt: skip


def made() -> list[Utterance]:
    return [Utterance(f"u{i}", f"/{i}.flac", "", seconds) for i, seconds in enumerate(SECONDS)]


def parts_of(data: PlannedData, epoch: int) -> dict[int, tuple[int, int] | None]:
    """Begin and end of the part of each row in an epoch."""
    plan, found = data.plan, {}
    for position in range(epoch * plan.batches_per_epoch, (epoch + 1) * plan.batches_per_epoch):
        batch = plan[position]
        for row, place in zip(batch.rows.tolist(), batch.places.tolist(), strict=True):
            if row >= 0:
                assert data.index.stretches
                found[row] = data.index.stretches.part(row, int(data.index.lengths[row]), place)
    return found


def test_crops_begin_in_equal_parts_and_batches_are_as_long_as_crops() -> None:
    data = planned(made())
    assert [entry.id for entry in data.rejections.entries] == ["u3"], "the lower limit still applies"
    assert len(data.index) == 1 + 1 + 3600
    assert data.index.lengths.max() == RATE
    assert max(bucket.length for bucket in data.plan.buckets) < 1.05 * RATE
    parts = parts_of(data, 0)
    assert sorted(parts) == list(range(3602))
    assert parts[0] is None, "an utterance that is not longer than a crop is used as a whole"
    assert parts[1] is not None
    assert 0 < parts[1][0] < 8000
    for row in range(2, 3602):
        begin, end = parts[row] or (0, 0)
        assert (end - begin, int(begin * 3600 / 3599 / RATE)) == (RATE, row - 2)
    after = parts_of(data, 1)
    moved = [abs((parts[row] or (0,))[0] - (after[row] or (0,))[0]) for row in range(2, 3602)]
    assert 0.3 * RATE < np.mean(moved) < 0.37 * RATE, "two uniform places in a second differ by a third on average"


def test_places_change_with_the_epoch_and_depend_on_nothing_but_seed_epoch_and_row() -> None:
    utterances = [Utterance(f"u{i}", f"/{i}.flac", "", 1.2 + 0.05 * i) for i in range(12)]
    first = [parts_of(planned(utterances), epoch) for epoch in (0, 1, 0)]
    assert first[0] == first[2]
    assert all(first[0][row] != first[1][row] for row in range(12))
    assert parts_of(planned(utterances, batch_seconds=4.0), 1) == first[1], "other batches have the same crops"
    assert parts_of(planned(utterances, seed=1), 0) != first[0]
    assert planned(utterances).fingerprint() != planned(utterances, crop_s=0.9).fingerprint()
    whole = planned(utterances[:3], crop_s=2.0)
    assert whole.fingerprint() == planned(utterances[:3], crop_s=0.0).fingerprint(), "nothing is cropped"
    data = planned(utterances)
    begins = [part[0] for epoch in range(40) for part in parts_of(data, epoch).values() if part]
    room = np.array([0.2 + 0.05 * i for i in range(12)]) * RATE
    assert 0.4 < np.mean(begins) / np.mean(room) < 0.6


def test_a_batch_has_the_samples_of_the_crops(tmp_path) -> None:
    utterances, signals = [], []
    for number, seconds in enumerate((0.8, 1.7, 5.3)):
        signals.append(np.random.default_rng(number).integers(-9000, 9000, round(seconds * RATE)).astype(np.int16))
        write_flac(tmp_path / f"{number}.flac", signals[-1], RATE)
        utterances.append(Utterance(f"u{number}", str(tmp_path / f"{number}.flac"), "", seconds))
    part = Utterance("part", f"{tmp_path}/2.flac#seconds=2.0+3.0", "", 3.0)
    data = planned([*utterances, part])
    assert len(data.index) == 1 + 1 + 5 + 3
    whole_of_row = [signals[0], signals[1], *[signals[2]] * 5, *[signals[2][2 * RATE : 5 * RATE]] * 3]
    source, parts = BatchSource(data.index, data.plan), parts_of(data, 1)
    num = data.plan.batches_per_epoch
    for loaded in (source[position] for position in range(num, 2 * num)):
        assert not loaded.rejected
        assert not loaded.differing
        for i in np.flatnonzero(loaded.batch.weights):
            row = int(loaded.batch.utterances[i])
            expected = whole_of_row[row][slice(*(parts[row] or (None,)))]
            np.testing.assert_array_equal(loaded.batch.audio[i, : loaded.batch.lengths[i]], expected)
            assert not loaded.batch.audio[i, loaded.batch.lengths[i] :].any()


def test_ready_features_are_cropped(tmp_path) -> None:
    values = np.arange(250 * 80, dtype=np.float32).reshape(250, 80)
    np.save(tmp_path / "f.npy", values)
    data = planned([Utterance("f", f"{tmp_path}/f.npy#features=250x80.npy", "", 2.5, num_frames=250, num_values=80)])
    assert len(data.index) == 2
    (batch,) = (BatchSource(data.index, data.plan)[position].batch for position in range(data.plan.batches_per_epoch))
    for i, row in enumerate(batch.utterances.tolist()):
        begin, end = parts_of(data, 0)[row] or (0, 0)
        assert end - begin == batch.lengths[i] == 100
        np.testing.assert_array_equal(batch.features[i, :100], values[begin:end])


def test_texts_are_not_cropped_and_crops_are_within_the_filters() -> None:
    with pytest.raises(ValueError, match=r"crop_s is 40: expected at most filters.max_duration_s \(30\)"):
        Data(train=("x",), crop_s=40)
    letters = train_tokenizer(TokenizerSettings(), ["ab"])
    with pytest.raises(UserError, match=r"data.crop_s 1: .* audio without texts"):
        plan_training(
            Utterances.of(made()), Data(train=("x",), crop_s=1.0), tokenizer=letters, output_length=lambda num: num,
            frames_needed=np.add, front_end=KaldiFbank(), seed=0,
        )  # fmt: skip
