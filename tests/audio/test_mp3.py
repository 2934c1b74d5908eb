"""Lengths of MP3 files with and without the length in a header."""

import io
from pathlib import Path

import pytest
from recordings import RATE, noise, write_av

from asr_jax.audio.io import AudioError, NamedAudio, probe, read_audio
from asr_jax.audio.mp3 import untold_samples


@pytest.mark.parametrize("has_header", [True, False])
@pytest.mark.parametrize("kind", ["constant", "louder", "quieter"])
def test_mp3_with_and_without_a_header_that_has_its_length(tmp_path: Path, kind: str, has_header: bool) -> None:
    """Without a header, libsndfile assumes the first frame's bit rate for all frames; missing samples are an error."""
    samples = noise(1, 5 * RATE)
    half = slice(len(samples) // 2) if kind == "louder" else slice(len(samples) // 2, None)
    samples[half] = 0
    path = tmp_path / "a.mp3"
    quality = None if kind == "constant" else 2
    write_av(path, samples, "libmp3lame", RATE, quality=quality, write_xing=str(int(has_header)))
    tagged = b"ID3\x04\0\0\0\0\1\0" + bytes(128) + path.read_bytes()
    for make in (
        lambda: path,
        lambda: NamedAudio(path.read_bytes(), "a.mp3"),
        lambda: NamedAudio(tagged, "tagged.mp3"),
    ):
        if kind == "quieter" and not has_header:
            for function in (read_audio, probe):
                with pytest.raises(AudioError, match=r"variable bit rate .* of 8\d+ samples .* \(ffmpeg -i"):
                    function(make())
        else:
            read = read_audio(make())
            assert abs(len(read) - len(samples)) <= 2 * 1152
            assert abs(probe(make()).duration_s * RATE - len(read)) <= 1152


def test_only_the_first_frame_is_read_of_a_file_with_its_length_in_a_header(tmp_path: Path) -> None:
    path = write_av(tmp_path / "a.mp3", noise(1, 20 * RATE), "libmp3lame", RATE, write_xing="1")
    file = io.BytesIO(b"ID3\x04\0\0\0\0\1\0" + bytes(128) + path.read_bytes())
    assert untold_samples(file) is None
    assert file.tell() < 5000 < len(file.getvalue())


def test_frames_are_not_counted_for_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_av(tmp_path / "a.mp3", noise(1, 5 * RATE), "libmp3lame", RATE, write_xing="0")
    whole = read_audio(path)
    monkeypatch.setattr("asr_jax.audio.checks.untold_samples", lambda file: pytest.fail("the whole file is read"))
    part = read_audio(path, start_s=1.0, length_s=2.0)
    assert abs(part.astype(int) - whole[RATE : 3 * RATE]).max() <= 1
