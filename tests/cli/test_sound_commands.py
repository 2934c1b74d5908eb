"""The commands augment and feature_statistics, and the front-end benchmark."""

import json

import jax
import numpy as np
import pytest

from asr_jax.audio import presets
from asr_jax.audio.io import read_audio, write_flac
from asr_jax.audio.presets import PRESETS, rnnt
from asr_jax.audio.stages import NormaliseByDataSet
from asr_jax.cli import augment, feature_statistics
from asr_jax.core.errors import UserError
from benchmarks import front_ends
from tests.support import approx, assert_close

RATE = 16000


@pytest.mark.parametrize("name", ["a", "../a b", "中" * 200, "😀" * 90, "𝒜" * 90, "\udcff\0\n"])
def test_names_of_folders_fit_into_255_bytes(name, tmp_path):
    short = augment._short_name(name)
    (tmp_path / f"123-{short}").mkdir()
    assert len(short.encode()) <= 80
    assert "/" not in short


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder with a manifest of twelve recordings, one of them damaged, a recording of noise, and a config."""
    folder, rng = tmp_path_factory.mktemp("sound"), np.random.default_rng(0)
    (folder / "noise").mkdir()
    write_flac(folder / "noise" / "n.flac", rng.integers(-2000, 2000, 9000).astype(np.int16), RATE)
    lines = []
    for number in range(12):
        size = 6000 + 500 * (number % 4)
        tone = 4000 * np.sin(2 * np.pi * (200 + 50 * number) * np.arange(size) / RATE)
        write_flac(folder / f"{number}.flac", (tone + rng.normal(0, 300, size)).astype(np.int16), RATE)
        lines.append({"id": f"u/{number}", "audio_path": f"{number}.flac", "text": "a", "duration": size / RATE})
    (folder / "3.flac").write_bytes((folder / "3.flac").read_bytes()[:400])
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "config.py").write_text(
        "from dataclasses import replace\n"
        "from asr_jax.audio.distort import BackgroundNoise, Gain\n"
        "from asr_jax.audio.specaugment import SpecAugment\n"
        "from tests.toy_config import experiment as toy\n"
        "def experiment():\n"
        "    e = toy()\n"
        f"    noise = BackgroundNoise(folder={str(folder / 'noise')!r})\n"
        "    augment = (SpecAugment(probability=0.5), Gain(db=(-6.0, -3.0)), noise)\n"
        "    return replace(e, model=replace(e.model, augment=augment))\n"
    )
    return folder


@pytest.mark.slow
def test_audio_and_pictures_before_and_after_each_augmentation(folder, tmp_path, capsys):
    given = ["--config", folder / "config.py", "--data", folder / "train.jsonl", "--out", tmp_path, "--num", 1,
             "--model.augment.1.db", "-6", "-5"]  # fmt: skip
    augment.main([str(word) for word in given])
    assert "1 utterance\n" in capsys.readouterr().out
    shown = sorted(path.name for path in tmp_path.iterdir())
    assert shown[0] == "0-u_0"
    assert json.loads((tmp_path / "about.json").read_text())["not shown"]["speeds"] == [1.0]
    names = {path.name for path in (tmp_path / shown[0]).iterdir()}
    assert names == {
        "0-original.flac", "0-original.png", "1-Gain.flac", "1-Gain.png", "2-BackgroundNoise.flac",
        "2-BackgroundNoise.png", "3-SpecAugment.png", "drawn.json",
    }  # fmt: skip
    draws = json.loads((tmp_path / shown[0] / "drawn.json").read_text())
    assert draws[3]["augmentation"] == "SpecAugment, in 50% of the utterances"
    original, quieter = (read_audio(tmp_path / shown[0] / f"{name}.flac") for name in ("0-original", "1-Gain"))
    np.testing.assert_array_equal(original, read_audio(folder / "0.flac"))
    level = 20 * np.log10(np.std(quieter) / np.std(original))
    assert level == approx(draws[1]["drawn"]["gain_db"], abs=0.01)
    assert -6 < level < -5
    assert 0 <= draws[2]["drawn"]["snr_db"] <= 30  # settings at the end of the run
    assert (tmp_path / shown[0] / "3-SpecAugment.png").stat().st_size > 5000


def test_data_without_audio_are_named(folder, tmp_path):
    (tmp_path / "none.jsonl").write_text('{"id": "x", "audio_path": "gone.flac", "text": "a", "duration": 1.0}\n')
    config = ["--config", str(folder / "config.py")]
    with pytest.raises(UserError, match=r"no audio could be read: .*gone\.flac"):
        augment.main([*config, "--data", str(tmp_path / "none.jsonl"), "--out", str(tmp_path)])
    with pytest.raises(UserError, match="at_update is 99999999999"):
        augment.main([*config, "--data", "x", "--out", "x", "--at-update", "99999999999"])
    with pytest.raises(UserError, match="max_hours is nan"):
        feature_statistics.main(["--preset", "rnnt", "--data", "x", "--out", "x.json", "--max-hours", "nan"])
    with pytest.raises(UserError, match="num is 0"):
        augment.main([*config, "--data", "x", "--out", "x", "--num", "0"])


def test_statistics_are_those_of_all_frames(folder, tmp_path, capsys):
    out = tmp_path / "statistics.json"
    feature_statistics.main(["--preset", "rnnt", "--data", str(folder / "train.jsonl"), "--out", str(out)])
    output = capsys.readouterr()
    assert "1 utterance could not be read" in output.out
    assert "3.flac" in output.err
    found = NormaliseByDataSet.of_json(out)
    front_end, values = PRESETS["rnnt"](), []
    bare = jax.jit(type(front_end)(**{**vars(front_end), "then": ()}))
    for number in set(range(12)) - {3}:
        audio = read_audio(folder / f"{number}.flac")
        features = bare(np.pad(audio, (0, 8000 - len(audio)))[None], np.array([len(audio)], np.int32))
        values.append(np.asarray(features.values, np.float64)[0, : features.lengths.item()])
    frames = np.concatenate(values)
    assert json.loads(out.read_text())["frames"] == len(frames)
    assert_close(found.mean, frames.mean(0), rtol=1e-5, atol=1e-5)
    assert_close(found.deviation, frames.std(0), rtol=1e-4)
    assert rnnt(found).num_features == 240
    feature_statistics.main(
        ["--config", str(folder / "config.py"), "--data", str(folder / "train.jsonl"), "--out", str(out),
         "--max-hours", "0.0005"]
    )  # fmt: skip
    assert json.loads(out.read_text())["frames"] < len(frames)


def test_presets_and_folders_that_do_not_exist_are_named(folder, tmp_path):
    with pytest.raises(UserError, match="does not exist; create it first"):
        feature_statistics.main(["--preset", "rnnt", "--data", "x", "--out", str(tmp_path / "none" / "x.json")])
    with pytest.raises(UserError, match=r"'quarznet'.* 'quartznet'"):
        feature_statistics.main(["--preset", "quarznet", "--data", "x", "--out", "x"])


def test_the_benchmark_times_every_front_end(tmp_path, monkeypatch):
    two = {name: PRESETS[name] for name in ("icefall", "quartznet")}
    monkeypatch.setattr(presets, "PRESETS", two)
    front_ends.main(["--seconds", "0.5", "--rows", "2", "--repeats", "1", "--json", str(tmp_path / "f.json")])
    assert json.loads((tmp_path / "f.json").read_text())["times_s"].keys() == {*two, "SpecAugment alone"}
    with pytest.raises(UserError, match="--rows 0"):
        front_ends.main(["--rows", "0"])
