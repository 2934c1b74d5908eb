"""Kaldi's data folders: whole recordings, segments, commands that only decode, and what is missing or broken."""

from pathlib import Path

import numpy as np
import pytest
from recordings import RATE, check_conversion, check_signals, noise, read, write

LONG = noise(1, 3 * RATE)


def folder(path: Path, **files: str | bytes) -> Path:
    """Writes files of a Kaldi folder; `wav_scp` is the content of wav.scp."""
    path.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else content.encode()
        (path / name.replace("_", ".")).write_bytes(data)
    return path


def test_whole_recordings(tmp_path: Path) -> None:
    samples = [noise(1, 1600), noise(2, 1700)]
    for i, part in enumerate(samples):
        write(tmp_path / "corpus" / f"{i} b.wav", part)
    path = folder(
        tmp_path / "data" / "train",
        wav_scp=f"s1-u1 {tmp_path}/corpus/0 b.wav\ns1-u2\t{tmp_path}/corpus/1 b.wav\n",
        text="s1-u1 wie geht  es\ns1-u2 gut\n",
        utt2spk="s1-u1 s1\ns1-u2 s1\n",
        utt2dur="s1-u1 0.1\n",
    )
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == ["s1-u1", "s1-u2"]
    assert [utterance.text for utterance in utterances] == ["wie geht  es", "gut"]
    assert [utterance.speaker for utterance in utterances] == ["s1", "s1"]
    assert [utterance.duration_s for utterance in utterances] == [0.1, 1700 / RATE]
    check_signals(utterances, samples)
    check_conversion(tmp_path, path)


def test_only_spaces_and_tabs_divide_a_line(tmp_path: Path) -> None:
    write(tmp_path / "a\u3000\xa0b\u2028.wav", LONG)
    path = folder(
        tmp_path / "data",
        wav_scp=f"u\u3000\x85 {tmp_path}/a\u3000\xa0b\u2028.wav\r\n",
        text="u\u3000\x85\t 東京\u3000駅\x1c \r\n",
        segments="u\u3000\x85 u\u3000\x85 0.5 1.25\n",
    )
    (utterance,) = read(tmp_path, path)
    assert (utterance.id, utterance.text, utterance.duration_s) == ("u\u3000\x85", "東京\u3000駅\x1c", 0.75)


def test_segments(tmp_path: Path) -> None:
    """Segments with an end of -1, the end of the recording, and with a channel in the fifth column."""
    stereo = np.stack([LONG, noise(2, 3 * RATE)], axis=1)
    write(tmp_path / "rec.wav", LONG)
    write(tmp_path / "call.wav", stereo)
    path = folder(
        tmp_path / "train",
        wav_scp="rec ../rec.wav\r\ncall ../call.wav\r\n",
        segments="u1 rec 0.5 1.25\nu2 rec 2.5 -1\nu3 call 1.0 1.5 1\nu4 rec 2.0 3.25\n",
        text="u1 one\nu2 two\nu3 three\nu4 four\n",
    )
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == ["u1", "u2", "u3", "u4"]
    assert [utterance.duration_s for utterance in utterances] == [0.75, 0.5, 0.5, 1.25]
    # A segment that ends less than half a second after the audio is cut, as by extract-segments.
    check_signals(utterances, [LONG[8000:20000], LONG[40000:], stereo[16000:24000, 1], LONG[32000:]])
    check_conversion(tmp_path, path)


@pytest.mark.parametrize(
    "command",
    [
        "flac -c -d -s {path} |",
        "flac -cds {path} |",
        "sph2pipe -f wav -p -c1 {path} |",
        "sph2pipe -f wav -p -c 1 {path} |",
        "/opt/kaldi/tools/sph2pipe_v2.5/sph2pipe -f wav {path} |",
        "cat '{path}' |",
        "sox {path} -r 16k -t wav - |",
    ],
)
def test_commands_that_only_decode(tmp_path: Path, command: str) -> None:
    audio = write(tmp_path / "rec.flac", LONG)
    path = folder(tmp_path / "train", wav_scp=f"rec {command.format(path=audio)}\n", text="rec a\n")
    utterances = read(tmp_path, path)
    assert [utterance.duration_s for utterance in utterances] == [3.0]
    check_signals(utterances, [LONG])


def test_the_second_channel_of_a_call(tmp_path: Path) -> None:
    stereo = np.stack([LONG, noise(2, 3 * RATE)], axis=1)
    audio = write(tmp_path / "call.wav", stereo)
    scp = f"A sph2pipe -f wav -p -c1 {audio} |\nB sph2pipe -f wav -p -c 2 {audio} |\n"
    path = folder(tmp_path / "train", wav_scp=scp, text="A a\nB a\n")
    check_signals(read(tmp_path, path), [stereo[:, 0], stereo[:, 1]])


GOOD = {"wav.scp": "{} rec.wav\n", "text": "{} a\n", "utt2dur": "{} 1.0\n"}


