"""Resolution of paths that a user gives: files, patterns, folders of one set and of several."""

import os
from pathlib import Path

import pytest
from recordings import jsonl, noise, write

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.inputs import has_validation, resolve, set_names


def tree(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder


def names(folder: Path, role: str = "train", path: str = "") -> list[tuple[str, str]]:
    found = resolve([str(folder / path)], role)  # type: ignore[arg-type]
    return [(str(Path(name).relative_to(folder)), reader.name) for _, name, reader in found]


@pytest.mark.parametrize(
    ("name", "reader"),
    [
        ("a.jsonl", "JSON"),
        ("a.JSON", "JSON"),
        ("a.jsonl.gz", "JSON"),
        ("a.tsv", "table of text"),
        ("a.csv", "table of text"),
        ("a.parquet", "Parquet"),
        ("a.arrow", "Arrow"),
        ("a.tar", "WebDataset shard"),
        ("a.tar.gz", "WebDataset shard"),
        ("a.m4a", "folder of audio"),
    ],
)
def test_files_by_their_ending(tmp_path: Path, name: str, reader: str) -> None:
    assert names(tree(tmp_path, name), path=name) == [(name, reader)]


def test_tables_by_their_content(tmp_path: Path) -> None:
    (tmp_path / "fairseq.tsv").write_text("/root\na.flac\t16000\n")
    (tmp_path / "features.tsv").write_text("a\t1\t2\t3\nb\t1\t2\t3\n")
    (tmp_path / "cv.tsv").write_text("path\tsentence\na.mp3\t12\n")
    found = [names(tmp_path, path=f"{name}.tsv")[0][1] for name in ("fairseq", "features", "cv")]
    assert found == ["fairseq list", "table of text", "table of text"]


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".tsv", ".csv", ".parquet"])
@pytest.mark.parametrize("inner", ["", "manifests/"])
@pytest.mark.parametrize("stem", ["val", "validation", "valid", "dev"])
def test_folders_of_manifests(tmp_path: Path, ending: str, inner: str, stem: str) -> None:
    tree(tmp_path, f"{inner}train{ending}", f"{inner}test{ending}", "other.jsonl", "a.wav")
    assert not has_validation(str(tmp_path))
    with pytest.raises(UserError, match="val, validation, valid, dev"):
        names(tmp_path, "validation")
    tree(tmp_path, f"{inner}{stem}{ending}")
    assert has_validation(str(tmp_path))
    assert [name for name, _ in names(tmp_path)] == [f"{inner}train{ending}"]
    assert [name for name, _ in names(tmp_path, "validation")] == [f"{inner}{stem}{ending}"]


def test_the_first_name_for_validation_counts(tmp_path: Path) -> None:
    tree(tmp_path, "train.jsonl", "dev.jsonl", "validation.jsonl", "val.jsonl")
    assert [name for name, _ in names(tmp_path, "validation")] == ["val.jsonl"]
    (tmp_path / "val.jsonl").unlink()
    assert [name for name, _ in names(tmp_path, "validation")] == ["validation.jsonl"]


@pytest.mark.parametrize(
    "sets", [("Train", "Dev", "Test"), ("Training", "Valid", "Testing"), ("TRAIN.TSV", "VAL.TSV", "EVALUATION.TSV")]
)
def test_sets_in_capitals(tmp_path: Path, sets: tuple[str, ...]) -> None:
    tree(tmp_path, *(each if "." in each else f"{each}/a.wav" for each in sets))
    assert has_validation(str(tmp_path))
    assert [names(tmp_path, role)[0][0] for role in ("train", "validation", "test")] == [*sets]


