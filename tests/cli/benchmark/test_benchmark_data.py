"""The data benchmark with small sizes: all figures exist and are consistent; their values depend on the machine."""

import json
from pathlib import Path

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.cli.benchmark import command
from asr_jax.cli.benchmark.loading import index_of, memory_growth, source_of, throughput
from asr_jax.core.errors import UserError
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


@pytest.mark.slow
@needs_proc
def test_batches_are_timed_beside_bare_decoding(manifest):
    found = throughput(index_of([manifest]), batch_seconds=2.0, processes=1, seconds=0.2, repeats=2)
    for rates in (found["per_s"], found["per_cpu_s"]):
        assert all(len(each) == 2 and min(each) > 1 for each in rates["all"].values())
        for way in ("bare", "threads", "workers"):
            assert rates["median"][way] == approx(np.mean(rates["all"][way]))
            assert rates["to_bare"][way] == approx(rates["median"][way] / rates["median"]["bare"])


@pytest.mark.slow
@needs_proc
def test_memory_is_looked_at_while_batches_come(manifest):
    found = memory_growth(source_of(index_of([manifest]), batch_seconds=2.0), workers=0, num_batches=150)
    assert found["first_bytes"] > 1e7
    assert found["growth"] == approx(found["last_bytes"] / found["first_bytes"] - 1)
    assert found["growth"] < 0.2


@needs_proc
def test_the_command_prints_tables_and_writes_json(manifest, tmp_path, capsys):
    out = tmp_path / "out" / "figures.json"
    given = ["data", "--data", str(manifest), "--only", "memory", "--processes", "1", "--batches", "150"]
    command.main([*given, "--json", str(out)])
    figures, output = json.loads(out.read_text()), capsys.readouterr().out
    assert figures.keys() == {"machine", "memory"}
    assert f"{figures['memory'][0]['growth']:+.2%}" in output


def test_what_cannot_be_measured_is_said(capsys):
    with pytest.raises(UserError, match="--data MANIFEST"):
        command.main(["data", "--only", "reading"])
    with pytest.raises(UserError, match=r"dat: .*inference, train, data, kernels.*'data'"):
        command.main(["dat"])
    command.main([])
    assert "benchmark train --config FILE" in capsys.readouterr().out
