"""The data benchmark with small sizes: all figures exist and are consistent; their values depend on the machine."""

import json
from pathlib import Path

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.cli.benchmark import command, made_up
from asr_jax.cli.benchmark.loading import index_of, memory_growth, source_of, throughput
from asr_jax.cli.benchmark.planning import padding, resume, starts
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.reading import read_utterances
from tests.support import approx

needs_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("read"), np.random.default_rng(0)
    lines = []
    for i in range(12):
        samples = rng.integers(-9000, 9000, int(rng.integers(3000, 9000))).astype(np.int16)
        write_flac(folder / f"{i}.flac", samples, 16000)
        lines.append({"audio_path": f"{i}.flac", "text": "a b", "duration": len(samples) / 16000})
    path = folder / "train.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


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


@pytest.mark.slow
@needs_proc
def test_batches_are_timed_beside_bare_decoding(manifest):
    found = throughput(index_of([manifest]), batch_seconds=2.0, processes=1, seconds=0.2, repeats=2)
    for rates in (found["per_s"], found["per_cpu_s"]):
        assert all(len(each) == 2 and min(each) > 1 for each in rates["all"].values())
        for way in ("bare", "threads", "workers"):
            assert rates["median"][way] == approx(np.mean(rates["all"][way]))
            assert rates["to_bare"][way] == approx(rates["median"][way] / rates["median"]["bare"])


@needs_proc
def test_memory_is_looked_at_while_batches_come(manifest):
    found = memory_growth(source_of(index_of([manifest]), batch_seconds=2.0), workers=0, num_batches=150)
    assert found["first_bytes"] > 1e7
    assert found["growth"] == approx(found["last_bytes"] / found["first_bytes"] - 1)
    assert found["growth"] < 0.2


def test_the_command_prints_tables_and_writes_json(tmp_path, capsys):
    out = tmp_path / "out" / "figures.json"
    command.main(
        ["data", "--only", "padding", "resume", "--utterances", "3000", "--far-utterances", "4000", "--json", str(out)]
    )
    figures, output = json.loads(out.read_text()), capsys.readouterr().out
    assert figures.keys() == {"machine", "padding", "resume"}
    assert figures["resume"]["utterances"] == 4000
    assert "the first batch of a distant epoch" in output
    assert f"{figures['padding'][2]['efficiency']:.1%}" in output


def test_what_cannot_be_measured_is_said(capsys):
    with pytest.raises(UserError, match="--data MANIFEST"):
        command.main(["data", "--only", "reading"])
    with pytest.raises(UserError, match=r"dat: .*inference, train, steps, model, data, frontend.*'data'"):
        command.main(["dat"])
    command.main([])
    assert "benchmark steps --config FILE" in capsys.readouterr().out
