"""Sets in folders: layouts of corpora, folders of several corpora, and folders without data."""

from pathlib import Path

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.core.errors import UserError
from asr_jax.data.manifests.layouts import find_sets, left_out


def speech(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    write_flac(path, np.zeros(1600, np.int16), 16000)


def write(path, text="a b\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def names(root):
    return {
        role: [Path(file).relative_to(root).as_posix() for file in files] for role, files in find_sets(root).items()
    }


def librispeech(root, subset):
    speech(root / subset / "1" / "2" / "1-2-0.flac")
    write(root / subset / "1" / "2" / "1-2.trans.txt", "1-2-0 A B\n")


@pytest.mark.parametrize(
    ("subsets", "expected"),
    [
        (["train-clean-5"], {"train": ["train-clean-5"], "validation": [], "test": []}),
        (
            ["train-a", "dev-a", "test-a", "test-b"],
            {"train": ["train-a"], "validation": ["dev-a"], "test": ["test-a", "test-b"]},
        ),
        (["dev-clean", "test-clean"], {"train": ["dev-clean", "test-clean"], "validation": [], "test": []}),
    ],
)
def test_subsets_of_librispeech(tmp_path, subsets, expected):
    for subset in subsets:
        librispeech(tmp_path, subset)
    assert names(str(tmp_path)) == expected


def test_an_4_has_a_test_set_and_no_validation_set(tmp_path):
    for part in ("train", "test"):
        write(tmp_path / "etc" / f"an4_{part}.transcription", "<s> A </s> (x)\n")
    expected = {"train": ["etc/an4_train.transcription"], "validation": [], "test": ["etc/an4_test.transcription"]}
    assert names(str(tmp_path)) == expected


def test_common_voice_below_the_folder(tmp_path):
    folder = tmp_path / "cv-corpus" / "uk"
    speech(folder / "clips" / "a.flac")
    for name in ("validated", "other", "invalidated", "reported"):
        write(folder / f"{name}.tsv", "path\tsentence\na.flac\ttext\n")
    assert names(str(tmp_path)) == {"train": ["cv-corpus/uk/validated.tsv"], "validation": [], "test": []}


def test_folders_of_kaldi_and_espnet(tmp_path):
    for part in ("train_nodev", "train_dev", "test"):
        write(tmp_path / "data" / part / "wav.scp", "a a.wav\n")
        write(tmp_path / "data" / part / "text", "a b\n")
    expected = {"train": ["data/train_nodev"], "validation": ["data/train_dev"], "test": ["data/test"]}
    assert names(str(tmp_path)) == expected


def test_folders_of_several_corpora_and_of_sidecars(tmp_path):
    librispeech(tmp_path / "one", "train-clean-5")
    write(tmp_path / "two" / "metadata.csv", "a|b|b\n")
    speech(tmp_path / "two" / "wavs" / "a.flac")
    assert names(str(tmp_path))["train"] == ["one/train-clean-5", "two/metadata.csv"]
    for name in ("x", "y"):
        speech(tmp_path / "three" / f"{name}.flac")
        write(tmp_path / "three" / f"{name}.txt")
    assert names(str(tmp_path / "three"))["train"] == ["."]


@pytest.mark.parametrize(
    ("above", "folders", "expected", "kind"),
    [
        ("a/b", ("train", "dev", "test/spk"), ("train", "dev", "test"), "ignored_audio"),
        ("a/b", ("train/a", "train/b", "dev/c"), ("train", "dev", None), "ignored_audio"),
        ("", ("Train", "Dev", "Test"), ("Train", "Dev", "Test"), "ignored_audio"),
        ("", ("train_clean", "test_clean"), ("train_clean", None, "test_clean"), "inner_sets"),
        ("", ("anna", "test"), ("anna", None, "test"), "inner_sets"),
        ("", ("train", "valid", "evaluation"), ("train", "valid", "evaluation"), "ignored_audio"),
    ],
)
def test_folders_of_recordings_with_texts_that_have_names_of_sets(tmp_path, above, folders, expected, kind):
    """Recordings beside such folders are named, with the folders that are then not sets."""
    above = tmp_path / above
    for folder in folders:
        speech(above / folder / "x.flac")
        write(above / folder / "x.txt")
    found = names(str(tmp_path))
    assert [[Path(each).name for each in found[role]] for role in ("train", "validation", "test")] == [
        [name] if name else [] for name in expected
    ]
    speech(above / "y.flac")
    write(above / "y.txt")
    [finding] = left_out(str(above), find_sets(str(above)))
    assert finding.kind == kind


def test_manifests_of_a_folder_and_one_manifest(tmp_path):
    for part in ("train", "dev", "test"):
        write(tmp_path / "manifests" / f"{part}.jsonl", '{"audio_path": "a.wav", "text": "b"}\n')
    expected = {
        role: [f"manifests/{name}.jsonl"]
        for role, name in zip(("train", "validation", "test"), ("train", "dev", "test"), strict=True)
    }
    assert names(str(tmp_path)) == expected
    manifest = str(tmp_path / "manifests" / "dev.jsonl")
    assert find_sets(manifest) == {"train": [manifest], "validation": [], "test": []}


def test_what_has_no_data_is_named_with_what_to_do(tmp_path):
    with pytest.raises(UserError, match="nothing to read"):
        find_sets(str(tmp_path))
    write(tmp_path / "a.txt")
    with pytest.raises(UserError, match="1 text file, but no audio"):
        find_sets(str(tmp_path))
    speech(tmp_path / "b.flac")
    with pytest.raises(UserError, match=r"1 audio file, but no texts(.|\n)*to-manifest(.|\n)*wav2vec2_pretrain"):
        find_sets(str(tmp_path))
    with pytest.raises(UserError, match="no such file"):
        find_sets(str(tmp_path / "none"))
