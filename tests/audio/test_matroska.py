"""Matroska and WebM: the size in the header tells complete files from truncated ones, whatever their times are."""

import io

import numpy as np
import pytest
from recordings import noise, write_av

from asr_jax.audio.io import AudioError, NamedAudio, probe, read_audio
from asr_jax.audio.matroska import segment_end
from tests.support import approx


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (b"\x81?" b"\x18\x53\x80\x67" b"\x85", 4 + 2 + 4 + 1 + 5),
        (b"\x40\x01?" b"\x18\x53\x80\x67" b"\x01\0\0\0\0\0\1\2", 4 + 3 + 4 + 8 + 258),
        (b"\x81?" b"\x18\x53\x80\x67" b"\x01\xff\xff\xff\xff\xff\xff\xff", None),
        (b"\x81?" b"\x18\x53\x80\x67" b"\xff", None),
        (b"\x81?" b"\x18\x53\x80", None),
        (b"\x81?" b"\x18\x53\x80\x67" b"\x01\0\0", None),
        (b"\0?" b"\x18\x53\x80\x67" b"\x85", None),
        (b"", None),
    ],
)  # fmt: skip
def test_the_end_of_the_segment(sizes, expected):
    assert segment_end(io.BytesIO(b"\x1a\x45\xdf\xa3" + sizes)) == expected
    assert segment_end(io.BytesIO(b"RIFF" + sizes)) is None


@pytest.mark.parametrize(("name", "codec"), [("a.webm", "libopus"), ("a.mkv", "flac"), ("a.mkv", "aac")])
@pytest.mark.parametrize("options", [{}, {"gap_s": (0.6, 2.2)}, {"video_s": 5.0}, {"late_s": 1.5}])
def test_a_cut_file_is_truncated_and_a_whole_one_is_not(tmp_path, name, codec, options):
    path = write_av(tmp_path / name, noise(0, 3 * 48000), codec, 48000, **options)
    content = path.read_bytes()
    expected_s = 3.0 + options.get("late_s", 0.0)
    assert len(read_audio(path)) / 16000 == approx(expected_s, abs=0.05)
    assert probe(path).duration_s == approx(expected_s, abs=0.05)
    for part in (content[:-1], content[: 3 * len(content) // 4]):
        with pytest.raises(AudioError, match=f"truncated: it has {len(part)} of {len(content)} bytes"):
            read_audio(NamedAudio(part, name))


def test_a_live_recording_has_no_end(tmp_path):
    path = write_av(tmp_path / "a.webm", noise(0, 3 * 48000), "libopus", 48000, live="1")
    whole = read_audio(path)
    part = read_audio(NamedAudio(path.read_bytes()[: path.stat().st_size // 2], "a.webm"))
    assert 16000 < len(part) < len(whole) == 48000
    assert np.corrcoef(whole[: len(part) - 1000], part[:-1000])[0, 1] > 0.99
