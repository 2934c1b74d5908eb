"""Bad input on the path of a run: each case is loaded correctly, or named with place, reason and fix, and counted.

Everything else in the same manifest is loaded. `python tests/data/manifests/test_bad_input.py` prints the table.
"""

import tarfile
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
from recordings import RATE, jsonl, noise, read, write

from asr_jax.core.errors import UserError
from asr_jax.data.batching.batch_plan import BatchPlan
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import Scale, make_buckets
from asr_jax.data.batching.index import build_index
from asr_jax.data.loading.source import BatchSource
from asr_jax.text.characters import CharacterTokenizer

NUM_GOOD = 30
SIGNALS = [noise(seed, 3200 + seed) for seed in range(3)]
FRAMES = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
ABC = CharacterTokenizer(symbols=(*"abc ", None), normaliser="none")
Lines = list[dict[str, Any]]


@dataclass
class Ends:
    """Results for every utterance of some input."""

    loaded: dict[str, np.ndarray] = field(default_factory=dict)
    """Samples or frames as in a batch, by id."""
    rejections: dict[str, str] = field(default_factory=dict)
    """Reason and location of utterances that are rejected before training, by id."""
    rejected: dict[str, str] = field(default_factory=dict)
    """Reason and location of utterances with weight 0 in their batch, by id."""
    error: str = ""
    """Message of an error before anything begins."""


@dataclass(frozen=True)
class Case:
    make: Callable[[Path, Lines], Path]
    """Writes the input: the good lines with a bad one among them."""
    end: str
    """Expected result: loaded, rejected in the plan (plan) or when its audio is read (audio), or error."""
    says: str = ""
    """Expected part of the reason or of the message."""
    good: int = NUM_GOOD
    """Number of good utterances that are loaded."""
    name: str = "bad"
    """Id of the bad utterance."""
    expected: Callable[[], np.ndarray] | None = None
    """Expected signal of the bad utterance if it is loaded."""
    of_features: bool = False


def good_lines(folder: Path, of_features: bool) -> Lines:
    lines = []
    for i in range(NUM_GOOD):
        line: dict[str, Any] = {"id": f"good-{i:02}", "text": "abc"}
        if of_features:
            line["features"] = (FRAMES + i % 3).tolist()
        else:
            path = write(folder / f"{i % 3}.wav", SIGNALS[i % 3])
            line |= {"audio_path": path.name, "duration": len(SIGNALS[i % 3]) / RATE}
        lines.append(line)
    return lines


def good_signal(name: str, of_features: bool) -> np.ndarray:
    i = int(Path(name).stem.removeprefix("good-")) % 3
    return FRAMES + np.float32(i) if of_features else SIGNALS[i]


