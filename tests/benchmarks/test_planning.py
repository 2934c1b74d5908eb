"""Benchmark of planning synthetic metadata."""

import numpy as np
import pytest

from asr_jax.data.manifests.reading import read_utterances
from benchmarks import made_up
from benchmarks.planning import padding, resume, starts
from tests.support import approx


def test_made_up_durations_are_like_librispeechs():
    seconds = made_up.durations_s(281_241)
    assert seconds.sum() / 3600 == approx(960.9, rel=0.005)
    assert seconds.std() == approx(3.84, abs=0.05)
    assert (seconds.min(), seconds.max()) == (approx(0.83, abs=0.05), approx(29.74, abs=0.5))
    # icefall's percentiles of train-clean-100, train-clean-360 and train-other-500, with three speeds. A percentile of
    # the sets together is between those of the sets.
    published = {
        0.1: (1.9, 1.8, 1.7), 0.5: (2.2, 2.2, 2.1), 1: (2.5, 2.5, 2.3), 5: (4.2, 4.2, 3.5), 10: (6.4, 6.2, 5.0),
        25: (11.4, 11.2, 9.8), 50: (13.8, 13.7, 13.4), 75: (15.3, 15.3, 15.1), 90: (16.7, 16.6, 16.5),
        95: (17.3, 17.3, 17.2), 99: (18.1, 18.1, 18.1), 99.5: (18.4, 18.4, 18.4), 99.9: (18.8, 18.8, 18.9),
    }  # fmt: skip
    at_speeds = np.concatenate([seconds / speed for speed in (0.9, 1, 1.1)])
    for percentile, of_sets in published.items():
        assert min(of_sets) - 0.05 <= np.percentile(at_speeds, percentile) <= max(of_sets) + 0.15
    assert (made_up.durations_s(1000, seed=1) == made_up.durations_s(1000, seed=1)).all()
    assert (made_up.durations_s(1000, seed=1) != made_up.durations_s(1000, seed=2)).any()


def test_a_made_up_manifest_is_one(tmp_path):
    made_up.write_manifest(tmp_path / "m.jsonl", 300)
    utterances = read_utterances([tmp_path / "m.jsonl"], cache=str(tmp_path / "cache"))
    assert len({utterance.id for utterance in utterances}) == 300
    assert not utterances.rejected
    seconds = utterances.columns.duration_s
    assert seconds.tolist() == made_up.durations_s(300).tolist()
    assert np.mean(utterances.columns.num_chars / seconds) == approx(made_up.CHARS_PER_S, rel=0.05)


def test_padding_gets_less_with_more_shapes():
    found = padding(20_000, nums_buckets=(4, 12), batch_seconds=240.0)
    assert [row["shapes"] for row in found] == [4, 12]
    assert 0.8 < found[0]["efficiency"] < found[1]["efficiency"] < 1


def test_resuming_is_timed():
    found = resume(20_000, repeats=1)
    assert found["utterances"] == 20_000
    assert min(found["build_s"], found["far_s"], found["next_s"]) > 0


@pytest.mark.slow
def test_the_second_start_reads_what_the_first_kept():
    found = starts(3000)
    assert found["second_s"]["utterances"] < found["first_s"]["utterances"] / 3
    assert sum(found["second_s"].values()) == approx(2 * found["second_s"]["in all"])
    sizes = found["bytes"]
    assert sizes["labels on disk"] == approx(sizes["texts on disk"])  # each label is one byte
    assert sizes["texts on disk"] == approx(8 + 12.3 * made_up.CHARS_PER_S, rel=0.05)
    assert sizes["ids, paths and all else on disk"] > 100
