"""Files that are carried to a GPU machine without a network, their total size, and the rehearsal of the GPU check."""

import json
import subprocess
import sys
from pathlib import Path

import gpu_carry
import pytest
from support import ROOT, SHARED

from benchmarks import gpu_check


def corpus_of(folder: Path, durations: dict[str, list[float]]) -> Path:
    """Writes manifests with as many files as there are durations."""
    (folder / "manifests").mkdir(parents=True)
    (folder / "audio").mkdir()
    for name, each in durations.items():
        lines = []
        for number, duration in enumerate(each):
            path = f"audio/{name}-{number}.opus"
            (folder / path).write_text(path)
            lines.append(json.dumps({"audio_path": path, "duration": duration}) + "\n")
        (folder / f"manifests/{name}.jsonl").write_text("".join(lines))
    return folder


def test_evenly_spaced_utterances_are_copied_with_their_files(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", {"train": [3600.0] * 10, "test": [3600.0] * 3})
    gpu_carry.slice_corpus(corpus, tmp_path / "out", hours=5.0)
    kept = {
        name: [
            json.loads(line)["audio_path"]
            for line in (tmp_path / f"out/manifests/{name}.jsonl").read_text().splitlines()
        ]
        for name in ("train", "test")
    }
    assert kept["train"] == [f"audio/train-{number}.opus" for number in (1, 3, 5, 7, 9)]
    assert kept["test"] == [f"audio/test-{number}.opus" for number in range(3)]
    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out/audio").iterdir()}
    assert files == {*kept["train"], *kept["test"]}
    assert (tmp_path / "out" / kept["train"][0]).read_text() == kept["train"][0]


def test_a_training_set_that_is_short_enough_is_copied_whole(tmp_path: Path) -> None:
    corpus = corpus_of(tmp_path / "corpus", {"train": [1800.0] * 4})
    gpu_carry.slice_corpus(corpus, tmp_path / "out", hours=5.0)
    assert len((tmp_path / "out/manifests/train.jsonl").read_text().splitlines()) == 4


def test_what_is_too_large_to_be_carried_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu_carry, "MOST_BYTES", 2 << 20)
    files = [tmp_path / "a", tmp_path / "b"]
    for path in files:
        path.write_bytes(bytes(1 << 20))
    gpu_carry.check_size(files)
    assert capsys.readouterr().out == "gpu_carry: 2.0 MiB of at most 2 MiB in 2 files\n"
    files[0].write_bytes(bytes((1 << 20) + 1))
    with pytest.raises(SystemExit, match="too large; reduce HOURS"):
        gpu_carry.check_size(files)


@pytest.mark.slow
def test_all_parts_pass_the_rehearsal(tmp_path: Path) -> None:
    """Installs 6 GB in .venv-device, unless they are there."""
    if not (SHARED / "data/read_speech_6h").is_dir():
        pytest.skip(f"no read speech under {SHARED}: set ASR_JAX_SHARED to its folder")
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(tmp_path), "portpicker"]
    if subprocess.run(download, capture_output=True, check=False).returncode:
        pytest.skip("no network")
    for command in ("prepare", "rehearse"):
        script = [sys.executable, "scripts/gpu_carry.py", command]
        done = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    for part in gpu_check.parts(Path("speech/manifests"), smoke=True):
        assert f"gpu_check: {part.name}: done" in done.stdout
