"""Ogg Opus with gaps between its pages: they are silence, in whole files, parts and blocks."""

import io

import numpy as np
import pytest
from recordings import RATE, noise, write, write_av

from asr_jax.audio.io import AudioError, NamedAudio, probe, read_audio, stream_audio
from asr_jax.audio.ogg import has_gaps
from tests.support import approx, assert_close

GAP_S = (1.0, 2.5)


@pytest.fixture(params=[2.5, 20.0, 60.0])
def with_gap(tmp_path, request):
    """Opus whose packets have another duration each time; pages end at the gap."""
    return write_av(
        tmp_path / "a.opus",
        noise(0, 4 * 48000),
        "libopus",
        48000,
        frame_ms=request.param,
        gap_s=GAP_S,
        page_duration="200000",
    )


def test_gaps_are_silence(with_gap):
    whole = read_audio(with_gap)
    assert len(whole) == 4 * RATE
    assert probe(with_gap).duration_s == approx(4.0)
    levels = np.abs(whole.astype(float)).reshape(-1, RATE // 4).mean(axis=1)
    assert (levels[5:9] < 10).all()
    assert (np.delete(levels, slice(3, 11)) > 1000).all()
    for first in (0.25, 0.75, 2.75):
        part = {"start_s": first, "length_s": 0.75}
        expected = whole[int(first * RATE) :][: 3 * RATE // 4]
        # Parts are resampled without the samples before them.
        assert_close(read_audio(with_gap, **part)[100:-100], expected[100:-100], atol=2)
        blocks = np.concatenate(list(stream_audio(with_gap, rate_hz=RATE, **part)))
        assert_close(blocks[100:-100], expected[100:-100], atol=2)
    np.testing.assert_array_equal(np.concatenate(list(stream_audio(with_gap, rate_hz=RATE))), whole)
    named = NamedAudio(with_gap.read_bytes(), "a.ogg")
    np.testing.assert_array_equal(read_audio(named), whole)


def test_only_gaps_in_whole_opus_files_are_gaps(tmp_path, with_gap):
    content = with_gap.read_bytes()
    assert has_gaps(io.BytesIO(content))
    plain = write_av(tmp_path / "plain.opus", noise(0, 4 * 48000), "libopus", 48000, page_duration="200000")
    for path in (
        plain,
        write(tmp_path / "a.ogg", noise(0)),
        write(tmp_path / "b.ogg", noise(0, 60000), format="OGG", subtype="OPUS"),
        write(tmp_path / "a.wav", noise(0)),
    ):
        assert not has_gaps(io.BytesIO(path.read_bytes()))
    starts = [place for place in range(len(content)) if content.startswith(b"OggS", place)]
    lost = content[: starts[4]] + content[starts[5] :]
    assert not has_gaps(io.BytesIO(lost))
    with pytest.raises(AudioError, match="truncated"):
        read_audio(NamedAudio(lost, "a.ogg"))
    for size in (0, 3, 20, 60, starts[3] + 10):
        has_gaps(io.BytesIO(content[:size]))