@pytest.mark.parametrize(
    ("scp", "text", "more", "reason"),
    [
        ("bad x.wav\n", "", {}, "no line in the file text"),
        ("", "bad a\n", {}, "in the file text, but in neither segments nor wav.scp"),
        ("bad x.wav\n", b"bad \xe9\n", {}, "not UTF-8 (byte 0xe9 at 4)"),
        (
            "bad sox x.wav -t wav - gain 3 |\n",
            "bad a\n",
            {},
            "is not run: allow it with --allow-pipes (from Python: ReadOptions(allow_pipes=True))",
        ),
        ("bad flac -c a.flac | sox - b.wav |\n", "bad a\n", {}, "expected one input file, as an argument of its first"),
        ("bad sph2pipe -c two x.sph |\n", "bad a\n", {}, "is not run: allow it with --allow-pipes"),
        (
            "bad flac -c -d -s --skip=1:00 --until=2:00 a.flac |\n",
            "bad a\n",
            {},
            "is not run: allow it with --allow-pipes",
        ),
        ("bad sph2pipe -t 3:5 a.sph |\n", "bad a\n", {}, "is not run: allow it with --allow-pipes"),
        ("bad cat -n a.wav |\n", "bad a\n", {}, "is not run: allow it with --allow-pipes"),
        ("bad x.wav\nbad y.wav\n", "bad a\n", {}, "two lines in the file wav.scp; expected one"),
        ("bad x.wav\n", "bad a\nbad b\n", {}, "two lines in the file text; expected one"),
        ("bad x.wav\n", "bad a", {}, "the last line has no newline"),
        ("bad x.wav", "bad a\n", {}, "the last line has no newline"),
        (
            "bad data/wav.ark:1234\n",
            "bad a\n",
            {},
            "audio in an archive cannot be read; write it to files first (wav-copy)",
        ),
        (
            "bad x.wav\n",
            "bad a\n",
            {"utt2dur": "bad long\n"},
            '"duration" is "long"; expected a finite number of seconds',
        ),
    ],
)
def test_a_broken_recording_is_named_and_the_others_are_read(
    tmp_path: Path, scp: str, text: str | bytes, more: dict[str, str], reason: str
) -> None:
    files = {name: "".join(line.format(f"u{i:02}") for i in range(10)).encode() for name, line in GOOD.items()}
    files["wav.scp"] += scp.encode()
    files["text"] += text if isinstance(text, bytes) else text.encode()
    files |= {name: files[name] + content.encode() for name, content in more.items()}
    path = folder(tmp_path / "train", **files)
    utterances = read(tmp_path, path)
    assert [utterance.id for utterance in utterances] == [f"u{i:02}" for i in range(10)]
    (rejected,) = utterances.rejected
    assert (rejected.id, rejected.location) == ("bad", f"{path}: bad")
    assert reason in rejected.reason


@pytest.mark.parametrize(
    ("segment", "reason"),
    [
        ("rec 1.0", "expected recording, start and end in seconds"),
        ("other 0 1", "recording other is not in wav.scp"),
        ("rec 2 1", '"start" is 2 and "end" is 1: expected an offset of 0 or more and a duration above 0'),
        ("rec -1 1", '"start" is -1 and "end" is 1: expected an offset of 0 or more'),
        ("rec a 1", '"start" is "a"; expected a finite number of seconds'),
        ("rec 0 inf", '"end" is "inf"; expected a finite number of seconds'),
        ("rec 0 1 left", '"channel" is "left"; expected a whole number'),
        ("rec 7 -1", "the audio ends at 3.00 s, before the part that starts at 7 s"),
    ],
)
def test_a_broken_segment_is_named_and_the_others_are_read(tmp_path: Path, segment: str, reason: str) -> None:
    write(tmp_path / "rec.wav", LONG)
    good = "".join(f"u{i:02} rec {i / 10} {i / 10 + 1}\n" for i in range(10))
    text = "".join(f"u{i:02} a\n" for i in range(10))
    path = folder(
        tmp_path / "train", wav_scp="rec ../rec.wav\n", segments=f"{good}bad {segment}\n", text=f"{text}bad a\n"
    )
    utterances = read(tmp_path, path)
    check_signals(utterances, [LONG[i * 1600 : i * 1600 + RATE] for i in range(10)])
    (rejected,) = utterances.rejected
    assert rejected.id == "bad"
    assert reason in rejected.reason


def test_texts_without_a_recording_are_named_in_their_order(tmp_path: Path) -> None:
    good = [f"u{i}" for i in range(90)]
    lost = [f"lost{i}" for i in range(9)]
    path = folder(
        tmp_path / "train",
        wav_scp="".join(f"{name} a.wav\n" for name in good),
        utt2dur="".join(f"{name} 1.0\n" for name in good),
        text="".join(f"{name} a\n" for name in (*lost, *good)),
    )
    assert [rejected.id for rejected in read(tmp_path, path).rejected] == lost


def test_a_folder_of_train_and_dev(tmp_path: Path) -> None:
    for name in ("train", "dev"):
        folder(tmp_path / name, wav_scp="u ../rec.wav\n", text=f"u {name}\n")
    write(tmp_path / "rec.wav", LONG)
    assert [utterance.text for utterance in read(tmp_path, tmp_path)] == ["train"]
    assert [utterance.text for utterance in read(tmp_path, tmp_path, role="validation")] == ["dev"]
