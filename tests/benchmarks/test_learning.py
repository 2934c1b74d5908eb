"""Benchmark that trains a model beside its original in PyTorch."""

import json
from pathlib import Path

import pytest

from asr_jax.observe.events import read_events
from benchmarks import learning
from tests.recordings import noise, write
from tests.support import assert_close

ROOT = Path(__file__).parents[2]
UPDATES = 2
"""Longer trainings differ by rounding, because float32 gradients of QuartzNet are exact to only about 1 %."""


@pytest.mark.slow
@pytest.mark.skipif(
    not (learning.REFERENCE.exists() and (ROOT / ".peers/DeepLearningExamples").exists()),
    reason="needs scripts/setup_reference.sh, also with --peers",
)
def test_quartznet_of_both_systems_has_equal_losses(tmp_path):
    """Neither has dropout, so only rounding differs."""
    for name, seeds in (("train", range(12)), ("dev", range(2)), ("test", range(2))):
        lines = []
        for seed in seeds:
            audio = write(tmp_path / name / f"{seed}.wav", noise(seed, 16000 + 800 * seed))
            lines.append(json.dumps({"audio_path": str(audio), "text": f"{name} number {'abcdefghijkl'[seed]}"}))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    config, out = tmp_path / "config.py", tmp_path / "out.json"
    text = learning.CONFIG.read_text().replace("data/an4/manifests", str(tmp_path))
    short = text.replace("num_updates=1500", f"num_updates={UPDATES}").replace("28.0", "8.0")
    config.write_text(short)
    given = ["--model", "quartznet", "--seeds", "0", "--out", tmp_path / "trainings", "--config", config, "--json", out]
    learning.main([str(each) for each in [*given, "--plot", tmp_path / "curves.png"]])
    ours, theirs = json.loads(out.read_text())["trainings"]
    folder = tmp_path / "trainings/quartznet_0"
    found = json.loads((folder / "theirs.json").read_text())
    steps = [each["data"] for each in read_events(folder / "run/events.jsonl", "train_step")]
    assert set(found["hypotheses"]) == {"0", "1", "2", "3"}
    assert len(steps) == UPDATES
    assert_close([each["losses"]["total"] for each in steps], found["losses"], rtol=1e-5)
    assert {name: ours[name] for name in ("dev, WER %", "test, WER %")} == {
        name: theirs[name] for name in ("dev, WER %", "test, WER %")
    }
    assert (tmp_path / "curves.png").stat().st_size > 10_000
