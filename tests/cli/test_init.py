"""`asr_jax.init`: what it prints and writes; the printed commands train, evaluate and transcribe."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.cli import evaluate, train, transcribe
from asr_jax.cli.command_line import load_config
from asr_jax.cli.init import about_long, main
from asr_jax.core.errors import UserError
from tests.toned import toned
from tests.training.test_suggestion import surveyed

SHORT = ["--updates", "12", "--data.batching.num-buckets", "1"]
WORDS = ["bed", "fade", "cab"]


@pytest.fixture
def recordings(tmp_path, monkeypatch):
    """Folder of 45 recordings of tones, one folder for each of nine speakers, with texts beside them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for k in range(45):
        folder = tmp_path / "my audio" / f"s{k % 9}"
        folder.mkdir(parents=True, exist_ok=True)
        words = [WORDS[place] for place in rng.integers(0, 3, 3)]
        write_flac(folder / f"{k}.flac", toned(words, rng)[0], 16000)
        (folder / f"{k}.txt").write_text(f"{' '.join(words)} {'abcdefghijklmnopqrstuvwxyz'[k % 26]}.\n")
    return tmp_path / "my audio"


def test_a_folder_becomes_a_config_manifests_a_picture_and_commands(recordings, tmp_path, capsys):
    before = sorted(recordings.rglob("*"))
    main([str(recordings), "--skip-trial"])
    printed, out = capsys.readouterr().out, tmp_path / "asr_jax_init" / "my_audio"
    assert sorted(recordings.rglob("*")) == before
    experiment = load_config(out / "config.py")
    assert experiment.name == "my_audio"
    assert experiment.data.tokenizer.normaliser == "words.v1"
    assert (out / "data.png").read_bytes().startswith(b"\x89PNG")
    findings = json.loads((out / "findings.json").read_text())
    assert sum(each["utterances"] for each in findings["sets"].values()) == 45
    assert "folders" in {each["kind"] for each in findings["findings"]}
    manifests = "".join((out / f"{part}.jsonl").read_text() for part in ("train", "validation", "test"))
    assert len({json.loads(line)["id"] for line in manifests.splitlines()}) == 45
    assert "python -m asr_jax.train --config asr_jax_init/my_audio/config.py --run-dir runs/my_audio" in printed
    tuned = "configs/w2v_bert_finetune.py --init-from w2v-bert-2.0 --data.train asr_jax_init/my_audio/train.jsonl"
    assert tuned in " ".join(printed.split())
    with pytest.raises(UserError, match=r"config.py exists: .*--out.*--force"):
        main([str(recordings), "--skip-trial"])
    main([str(recordings), "--skip-trial", "--force"])


def test_a_folder_without_data_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="nothing to read"):
        main([str(tmp_path / "empty")])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty"]


def test_long_recordings_are_counted_and_refused_if_there_are_no_others():
    found = surveyed(hours=0.1, longest_s=36.0)
    assert about_long(found, 36.0) == ""
    assert "1 of 100 training utterances (9% of the audio) are longer than 20 s" in about_long(found, 20.0)
    with pytest.raises(UserError, match=r"100 of 100 .* longer than 2 s, .*align RUN MANIFEST --segment"):
        about_long(found, 2.0)


@pytest.mark.slow
def test_the_printed_commands_train_evaluate_and_transcribe(recordings, capsys):
    main([str(recordings), "--hours", "0.004"])
    printed = capsys.readouterr().out
    commands = [shlex.split(line) for line in printed.split("\n") if line.startswith("  python -m asr_jax.")]
    assert [command[2] for command in commands] == ["asr_jax.train", "asr_jax.evaluate", "asr_jax.transcribe"]
    assert "updates of" in printed
    assert "GB by XLA's analysis" in printed
    assert json.loads(Path("asr_jax_init/my_audio/findings.json").read_bytes())["planned"]["training_s"] < 0.005 * 3600
    for module, command in zip((train, evaluate, transcribe), commands, strict=True):
        module.main([*command[3:], *(SHORT if module is train else [])])
    printed = capsys.readouterr().out
    assert "12 updates" in printed
    assert "wer" in printed
    assert ".flac\t" in printed
