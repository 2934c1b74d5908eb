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
from asr_jax.data.manifests.inputs import described, has_validation, resolve
from tests.support import approx

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


def audiofolder_in_data(folder: Path) -> Path:
    """Folder of the sets as Hugging Face's hub has it, with metadata as JSON lines."""
    for name in ("train", "test"):
        audio(folder / "data" / name, "0.wav", "1.wav", "2.wav")
        values = [{"file_name": f"{i}.wav", "transcription": text} for i, text in enumerate(TEXTS)]
        lines(folder / "data" / name / "metadata.jsonl", values)
    return folder


def coqui_tts(folder: Path) -> Path:
    audio(folder, "wavs/0.wav", "wavs/1.wav", "wavs/2.wav")
    rows = ["audio_file|text|speaker_name", *(f"wavs/{i}.wav|{text}|s{i}" for i, text in enumerate(TEXTS))]
    (folder / "metadata.csv").write_text("\n".join(rows))
    return folder


def joined(folder: Path) -> tuple[Path, list[int]]:
    """One file of all utterances, and the first sample of each with the end of the last one."""
    return write(folder / "long.wav", np.concatenate(SAMPLES)), [0, *np.cumsum(list(map(len, SAMPLES))).tolist()]


def wenet_segments(folder: Path) -> Path:
    path, starts = joined(folder)
    values = [
        {"key": f"u{i}", "wav": str(path), "txt": text, "start": starts[i] / RATE, "end": starts[i + 1] / RATE}
        for i, text in enumerate(TEXTS)
    ]
    return lines(folder / "data.list", values)


def wenet_shards(folder: Path) -> Path:
    audio(folder, "0.wav", "1.wav", "2.wav")
    for shard, members in enumerate(((0, 1), (2,))):
        with tarfile.open(folder / f"shards_{shard:09}.tar", "w") as tar:
            for i in members:
                (folder / f"{i}.txt").write_text(TEXTS[i])
                for name in (f"{i}.txt", f"{i}.wav"):
                    tar.add(folder / name, f"u{i}{Path(name).suffix}")
    (folder / "data.list").write_text("shards_000000000.tar\nshards_000000001.tar\n")
    return folder / "data.list"


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


def speechbrain_json_on_one_line(folder: Path) -> Path:
    path = speechbrain_json(folder)
    path.write_text(json.dumps(json.loads(path.read_text())))
    return path


def speechbrain_csv_of_parts(folder: Path) -> Path:
    path, starts = joined(folder)
    rows = [f"u{i},{DURATIONS[i]},{path},{starts[i]},{starts[i + 1]},s{i},{text}" for i, text in enumerate(TEXTS)]
    (folder / "train.csv").write_text("\n".join(["ID,duration,wav,start,stop,spk_id,wrd", *rows]))
    return folder / "train.csv"


def speechbrain_json_of_parts(folder: Path) -> Path:
    path, starts = joined(folder)
    values = {
        f"u{i}": {
            "wav": {"file": str(path), "start": starts[i], "stop": starts[i + 1]},
            "length": DURATIONS[i], "words": text,
        }
        for i, text in enumerate(TEXTS)
    }  # fmt: skip
    (folder / "train.json").write_text(json.dumps(values, indent=2))
    return folder / "train.json"


def lhotse_folder(folder: Path) -> Path:
    lhotse(folder)
    return folder


def lhotse_supervisions(folder: Path) -> Path:
    return lhotse(folder).with_name("supervisions.jsonl.gz")


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


def nemo_tarred_folder(folder: Path) -> Path:
    """The manifest of all shards, and the manifest of each in a folder."""
    nemo_tarred(folder)
    rows = [json.loads(line) for line in (folder / "tarred_audio_manifest.json").read_text().splitlines()]
    (folder / "sharded_manifests").mkdir()
    for shard in range(2):
        of_shard = [row for row in rows if row["shard_id"] == shard]
        lines(folder / f"sharded_manifests/manifest_{shard}.json", of_shard)
    return folder


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


