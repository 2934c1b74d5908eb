"""Evaluation sets: shapes of training; only utterances without a reference are rejected, and each is named."""

from typing import Any

import numpy as np
import pytest

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.errors import UserError
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.batching.evaluation import evaluation_buckets, plan_evaluation, plan_with_labels
from asr_jax.data.batching.index import scale_of
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.characters import CharacterTokenizer

LETTERS = CharacterTokenizer(symbols=(*"abc", None), normaliser="none")
BUCKETS = (Bucket(16000, 8, 8, 15840), Bucket(32000, 8, 4, 31840))
AUDIO, FEATURES = (scale_of(KaldiFbank(), of_features=kind) for kind in (False, True))


def plan(*utterances: Utterance, **options: Any) -> PlannedData:
    settings = {"scale": AUDIO, "takes_ids": False} | options
    return plan_evaluation(Utterances.of(utterances), BUCKETS, front_end=KaldiFbank(), tokenizer=LETTERS, **settings)


def rows(data: PlannedData) -> list[int]:
    planned = [data.plan[position].rows for position in range(data.plan.batches_per_epoch)]
    return sorted(row for batch in planned for row in batch.tolist() if row >= 0)


def test_longer_records_get_more_shapes() -> None:
    shapes = evaluation_buckets(BUCKETS, 90_000, hop=160)
    assert shapes[:2] == BUCKETS
    assert [(shape.length, shape.batch_size) for shape in shapes[2:]] == [(48000, 2), (72000, 1), (108000, 1)]
    data = plan(*(Utterance(str(i), f"/{i}.flac", "?", seconds) for i, seconds in enumerate((0.5, 1.9, 5.0))))
    assert rows(data) == [0, 1, 2]


def test_audio_that_is_much_longer_is_for_windows_and_comes_last() -> None:
    """Audio of an hour, and audio slightly longer than 4 × 31840 samples, is in no batch, and no shape is as long."""
    made = [Utterance(str(i), f"/{i}.flac", "ab", seconds) for i, seconds in enumerate((3600.0, 0.5, 7.97, 7.95, 1.9))]
    short = plan(*(utterance for utterance in made if utterance.duration_s < 7.96))
    aligned = plan_with_labels(
        Utterances.of(made), BUCKETS, scale=AUDIO, front_end=KaldiFbank(), tokenizer=LETTERS, takes_ids=False,
        output_length=lambda num, of_features: num // 640, frames_needed=np.add, has_windows=True,
    )  # fmt: skip
    for data in (plan(*made, has_windows=True), aligned):
        assert [utterance.id for utterance in data.index.utterances] == ["1", "3", "4", "0", "2"]
        assert data.index.lengths.tolist() == [8000, 127200, 30400, 57600000, 127520]
        assert [data.index.utterances[row].id for row in data.windowed_rows] == ["0", "2"]
        assert rows(data) == [0, 1, 2]
        assert data.plan.buckets[-1].length == short.plan.buckets[-1].length < 250_000
    assert plan(*made).plan.buckets[-1].longest >= 57600000, "without windows, shapes are as long as the audio"
    ready = Utterance("a", "/x", "a", 99.0, num_frames=9900, num_values=80)
    assert not plan(ready, has_windows=True).windowed_rows


def test_a_run_on_audio_is_evaluated_on_features_in_shapes_as_long() -> None:
    ready = [Utterance(str(n), "/x", "a", n / 100, num_frames=n, num_values=80) for n in (60, 99, 199, 500)]
    data = plan(*ready)
    assert [bucket.length for bucket in data.plan.buckets[:2]] == [101, 201]
    assert [bucket.batch_size for bucket in data.plan.buckets[:2]] == [8, 4]
    assert data.plan.buckets[-1].length < 800
    assert rows(data) == [0, 1, 2, 3]


def test_a_run_on_features_is_evaluated_on_audio_in_shapes_as_long() -> None:
    data = plan_evaluation(
        Utterances.of([Utterance("a", "/a.flac", "a", 1.9), Utterance("b", "/b.flac", "a", 3.0)]),
        (Bucket(100, 8, 8, 99), Bucket(200, 8, 4, 199)), scale=FEATURES, front_end=KaldiFbank(), tokenizer=LETTERS,
        takes_ids=False,
    )  # fmt: skip
    assert [bucket.length for bucket in data.plan.buckets] == [16160, 32160, 48320]
    assert rows(data) == [0, 1]


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
