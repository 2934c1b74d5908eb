"""Preparation of LibriSpeech: a small synthetic copy of its layout, real chapters, and a server with one archive."""

import hashlib
import http.server
import json
import runpy
import tarfile
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ROOT, SHARED, approx

from asr_jax.audio.io import write_flac
from asr_jax.core.errors import RunError, UserError
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.data.manifests.utterances import Utterance
from tests.forked import finished

READ_SPEECH = SHARED / "data/read_speech"
needs_read_speech = pytest.mark.skipif(
    not (READ_SPEECH / "LibriSpeech").is_dir(), reason=f"no {READ_SPEECH}/LibriSpeech: set ASR_JAX_SHARED to its data"
)


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """Globals of the script."""
    return runpy.run_path(str(ROOT / "scripts/prepare_librispeech.py"))


@pytest.fixture
def prepare(script: dict[str, Any], tmp_path: Path):
    """Function that runs the script on a folder and returns its output folder."""

    def run(folder: Path, *arguments: object) -> Path:
        script["main"](["--librispeech", str(folder), "--out", str(tmp_path / "out"), *map(str, arguments)])
        return tmp_path / "out"

    return run


def add_chapter(root: Path, subset: str, speaker: str, lines: dict[str, str], audio: list[str]) -> None:
    chapter = root / subset / speaker / "7"
    chapter.mkdir(parents=True)
    for i, name in enumerate(audio):
        write_flac(chapter / f"{speaker}-7-{name}.flac", np.ones(1600 * (i + 1), np.int16), 16000)
    text = "".join(f"{speaker}-7-{name} {line}\n" for name, line in lines.items())
    (chapter / f"{speaker}-7.trans.txt").write_text(text)


@pytest.mark.parametrize("given", ["LibriSpeech", "."])
def test_manifests_of_what_is_there(tmp_path, prepare, capsys, given):
    root = tmp_path / "LibriSpeech"
    add_chapter(root, "train-clean-100", "19", {"0000": "IT'S ONE", "0001": "TWO"}, ["0000", "0001"])
    add_chapter(root, "train-clean-360", "20", {"0000": "THREE"}, ["0000"])
    add_chapter(root, "train-other-500", "21", {"0000": "FOUR"}, ["0000"])
    add_chapter(root, "dev-other", "22", {"0000": "Q"}, ["0000"])
    out = prepare(tmp_path / given)
    assert "missing: dev-clean, test-clean, test-other" in capsys.readouterr().out
    names = {"train-clean-100", "train-clean-360", "train-other-500", "dev-other", "train-960"}
    assert {path.name for path in (out / "manifests").iterdir()} == {f"{name}.jsonl" for name in names}
    audio = str(root / "train-clean-100" / "19" / "7" / "19-7-0001.flac")
    expected = Utterance("19-7-0001", audio, "two", 0.2, "librispeech-19", "librispeech/train-clean-100")
    assert read_utterances([out / "manifests/train-clean-100.jsonl"])[1] == expected
    texts = list(read_utterances([out / "manifests/train-960.jsonl"]).texts())
    assert texts == ["it's one", "two", "three", "four"]
    assert (out / "fairseq/train-960.ltr").read_text() == "I T ' S | O N E |\nT W O |\nT H R E E |\nF O U R |\n"
    letters = (out / "fairseq/dict.ltr.txt").read_text().split()[::2]
    assert "".join(sorted(letters)) == "'EFHINORSTUW|"
    assert not (out / "rejected.jsonl").exists()


def test_what_does_not_match_is_counted_and_named(tmp_path, prepare, capsys):
    lines = {"0000": "ONE", "0002": "NO AUDIO", "0003": "BROKEN"}
    add_chapter(tmp_path, "dev-clean", "30", lines, ["0000", "0001", "0003"])
    chapter = tmp_path / "dev-clean/30/7"
    (chapter / "30-7-0003.flac").write_bytes(b"broken")
    with open(chapter / "30-7.trans.txt", "ab") as file:
        file.write(b"30-7-0004 CAF\xc9\n")
    out = prepare(tmp_path)
    output = capsys.readouterr().out
    assert "1 rejected, no text in the transcript: 30-7-0001\n" in output
    assert "1 rejected, no such file: 30-7-0002\n" in output
    assert [utterance.id for utterance in read_utterances([out / "manifests/dev-clean.jsonl"])] == ["30-7-0000"]
    rejected = [json.loads(line) for line in (out / "rejected.jsonl").read_text().splitlines()]
    place = f"{chapter}/30-7.trans.txt:4"
    assert [row["id"] for row in rejected] == [place, "30-7-0001", "30-7-0002", "30-7-0003"]
    assert [row["location"] for row in rejected] == [place, *(f"{chapter}/30-7-000{i}.flac" for i in (1, 2, 3))]
    assert "not UTF-8" in rejected[0]["reason"]
    assert "not audio" in rejected[3]["reason"]