UTTERANCES, FILES, NONE, SPEAKERS = ["u0", "u1", "u2"], ["0.wav", "1.wav", "2.wav"], ["", "", ""], ["s0", "s1", "s2"]
FORMATS: dict[Callable[[Path], Path], tuple[str, list[str], list[str]]] = {
    deepspeech: ("table separated by commas (wav_filename, transcript)", FILES, NONE),
    audiofolder: (
        "table separated by commas (file_name, transcription)", [f"audio/{name}" for name in FILES], NONE,
    ),
    audiofolder_of_sets: (
        "table separated by commas (file_name, transcription)", [f"audio/{name}" for name in FILES], NONE,
    ),
    audiofolder_in_data: ("JSON (file_name, transcription)", FILES, NONE),
    coqui_tts: (
        "table separated by bars (audio_file, text, speaker_name)", [f"wavs/{name}" for name in FILES], SPEAKERS,
    ),
    wenet: ("WeNet's list (key, wav, txt)", UTTERANCES, NONE),
    wenet_segments: ("WeNet's list (key, wav, txt, start, end)", UTTERANCES, NONE),
    wenet_shards: ("WebDataset shard", UTTERANCES, NONE),
    speechbrain_csv: ("table separated by commas (id, wav, wrd, duration, spk_id)", UTTERANCES, SPEAKERS),
    speechbrain_csv_of_parts: (
        "table separated by commas (id, wav, wrd, duration, start, stop, spk_id)", UTTERANCES, SPEAKERS,
    ),
    speechbrain_json: ("JSON of SpeechBrain (wav, words)", UTTERANCES, NONE),
    speechbrain_json_on_one_line: ("JSON of SpeechBrain (wav, words)", UTTERANCES, NONE),
    speechbrain_json_of_parts: ("JSON of SpeechBrain (wav, words)", UTTERANCES, NONE),
    lhotse: ("lhotse's recordings and supervisions", UTTERANCES, SPEAKERS),
    lhotse_folder: ("lhotse's recordings and supervisions", UTTERANCES, SPEAKERS),
    lhotse_supervisions: ("lhotse's recordings and supervisions", UTTERANCES, SPEAKERS),
    nemo_tarred: ("NeMo's tarred manifest (audio_filepath, text, duration)", FILES, NONE),
    nemo_tarred_folder: ("NeMo's tarred manifest (audio_filepath, text, duration)", FILES, NONE),
    ljspeech: ("table of LJSpeech (ID|text|normalised text)", ["LJ-0", "LJ-1", "LJ-2"], NONE),
    librispeech: ("tree of LibriSpeech", ["19-198-0000", "19-198-0001", "19-198-0002"], ["19", "19", "19"]),
    an4: ("corpus AN4", ["an0-s0-b", "an1-s1-b", "an2-s2-b"], ["s0", "s1", "s2"]),
    espnet: ("Kaldi data folder", ["u0", "u1", "u2"], ["s0", "s1", "s2"]),
    common_voice: ("table separated by tabs (path, sentence, client_id)", FILES, SPEAKERS),
}  # fmt: skip


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
    assert [utterance.duration_s for utterance in utterances] == approx(DURATIONS)
    (line,) = described([str(path)])
    assert line.startswith(f"{path}: read as {reader}")
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
    supervisions = (tmp_path / "supervisions.jsonl.gz").rename(tmp_path / "other_supervisions.jsonl.gz")
    with pytest.raises(UserError, match=r"recordings of lhotse without texts: expected the supervisions in .*supervis"):
        read(tmp_path, path)
    with pytest.raises(UserError, match=r"supervisions of lhotse: expected the recordings in .*other_recordings"):
        read(tmp_path, supervisions)
    path = nemo_tarred(tmp_path)
    (tmp_path / "audio_0.tar").unlink()
    rejected = read(tmp_path, path).rejected
    assert "no file '0.wav' in " in rejected[0].reason