@pytest.mark.parametrize(
    "files",
    [
        ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet",
         "data/validation-00000-of-00001.parquet", "data/test-00000-of-00001.parquet"],
        ["name-train-00000-of-00002.arrow", "name-train-00001-of-00002.arrow", "name-validation.arrow",
         "cache-0123.arrow", "dataset_info.json"],
        ["x_train_000000.tar", "x_train_000001.tar", "x_dev_000000.tar", "x_test_000000.tar"],
        ["train/data-00000-of-00002.arrow", "train/data-00001-of-00002.arrow", "validation/data-00000-of-00001.arrow",
         "test/data-00000-of-00001.arrow", "dataset_dict.json", "train/state.json"],
        ["train/a.tar", "train/b.tar", "valid/a.tar"],
        ["Training-00000-of-00002.parquet", "Training-00001-of-00002.parquet", "Valid.parquet", "Testing.parquet"],
        ["train/s1/a.wav", "train/s1/b.wav", "dev/s2/c.wav", "test/s3/d.wav"],
    ],
)  # fmt: skip
def test_folders_of_sets_by_the_names_of_files_and_folders(tmp_path: Path, files: list[str]) -> None:
    tree(tmp_path, *files)
    assert has_validation(str(tmp_path))
    train, validation = names(tmp_path), names(tmp_path, "validation")
    assert len(validation) == 1
    if files[0].endswith(".wav"):
        assert ([name for name, _ in train], validation[0][0]) == (["train"], "dev")
    else:
        assert [name for name, _ in train] == files[:2]
        assert validation[0][0] == files[2]


def test_all_files_of_one_kind_are_data_where_no_set_is_named(tmp_path: Path) -> None:
    tree(tmp_path, "b/2.parquet", "a/1.parquet", "a/notes.txt", "a.wav", ".hidden/3.parquet")
    assert [name for name, _ in names(tmp_path)] == ["a/1.parquet", "b/2.parquet"]
    assert not has_validation(str(tmp_path))
    tree(tmp_path, "train-0001.parquet")  # only one of the files has the name of a set
    assert len(names(tmp_path)) == 3
    jsonl(tmp_path / "c.json", {"text": "a"})
    assert [name for name, _ in names(tmp_path)] == ["c.json"]


LIBRISPEECH = ("train-clean-100", "train-1h", "train-10h", "dev-clean", "test-clean")


@pytest.mark.parametrize(
    "files",
    [
        [f"manifests/{name}.jsonl" for name in LIBRISPEECH],
        ["train_a.jsonl", "test_a.jsonl"],
        ["train-clean-100.jsonl", "train-1h.jsonl"],
        ["a.tar", "dev-0.tar"],
        ["train-clean-100/0.tar", "test-clean/0.tar"],
    ],
)
@pytest.mark.parametrize("role", ["train", "validation"])
def test_sets_that_cannot_be_distinguished_are_listed(tmp_path: Path, files: list[str], role: str) -> None:
    tree(tmp_path, *files, "rejected.jsonl", "fairseq/train-1h.tsv")
    with pytest.raises(UserError, match="train: ") as caught:
        names(tmp_path, role)
    assert f"train: {', '.join(sorted(files))}; give the path of the file to read ({tmp_path}/" in str(caught.value)
    assert not has_validation(str(tmp_path))
    assert [name for name, _ in names(tmp_path, role, files[0])] == [files[0]]


@pytest.mark.parametrize(
    "files",
    [
        ["test-clean-000000.tar", "test-clean-000001.tar"],
        ["dev_other-00000-of-00002.parquet", "dev_other-00001-of-00002.parquet"],
        ["train-clean-100.jsonl"],
        ["1.jsonl", "more.jsonl", "train_a.jsonl"],
        ["detest.jsonl", "evaluated.jsonl", "trains.jsonl"],
    ],
)
def test_files_of_one_set_are_read_whole(tmp_path: Path, files: list[str]) -> None:
    tree(tmp_path, *files)
    assert [name for name, _ in names(tmp_path)] == files
    assert [name for name, _ in names(tmp_path, "validation")] == files


def test_a_test_set_beside_a_folder_of_audio_is_not_trained_on(tmp_path: Path) -> None:
    tree(tmp_path, "train/a.wav", "test/b.wav")
    assert [name for name, _ in names(tmp_path)] == ["train"]
    assert not has_validation(str(tmp_path))


@pytest.mark.parametrize("other", ["b.parquet", "b.csv"])
def test_kinds_that_are_ignored_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture, other: str) -> None:
    tree(tmp_path, "a.jsonl", other)
    for _ in range(2):
        assert [name for name, _ in names(tmp_path)] == ["a.jsonl"]
    (message,) = caplog.messages
    assert message == f"{tmp_path}: a.jsonl is read, and {other} is ignored: give the paths of the files to read"


