"""Evaluation sets: few shapes within limits; only utterances without a reference are rejected, and each is named."""

from typing import Any

import numpy as np
import pytest

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.errors import UserError
from asr_jax.data.batching.crops import num_divided
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.batching.evaluation import part_of, plan_evaluation, plan_with_labels
from asr_jax.data.batching.limits import BatchLimits
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.characters import CharacterTokenizer
from tests.support import approx

LETTERS = CharacterTokenizer(symbols=(*"abc", None), normaliser="none")
LIMITS = BatchLimits(seconds=16.0, longest_s=8.0)
MANY = BatchLimits(seconds=16.0)


def plan(*utterances: Utterance, limits: BatchLimits = MANY, **options: Any) -> PlannedData:
    settings = {"takes_ids": False, "num_devices": 2} | options
    return plan_evaluation(Utterances.of(utterances), limits, front_end=KaldiFbank(), tokenizer=LETTERS, **settings)


def rows(data: PlannedData) -> list[int]:
    planned = [data.plan[position].rows for position in range(data.plan.batches_per_epoch)]
    return sorted(row for batch in planned for row in batch.tolist() if row >= 0)


def test_audio_that_is_longer_than_the_limit_is_for_windows_and_comes_last() -> None:
    """Audio of an hour, and audio slightly longer than 8 s, is in no batch, and no shape is as long."""
    made = [Utterance(str(i), f"/{i}.flac", "ab", seconds) for i, seconds in enumerate((3600.0, 0.5, 8.01, 7.95, 1.9))]
    aligned = plan_with_labels(
        Utterances.of(made), LIMITS, front_end=KaldiFbank(), tokenizer=LETTERS, takes_ids=False,
        output_length=lambda num, of_features: num // 640, frames_needed=np.add, num_devices=2,
    )  # fmt: skip
    for data in (plan(*made, limits=LIMITS), aligned):
        assert [utterance.id for utterance in data.index.utterances] == ["1", "3", "4", "0", "2"]
        assert data.index.lengths.tolist() == [8000, 127200, 30400, 57600000, 128160]
        assert [data.index.utterances[row].id for row in data.windowed_rows] == ["0", "2"]
        assert rows(data) == [0, 1, 2]
        assert data.plan.buckets[-1].length == 128800  # 8 s with room for rounded durations
        part = part_of(data, np.array([2, 4]))
        assert [part.index.utterances[row].id for row in part.windowed_rows] == ["2"]
        assert rows(part) == [0]
    assert plan(*made, limits=LIMITS).of_set == plan(*made).of_set == plan(*made).index.fingerprint()
    assert plan(*made, limits=LIMITS, piece_s=2.0).of_set == plan(*made).of_set
    assert {bucket.num_tokens for bucket in aligned.plan.buckets} == {8}
    assert plan(*made).plan.buckets[-1].longest >= 57600000, "without a limit, shapes are as long as the audio"
    ready = Utterance("a", "/x", "a", 99.0, num_frames=9900, num_values=80)
    assert not plan(ready, limits=LIMITS).windowed_rows
    alone = plan(made[0], limits=LIMITS)
    assert (alone.plan.batches_per_epoch, len(alone.windowed_rows), len(alone.plan.buckets)) == (0, 1, 1)


def test_without_texts_audio_that_is_longer_than_the_limit_is_divided_into_pieces() -> None:
    made = [Utterance(str(i), f"/{i}.flac", "", seconds) for i, seconds in enumerate((1.0, 3600.5, 8.0))]
    data = plan(*made, limits=LIMITS, piece_s=4.0)
    assert not data.windowed_rows
    assert num_divided(data.index) == (1, 901)
    assert len(data.index) == 903
    assert data.index.lengths.sum() == round(3609.5 * 16000)
    assert data.index.lengths[1:902].max() <= 64000
    parts = [data.index.stretches.part(row, int(data.index.lengths[row]), 0.0) for row in range(len(data.index))]
    assert parts[0] is None
    assert parts[902] is None
    ends = [part[1] for part in parts[1:902]]
    assert [part[0] for part in parts[1:902]] == [0, *ends[:-1]]
    assert ends[-1] == 57_608_000


def test_features_have_shapes_as_long_as_audio() -> None:
    seconds = (0.6, 1.0, 1.99, 5.0)
    ready = [Utterance(str(s), "/x", "a", s, num_frames=round(100 * s), num_values=80) for s in seconds]
    audio = [Utterance(str(s), "/x", "a", s) for s in seconds]
    of_features, of_audio = plan(*ready).plan.buckets, plan(*audio).plan.buckets
    assert [bucket.length / 100 for bucket in of_features] == approx([b.length / 16000 for b in of_audio], abs=0.01)
    assert [bucket.batch_size for bucket in of_features] == [bucket.batch_size for bucket in of_audio]
    assert rows(plan(*ready)) == [0, 1, 2, 3]


def test_token_ids_without_a_text_are_read_by_their_own_tokenizer_alone() -> None:
    ids_alone, both = (
        Utterance("a", "/a.flac", "", 1.0, labels=(0, 2)),
        Utterance("b", "/b.flac", "ab", 1.0, labels=(9,)),
    )
    data = plan(ids_alone, both)
    assert [utterance.id for utterance in data.index.utterances] == ["b"]
    assert [(entry.id, entry.reason) for entry in data.rejections.entries] == [("a", "token ids without a text")]
    assert data.rejections.utterances == {"token ids without a text": 1}
    assert rows(plan(ids_alone, both, takes_ids=True)) == [0, 1]


@pytest.mark.parametrize("label", [3, 4])
def test_token_ids_that_the_tokenizer_did_not_make_are_named_before_anything_runs(label: int) -> None:
    with pytest.raises(UserError, match=rf"utterance a: label {label} .*\(3\).* 4"):
        plan(Utterance("a", "/a.flac", "", 1.0, labels=(0, label)), takes_ids=True)


def test_a_recording_without_length_is_left_out_and_named() -> None:
    data = plan(Utterance("a", "/a.flac", "a", 1.0), Utterance("b", "/b.flac", "b", 0.0))
    assert rows(data) == [0]
    assert [(entry.id, entry.reason) for entry in data.rejections.entries] == [("b", "too short")]