def ends_of(case: Case, folder: Path) -> Ends:
    """Results of an epoch: read_utterances → build_index → BatchPlan → BatchSource."""
    ends = Ends()
    try:
        utterances = read(folder, case.make(folder, good_lines(folder, case.of_features)))
        scale = Scale(100.0, 1, 4, of_features=True) if case.of_features else Scale(RATE, 160, 80)
        frames = (lambda lengths: lengths // 4) if case.of_features else (lambda lengths: lengths // 640)
        index, rejections = build_index(
            utterances, scale=scale, tokenizer=ABC, output_length=frames, frames_needed=np.add
        )
    except UserError as error:
        return Ends(error=str(error))
    for entry in rejections.entries:
        ends.rejections[entry.id] = f"{entry.location}: {entry.reason} {entry.value or ''}"
    assert sum(rejections.utterances.values()) == len(rejections.entries)
    plan = BatchPlan(index.entries(), make_buckets(index.entries(), Batching.planned(num_buckets=2)))
    source = BatchSource(index, plan)
    for position in range(plan.batches_per_epoch):
        loaded = source[position]
        signals = loaded.batch.features if case.of_features else loaded.batch.audio
        for i in np.flatnonzero(loaded.batch.weights):
            name = index.utterances[int(loaded.batch.utterances[i])].id
            ends.loaded[name] = signals[i, : loaded.batch.lengths[i]]
        ends.rejected |= {entry.id: f"{entry.location}: {entry.reason}" for entry in loaded.rejected}
    return ends


# Functions that make the whole input, or one line (or its bytes) in the middle of the good ones.


def line(make: Callable[[Path], dict[str, Any]]) -> Callable[[Path, Lines], Path]:
    def whole(folder: Path, lines: Lines) -> Path:
        bad = {"id": "bad", "text": "abc", "duration": 0.2} | make(folder)
        return jsonl(folder / "m.jsonl", *lines[:13], {k: v for k, v in bad.items() if v is not None}, *lines[13:])

    return whole


def audio(name: str, samples: np.ndarray, rate_hz: int = RATE, **options: Any) -> Callable[[Path, Lines], Path]:
    changes = {key: options.pop(key) for key in ("duration", "offset", "channel", "text", "id") if key in options}
    return line(lambda folder: {"audio_path": write(folder / name, samples, rate_hz, **options).name} | changes)


def content(name: str, change: Callable[[bytes], bytes], **changes: Any) -> Callable[[Path, Lines], Path]:
    """Makes a file of 3,200 random samples and changes its bytes."""

    def made(folder: Path) -> dict[str, Any]:
        path = write(folder / name, noise(9, 3200))
        path.write_bytes(change(path.read_bytes()))
        return {"audio_path": path.name} | changes

    return line(made)


def raw(change: Callable[[bytes], bytes], name: str = "m.jsonl") -> Callable[[Path, Lines], Path]:
    """Changes the bytes of the good manifest."""

    def whole(folder: Path, lines: Lines) -> Path:
        path = jsonl(folder / name, *lines)
        path.write_bytes(change(path.read_bytes()))
        return path

    return whole


def renamed(folder: Path) -> dict[str, Any]:
    return {"audio_path": write(folder / "x.wav", noise(9, 3200)).rename(folder / "bad.flac").name}


def text_named_m4a(folder: Path) -> dict[str, Any]:
    (folder / "t.m4a").write_text("hello\n" * 99)
    return {"audio_path": "t.m4a"}


def zipped_features(folder: Path) -> dict[str, Any]:
    with (folder / "bad.npy").open("wb") as file:
        np.savez(file, x=FRAMES)
    return {"features_path": "bad.npy", "rows": 40, "cols": 4}


def boundless_features(folder: Path) -> dict[str, Any]:
    """A header with the shape of 64 TB of values."""
    with (folder / "bad.npy").open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1 << 42, 4)}
        np.lib.format.write_array_header_1_0(file, header)
    return {"features_path": "bad.npy", "rows": 40, "cols": 4}


def short_features(folder: Path) -> dict[str, Any]:
    (folder / "f.txt").write_text("1 2 3")
    return {"features_path": "f.txt", "rows": 40, "cols": 4}


def mixed_paths(folder: Path, lines: Lines) -> Path:
    """Paths that are absolute, relative to the manifest, and with dots."""
    for number, item in enumerate(lines):
        paths = (str(folder / item["audio_path"]), item["audio_path"], f"./x/../{item['audio_path']}")
        item["audio_path"] = paths[number % 3]
    return jsonl(folder / "m.jsonl", *lines)


def looping_folder(folder: Path, lines: Lines) -> Path:
    """A folder of audio with links to its parents, and one to itself."""
    for item in lines:
        path = write(folder / "set" / "inner" / f"{item['id']}.wav", good_signal(item["id"], False))
        path.with_suffix(".txt").write_text("abc")
    (folder / "set" / "inner" / "up").symlink_to(folder / "set")
    (folder / "set" / "inner" / "self").symlink_to(folder / "set" / "inner" / "self")
    (folder / "set" / "bad").symlink_to(folder / "set" / "bad")
    (folder / "set" / "bad.wav").symlink_to(folder / "set" / "bad.wav")
    (folder / "set" / "bad.txt").write_text("abc")
    return folder / "set"


def loop(folder: Path, lines: Lines) -> Path:
    (folder / "m.jsonl").symlink_to(folder / "m.jsonl")
    return folder / "m.jsonl"


def table(ending: str, between: str) -> Callable[[Path, Lines], Path]:
    """The good lines as a table with a truncated last row."""

    def whole(folder: Path, lines: Lines) -> Path:
        rows = [list(lines[0]), *([str(value) for value in item.values()] for item in lines)]
        (folder / f"m.{ending}").write_text("\n".join(between.join(row) for row in [*rows[:-1], rows[-1][:-1]]))
        return folder / f"m.{ending}"

    return whole


