"""`asr_jax.clean` lists caches and removes only what belongs to this package and is not in use."""

import json
import os
import time
from pathlib import Path

import pytest

from asr_jax.cli.clean import FOLDERS, main
from asr_jax.core.errors import UserError
from asr_jax.data.manifests import cache
from asr_jax.data.manifests.reading import read_utterances

DIGEST = "0" * 64


@pytest.fixture
def caches(tmp_path, monkeypatch):
    """Folder of caches with one entry of each kind. The columns of manifests are real and in use."""
    folder = tmp_path / "caches"
    for module in ("asr_jax.cli.clean", "asr_jax.data.manifests.cache"):
        monkeypatch.setattr(f"{module}.CACHES", str(folder))
    monkeypatch.delenv("ASR_JAX_INDEX_CACHE")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))
    for name in (
        f"compiled/jit_f-{DIGEST}-cache", "compiled/.lockfile", f"compiled/traced/step-{DIGEST}", "native/a-1.log",
        "imported/0123456789ab-0123456789ab/model/weights", f"tests/jit_f-{DIGEST}-atime",
    ):  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x" * 1000)
    line = {"audio_path": "a.wav", "text": "a", "duration": 1.0}
    (tmp_path / "m.jsonl").write_text(json.dumps(line) + "\n")
    read_utterances([tmp_path / "m.jsonl"])
    yield folder
    release()


def release():
    while cache._held:
        os.close(cache._held.popitem()[1])


def files(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_a_list_has_path_content_size_and_age(caches, capsys):
    release()
    before = files(caches)
    main(["--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines[3:-1]}
    assert set(rows) == set(FOLDERS)
    assert str(caches.parent / "m.jsonl") in rows["manifests"]
    assert f"{caches}/compiled/traced " in rows["traced"]
    assert " 1 file " in rows["traced"]
    assert f"{caches}/compiled " in rows["compiled"]
    assert " 2 files " in rows["compiled"]
    assert " 2 kB " in rows["compiled"]
    assert lines[-1].startswith("6 caches of 6 can be removed: ")
    assert files(caches) == before


def test_columns_in_use_are_kept(caches, capsys):
    main(["--yes"])
    output = capsys.readouterr().out
    assert "in use" in output
    assert "5 caches of 6 can be removed: 6 kB" in output
    assert "removed 5 caches, 6 kB" in output
    assert {Path(name).parts[0] for name in files(caches)} == {"index"}
    assert len(read_utterances([caches.parent / "m.jsonl"])) == 1
    release()
    main(["--yes", "manifests"])
    assert files(caches) == set()


def test_columns_that_are_being_written_are_kept(caches, capsys):
    release()
    (place,) = (caches / "index").iterdir()
    (place / "columns-new").mkdir()
    main(["--yes", "manifests"])
    assert "being written" in capsys.readouterr().out
    assert place.exists()
    os.utime(place / "columns-new", (time.time() - 2 * 86400,) * 2)  # of a killed process
    main(["--yes", "manifests"])
    assert not place.exists()


def test_columns_that_a_process_takes_in_the_meantime_are_kept(caches):
    (place,) = (caches / "index").iterdir()
    assert not cache.remove_place(place)
    assert cache.kept(place)


@pytest.mark.parametrize("name", ["notes.txt", "index/notes.txt", "compiled/notes.txt", "native/a/b.log", "link"])
def test_nothing_is_removed_beside_files_of_others(caches, name):
    release()
    path = caches / name
    if name == "link":
        path.symlink_to(caches.parent)
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text("")
    before = files(caches)
    with pytest.raises(UserError, match=r"1 file in the cache folders is not of this package:\n  .*/caches/.*\nmove"):
        main(["--yes"])
    assert files(caches) == before


def test_a_file_of_others_among_the_columns(caches):
    release()
    (columns,) = (caches / "index").glob("*/columns-*")
    (columns / "notes.txt").write_text("")
    with pytest.raises(UserError, match=r"columns-.*/notes.txt"):
        main(["--yes"])


def test_a_folder_that_the_user_chose_for_jax_is_kept(caches, monkeypatch, tmp_path, capsys):
    release()
    other = tmp_path / "jax"
    (other / "traced").mkdir(parents=True)
    (other / f"jit_f-{DIGEST}-cache").write_text("x")
    (other / "anything").write_text("x")
    (other / "traced" / f"step-{DIGEST}").write_text("x")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(other))
    main(["--yes", "compiled", "traced"])
    assert "JAX_COMPILATION_CACHE_DIR may be that of other programs too" in capsys.readouterr().out
    assert files(other) == {f"jit_f-{DIGEST}-cache", "anything"}


def test_removing_needs_an_answer_or_yes(caches, monkeypatch, capsys):
    release()
    before = files(caches)
    with pytest.raises(UserError, match="nothing was removed: --yes removes without a question"):
        main([])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, removed in (("n", False), ("", False), ("y", True)):
        monkeypatch.setattr("builtins.input", lambda question, answer=answer: print(question) or answer)
        main(["logs"])
        assert "remove 1 cache? [y/N]" in capsys.readouterr().out
        assert (files(caches) == before - {"native/a-1.log"}) is removed


def test_only_caches_that_were_not_used_for_some_days(caches, capsys):
    release()
    old = caches / "compiled" / f"jit_f-{DIGEST}-cache"
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    main(["--yes", "--unused-days", "30"])
    assert not old.exists()
    assert len(files(caches)) > 10
    main(["--yes", "--unused-days", "30"])
    assert "no caches" in capsys.readouterr().out.splitlines()[-1]


def test_wrong_options(caches):
    for arguments, message in (
        (["--yes", "--dry-run"], "contradict each other"),
        (["--unused-days", "-1"], "unused_days is -1.0: expected at least 0"),
        (["runs"], "runs: expected manifests, traced, compiled, imported, logs or tests"),
    ):
        with pytest.raises(UserError, match=message):
            main(arguments)
