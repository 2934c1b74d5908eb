"""Preparation of LJSpeech and Common Voice, with real files in their layouts and with damaged copies."""

import csv
import json
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest
from support import ROOT, SHARED, approx

from asr_jax.audio.io import read_audio
from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.data.manifests.reading import Utterances, read_utterances

READ_SPEECH = SHARED / "data/read_speech"
FOLDERS = {"ljspeech": "LJSpeech-1.1-mini", "common-voice": "formats/common-voice-en"}
pytestmark = pytest.mark.skipif(
    not READ_SPEECH.is_dir(), reason=f"no {READ_SPEECH}: set ASR_JAX_SHARED to the folder of real data"
)


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    """Globals of the script."""
    return runpy.run_path(str(ROOT / "scripts/prepare_corpus.py"))


@pytest.fixture
def prepare(script: dict[str, Any], tmp_path: Path):
    """Function that runs the script and returns the utterances by split, and the lines of rejected.jsonl."""

    def run(layout: str, folder: Path) -> tuple[dict[str, Utterances], list[dict[str, str]]]:
        out = tmp_path / "out"
        script["main"]([layout, str(folder), "--out", str(out)])
        rejected = (out / "rejected.jsonl").read_text().splitlines() if (out / "rejected.jsonl").exists() else []
        found = {path.stem: read_utterances([path]) for path in (out / "manifests").iterdir()}
        return found, [json.loads(line) for line in rejected]

    return run


def copied(layout: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(READ_SPEECH / FOLDERS[layout], tmp_path / layout))


@pytest.mark.parametrize(
    ("layout", "splits"),
    [
        ("ljspeech", {"train": (32, 221.746, 1)}),
        ("common-voice", {"train": (3, 16.032, 1), "dev": (2, 15.696, 1), "test": (2, 8.76, 2)}),
    ],
)
def test_counts_seconds_and_speakers_of_the_real_files(prepare, capsys, layout, splits):
    found, _ = prepare(layout, READ_SPEECH / FOLDERS[layout])
    assert found.keys() == splits.keys()
    output = capsys.readouterr().out
    for split, (num, seconds, speakers) in splits.items():
        utterances = found[split]
        assert (len(utterances), len({utterance.speaker for utterance in utterances})) == (num, speakers)
        assert utterances.hours * 3600 == approx(seconds, abs=0.02)  # mp3 headers count 6 ms more
        assert (
            f"{split}.jsonl: {counted(num, 'utterance')}, {seconds / 3600:.2f} h, {counted(speakers, 'speaker')}"
            in output
        )
        for utterance in utterances:
            assert len(read_audio(utterance.location)) / 16000 == approx(utterance.duration_s, abs=0.01)


def test_ljspeech_takes_the_normalised_text(prepare, tmp_path):
    folder = copied("ljspeech", tmp_path)
    (folder / "wavs/LJ001-0002.wav").rename(folder / "wavs/LJ999-0001.wav")
    with open(folder / "metadata.csv", "a", encoding="utf-8") as file:
        file.write("LJ001-0099|two fields\n")
    found, rejected = prepare("ljspeech", folder)
    texts = {utterance.id: utterance.text for utterance in found["train"]}
    assert len(texts) == 31
    assert texts["LJ001-0031"].startswith("In fourteen sixty-five Sweynheim and Pannartz began")
    assert {row["id"]: row["reason"] for row in rejected} == {
        f"{folder}/metadata.csv:33": "2 fields; expected 3: id|text|normalised text",
        "LJ001-0002": "no such file",
        "LJ999-0001": "no text in the transcript",
    }


def test_common_voice_sentences_and_what_cannot_be_used(prepare, tmp_path):
    folder = copied("common-voice", tmp_path)
    (folder / "clips/common_voice_en_20009651.mp3").write_bytes(b"")
    lines = (folder / "train.tsv").read_text().splitlines()
    lines[3] = lines[3].split("\t")[0] + "\tcommon_voice_en_20009655.mp3"
    (folder / "train.tsv").write_text("".join(f"{line}\n" for line in lines))
    found, rejected = prepare("common-voice", folder)
    [utterance] = found["train"]
    assert utterance.text == "The anticipated synergies of the two modes of transportation were entirely absent."
    assert (utterance.speaker, utterance.source) == (lines[1].split("\t")[0], "common-voice/train")
    assert list(found["test"].texts()) == ['"She\'ll be all right."', "six"]
    assert {row["id"]: row["reason"] for row in rejected} == {
        "common_voice_en_20009651": "empty file (0 bytes)",
        "common_voice_en_20009655": "no text in the transcript",
    }


def test_common_voice_that_pandas_has_written_again(prepare, tmp_path):
    folder = copied("common-voice", tmp_path)
    lines = [line.split("\t") for line in (folder / "test.tsv").read_text().splitlines()]
    with (folder / "test.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t", lineterminator="\n").writerows(lines)
    assert '"""She' in (folder / "test.tsv").read_text()
    found, _ = prepare("common-voice", folder)
    assert list(found["test"].texts()) == ['"She\'ll be all right."', "six"]


@pytest.mark.parametrize(
    ("layout", "folder", "message"),
    [
        ("ljspeech", "formats/common-voice-en", "has no metadata.csv; check the path"),
        ("ljspeech", ".", "has no metadata.csv; did you mean .*LJSpeech-1.1-mini[?]"),
        ("common-voice", "formats", "did you mean .*formats/common-voice-en[?]"),
    ],
)
def test_another_layout_is_said(script, tmp_path, layout, folder, message):
    with pytest.raises(UserError, match=message):
        script["main"]([layout, str(READ_SPEECH / folder), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


def test_a_table_without_the_columns_and_one_without_audio_are_said(script, tmp_path):
    folder = copied("common-voice", tmp_path)
    shutil.rmtree(folder / "clips")
    with pytest.raises(UserError, match=r"train, dev, test.*no such file"):
        script["main"](["common-voice", str(folder), "--out", str(tmp_path / "out")])
    (folder / "dev.tsv").write_text("client_id\tfile\tsentence\n")
    with pytest.raises(UserError, match=r"dev.tsv: no column path in its first line"):
        script["main"](["common-voice", str(folder), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
