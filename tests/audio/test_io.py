"""Audio files: exact samples without resampling, a known tone with it, and errors of one line for unusable files."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import soundfile
from recordings import write_av

from asr_jax.audio.io import AudioError, NamedAudio, Remarks, probe, read_audio, stream_audio, write_flac
from tests.support import approx, assert_close

RATE = 16000


def noise(num: int, channels: int = 1) -> np.ndarray:
    return np.random.default_rng(0).integers(-20000, 20000, (num, channels)).astype(np.int16)


def tone(hz: float, rate_hz: int, duration_s: float = 0.5) -> np.ndarray:
    return 0.5 * np.sin(2 * np.pi * hz * np.arange(int(duration_s * rate_hz)) / rate_hz)


def test_flac_comes_back_bit_for_bit(tmp_path: Path) -> None:
    samples = np.concatenate([noise(1000)[:, 0], np.array([-32768, 32767], np.int16)])
    write_flac(tmp_path / "a.flac", samples, RATE)
    read = read_audio(tmp_path / "a.flac")
    assert read.dtype == np.int16
    assert (read == samples).all()
    info = probe(str(tmp_path / "a.flac"))
    assert (info.duration_s, info.rate_hz, info.channels) == (1002 / RATE, RATE, 1)


def test_channels_are_averaged(tmp_path: Path) -> None:
    samples = noise(500, 2)
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    expected = np.rint(samples.astype(np.float64).mean(axis=1))
    assert (read_audio(tmp_path / "a.wav") == expected).all()
    same = np.repeat(samples[:, :1], 2, axis=1)
    soundfile.write(tmp_path / "same.wav", same, RATE)
    assert (read_audio(tmp_path / "same.wav") == same[:, 0]).all()


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
def test_sample_formats_agree(tmp_path: Path, subtype: str) -> None:
    samples = noise(300)[:, 0]
    soundfile.write(tmp_path / "a.wav", samples / 32768, RATE, subtype=subtype)
    assert (read_audio(tmp_path / "a.wav") == samples).all()


@pytest.mark.parametrize("rate_hz", [8000, 22050, 44100, 48000])
def test_resampling_keeps_a_tone(tmp_path: Path, rate_hz: int) -> None:
    soundfile.write(tmp_path / "a.wav", tone(1000, rate_hz), rate_hz, subtype="FLOAT")
    read = read_audio(tmp_path / "a.wav") / 32768
    expected = tone(1000, RATE)
    assert abs(len(read) - len(expected)) <= 1
    middle = slice(500, 7500)
    assert_close(read[middle], expected[middle], atol=1e-3)


@pytest.mark.parametrize("speed", [0.9, 1.1])
def test_speed_shortens_and_raises_the_pitch(tmp_path: Path, speed: float) -> None:
    soundfile.write(tmp_path / "a.wav", tone(1000, RATE), RATE)
    read = read_audio(tmp_path / "a.wav", speed=speed) / 32768
    assert len(read) == round(8000 / speed)
    expected = tone(1000 * speed, RATE, 1.0)[: len(read)]
    assert_close(read[500:6500], expected[500:6500], atol=1e-3)


@pytest.mark.parametrize(("name", "subtype"), [("a.ogg", "VORBIS"), ("a.opus", "OPUS"), ("a.mp3", "MPEG_LAYER_III")])
def test_lossy_formats_are_read(tmp_path: Path, name: str, subtype: str) -> None:
    original = tone(440, RATE, 1.0)
    container = "MP3" if name.endswith("mp3") else "OGG"
    soundfile.write(tmp_path / name, original, RATE, format=container, subtype=subtype)
    read = read_audio(tmp_path / name) / 32768
    assert abs(len(read) - RATE) < 2400
    assert probe(tmp_path / name).duration_s == approx(1.0, abs=0.15)
    spectrum = np.abs(np.fft.rfft(read[:RATE], RATE))
    assert abs(int(spectrum.argmax()) - 440) <= 1


def test_a_codec_that_overshoots_is_clipped(tmp_path: Path) -> None:
    square = np.sign(tone(300, RATE)) * 0.999
    soundfile.write(tmp_path / "a.ogg", square, RATE, format="OGG", subtype="VORBIS")
    decoded, _ = soundfile.read(tmp_path / "a.ogg")
    assert np.abs(decoded).max() > 1
    read = read_audio(tmp_path / "a.ogg")
    assert read.max() == 32767
    assert (np.sign(read[decoded > 0.5]) == 1).all()


def test_resampling_clips_instead_of_wrapping(tmp_path: Path) -> None:
    square = np.where(tone(300, 8000) >= 0, 32767, -32768).astype(np.int16)
    soundfile.write(tmp_path / "a.wav", square, 8000)
    read = read_audio(tmp_path / "a.wav").astype(int)
    assert read.max() == 32767
    assert np.abs(np.diff(read)).max() < 60000


def patched(path: Path, changes: dict[int, bytes]) -> Path:
    content = bytearray(path.read_bytes())
    for offset, value in changes.items():
        content[offset : offset + len(value)] = value
    path.write_bytes(content)
    return path


def test_a_length_that_the_header_leaves_open_is_found(tmp_path: Path) -> None:
    samples = noise(5000)[:, 0]
    write_flac(tmp_path / "a.flac", samples, RATE)
    # STREAMINFO's 36 bits of total samples.
    patched(tmp_path / "a.flac", {21: b"\xf0", 22: b"\0\0\0\0"})
    soundfile.write(tmp_path / "a.wav", samples, RATE)
    patched(tmp_path / "a.wav", {4: b"\xff" * 4, 40: b"\xff" * 4})
    for name in ("a.flac", "a.wav"):
        assert (read_audio(tmp_path / name) == samples).all()
        assert probe(tmp_path / name).duration_s == 5000 / RATE


def broken_file(folder: Path, kind: str) -> Path:
    samples = noise(20000)[:, 0]
    flac, wav = folder / "a.flac", folder / "a.wav"
    write_flac(flac, samples, RATE)
    soundfile.write(wav, samples, RATE)
    if kind == "missing":
        return folder / "none.flac"
    if kind == "folder":
        return folder
    if kind == "empty":
        flac.write_bytes(b"")
    if kind == "junk":
        flac.write_bytes(b"not audio" * 50)
    if kind == "raw":
        return wav.rename(folder / "a.raw")
    if kind == "cut flac":
        flac.write_bytes(flac.read_bytes()[:15000])
    if kind == "promising flac":
        patched(flac, {22: (30000).to_bytes(4, "big")})
    if kind == "cut wav":
        wav.write_bytes(wav.read_bytes()[:15000])
        return wav
    if kind == "cut mp3":
        mp3 = folder / "a.mp3"
        soundfile.write(mp3, np.tile(samples / 32768, 5), RATE, format="MP3")
        mp3.write_bytes(mp3.read_bytes()[: mp3.stat().st_size // 2])
        return mp3
    if kind == "text.mp3":
        (folder / kind).write_text("hello there\n" * 40)
        return folder / kind
    if kind == "no samples":
        soundfile.write(wav, samples[:0], RATE)
        return wav
    if kind in ("nan", "infinite", "loud"):
        values = (samples / 32768).astype(np.float32)
        values[[7, 9]] = {"nan": np.nan, "infinite": np.inf, "loud": -3.5}[kind]
        soundfile.write(wav, values, RATE, subtype="FLOAT")
        return wav
    return flac


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing", "no such file"),
        ("folder", "a folder"),
        ("empty", "0 bytes"),
        ("junk", "not audio"),
        ("raw", "not audio"),
        ("text.mp3", "not audio that libsndfile can read (no known audio format in its content); if it is audio"),
        ("cut flac", "truncated or damaged"),
        ("promising flac", "truncated"),
        ("cut wav", "truncated: it has 14956 of 40000 bytes"),
        ("cut mp3", "truncated"),
        ("no samples", "no samples"),
        ("nan", "2 samples are NaN"),
        ("infinite", "2 samples are NaN or infinite"),
        ("loud", "the peak is 3.5, full scale is 1"),
    ],
)
def test_what_cannot_be_used_says_why_in_one_line(tmp_path: Path, kind: str, reason: str) -> None:
    path = broken_file(tmp_path, kind)
    with pytest.raises(AudioError) as caught:
        read_audio(path)
    assert reason in caught.value.reason
    assert str(caught.value) == f"{path}: {caught.value.reason}"
    assert "\n" not in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "ULAW", "FLOAT"])
def test_a_few_missing_samples_are_a_remark(tmp_path: Path, subtype: str) -> None:
    samples, path = noise(20000)[:, 0], tmp_path / "a.wav"
    for missing, is_used in ((100, True), (1500, True), (1700, False)):
        soundfile.write(path, samples / 32768, RATE, subtype=subtype)
        num_bytes = {"PCM_16": 2, "PCM_24": 3, "ULAW": 1, "FLOAT": 4}[subtype]
        content = path.read_bytes()
        path.write_bytes(content[: content.index(b"data") + 8 + num_bytes * (20000 - missing)])
        for read in (
            lambda remarks: read_audio(path, remarks=remarks),
            lambda remarks: np.concatenate(list(stream_audio(path, rate_hz=RATE, remarks=remarks))),
        ):
            remarks = Remarks()
            if is_used:
                assert len(read(remarks)) == 20000 - missing
                assert f"truncated by {missing / 16:.0f} ms: it has" in remarks.reasons[0]
            else:
                with pytest.raises(AudioError, match="truncated: it has"):
                    read(remarks)


@pytest.mark.parametrize(
    ("container", "subtype", "rate_hz"),
    [
        ("WAV", "GSM610", 8000), ("WAV", "G721_32", 8000), ("WAV", "NMS_ADPCM_16", 8000), ("W64", "GSM610", 8000),
        ("AU", "G723_24", 8000), ("AIFF", "GSM610", 8000), ("WAV", "IMA_ADPCM", 16000), ("WAV", "MS_ADPCM", 16000),
    ],
)  # fmt: skip
def test_parts_of_codecs_without_seeking_are_those_of_the_whole(
    tmp_path: Path, container: str, subtype: str, rate_hz: int
) -> None:
    path = tmp_path / "a.wav"
    soundfile.write(path, tone(300, rate_hz, 2.0), rate_hz, format=container, subtype=subtype)
    whole = read_audio(path, rate_hz=rate_hz)
    for start_s, length_s in ((0.0, 0.5), (0.25, 1.0), (1.0, None)):
        first, part = round(start_s * rate_hz), {"rate_hz": rate_hz, "start_s": start_s, "length_s": length_s}
        expected = whole[first : None if length_s is None else first + round(length_s * rate_hz)]
        assert (read_audio(path, **part) == expected).all()
        assert (np.concatenate(list(stream_audio(path, **part))) == expected).all()


@pytest.mark.parametrize("quality", [None, 4])
def test_mp3_within_wav(tmp_path: Path, quality: int | None) -> None:
    sounds = (tone(500, RATE, 3.0) * 32767).astype(np.int16)
    path = write_av(tmp_path / "a.wav", sounds, "libmp3lame", RATE, quality=quality)
    whole = read_audio(path)
    assert 3 * RATE <= len(whole) <= 3 * RATE + 3 * 1152  # the encoder adds frames
    assert probe(path).duration_s == len(whole) / RATE
    assert (np.concatenate(list(stream_audio(path, rate_hz=RATE))) == whole).all()
    assert (read_audio(path, start_s=1.5, length_s=0.5) == whole[3 * RATE // 2 : 2 * RATE]).all()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(AudioError, match="truncated: it has"):
        read_audio(path)


def test_a_pipe_or_a_device_is_named_and_not_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.wav")
    os.mkfifo(tmp_path / "a.m4a")
    for path in (tmp_path / "a.wav", tmp_path / "a.m4a", Path(os.devnull)):
        for function in (read_audio, probe, lambda path: list(stream_audio(path, rate_hz=RATE))):
            with pytest.raises(AudioError, match="a pipe or a device, not a file"):
                function(path)


def test_probe_names_what_it_cannot_open(tmp_path: Path) -> None:
    with pytest.raises(AudioError, match="no such file"):
        probe(tmp_path / "none.wav")


def test_a_part_of_a_file(tmp_path: Path) -> None:
    samples = noise(RATE, 2)
    soundfile.write(tmp_path / "a.flac", samples, RATE)
    part = read_audio(tmp_path / "a.flac", start_s=0.25, length_s=0.5, channel=1)
    assert (part == samples[4000:12000, 1]).all()
    assert (read_audio(tmp_path / "a.flac", start_s=0.25, channel=0) == samples[4000:, 0]).all()
    # Times are rounded. Parts that may overshoot can miss up to half of their length, at most half a second.
    assert len(read_audio(tmp_path / "a.flac", start_s=0.5, length_s=0.55)) == 8000
    assert len(read_audio(tmp_path / "a.flac", start_s=0.5, length_s=0.99, may_overshoot=True)) == 8000
    for start_s, length_s, may_overshoot in [
        (0.5, 0.56, False), (0.0, 1.12, False), (0.75, 0.51, True), (0.0, 1.51, True), (1.0, 0.1, True),
        (5.0, None, False),
    ]:  # fmt: skip
        with pytest.raises(AudioError, match="the file ends before the requested part"):
            read_audio(tmp_path / "a.flac", start_s=start_s, length_s=length_s, may_overshoot=may_overshoot)
    with pytest.raises(AudioError, match="no channel 2: the file has 2, numbered from 0"):
        read_audio(tmp_path / "a.flac", channel=2)


def test_a_part_of_a_file_of_open_length(tmp_path: Path) -> None:
    samples = noise(5000)[:, 0]
    write_flac(tmp_path / "a.flac", samples, RATE)
    patched(tmp_path / "a.flac", {21: b"\xf0", 22: b"\0\0\0\0"})
    assert (read_audio(tmp_path / "a.flac", start_s=0.1, length_s=0.2) == samples[1600:4800]).all()


def test_files_in_memory(tmp_path: Path) -> None:
    samples = noise(3000)[:, 0]
    write_flac(tmp_path / "a.flac", samples, RATE)
    content = (tmp_path / "a.flac").read_bytes()
    assert (read_audio(NamedAudio(content, "x.wav")) == samples).all()
    assert probe(NamedAudio(content, "x")).duration_s == 3000 / RATE
    for part, reason in ((b"", "empty"), (content[:2000], "truncated or damaged"), (b"text", "not audio")):
        with pytest.raises(AudioError, match=f"x.flac: {reason}"):
            read_audio(NamedAudio(part, "x.flac"))