def kaldi(change: Callable[[str], str]) -> Callable[[Path, Lines], Path]:
    """The good lines as a Kaldi folder with a changed file `text`."""

    def whole(folder: Path, lines: Lines) -> Path:
        (folder / "wav.scp").write_text("".join(f"{item['id']} {item['audio_path']}\n" for item in lines))
        (folder / "text").write_text(change("".join(f"{item['id']} {item['text']}\n" for item in lines)))
        return folder

    return whole


def fairseq(cut: str) -> Callable[[Path, Lines], Path]:
    """The good lines as fairseq's lists; the last character of one file is missing."""

    def whole(folder: Path, lines: Lines) -> Path:
        contents = {"m.tsv": f"{folder}\n", "m.ltr": ""}
        for item in lines:
            samples = good_signal(item["id"], False)
            write(folder / f"{item['id']}.wav", samples)
            contents["m.tsv"] += f"{item['id']}.wav\t{len(samples)}\n"
            contents["m.ltr"] += "a b c |\n"
        for name, content in contents.items():
            (folder / name).write_text(content[:-1] if name == cut else content)
        return folder / "m.tsv"

    return whole


def cut_tar(folder: Path, lines: Lines) -> Path:
    """A shard that is truncated between two of its files."""
    with tarfile.open(folder / "m.tar", "w") as archive:
        for item in lines[:3]:
            archive.add(folder / item["audio_path"], f"{item['id']}.wav")
            (folder / "text.txt").write_text("abc")
            archive.add(folder / "text.txt", f"{item['id']}.txt")
    with tarfile.open(folder / "m.tar") as archive:
        begin = archive.getmembers()[4].offset
    (folder / "m.tar").write_bytes((folder / "m.tar").read_bytes()[:begin])
    return folder / "m.tar"


def features(values: Any, **changes: Any) -> Callable[[Path, Lines], Path]:
    return line(lambda folder: {"features": values, "duration": None} | changes)


NOISE = noise(9, 3200)
STEREO = np.stack([NOISE, noise(8, 3200)], axis=1)
FLOATS = (NOISE / 32768).astype(np.float32)
ONE_NAN = np.where(np.arange(3200) == 7, np.nan, FLOATS).astype(np.float32)
NO_DURATION = "no duration in the manifest, and the audio: "


def resampled(rate_hz: int) -> np.ndarray:
    return np.clip(np.rint(soxr.resample(FLOATS, rate_hz, RATE) * 32768), -32768, 32767)


