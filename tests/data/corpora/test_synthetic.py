"""Embedded corpus: the same bytes from the same settings, disjoint splits, correct manifests."""

import json
import multiprocessing
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile

pytest.importorskip("espeakng_loader")

from asr_jax.audio.io import read_audio
from asr_jax.core.errors import RunError, UserError
from asr_jax.data.corpora import espeak, synthetic
from asr_jax.data.corpora.sentences import SHARES, UNREPEATABLE, VOICES, plan, split_of, voices_of, waveform
from asr_jax.data.corpora.synthetic import Corpus, make_corpus
from asr_jax.data.manifests.reading import read_utterances
from tests.support import approx

TINY = Corpus(minutes=0.6)
MANNER = espeak.Manner(accent="en-us", variant="m3", words_per_minute=150, pitch=50, pitch_range=50)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    make_corpus(folder, TINY, processes=1)
    return folder


@pytest.fixture(scope="module")
def engine() -> espeak.Espeak:
    return espeak.Espeak()


def content(folder: Path) -> dict[str, bytes]:
    files = [*folder.glob("audio/*/*.flac"), *folder.glob("manifests/*.jsonl")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def rows(folder: Path, split: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "manifests" / f"{split}.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_same_bytes_for_any_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "NUM_PER_PROCESS", 5)
    one = make_corpus(tmp_path / "one", TINY, processes=1)
    three = make_corpus(tmp_path / "three", TINY, processes=3)
    assert content(tmp_path / "one") == content(tmp_path / "three")
    assert one["audio_sha256"] == three["audio_sha256"]


def test_same_bytes_again_and_others_with_another_seed(tmp_path: Path, corpus: Path) -> None:
    make_corpus(tmp_path / "again", TINY, processes=1)
    make_corpus(tmp_path / "other", replace(TINY, seed=1), processes=1)
    assert content(tmp_path / "again") == content(corpus)
    assert not set(content(tmp_path / "other").values()) & set(content(corpus).values())


def test_manifests_are_true(corpus: Path) -> None:
    for split in SHARES:
        for row in rows(corpus, split):
            assert set(row) == {"id", "audio_path", "text", "duration", "speaker", "source"}
            assert row["audio_path"] == f"../audio/{split}/{row['id']}.flac"
            info = soundfile.info(corpus / "manifests" / row["audio_path"])
            assert (info.samplerate, info.channels, info.subtype) == (16000, 1, "PCM_16")
            assert abs(row["duration"] * 16000 - info.frames) < 1
            assert 0.6 <= row["duration"] <= 3.51
            assert row["speaker"] in voices_of(split)


def test_manifests_read_as_records_and_agree_with_the_numbers(corpus: Path) -> None:
    numbers = json.loads((corpus / "corpus.json").read_text())
    for split in SHARES:
        utterances = list(read_utterances([corpus / "manifests" / f"{split}.jsonl"]))
        assert numbers["sets"][split]["utterances"] == len(utterances) >= 2
        assert numbers["sets"][split]["words"] == sum(len(utterance.text.split()) for utterance in utterances)
        assert all(Path(utterance.location).is_file() for utterance in utterances)


def test_levels(corpus: Path) -> None:
    for utterance in plan(TINY):
        samples = read_audio(corpus / "audio" / utterance.split / f"{utterance.id}.flac").astype(np.float64)
        peak = np.abs(samples).max() / 32768
        assert 20 * np.log10(peak) == approx(utterance.peak_db, abs=0.1)
        assert -20.1 < 20 * np.log10(peak) < -2.9
        assert np.sqrt(np.mean(samples**2)) > 100, utterance


def test_plan_of_the_whole_corpus() -> None:
    utterances = plan(Corpus())
    texts = {split: [u.text for u in utterances if u.split == split] for split in SHARES}
    counts = {split: Counter(" ".join(texts[split]).split()) for split in SHARES}
    assert all(re.fullmatch(r"[a-z']+( [a-z']+)*", text) for text in texts["train"] + texts["test"])
    assert 50 <= len(counts["train"]) <= 70
    assert min(counts["train"].values()) >= 20
    assert set(counts["test"]) <= set(counts["train"])
    assert counts["test"].total() >= 1200
    assert not set(texts["test"]) & {*texts["train"], *texts["validation"]}
    assert not set(texts["validation"]) & set(texts["train"])
    assert all(split_of(u.text) == u.split for u in utterances)


def test_every_variant_has_one_place(engine: espeak.Espeak) -> None:
    everyone = [name for split in VOICES for name in voices_of(split)] + list(UNREPEATABLE)
    assert Counter(everyone) == Counter(engine.variants)
    for utterance in plan(Corpus()):
        assert utterance.manner.variant in voices_of(utterance.split)


@pytest.mark.slow
def test_groups_of_like_voices_are_as_measured() -> None:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        measured = pool.apply(measured_groups)
    assert measured == {frozenset(group.split(", ")) for split in VOICES for group in VOICES[split]}
    small = sorted((sorted(group, key=str.lower) for group in measured if len(group) < 5), key=lambda g: g[0].lower())
    assert VOICES["test"] == tuple(", ".join(group) for group in small[2::5])
    assert VOICES["validation"] == tuple(", ".join(group) for group in small[4::10])


def test_already_there(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("*")}
    found = make_corpus(corpus, TINY, processes=1)
    assert found == json.loads((corpus / "corpus.json").read_text())
    assert "already exists" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in corpus.rglob("*")}


def test_other_settings_are_refused(corpus: Path) -> None:
    with pytest.raises(UserError, match=r"minutes 0\.6 \(.*0\.5\), seed 0 \(.*7\)"):
        make_corpus(corpus, Corpus(minutes=0.5, seed=7), processes=1)


def test_other_things_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    (tmp_path / "audio" / "mine.flac").touch()
    with pytest.raises(UserError, match="has files that are not of this corpus"):
        make_corpus(tmp_path, TINY, processes=1)
    assert [path.name for path in tmp_path.rglob("*")] == ["audio", "mine.flac"]


@pytest.mark.slow
def test_an_interrupted_one_is_made_again(tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(synthetic, "write_manifest", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            make_corpus(tmp_path, TINY, processes=1)
    assert not (tmp_path / "corpus.json").exists()
    (tmp_path / "audio" / "train" / "train-99999.flac").touch()
    make_corpus(tmp_path, TINY, processes=1)
    assert content(tmp_path) == content(corpus)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["audio", "corpus.json", "manifests"]


@pytest.mark.parametrize(
    ("changed", "message"), [({"variant": "m33"}, "'m33'; did you mean"), ({"accent": "xx"}, "'xx'")]
)
def test_unknown_voice_is_refused(engine: espeak.Espeak, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        engine.speak("one", replace(MANNER, **changed))


def test_a_failing_process_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = replace(plan(TINY)[0], manner=replace(MANNER, variant="missing"))
    monkeypatch.setattr(synthetic, "plan", lambda settings: [unknown])
    with pytest.raises(RunError, match=r"code 1: .*'missing'"):
        make_corpus(tmp_path, TINY, processes=1)


def test_too_long_is_spoken_faster_and_too_fast_slower(engine: espeak.Espeak) -> None:
    first = plan(TINY)[0]
    long = replace(first, text="nine " * 12, manner=replace(MANNER, words_per_minute=110))
    fast = replace(first, text="turn on the kitchen lights", manner=replace(MANNER, words_per_minute=400))
    assert len(engine.speak(long.text, long.manner)) / 22050 > 3.5 >= len(waveform(engine, long)) / 16000
    assert len(engine.speak(fast.text, fast.manner)) / 22050 < 26 / 20 <= len(waveform(engine, fast)) / 16000


def test_data_in_a_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = espeak.loader()
    far = tmp_path / ("d" * 200) / "espeak-ng-data"
    far.parent.mkdir()
    far.symlink_to(found.get_data_path(), target_is_directory=True)
    there = SimpleNamespace(get_library_path=found.get_library_path, get_data_path=lambda: str(far))
    monkeypatch.setattr(espeak, "loader", lambda: there)
    assert len(espeak.Espeak().speak("one two three", MANNER)) > 10000


def test_without_the_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "espeakng_loader", None)
    with pytest.raises(UserError, match="ASR_JAX_EXTRAS=quickstart"):
        make_corpus(tmp_path / "new", TINY, processes=1)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("wrong", [{"minutes": 0.0}, {"minutes": float("nan")}, {"seed": -1}])
def test_wrong_settings(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        Corpus(**wrong)


@pytest.mark.slow
def test_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "asr_jax.data.corpora.synthetic", "--out", str(tmp_path / "c"), "--minutes", "0.3"]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    assert re.search(r"\d+ utterances, \d\.\d minutes, \d+ words, made in [\d.]+ s: .*manifests", made.stdout)
    rejected = subprocess.run([*command, "--seed", "2"], capture_output=True, text=True, check=False)
    assert rejected.returncode == 2
    assert "a corpus of other settings: seed 0 (requested: 2)" in rejected.stderr
    assert "Traceback" not in rejected.stderr


def measured_groups() -> set[frozenset[str]]:
    """Groups of similar voices, computed from the definition; call it in a process that has not spoken."""
    engine = espeak.Espeak()
    names = sorted(engine.variants - set(UNREPEATABLE))
    pitches = (20, 35, 50, 65, 80)
    means = np.stack([[_mean_log_mel(engine, name, pitch) for pitch in pitches] for name in names])
    groups = {name: {name} for name in names}
    for i, one in enumerate(names):
        for j, other in enumerate(names[:i]):
            differences = means[i][:, None] - means[j][None]
            if np.sqrt(np.mean(differences**2, axis=-1)).min() < 2.6 and groups[one] is not groups[other]:
                groups[one] |= groups[other]
                groups.update(dict.fromkeys(groups[one], groups[one]))
    return {frozenset(group) for group in groups.values()}


def _mean_log_mel(engine: espeak.Espeak, variant: str, pitch: int) -> np.ndarray:
    """Mean log-mel spectrum of eight sentences in dB, level removed, over frames within 40 dB of the loudest."""
    import librosa
    import soxr

    bank = librosa.filters.mel(sr=16000, n_fft=512, n_mels=80, fmin=20, fmax=7600)
    frames = []
    for text in SPOKEN_SENTENCES:
        manner = espeak.Manner("en-us", variant, words_per_minute=175, pitch=pitch, pitch_range=50)
        samples = soxr.resample(engine.speak(text, manner).astype(np.float32) / 32768, 22050, 16000)
        windows = np.lib.stride_tricks.sliding_window_view(samples, 400)[::160] * np.hanning(400)
        mel = np.abs(np.fft.rfft(windows, 512)) ** 2 @ bank.T
        energy = mel.sum(axis=1)
        frames.append(10 * np.log10(mel[energy > energy.max() * 1e-4] + 1e-10))
    mean = np.concatenate(frames).mean(axis=0)
    return mean - mean.mean()


SPOKEN_SENTENCES = (
    "zero one two three four",
    "five six seven eight nine",
    "turn on the kitchen lights",
    "set a timer for twenty minutes",
    "call anna on monday morning",
    "play music in the garden please",
    "what's the time at home",
    "go north then left at station street",
)
