"""Paths that users give: the home folder, patterns, and by what a file is recognised again."""

import os
import shlex
import time

import pytest

from asr_jax.core.paths import MISSING, at_home, digest_of, is_utf8, matches, quoted, state_of


def test_only_a_tilde_at_the_beginning_is_the_home_folder(monkeypatch):
    monkeypatch.setenv("HOME", "/home/of me")
    assert at_home("~/runs/x") == "/home/of me/runs/x"
    assert at_home("~") == "/home/of me"
    for path in ("a/~", "./~", "~no such user/x", "", "$HOME/x", "s3://~/x"):
        assert at_home(path) == path


@pytest.mark.parametrize("folder", ["runs [2024]", "a*b", "a?b", "[!x]", "{1..3}", "~", "%s", "a\\b", "**", "$HOME"])
def test_folders_that_exist_are_names_in_a_pattern(folder, tmp_path):
    for name in (folder, "runs 2", "axb", "x", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a1.jsonl").write_text("")
        (tmp_path / name / "a[1].jsonl").write_text("")
    place = f"{tmp_path}/{folder}"
    assert matches(f"{place}/*.jsonl") == sorted([f"{place}/a1.jsonl", f"{place}/a[1].jsonl"])
    assert matches(f"{place}/a[1].jsonl") == [f"{place}/a[1].jsonl"]
    assert matches(f"{place}/a?.jsonl") == [f"{place}/a1.jsonl"]
    assert matches(f"{place}/**/*1.jsonl") == [f"{place}/a1.jsonl"]
    assert matches(f"{place}/b*") == matches(f"{tmp_path}/none/*") == matches("") == []


def test_a_relative_pattern_starts_at_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a [1]").mkdir()
    (tmp_path / "a [1]" / "x.txt").write_text("")
    assert matches("a [1]/*.txt") == matches("a*/*.txt") == ["a [1]/x.txt"]


def test_a_file_that_replaces_another_one_has_another_state(tmp_path):
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_bytes(b"first")
    before, digest = state_of(file), digest_of(file)
    time.sleep(0.02)  # times of file systems have steps of some milliseconds
    other.write_bytes(b"other")
    os.utime(other, ns=(0, before[1]))
    other.replace(file)
    after = state_of(file)
    assert after[:2] == before[:2]
    assert after != before
    assert digest_of(file) != digest
    assert state_of(tmp_path / "none") == state_of("a\0b") == MISSING
    assert digest_of(tmp_path / "none") == ""


def test_the_digest_of_a_part_is_that_of_its_bytes(tmp_path):
    (tmp_path / "a").write_bytes(b"..bytes..")
    (tmp_path / "b").write_bytes(b"bytes")
    assert digest_of(tmp_path / "a", 2, 5) == digest_of(tmp_path / "b") != digest_of(tmp_path / "a")


def test_a_path_is_one_word_of_a_command_and_may_not_be_text():
    for path in ("plain", "two words", "run_[1-10]", "$HOME/'x'", "a\nb"):
        assert shlex.split(quoted(path)) == [path]
    assert is_utf8("/日本/a b\u3000c")
    assert not is_utf8(os.fsdecode(b"/a\xff"))
