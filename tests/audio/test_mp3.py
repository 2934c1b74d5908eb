"""The length of MP3, where a header tells it and where none does."""

import io
from pathlib import Path

import pytest
from recordings import RATE, noise, write_av

from asr_jax.audio.io import AudioError, Named, probe, read_audio
from asr_jax.audio.mp3 import untold_samples


@pytest.mark.parametrize("is_told", [True, False])
@pytest.mark.parametrize("kind", ["constant", "louder", "quieter"])
def test_mp3_with_and_without_a_header_that_tells_its_length(tmp_path: Path, kind: str, is_told: bool) -> None:
    """Without one, libsndfile takes the first frame's rate of bits for all: too few samples are named, not lost."""
    samples = noise(1, 5 * RATE)
    half = slice(len(samples) // 2) if kind == "louder" else slice(len(samples) // 2, None)
    samples[half] = 0
    path = tmp_path / "a.mp3"
    quality = None if kind == "constant" else 2
    write_av(path, samples, "libmp3lame", RATE, quality=quality, write_xing=str(int(is_told)))
    tagged = b"ID3\x04\0\0\0\0\1\0" + bytes(128) + path.read_bytes()
    for make in (lambda: path, lambda: Named(path.read_bytes(), "a.mp3"), lambda: Named(tagged, "tagged.mp3")):
        if kind == "quieter" and not is_told:
            for function in (read_audio, probe):
                with pytest.raises(AudioError, match=r"varying bit rate .* of 8\d+ samples .* \(ffmpeg -i"):
                    function(make())
        else:
            read = read_audio(make())
            assert abs(len(read) - len(samples)) <= 2 * 1152
            assert abs(probe(make()).duration_s * RATE - len(read)) <= 1152


def test_of_a_file_that_tells_its_length_the_first_frame_alone_is_read(tmp_path: Path) -> None:
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
