"""Manifests of AN4 from CMU's layout: a few short recordings that are made here, and real ones."""

import json

import numpy as np
import prepare_an4
import pytest
import soundfile

from asr_jax.audio.io import read_audio
from asr_jax.core.errors import RunError, UserError
from tests.support import SHARED

REAL = SHARED / "data/read_speech/formats/an4"
SAMPLES = np.arange(-800, 800, dtype=np.int16)


@pytest.fixture
def an4(tmp_path):
    """AN4 with two utterances of each of three training speakers, in SPHERE files, and two test utterances, raw."""
    root = tmp_path / "given" / "an4"
    lines = {"train": [], "test": []}
    for name, folder, speakers in (("train", "an4_clstk", ("mbbb", "fccc", "faaa")), ("test", "an4test_clstk", ("m",))):
        for speaker in speakers:
            for utterance in ("cen2", "an1"):
                stem = root / "wav" / folder / speaker / f"{utterance}-{speaker}-b"
                stem.parent.mkdir(parents=True, exist_ok=True)
                if name == "train":
                    with stem.with_suffix(".sph").open("wb") as file:
                        soundfile.write(file, SAMPLES, 16_000, format="NIST")
                else:
                    stem.with_suffix(".raw").write_bytes(SAMPLES.astype(">i2").tobytes())
                lines[name].append((f"{folder}/{speaker}/{stem.name}", stem.name))
    (root / "etc").mkdir()
    for name, found in lines.items():
        (root / f"etc/an4_{name}.fileids").write_text("".join(f"{path}\n" for path, _ in found))
        text = "<s> GO ON </s> ({})\n" if name == "train" else "\nGO ON ({})\n"
        (root / f"etc/an4_{name}.transcription").write_text("".join(text.format(each) for _, each in found))
    return root


def manifest(out, name):
    return [json.loads(line) for line in (out / f"manifests/{name}.jsonl").read_text().splitlines()]


def test_sets_have_the_sizes_and_the_order_of_the_recipe(an4, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_an4, "NUM_DEV", 2)
    prepare_an4.main(["--an4", str(an4.parent), "--out", str(tmp_path / "out")])
    dev, train, test = (manifest(tmp_path / "out", name) for name in ("dev", "train", "test"))
    assert [each["id"] for each in dev] == ["an1-faaa-b", "cen2-faaa-b"]
    assert {each["speaker"] for each in train} == {"an4-fccc", "an4-mbbb"}
    assert {each["text"] for each in (*dev, *train, *test)} == {"go on"}
    for each in (train[0], test[0]):
        np.testing.assert_array_equal(
            read_audio(tmp_path / "out/manifests" / each["audio_path"], rate_hz=16_000), SAMPLES
        )
    assert not (tmp_path / "out/rejected.jsonl").exists()


def test_utterances_without_a_line_or_a_file_are_named(an4, tmp_path, capsys):
    (an4 / "wav/an4_clstk/mbbb/an1-mbbb-b.sph").unlink()
    (an4 / "wav/an4test_clstk/m/an1-m-b.raw").write_bytes(b"odd")
    path = an4 / "etc/an4_train.fileids"
    path.write_text(path.read_text().replace("an4_clstk/fccc/cen2-fccc-b\n", ""))
    path = an4 / "etc/an4_train.transcription"
    path.write_text(path.read_text().replace("(an1-fccc-b)", "an1-fccc-b"))
    prepare_an4.prepare(an4, tmp_path / "out")
    rejected = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert sorted((each["id"].rpartition("/")[2], each["reason"]) for each in rejected) == [
        ("an1-fccc-b", "no text in the transcript"),
        ("an1-m-b", "3 bytes: expected samples of 16 bits"),
        ("an1-mbbb-b", "no .sph or .raw file"),
        ("an4_train.transcription:4", "'<s> GO ON </s> an1-fccc-b': expected a text and an id in parentheses"),
        ("cen2-fccc-b", "no file"),
        ("cen2-fccc-b", "no line in an4_train.fileids"),
    ]


@pytest.mark.skipif(not REAL.is_dir(), reason=f"no {REAL}: set ASR_JAX_SHARED to the folder of real data")
def test_real_files(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_an4, "NUM_DEV", 2)
    prepare_an4.prepare(REAL, tmp_path)
    dev, train, test = (manifest(tmp_path, name) for name in ("dev", "train", "test"))
    assert {each["id"]: each["text"] for each in (*dev, *train, *test)} == {
        "an251-fash-b": "yes", "an253-fash-b": "go", "cen8-fbbh-b": "march third nineteen twenty eight",
        "an152-mwhw-b": "start", "cen8-mwhw-b": "eleven seventeen fifty one",
        "cen8-fcaw-b": "eleven twenty seven fifty seven", "cen8-mmxg-b": "october twenty four nineteen seventy",
    }  # fmt: skip
    assert [each["id"] for each in dev] == ["an251-fash-b", "an253-fash-b"]
    [rejected] = [json.loads(line) for line in (tmp_path / "rejected.jsonl").read_text().splitlines()]
    assert (rejected["id"], rejected["reason"]) == ("cen7-fash-b", "no line in an4_train.fileids")


def test_another_folder_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"has no etc/an4_train\.fileids: expected the folder of the unpacked"):
        prepare_an4.prepare(tmp_path, tmp_path / "out")


def test_dev_and_train_have_the_same_border_without_some_audio(an4, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(prepare_an4, "NUM_DEV", 2)
    (an4 / "wav/an4_clstk/faaa/an1-faaa-b.sph").unlink()
    prepare_an4.prepare(an4, tmp_path / "out")
    assert [each["id"] for each in manifest(tmp_path / "out", "dev")] == ["cen2-faaa-b"]
    assert {each["speaker"] for each in manifest(tmp_path / "out", "train")} == {"an4-fccc", "an4-mbbb"}
    assert (
        "warning: numbers of utterances {'dev': 1, 'train': 4, 'test': 2}, expected {'dev': 100, "
        in capsys.readouterr().out
    )


def test_a_file_name_without_a_speaker_is_named(an4, tmp_path):
    with (an4 / "etc/an4_test.fileids").open("a") as file:
        file.write("an4test_clstk/m/readme\n")
    prepare_an4.prepare(an4, tmp_path / "out")
    [rejected] = [json.loads(line) for line in (tmp_path / "out/rejected.jsonl").read_text().splitlines()]
    assert "expected a path that ends in UTTERANCE-SPEAKER" in rejected["reason"]


def test_a_failed_download_says_what_to_do_without_a_network(tmp_path, monkeypatch):
    def fetch(archive, folder):
        raise RunError(f"{archive.url}: no route")

    monkeypatch.setattr(prepare_an4, "fetch", fetch)
    with pytest.raises(
        RunError, match=r"no route\. Without a network: unpack an4_sphere\.tar\.gz of http://www\.speech"
    ):
        prepare_an4.main(["--an4", str(tmp_path), "--out", str(tmp_path / "out"), "--download"])


def test_an_unpacked_corpus_is_not_downloaded_again(an4, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare_an4, "fetch", lambda archive, folder: pytest.fail("it is there"))
    prepare_an4.main(["--an4", str(an4.parent), "--out", str(tmp_path / "out"), "--download"])
