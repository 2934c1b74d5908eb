"""Output paths are checked before the work."""

import re

import pytest

from asr_jax.core.errors import UserError
from asr_jax.core.files import check_writable, remove_empty, temporary_path


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