def test_shards_of_nemo_by_their_pattern(tmp_path: Path) -> None:
    folder = nemo_tarred_folder(tmp_path)
    pattern = folder / "sharded_manifests/manifest__OP_0..1_CL_.json"
    assert [utterance.text for utterance in read(tmp_path, pattern)] == [TEXTS[0], TEXTS[2], TEXTS[1]]
    for tars in ("audio__OP_0..1_CL_.tar", "audio_{0..1}.tar", "audio_*.tar", "audio_1.tar"):
        with pytest.raises(UserError, match=r"is a tar of NeMo, whose texts are in the manifest: give .*tarred_audio"):
            resolve([str(folder / tars)])
    with pytest.raises(UserError, match=r"manifest_2.json: no such file"):
        resolve([str(folder / "sharded_manifests/manifest__OP_0..2_CL_.json")])


def test_sets_of_lhotse_in_a_folder(tmp_path: Path) -> None:
    """Recordings of several sets are not mixed; cuts are read instead of the recordings beside them."""
    lhotse(tmp_path)
    for kind in ("recordings", "supervisions"):
        content = (tmp_path / f"{kind}.jsonl.gz").read_bytes()
        for part in ("train-clean-5", "dev-clean-2"):
            (tmp_path / "two").mkdir(exist_ok=True)
            (tmp_path / f"two/librispeech_{kind}_{part}.jsonl.gz").write_bytes(content)
    with pytest.raises(
        UserError, match=r"several sets, but none is named just train: librispeech_recordings_dev-clean"
    ):
        resolve([str(tmp_path / "two")])
    assert len(resolve([str(tmp_path / "two/*train-clean-5*")])) == 1
    cut = {"id": "c", "start": 0, "duration": 1, "supervisions": [{"text": "a"}], "recording": {"sources": []}}
    lines(tmp_path / "cuts.jsonl.gz", [cut])
    assert [path for _, path, _ in resolve([str(tmp_path)])] == [str(tmp_path / "cuts.jsonl.gz")]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"start": 0.5, "duration": 0.25}, ""),
        ({"start": 0.5, "end": 0.75}, ""),
        ({"start": 8000, "end": 12000, "duration": 0.25}, ""),
        ({"start": 8000, "stop": 12000, "duration": 0.25}, ""),
        ({"start": 8000, "stop": 12000}, '"start" is 8000 and "stop" is 12000: the unit is not known; expected start'),
        ({"start": 500, "end": 750, "duration": 0.25}, ""),
        (
            {"start": 500, "end": 700, "duration": 0.25},
            '"start" is 500 and "end" is 700 and "duration" is 0.25: the duration is not that from',
        ),
        ({"start": 0.75, "end": 0.5}, "expected an offset of 0 or more and a duration above 0"),
    ],
)
def test_parts_by_start_and_end(tmp_path: Path, fields: dict[str, float], reason: str) -> None:
    write(tmp_path / "a.wav", samples := noise(0, RATE))
    lines(tmp_path / "m.jsonl", [{"audio_path": "a.wav", "text": "a"}, {"audio_path": "a.wav", "text": "b"} | fields])
    utterances = read(tmp_path, tmp_path / "m.jsonl")
    assert [reason in entry.reason for entry in utterances.rejected] == [True] * bool(reason)
    if not reason:
        assert utterances[1].duration_s == 0.25
        check_signals(utterances, [samples, samples[8000:12000]])


def test_lines_without_texts_are_named(tmp_path: Path) -> None:
    path = nemo_tarred(tmp_path)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    lines(path, [rows[0], rows[1], {name: value for name, value in rows[2].items() if name != "text"}])
    assert [entry.reason.partition(" among")[0] for entry in read(tmp_path, path).rejected] == ['no "text"']
    path = lhotse(tmp_path)
    rows = [
        json.loads(line) for line in gzip.decompress((tmp_path / "supervisions.jsonl.gz").read_bytes()).splitlines()
    ]
    del rows[0]["text"]
    lines(tmp_path / "supervisions.jsonl.gz", rows)
    assert [entry.reason for entry in read(tmp_path, path).rejected] == ['a supervision without "text"']


def test_files_of_an4_without_a_transcription(tmp_path: Path) -> None:
    folder = an4(tmp_path)
    with (folder / "etc/an4_train.fileids").open("a") as file:
        file.write("an4_train/s3/an3-s3-b\n")
    (entry,) = read(tmp_path, folder).rejected
    assert (entry.id, entry.reason.partition(" in ")[0]) == ("an3-s3-b", "no line")
