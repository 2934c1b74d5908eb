"""Parts of benchmarks/gpu_check.py: their commands, failures, time limits and file."""

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks import gpu_check
from benchmarks.gpu_check import Part

ROOT = Path(__file__).parents[2]
WRITES = "import json, sys; json.dump({'device': 'NVIDIA H200'}, open(sys.argv[1], 'w'))"


@pytest.mark.parametrize("data", [None, Path("speech/manifests")])
def test_each_family_is_trained_on_the_batch_that_was_planned(data) -> None:
    found = {part.name: part for part in gpu_check.parts(data, smoke=False)}
    assert ("first_run" in found) is bool(data)
    assert {"machine", "tests", "frontend", "kernels_f32", "kernels_bf16", "inference_conformer"} < found.keys()
    for family in (*gpu_check.FAMILIES, "wav2vec2_pretrain", *gpu_check.OTHER_FAMILIES):
        command = " ".join(found[f"train_{family}"].arguments)
        assert (ROOT / f"configs/{family}.py").exists()
        assert "--data.train speech/manifests/train.jsonl" in command if data else "--synthetic 16" in command
        assert f"--data.batching.budget {gpu_check.planned_seconds(family)}" in command
        assert ("--trace" in command) is (family in gpu_check.TRACED)
    most_valuable = [name for name in found if name in ("machine", "first_run", "train_zipformer", "tests")]
    assert most_valuable[0] == "machine"
    assert most_valuable[-1] == "tests"


def test_each_part_is_in_a_call_that_is_long_enough_for_it() -> None:
    every = [*gpu_check.parts(Path("speech/manifests"), smoke=False)]
    assert len({part.name for part in every}) == len(every)
    for call, seconds in gpu_check.CALL_S.items():
        chosen = gpu_check.chosen_parts(Path("speech/manifests"), Namespace(call=call, parts=["frontend"], smoke=False))
        assert chosen == [part for part in every if part.call == call or part.name in ("machine", "frontend")]
        assert max(part.limit_s for part in chosen) <= seconds
    assert [part.name for part in every if part.call == 2] == ["showing"]
    of_first = [part.name for part in every if part.call == 1]
    assert of_first[:2] == ["machine", "first_run"]
    assert {"train_zipformer", "train_rnnt_base", "torch_fastconformer", "torch_wav2vec2_base"} < {*of_first}
    assert sum(gpu_check.CALL_S.values()) <= 1800 - 3 * 100  # each start of the machine takes up to 100 s


def test_recognition_reads_speech_if_there_is_any() -> None:
    for data, flag in ((None, "--seconds 16.7"), (Path("speech/manifests"), "--data speech/manifests/train.jsonl")):
        found = [part for part in gpu_check.parts(data, smoke=False) if part.name.startswith("inference")]
        assert {part.name for part in found} == {f"inference_{name}" for name in gpu_check.RECOGNISED}
        for part in found:
            command = " ".join(part.arguments)
            assert flag in command
            assert "--batch-sizes 64 256" in command


@pytest.mark.slow
def test_a_part_that_fails_or_takes_too_long_costs_only_itself(tmp_path, monkeypatch, capfd) -> None:
    parts = tmp_path / "parts"
    chosen = [
        Part("slow", 1, ("-c", "import time; time.sleep(60)")),
        Part("broken", 30, ("-c", "raise ValueError('no such kernel')")),
        Part("good", 30, ("-c", WRITES, str(parts / "good.json"))),
        Part("late", 1, ("-c", "")),
    ]
    monkeypatch.setattr(gpu_check, "PARTS", parts)
    monkeypatch.setattr(gpu_check, "LEAST_S", 0.5)
    monkeypatch.setattr(gpu_check, "parts", lambda data, smoke: chosen)
    monkeypatch.setattr(gpu_check, "speech", lambda: None)
    monkeypatch.setattr(gpu_check, "prepared", lambda smoke: {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"})
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--out", str(tmp_path / "out"), "--seconds", "90"])
    with pytest.raises(SystemExit) as ended:
        gpu_check.main()
    assert ended.value.code == 1
    content = json.loads((tmp_path / "out/h200.json").read_text())
    assert content["figures"]["good"] == {"device": "NVIDIA H200"}
    assert content["omitted"] == ["slow: time limit of 1 s", "broken: exit code 1: ValueError: no such kernel"]
    ends = (tmp_path / "out/parts.txt").read_text()
    assert ends.startswith("===== slow\n")
    assert "ValueError: no such kernel\n\n===== good" in ends
    output = capfd.readouterr().out
    assert "gpu_check: good: done" in output
    assert "gpu_check: slow: time limit of 1 s" in output


def test_the_processes_of_a_part_end_with_it(tmp_path) -> None:
    """A process of a training would otherwise keep the memory of the GPU."""
    number = tmp_path / "number"
    child = f"import os, time; open({str(number)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    process = subprocess.Popen([sys.executable, "-c", parent], start_new_session=True)
    while not (number.exists() and number.read_text()):
        time.sleep(0.01)
    gpu_check.end(process)
    with pytest.raises(ProcessLookupError):
        os.kill(int(number.read_text()), 0)


def test_parts_without_time_are_named(monkeypatch) -> None:
    assert gpu_check.run(Part("late", 60, ("-c", "")), gpu_check.LEAST_S - 1, smoke=False, environment={}) == (
        "no time left"
    )


def test_an_unknown_part_is_an_error(monkeypatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu_check", "--call", "1", "train_whisper"])
    with pytest.raises(SystemExit, match="no part is named train_whisper; --plan prints the names"):
        gpu_check.main()