@pytest.mark.parametrize(
    ("folders", "message"),
    [([], "is not a folder"), (["in/else"], "has none of the subsets"), (["in/dev-clean"], "no utterance with audio")],
)
def test_nothing_to_prepare_is_said(tmp_path, folders, message):
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
    script = ROOT / "scripts/prepare_librispeech.py"
    done = finished(script, "--librispeech", tmp_path / "in", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()


@needs_read_speech
def test_the_real_layout_gives_the_texts_and_durations_that_are_known_of_it(prepare, capsys):
    out = prepare(READ_SPEECH)
    assert "146 utterances, 0.50 h, 146 speakers" in capsys.readouterr().out
    known = {utterance.id: utterance for utterance in read_utterances([READ_SPEECH / "manifests/train.jsonl"])}
    for subset, num, hours, speakers in (("train-clean-5", 186, 0.65523, 6), ("train-clean-100", 146, 0.50073, 146)):
        utterances = read_utterances([out / f"manifests/{subset}.jsonl"])
        assert (len(utterances), len({utterance.speaker for utterance in utterances})) == (num, speakers)
        assert utterances.hours == approx(hours, abs=1e-5)
        both = [
            utterance
            for utterance in utterances
            if utterance.id in known and known[utterance.id].source.startswith(utterance.source)
        ]
        assert len(both) > 50
        for utterance in both:
            assert utterance.text == known[utterance.id].text
            assert utterance.duration_s == approx(known[utterance.id].duration_s, abs=1e-3)
            assert utterance.location == known[utterance.id].location
        listed = read_utterances([out / f"fairseq/{subset}.tsv"])
        assert [utterance.location for utterance in listed] == [utterance.location for utterance in utterances]
        assert [text.lower() for text in listed.texts()] == list(utterances.texts())
        assert listed.hours == approx(utterances.hours, abs=1e-6)
    assert not (out / "rejected.jsonl").exists()


@needs_read_speech
@pytest.mark.parametrize("packed", [False, True])
def test_limited_subsets_are_those_that_libri_light_lists(tmp_path, prepare, capsys, packed):
    root = READ_SPEECH / "LibriSpeech/train-clean-100"
    paths = sorted(root.glob("*/*/*.flac"))[:10]
    places = [f"1h/{fold}/{'clean' if i else 'other'}" for i, fold in enumerate((0, 0, 1, 2, 3, 4, 5))] + [
        "9h/clean"
    ] * 3
    for place, path in zip(places, paths, strict=True):
        link = tmp_path / "librispeech_finetuning" / place / path.relative_to(root)
        link.parent.mkdir(parents=True)
        link.symlink_to(path)
    missing = tmp_path / "librispeech_finetuning/1h/0/clean/1/2/1-2-0003.flac"
    missing.parent.mkdir(parents=True)
    missing.write_bytes(b"")
    given = tmp_path / "librispeech_finetuning"
    if packed:
        given = tmp_path / "librispeech_finetuning.tgz"
        with tarfile.open(given, "w:gz") as tar:
            tar.add(tmp_path / "librispeech_finetuning", "librispeech_finetuning")
    out = prepare(READ_SPEECH, "--limited", given)
    output = capsys.readouterr().out
    assert "train-1h: 1 of its 8 utterances are missing" in output
    assert "train-10min-1:" not in output
    names = [path.stem for path in paths]
    sets = {"train-1h": names[:7], "train-10h": names, "train-10min-0": names[:2], "train-10min-5": names[6:7]}
    for subset, ids in sets.items():
        for file in (f"manifests/{subset}.jsonl", f"fairseq/{subset}.tsv"):
            utterances = read_utterances([out / file])
            assert sorted(Path(utterance.location).stem for utterance in utterances) == sorted(ids)
            assert all(Path(utterance.location).is_relative_to(root) and utterance.text for utterance in utterances)
    rejected = json.loads((out / "rejected.jsonl").read_text())
    assert (rejected["id"], Path(rejected["location"]).name) == ("1-2-0003", "1-2-0003.flac")
    assert "not in the subsets here: train-clean-100, train-clean-5" in rejected["reason"]


def test_limited_that_is_not_libri_lights_is_refused(tmp_path, prepare):
    add_chapter(tmp_path, "train-clean-100", "19", {"0000": "ONE"}, ["0000"])
    (tmp_path / "text.tgz").write_text("no tar")
    for given in (tmp_path, tmp_path / "text.tgz", tmp_path / "none"):
        with pytest.raises(UserError, match=r"1h/0/clean/SPEAKER/CHAPTER.*librispeech_finetuning"):
            prepare(tmp_path, "--limited", given)
    assert not (tmp_path / "out").exists()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a server of `tmp_path/served`."""
    monkeypatch.setenv("no_proxy", "*")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "served")) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}/"
        serving.shutdown()
        thread.join()


def test_a_downloaded_subset_is_checked_unpacked_and_prepared(tmp_path, script, prepare, monkeypatch, capsys, server):
    add_chapter(tmp_path / "made", "dev-clean-2", "31", {"0000": "ONE"}, ["0000"])
    (tmp_path / "made/LICENSE.TXT").write_text("CC BY 4.0")
    archive = tmp_path / "served/resources/31/dev-clean-2.tar.gz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "made", "LibriSpeech")
    with pytest.raises(RunError, match=r"md5 is .* expected 6d7ab67ac6a1d2c993d050e16d61080d"):
        prepare(tmp_path / "here", "--download", "dev-clean-2", "--mirror", server)
    assert list((tmp_path / "here").iterdir()) == []
    monkeypatch.setitem(script["MD5"], "dev-clean-2", hashlib.md5(archive.read_bytes()).hexdigest())
    for _ in range(2):
        out = prepare(tmp_path / "here", "--download", "dev-clean-2", "--mirror", server)
        assert [utterance.text for utterance in read_utterances([out / "manifests/dev-clean-2.jsonl"])] == ["one"]
    assert "dev-clean-2 exists and is not downloaded" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "here").iterdir()}
    assert names == {"dev-clean-2", "LICENSE.TXT", "dev-clean-2.tar.gz"}