def test_several_files_of_each_kind_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tree(tmp_path, "a.jsonl", "b.jsonl", "c.csv", "d.tsv")
    names(tmp_path)
    assert "2 files such as a.jsonl are read, and 2 files such as c.csv are ignored: give" in caplog.text


@pytest.mark.parametrize("content", ['{"name": "my data"}', '{\n  "text": "a"\n}', "no JSON", ""])
def test_json_that_is_no_manifest_in_a_folder_of_audio_is_named(tmp_path: Path, content: str) -> None:
    tree(tmp_path, "a.wav", "a.txt")
    (tmp_path / "README.json").write_text(content)
    with pytest.raises(UserError, match=r"README\.json .*not a manifest"):
        names(tmp_path)


@pytest.mark.parametrize("content", ['\ufeff{"audio_filepath": "a.wav"}\n', '[\n{"text": "a"}]', '{"files": []}'])
def test_a_manifest_in_a_folder_of_audio_is_read(tmp_path: Path, content: str) -> None:
    tree(tmp_path, "a.wav")
    (tmp_path / "all.json").write_text(content, encoding="utf-8")
    assert names(tmp_path) == [("all.json", "JSON")]


def test_patterns_and_several_paths(tmp_path: Path) -> None:
    tree(tmp_path, "s/b.tar", "s/a.tar", "one/1.parquet", "two/2.parquet", "odd[1].jsonl")
    found = resolve([str(tmp_path / "s/*.tar"), str(tmp_path / "odd[1].jsonl"), str(tmp_path / "[ot]*")])
    assert [(number, str(Path(name).relative_to(tmp_path))) for number, name, _ in found] == [
        (0, "s/a.tar"), (0, "s/b.tar"), (1, "odd[1].jsonl"), (2, "odd[1].jsonl"), (2, "one/1.parquet"),
        (2, "two/2.parquet"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["a/dev-clean.jsonl", "b/dev-other/", "c/test.v2", "d/E.JSON"], ["dev-clean", "dev-other", "test.v2", "E"]),
        (["a/dev.jsonl.gz", "b/dev.tsv", "b/test.tar"], ["a/dev", "b/dev", "test"]),
        (["x/a/dev", "y/a/dev", "shards/dev-*.tar"], ["x/a/dev", "y/a/dev", "dev-*"]),
        (["dev.jsonl", "./dev.jsonl", "dev#2.json", "dev.json"], ["dev", "dev#2", "dev#2#2", "dev#3"]),
        (["a/all.jsonl", "a/mean", "/all.tar"], ["a/all", "a/mean", "all#2"]),
        (["file:///x/one.jsonl"], ["one"]),
    ],
)  # fmt: skip
def test_sets_have_different_names(paths: list[str], expected: list[str]) -> None:
    assert list(set_names(paths)) == expected


def test_what_is_not_there_or_not_read_is_named(tmp_path: Path) -> None:
    tree(tmp_path, "a.docx", "empty/notes.txt", "tables/train-1h.tsv", "tables/dev.tsv")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, message in [
        ("none.jsonl", "no such file or folder; check the path"),
        ("none/*.tar", "no such file or folder"),
        ("loop", "no such file or folder"),
        ("a.docx", "has no supported format: expected .jsonl"),
        ("empty", "has nothing to read: expected manifests"),
        ("tables", "has tables, but none is named just train: dev.tsv, train-1h.tsv; give the path of the file"),
    ]:
        with pytest.raises(UserError, match=message):
            names(tmp_path, path=name)


def test_a_folder_of_audio_is_one_input(tmp_path: Path) -> None:
    write(tmp_path / "s1" / "a.wav", noise(1))
    (tmp_path / "train").mkdir()
    write(tmp_path / "train" / "b.wav", noise(1))
    assert names(tmp_path) == [(".", "folder of audio")]
    assert names(tmp_path, path="s1/a.wav") == [("s1/a.wav", "folder of audio")]


def test_data_are_not_read_from_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.jsonl")
    for given in (tmp_path / "train.jsonl", tmp_path):
        with pytest.raises(UserError, match=r"train.jsonl: a pipe or a device, not a file; .* are read several times"):
            resolve([str(given)])
