"""Files of several recordings, one after the other: all are read, or the file is refused."""

import io

import numpy as np
import pytest
from recordings import RATE, noise, write, write_av

from asr_jax.audio.io import AudioError, NamedAudio, probe, read_audio, stream_audio
from asr_jax.audio.joined import is_joined
from tests.support import approx

FORMATS = [("a.mp3", "MP3", "MPEG_LAYER_III"), ("a.ogg", "OGG", "VORBIS"), ("a.opus", "OGG", "OPUS")]


@pytest.mark.parametrize(("name", "kind", "subtype"), FORMATS)
@pytest.mark.parametrize("lengths_s", [(1.0, 1.0), (12.0, 0.5, 3.0)])
def test_all_recordings_of_a_file_are_read(tmp_path, name, kind, subtype, lengths_s):
    parts = [
        write(tmp_path / f"{place}-{name}", noise(place, int(length_s * RATE)), format=kind, subtype=subtype)
        for place, length_s in enumerate(lengths_s)
    ]
    joined = tmp_path / name
    joined.write_bytes(b"".join(part.read_bytes() for part in parts))
    assert is_joined(joined, kind)
    assert not any(is_joined(part, kind) for part in parts)
    read = read_audio(joined)
    assert len(read) / RATE == approx(sum(lengths_s), abs=0.2 * len(lengths_s))
    assert probe(joined).duration_s == approx(len(read) / RATE, abs=2e-3)
    np.testing.assert_array_equal(np.concatenate(list(stream_audio(joined, rate_hz=RATE))), read)
    np.testing.assert_array_equal(read_audio(NamedAudio(joined.read_bytes(), name)), read)
    last = read_audio(joined, start_s=lengths_s[0], length_s=0.4)
    assert np.abs(last.astype(float)).mean() > 1000


@pytest.mark.parametrize("tail", [b"", b"TAG" + bytes(125), bytes(5000), b"\xff\xfb\x90\xc4" + bytes(50)])
def test_what_follows_a_recording_without_being_one(tmp_path, tail):
    for quality in (None, 2):
        path = write_av(tmp_path / "a.mp3", noise(1, RATE), "libmp3lame", RATE, quality=quality, write_xing="1")
        assert not is_joined(io.BytesIO(path.read_bytes() + tail), "MP3")
    for subtype in ("VORBIS", "OPUS"):
        path = write(tmp_path / "a.ogg", noise(1), format="OGG", subtype=subtype)
        assert not is_joined(io.BytesIO(path.read_bytes() + tail), "OGG")
    for cut in (0, 3, 30, 700):
        assert not is_joined(io.BytesIO(path.read_bytes()[:cut]), "OGG")
        assert not is_joined(io.BytesIO(path.read_bytes()[:cut]), "MP3")


@pytest.mark.parametrize(("ending", "kind"), [("flac", "FLAC"), ("ogg", "OGG")])
def test_a_file_of_two_flac_files_or_of_equal_tracks_is_refused(tmp_path, ending, kind):
    one = write(tmp_path / f"one.{ending}", noise(0, 2 * RATE))
    two = tmp_path / f"two.{ending}"
    two.write_bytes(2 * one.read_bytes())
    np.testing.assert_array_equal(
        read_audio(two, start_s=0.5, length_s=1.0), read_audio(one, start_s=0.5, length_s=1.0)
    )
    for file in (lambda: two, lambda: NamedAudio(two.read_bytes(), f"two.{ending}")):
        for part in ({}, {"start_s": 1.0}, {"length_s": 2.0}):
            with pytest.raises(AudioError, match=rf"several {kind} recordings in one file.*ffmpeg -i"):
                read_audio(file(), **part)
            with pytest.raises(AudioError, match=f"several {kind} recordings in one file"):
                list(stream_audio(file(), rate_hz=RATE, **part))