CASES = {
    "truncated FLAC": Case(content("t.flac", lambda data: data[:3000]), "audio", "truncated or damaged"),
    "truncated FLAC, no duration": Case(
        content("t.flac", lambda data: data[:3000], duration=None), "audio", "truncated or damaged"
    ),
    "truncated WAV": Case(
        content("t.wav", lambda data: data[:3000]), "audio", "truncated: it has 2956 of 6400 bytes of samples"
    ),
    "zero bytes": Case(content("z.flac", lambda data: b""), "audio", "empty file (0 bytes)"),
    "zero bytes, no duration": Case(
        content("z.flac", lambda data: b"", duration=None), "plan", f"{NO_DURATION}empty file (0 bytes)"
    ),
    "no samples": Case(audio("n.wav", NOISE[:0]), "audio", "no samples"),
    "no samples, no duration": Case(audio("n.wav", NOISE[:0], duration=None), "plan", "too short"),
    "wrong extension: a WAV named .flac": Case(line(renamed), "loaded", expected=lambda: NOISE),
    "wrong extension: text named .wav": Case(
        content("t.wav", lambda data: b"hello\n" * 99), "audio", "not audio that libsndfile can read"
    ),
    "wrong extension: text named .m4a": Case(line(text_named_m4a), "audio", "not audio that FFmpeg can read"),
    "stereo": Case(audio("s.wav", STEREO), "loaded", expected=lambda: np.rint(STEREO.mean(axis=1))),
    "second of two channels": Case(audio("s.wav", STEREO, channel=1), "loaded", expected=lambda: STEREO[:, 1]),
    "third of two channels": Case(
        audio("s.wav", STEREO, channel=2), "audio", "no channel 2: the file has 2, numbered from 0"
    ),
    "8 kHz": Case(audio("a.wav", NOISE, 8000, duration=0.4), "loaded", expected=lambda: resampled(8000)),
    "48 kHz": Case(
        audio("a.wav", np.repeat(NOISE, 3), 48000),
        "loaded",
        expected=lambda: np.clip(np.rint(soxr.resample(np.repeat(FLOATS, 3), 48000, RATE) * 32768), -32768, 32767),
    ),
    "24-bit": Case(audio("a.wav", NOISE / 32768, subtype="PCM_24"), "loaded", expected=lambda: NOISE),
    "float": Case(audio("a.wav", FLOATS, subtype="FLOAT"), "loaded", expected=lambda: NOISE),
    "NaN samples": Case(audio("a.wav", ONE_NAN, subtype="FLOAT"), "audio", "not finite: 1 samples are NaN or infinite"),
    "float WAV beyond ±1": Case(
        audio("a.wav", FLOATS * 4, subtype="FLOAT"), "audio", "full scale is 1; divide the samples by 32768 if they"
    ),
    "missing file": Case(line(lambda folder: {"audio_path": "gone.wav"}), "audio", "no such file"),
    "missing file, no duration": Case(
        line(lambda folder: {"audio_path": "gone.wav", "duration": None}), "plan", f"{NO_DURATION}no such file"
    ),
    "a folder for a file": Case(line(lambda folder: {"audio_path": "."}), "audio", "a folder, not an audio file"),
    "longer than its manifest says": Case(audio("a.wav", np.tile(NOISE, 5)), "loaded", expected=lambda: NOISE),
    "shorter than its manifest says": Case(
        audio("a.wav", NOISE, duration=0.8), "audio", "shorter than its manifest says: 0.20 s of 0.80 s"
    ),
    "a part of which a third is missing": Case(
        audio("a.wav", NOISE, offset=0, duration=0.3), "audio", "it has 0.20 s of the 0.30 s from 0.00 s"
    ),
    "an offset beyond the end": Case(
        audio("a.wav", NOISE, offset=3.0), "audio", "the file ends before the requested part"
    ),
    "empty text": Case(audio("a.wav", NOISE, text=""), "plan", "empty text"),
    "out-of-vocabulary text": Case(audio("a.wav", NOISE, text="abcé"), "plan", "out of vocabulary"),
    "more labels than frames": Case(audio("a.wav", NOISE, text="abcabc"), "plan", "fewer frames than its labels need"),
    "duplicate ids": Case(audio("a.wav", NOISE, id="good-00"), "loaded", name="good-00#2", expected=lambda: NOISE),
    "too long": Case(audio("a.wav", NOISE, duration=31.0), "plan", "too long"),
    "too short": Case(audio("a.wav", NOISE[:800], duration=0.05), "plan", "too short"),
    "duration as a text": Case(audio("a.wav", NOISE, duration="0.2"), "loaded", expected=lambda: NOISE),
    "duration in words": Case(audio("a.wav", NOISE, duration="two"), "plan", '"duration" is "two"; expected'),
    "negative offset": Case(audio("a.wav", NOISE, offset=-1.0), "plan", "expected an offset of 0 or more"),
    "a path that is no path": Case(line(lambda folder: {"audio_path": "a\0.wav"}), "plan", "rename the file"),
    "no audio": Case(line(lambda folder: {}), "plan", 'no "audio_path" among its fields'),
    "ragged features": Case(features([[1, 2, 3, 4], [5, 6]]), "plan", "ragged features: expected", of_features=True),
    "NaN features": Case(features([[1, 2, 3, None]]), "plan", "1 feature values are NaN", of_features=True),
    "flat features without shape": Case(features([1, 2, 3]), "plan", "rows and cols as well", of_features=True),
    "wrong feature dimension": Case(features([[1, 2, 3]] * 40), "plan", "feature dim", of_features=True),
    "audio among features": Case(audio("a.wav", NOISE), "error", "a run trains on one of the two", of_features=True),
    "missing feature file": Case(
        features(None, features_path="gone.npy", rows=40, cols=4), "audio", "no such file", of_features=True
    ),
    "a .npz named .npy": Case(line(zipped_features), "audio", "invalid features (npy): ", of_features=True),
    "a header that promises terabytes": Case(
        line(boundless_features), "audio", "invalid features (npy): ", of_features=True
    ),
    "fewer features than rows × cols": Case(
        line(short_features), "audio", "3 values; expected 40 frames × 4 = 160", of_features=True
    ),
    "a manifest cut in half": Case(
        raw(lambda data: data[: len(data) // 2 + 11]), "plan", "the file may be truncated", good=15, name="m.jsonl:16"
    ),
    "CSV that is cut": Case(table("csv", ","), "plan", "the file may be truncated", good=29, name="m.csv:31"),
    "TSV that is cut": Case(table("tsv", "\t"), "plan", "the file may be truncated", good=29, name="m.tsv:31"),
    "Kaldi's text that is cut": Case(
        kaldi(lambda text: text[:-2]), "plan", "the file may be truncated", good=29, name="good-29"
    ),
    "two texts of one id in Kaldi's folder": Case(
        kaldi(lambda text: f"{text}good-07 ab\n"), "plan", "two lines in the file text", good=29, name="good-07"
    ),
    "fairseq's list that is cut": Case(fairseq("m.tsv"), "plan", "the file may be truncated", good=29, name="m.tsv:31"),
    "fairseq's letters that are cut": Case(
        fairseq("m.ltr"), "plan", "the file may be truncated", good=29, name="good-29.wav"
    ),
    "a tar that is cut between two files": Case(cut_tar, "error", "not a complete tar (truncated or damaged at byte"),
    "non-UTF-8": Case(
        raw(lambda data: data + '{"id": "bad", "text": "é"}'.encode("latin-1")),
        "plan",
        "not UTF-8 (byte 0xe9 at 23); save it as UTF-8; from Latin-1: iconv -f LATIN1 -t UTF-8 IN > OUT",
        name="m.jsonl:31",
    ),
    "a byte-order mark": Case(raw(lambda data: b"\xef\xbb\xbf" + data), "loaded"),
    "Windows line ends": Case(raw(lambda data: data.replace(b"\n", b"\r\n") + b"\r\n"), "loaded"),
    "absolute and relative paths": Case(mixed_paths, "loaded"),
    "a folder with symlink loops": Case(looping_folder, "plan", f"{NO_DURATION}no such file", name="bad.wav"),
    "a manifest that is a symlink loop": Case(loop, "error", "no such file or folder; check the path"),
    "0 utterances": Case(raw(lambda data: b""), "error", "m.jsonl has no utterances; expected one utterance or more"),
    "0 utterances: blank lines": Case(raw(lambda data: b"\n \r\n\n"), "error", "m.jsonl has no utterances"),
    "UTF-16": Case(
        raw(lambda data: data.decode().encode("utf-16")), "error", "the text is UTF-16; expected UTF-8: iconv"
    ),
    "a table that is cut": Case(raw(lambda data: data, "m.parquet"), "error", "not a complete Parquet file"),
}


@pytest.mark.parametrize("name", CASES)
def test_each_case_is_loaded_or_named_and_nothing_else_is_lost(tmp_path: Path, name: str) -> None:
    case, ends = CASES[name], ends_of(CASES[name], tmp_path)
    if case.end == "error":
        assert case.says in ends.error
        return
    assert not ends.error
    good = {name: signal for name, signal in ends.loaded.items() if name not in (case.name, "bad")}
    assert len(good) == case.good
    for found, signal in good.items():
        np.testing.assert_array_equal(signal, good_signal(found, case.of_features))
    others = {
        "loaded": dict.fromkeys(ends.loaded.keys() - good.keys(), ""),
        "plan": ends.rejections,
        "audio": ends.rejected,
    }
    bad = {end: list(found) for end, found in others.items() if found}
    is_whole = case.end == "loaded" and case.expected is None
    assert bad == ({} if is_whole else {case.end: [name_of(case, tmp_path)]})
    if case.end != "loaded":
        assert case.says in others[case.end][name_of(case, tmp_path)]
    elif case.expected is not None:
        np.testing.assert_array_equal(ends.loaded[case.name], case.expected())


def name_of(case: Case, folder: Path) -> str:
    """Id of the bad utterance; an invalid line has its place as the id."""
    return str(folder / case.name) if case.name.startswith("m.") else case.name


def main() -> None:
    for name, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            ends = ends_of(case, Path(folder))
            message = ends.error or "; ".join([*ends.rejections.values(), *ends.rejected.values()])
        print(f"{name:36} {case.end:8} {len(ends.loaded):3} loaded  {message.replace(folder, '…')[:150]}")


if __name__ == "__main__":
    main()
