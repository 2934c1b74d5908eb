"""Output paths are checked before the work."""

import os
import re
from pathlib import Path

import pytest

from asr_jax.core.errors import UserError
from asr_jax.core.files import check_no_input, check_writable, remove_empty, temporary_path


def test_temporary_files_of_long_names_have_names_of_their_own(tmp_path):
    assert temporary_path(tmp_path / "a.json", "a.json.partial") == tmp_path / "a.json.partial"
    others = [temporary_path(tmp_path / "a", f"{end}{'中' * 84}.json.partial") for end in "ab"]
    assert len(set(others)) == 2
    for path in others:
        path.with_suffix(".partial").touch()
        assert path.suffix == ".partial"


def test_what_can_be_written_leaves_folders_alone(tmp_path):
    made = check_writable(tmp_path / "a" / "b" / "c.json")
    assert made == [tmp_path / "a" / "b", tmp_path / "a"]
    assert list(made[0].iterdir()) == []
    made += check_writable(tmp_path / "a" / "d", is_folder=True)
    (tmp_path / "a" / "kept").write_text("kept")
    check_writable(tmp_path / "a" / "kept")
    remove_empty(made[:1] + made[2:] + made[1:2])
    assert [path.name for path in tmp_path.rglob("*")] == ["a", "kept"]
    assert (tmp_path / "a" / "kept").read_text() == "kept"


@pytest.mark.parametrize(
    ("name", "is_folder", "reason"),
    [
        ("file/out.json", False, "Not a directory|File exists"),
        ("folder", False, "Is a directory"),
        ("file", True, "File exists"),
        ("new/" + "x" * 300 + ".json", False, "File name too long"),
    ],
)
def test_what_cannot_be_written_is_named(name, is_folder, reason, tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=f"{re.escape(str(tmp_path / name))}.*({reason})"):
        check_writable(tmp_path / name, is_folder=is_folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_an_input_is_not_replaced_under_any_of_its_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a, [1]\n.jsonl"
    path.write_text("kept")
    link, hard = tmp_path / "link", tmp_path / "hard"
    link.symlink_to(path)
    os.link(path, hard)
    for name in (path, link, hard, Path(path.name), Path(".", "..", tmp_path.name, path.name)):
        with pytest.raises(UserError, match=r"(?s)--out .* is also an input of this command: choose another name"):
            check_no_input("--out", name, ["s3://a/b", "*.jsonl", "\0", str(path)])
    for name in (None, tmp_path, tmp_path / "new", Path("/dev/null")):
        check_no_input("--out", name, [tmp_path, path, "/dev/null", str(tmp_path / "new")])
    assert path.read_text() == "kept"
