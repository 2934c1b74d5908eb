"""Manifests and corpora as other projects write them: every utterance is read, and converted to JSON lines and back."""

import gzip
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recordings import check_conversion, check_signals, noise, read, write

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.inputs import has_validation, resolve

RATE = 16000
SAMPLES = [noise(seed, 1600 * (seed + 1)) for seed in range(3)]
TEXTS = ["the first", "a second one", "third"]
DURATIONS = [len(samples) / RATE for samples in SAMPLES]


def audio(folder: Path, *names: str) -> None:
    for name, samples in zip(names, SAMPLES, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write(folder / name, samples)


def lines(path: Path, values: list[dict[str, Any]]) -> Path:
    content = "".join(json.dumps(value) + "\n" for value in values)
    path.write_bytes(gzip.compress(content.encode()) if path.suffix == ".gz" else content.encode())
    return path


def deepspeech(folder: Path) -> Path:
    audio(folder, "0.wav", "1.wav", "2.wav")
    rows = ["wav_filename,wav_filesize,transcript", *(f"{i}.wav,99,{text}" for i, text in enumerate(TEXTS))]
    (folder / "train.csv").write_text("\r\n".join(rows) + "\r\n")
    return folder / "train.csv"


def audiofolder(folder: Path) -> Path:
    audio(folder, "audio/0.wav", "audio/1.wav", "audio/2.wav")
    rows = ["file_name,transcription", *(f"audio/{i}.wav,{text}" for i, text in enumerate(TEXTS))]
    (folder / "metadata.csv").write_text("\n".join(rows))
    return folder


def audiofolder_of_sets(folder: Path) -> Path:
    audiofolder((folder / "validation").mkdir() or folder / "validation")
    audiofolder((folder / "train").mkdir() or folder / "train")
    return folder


def wenet(folder: Path) -> Path:
    audio(folder, "0.wav", "1.wav", "2.wav")
    values = [{"key": f"u{i}", "wav": str(folder / f"{i}.wav"), "txt": text} for i, text in enumerate(TEXTS)]
    return lines(folder / "data.list", values)


def speechbrain_csv(folder: Path) -> Path:
    audio(folder, "0.wav", "1.wav", "2.wav")
    rows = [f"u{i},{DURATIONS[i]},$data_root/{i}.wav,s{i},{text}" for i, text in enumerate(TEXTS)]
    (folder / "train.csv").write_text("\n".join(["ID,duration,wav,spk_id,wrd", *rows]))
    return folder / "train.csv"


def speechbrain_json(folder: Path) -> Path:
    audio(folder, "0.wav", "1.wav", "2.wav")
    values = {
        f"u{i}": {"wav": f"{{data_root}}/{i}.wav", "length": DURATIONS[i], "words": text}
        for i, text in enumerate(TEXTS)
    }
    (folder / "train.json").write_text(json.dumps(values, indent=2))
    return folder / "train.json"


def lhotse(folder: Path) -> Path:
    """Two recordings, the second of which has two supervisions."""
    write(folder / "0.wav", SAMPLES[0])
    write(folder / "1.wav", np.concatenate(SAMPLES[1:]))
    recordings = [
        {
            "id": f"r{i}", "sources": [{"type": "file", "channels": [0], "source": f"{i}.wav"}],
            "sampling_rate": RATE, "num_samples": round(seconds * RATE), "duration": seconds,
        }
        for i, seconds in enumerate((DURATIONS[0], DURATIONS[1] + DURATIONS[2]))
    ]  # fmt: skip
    starts = [0.0, 0.0, DURATIONS[1]]
    supervisions = [
        {
            "id": f"u{i}", "recording_id": "r0" if i == 0 else "r1", "start": starts[i], "duration": DURATIONS[i],
            "channel": 0, "text": text, "speaker": f"s{i}",
        }
        for i, text in enumerate(TEXTS)
    ]  # fmt: skip
    lines(folder / "supervisions.jsonl.gz", supervisions)
    return lines(folder / "recordings.jsonl.gz", recordings)


def nemo_tarred(folder: Path) -> Path:
    audio(folder, "0.wav", "1.wav", "2.wav")
    for shard, members in enumerate(((0, 2), (1,))):
        with tarfile.open(folder / f"audio_{shard}.tar", "w") as tar:
            for i in members:
                tar.add(folder / f"{i}.wav", f"{i}.wav")
    values = [
        {"audio_filepath": f"{i}.wav", "duration": DURATIONS[i], "text": text, "shard_id": i % 2}
        for i, text in enumerate(TEXTS)
    ]
    return lines(folder / "tarred_audio_manifest.json", values)


def ljspeech(folder: Path) -> Path:
    audio(folder, "wavs/LJ-0.wav", "wavs/LJ-1.wav", "wavs/LJ-2.wav")
    rows = [f'LJ-{i}|{text.upper()} "1"|{text}' for i, text in enumerate(TEXTS)]
    (folder / "metadata.csv").write_text("\n".join(rows))
    return folder


def librispeech(folder: Path) -> Path:
    chapter = folder / "LibriSpeech" / "train-clean-5" / "19" / "198"
    audio(chapter, "19-198-0000.flac", "19-198-0001.flac", "19-198-0002.flac")
    rows = [f"19-198-000{i} {text}" for i, text in enumerate(TEXTS)]
    (chapter / "19-198.trans.txt").write_text("\n".join(rows) + "\n")
    audio(folder / "LibriSpeech/dev-clean-2/1/2", "1-2-0000.flac", "1-2-0001.flac", "1-2-0002.flac")
    (folder / "LibriSpeech/dev-clean-2/1/2/1-2.trans.txt").write_text("1-2-0000 one\n1-2-0001 two\n1-2-0002 three\n")
    return folder / "LibriSpeech"


def an4(folder: Path) -> Path:
    (folder / "etc").mkdir()
    for name in ("an4_train", "an4_test"):
        ids = [f"{name}/s{i}/an{i}-s{i}-b" for i in range(3)]
        audio(folder / "wav", *(f"{each}.wav" for each in ids))
        (folder / f"etc/{name}.fileids").write_text("".join(f"{each}\n" for each in ids))
        rows = [f"<s> {text} </s> (an{i}-s{i}-b)" for i, text in enumerate(TEXTS)]
        (folder / f"etc/{name}.transcription").write_text("\n".join(rows) + "\n")
    return folder


def espnet(folder: Path) -> Path:
    """A dump, whose paths start three folders above."""
    audio(folder, "dump/raw/org/train/data/0.flac", "dump/raw/org/train/data/1.flac", "dump/raw/org/train/data/2.flac")
    dump = folder / "dump/raw/train"
    dump.mkdir()
    files = {
        "wav.scp": [f"u{i} dump/raw/org/train/data/{i}.flac" for i in range(3)],
        "text": [f"u{i} {text}" for i, text in enumerate(TEXTS)],
        "utt2spk": [f"u{i} s{i}" for i in range(3)],
        "utt2num_samples": [f"u{i} {len(samples)}" for i, samples in enumerate(SAMPLES)],
    }
    for name, rows in files.items():
        (dump / name).write_text("".join(f"{row}\n" for row in rows))
    return dump


def common_voice(folder: Path) -> Path:
    audio(folder, "clips/0.wav", "clips/1.wav", "clips/2.wav")
    rows = ["client_id\tpath\tsentence\tup_votes", *(f"s{i}\t{i}.wav\t{text}\t2" for i, text in enumerate(TEXTS))]
    for name in ("train", "dev", "validated", "other"):
        (folder / f"{name}.tsv").write_text("\n".join(rows) + "\n")
    return folder


FORMATS: dict[Callable[[Path], Path], tuple[str, list[str], list[str]]] = {
    deepspeech: ("table of text", ["0.wav", "1.wav", "2.wav"], ["", "", ""]),
    audiofolder: ("table of text", ["audio/0.wav", "audio/1.wav", "audio/2.wav"], ["", "", ""]),
    audiofolder_of_sets: ("table of text", ["audio/0.wav", "audio/1.wav", "audio/2.wav"], ["", "", ""]),
    wenet: ("JSON", ["u0", "u1", "u2"], ["", "", ""]),
    speechbrain_csv: ("table of text", ["u0", "u1", "u2"], ["s0", "s1", "s2"]),
    speechbrain_json: ("JSON", ["u0", "u1", "u2"], ["", "", ""]),
    lhotse: ("JSON", ["u0", "u1", "u2"], ["s0", "s1", "s2"]),
    nemo_tarred: ("JSON", ["0.wav", "1.wav", "2.wav"], ["", "", ""]),
    ljspeech: ("table of text", ["LJ-0", "LJ-1", "LJ-2"], ["", "", ""]),
    librispeech: ("tree of LibriSpeech", ["19-198-0000", "19-198-0001", "19-198-0002"], ["19", "19", "19"]),
    an4: ("corpus AN4", ["an0-s0-b", "an1-s1-b", "an2-s2-b"], ["s0", "s1", "s2"]),
    espnet: ("Kaldi data folder", ["u0", "u1", "u2"], ["s0", "s1", "s2"]),
    common_voice: ("table of text", ["0.wav", "1.wav", "2.wav"], ["s0", "s1", "s2"]),
}


@pytest.mark.parametrize("make", FORMATS, ids=lambda make: make.__name__)
def test_every_utterance_is_read_and_converted(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    reader, ids, speakers = FORMATS[make]
    (tmp_path / "data").mkdir()
    path = make(tmp_path / "data")
    utterances = read(tmp_path, path)
    assert not utterances.rejected
    assert [utterance.id for utterance in utterances] == ids
    assert [utterance.text for utterance in utterances] == TEXTS
    assert [utterance.speaker for utterance in utterances] == speakers
    assert [utterance.duration_s for utterance in utterances] == pytest.approx(DURATIONS)
    assert {kind.name.removesuffix(" at one speed") for _, _, kind in resolve([str(path)])} == {reader}
    check_signals(utterances, SAMPLES)
    check_conversion(tmp_path, path)


@pytest.mark.parametrize("make", [librispeech, audiofolder_of_sets, common_voice], ids=lambda make: make.__name__)
def test_the_validation_set_of_a_folder(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    path = make(tmp_path)
    assert has_validation(str(path))
    utterances = read(tmp_path, path, role="validation")
    assert len(utterances) == 3
    assert (utterances[0].text == "one") == (make is librispeech)


def test_files_without_lines_and_lines_without_files(tmp_path: Path) -> None:
    folder = librispeech(tmp_path) / "train-clean-5"
    (folder / "19/198/19-198-0002.flac").rename(folder / "19/198/19-198-0003.flac")
    rejected = read(tmp_path, folder).rejected
    assert [(entry.id, entry.reason) for entry in rejected] == [
        ("19-198-0002", "no audio beside it"),
        ("19/198/19-198-0003.flac", "no line in a file .trans.txt beside it"),
    ]


def test_recordings_without_supervisions_and_tars_that_are_missing(tmp_path: Path) -> None:
    path = lhotse(tmp_path)
    (tmp_path / "supervisions.jsonl.gz").unlink()
    with pytest.raises(UserError, match=r"recordings of lhotse without texts: expected the supervisions in .*supervis"):
        read(tmp_path, path)
    path = nemo_tarred(tmp_path)
    (tmp_path / "audio_0.tar").unlink()
    rejected = read(tmp_path, path).rejected
    assert "no file '0.wav' in " in rejected[0].reason
