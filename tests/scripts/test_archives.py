"""Archives of corpora: only complete ones are unpacked."""

import io
import tarfile
from pathlib import Path

import pytest
from corpora.archives import unpack

from asr_jax.core.errors import RunError


def packed(path: Path, names: list[str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size = len(name)
            tar.addfile(member, io.BytesIO(name.encode()))
    return path


def test_the_content_of_the_top_folder_is_added_to_what_is_there(tmp_path):
    (tmp_path / "to").mkdir()
    (tmp_path / "to/LICENSE").write_text("mine")
    unpack(packed(tmp_path / "a.tgz", ["Top/LICENSE", "Top/set/1/a", "Top/set/2/b"]), tmp_path / "to")
    files = sorted(str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*") if path.is_file())
    assert files == ["LICENSE", "set/1/a", "set/2/b"]
    assert (tmp_path / "to/LICENSE").read_text() == "mine"


def test_nothing_is_unpacked_of_what_is_not_whole_or_leads_outside(tmp_path):
    whole = packed(tmp_path / "whole.tgz", ["Top/a", "Top/b"]).read_bytes()
    (tmp_path / "cut.tgz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.tgz").write_bytes(b"no tar")
    packed(tmp_path / "two.tgz", ["One/a", "Two/a"])
    packed(tmp_path / "outside.tgz", ["Top/a", "../../outside"])
    for name, message in (("cut", "not a complete tar"), ("text", "not a complete tar"), ("two", "2 files and folders"),
                          ("outside", "outside the destination")):  # fmt: skip
        with pytest.raises(RunError, match=message):
            unpack(tmp_path / f"{name}.tgz", tmp_path / "to" / "here")
        assert list((tmp_path / "to/here").iterdir()) == []
    assert not (tmp_path / "to/outside").exists()
