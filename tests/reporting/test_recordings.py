"""Recordings of reports: what is embedded can be decoded, and what is not there is named."""

import io
from base64 import b64decode

import numpy as np
import pytest
import soundfile
from matplotlib import image

from asr_jax.audio.io import read_audio
from asr_jax.data.manifests.locations import Location
from asr_jax.reporting.recordings import MOST_FRAMES, embedded, mp3, spectrogram
from tests.reporting.made import recording
from tests.support import assert_within


def content(uri, kind):
    head, _, data = uri.partition(",")
    assert head == f"data:{kind};base64"
    return io.BytesIO(b64decode(data))


def test_audio_is_compressed_and_sounds_the_same(tmp_path):
    path = recording(tmp_path / "a.flac", duration_s=3)
    found = embedded(str(path), most_bytes=10**6)
    assert (found.missing, found.duration_s) == ("", 3)
    samples, rate_hz = soundfile.read(content(found.audio, "audio/mpeg"))
    assert rate_hz == 16000
    assert len(content(found.audio, "audio/mpeg").getvalue()) < 3 * 3500
    expected = read_audio(path).astype(np.float64)
    spectra = [np.fft.rfft(each - each.mean(), 2**17) for each in (samples, expected)]
    energy = np.prod([np.linalg.norm(np.fft.irfft(each, 2**17)) for each in spectra])
    correlation = np.fft.irfft(spectra[0] * spectra[1].conj()) / energy
    lag = (correlation.argmax() + 2**16) % 2**17 - 2**16
    assert_within(abs(lag) / 16000, 0.15, what="seconds that the audio is late")
    assert_within(1 - correlation.max(), 0.1, what="one less the correlation")


def test_the_spectrogram_has_the_tone_where_it_is():
    times = np.arange(16000) / 16000
    samples = (8000 * np.sin(2 * np.pi * np.where(times < 0.5, 1000, 3000) * times)).astype(np.int16)
    picture = image.imread(content(spectrogram(samples), "image/webp"), format="webp")[..., :3].astype(float).sum(-1)
    rows, columns = picture.shape
    hz = 8000 * (1 - picture.argmax(axis=0) / rows)
    assert_within(np.abs(hz[columns // 4] - 1000), 160, what="Hz in the first half")
    assert_within(np.abs(hz[3 * columns // 4] - 3000), 160, what="Hz in the second half")


@pytest.mark.parametrize("num", [1, 399, 400, 16000, 16000 * 60])
def test_any_length_has_a_picture(num):
    samples = np.random.default_rng(0).integers(-9000, 9000, num).astype(np.int16)
    picture = image.imread(content(spectrogram(samples), "image/webp"), format="webp")
    assert 1 <= picture.shape[1] <= MOST_FRAMES
    assert mp3(samples)


def test_silence_has_a_picture():
    assert spectrogram(np.zeros(8000, np.int16))


def test_long_recordings_are_not_embedded(tmp_path, monkeypatch):
    path = recording(tmp_path / "a.flac", duration_s=3)
    size = embedded(str(path), most_bytes=10**6).num_bytes
    assert embedded(str(path), most_bytes=size).num_bytes == size
    assert "--audio-mb" in embedded(str(path), most_bytes=size - 1).missing
    monkeypatch.setattr("asr_jax.data.manifests.locations.read_audio", None)
    assert "--audio-mb" in embedded(str(path), most_bytes=3 * 4000).missing  # is not decoded


def test_what_is_not_read_is_named(tmp_path):
    (tmp_path / "text.flac").write_text("no audio")
    made = tmp_path / "made"
    for location, reason in (
        ("", "no location"),
        (str(tmp_path / "absent.flac"), "absent.flac"),
        (str(tmp_path / "text.flac"), "text.flac"),
        (str(Location(f"{tmp_path}/text.flac", command=f"touch {made}")), "a command or a URL"),
        ("https://example.org/a.flac", "a command or a URL"),
        (f"{tmp_path}/a.npy#features=3x80.npy", "features"),
    ):
        found = embedded(location, most_bytes=10**6)
        assert reason in found.missing
        assert found.num_bytes == 0
    assert not made.exists()
