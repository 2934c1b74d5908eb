"""Gain, noise, babble, reverberation and telephone bandwidth: measured effects on samples."""

import math
import os
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import soundfile
from recordings import write_av

from asr_jax.audio.distort import (
    Babble,
    BackgroundNoise,
    Gain,
    NarrowBand,
    Reverberation,
    UniformNoise,
)  # fmt: skip
from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.io import write_flac
from asr_jax.audio.ramp import Ramp
from asr_jax.audio.sounds import read_sounds
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import by_rows, data_mesh, replicated
from tests.support import approx, assert_close, assert_within

STEP = jnp.int32(0)
RATE = 16000
# Tests with the same settings and shapes run the same program.
NOISE = BackgroundNoise(probability=1.0, folder="x", snr_db=Ramp(last=(5.0, 10.0)))
VOICES = Babble(probability=1.0, snr_db=Ramp(last=(-1.0, 1.0)))
ROOM = Reverberation(probability=1.0, folder="x")


def tone(hz, num_samples=8000, level=3000.0):
    return (level * np.sin(2 * np.pi * hz * np.arange(num_samples) / RATE)).astype(np.float32)


@partial(jax.jit, static_argnums=0)
def run(settings, values, lengths, key, step, sounds):
    """Returns the random values and the augmented rows."""
    return settings.drawn(values, lengths, key, step=step), settings(
        values, lengths, key, step=step, front_end=KaldiFbank(), sounds=sounds
    )


def drawn_and_changed(settings, rows, lengths=None, *, sound=None):
    values = np.stack(rows)
    lengths = np.full(len(rows), values.shape[1]) if lengths is None else np.asarray(lengths)
    held = {} if sound is None else {settings.sound: sound}
    return jax.device_get(run(settings, values, lengths, jax.random.key(0), STEP, held))


def changed(settings, rows, lengths=None, *, sound=None):
    return drawn_and_changed(settings, rows, lengths, sound=sound)[1]


def power(samples):
    return float(np.mean(np.square(samples, dtype=np.float64)))


def test_gain_is_uniform_in_decibels():
    rows = [tone(300)] * 300
    drawn, found = drawn_and_changed(Gain(db=(-6.0, 3.0)), rows)
    decibels = 10 * np.log10([power(row) / power(rows[0]) for row in found])
    assert_close(decibels, drawn["gain_db"], atol=1e-3)
    assert decibels.min() > -6.001
    assert decibels.max() < 3.001
    assert abs(decibels.mean() + 1.5) < 3 * 9 / np.sqrt(12 * 300)


def test_uniform_noise_has_its_level_is_clipped_and_leaves_padding_silent():
    rows = [np.zeros(8000, np.float32)] * 2 + [np.full(8000, 32767, np.float32)]
    *found, loud = changed(UniformNoise(level=(0.5, 0.5)), rows, [8000, 3000, 8000])
    assert 0.99 * 16384 < np.abs(found[0]).max() <= 16384
    assert_within(abs(power(found[0]) / (16384**2 / 3) - 1), 0.05)
    assert not np.array_equal(found[0], found[1])
    assert not found[1][3000:].any()
    assert loud.max() <= 32767


def test_background_noise_comes_at_its_ratio_and_keeps_the_power():
    rng = np.random.default_rng(0)
    noise = rng.normal(0, 500, 5000).astype(np.int16)
    rows, lengths = [tone(300)] * 20, [8000] * 10 + [5000] * 10
    drawn, found = drawn_and_changed(NOISE, rows, lengths, sound=noise)
    ratios = drawn["snr_db"]
    assert ratios.min() > 5
    assert ratios.max() < 10
    for row, length, ratio in zip(found, lengths, ratios, strict=True):
        clean = rows[0][:length]
        assert_close(power(row[:length]), power(clean), rtol=1e-4)
        share = np.dot(row[:length], clean) / np.dot(clean, clean)
        rest = row[:length] - share * clean
        assert abs(10 * np.log10(power(share * clean) / power(rest)) - ratio) < 0.2
        assert not row[length:].any()


def test_noise_begins_anywhere_and_goes_on_from_its_end_and_silence_is_left_alone():
    noise = np.arange(1, 5001, dtype=np.int16)
    rows = [np.ones(8000, np.float32)] * 19 + [np.zeros(8000, np.float32)]
    drawn, (*found, silent) = drawn_and_changed(NOISE, rows, sound=noise)
    places = drawn["place"][:-1]
    for row, place in zip(found, places, strict=True):
        first = int(place * 5000)
        excerpt = noise[(first + np.arange(8000)) % 5000]
        assert_close(np.corrcoef(row, excerpt)[0, 1], 1.0, atol=1e-6)
    assert np.ptp(places) > 0.5
    assert not silent.any()


def test_the_ratio_moves_while_the_run_goes_on():
    ramp = Ramp(first=(30.0, 60.0), last=(0.0, 30.0), begin_updates=100, ramp_updates=50)
    settings = BackgroundNoise(folder="x", snr_db=ramp)
    draw = jax.jit(partial(settings.drawn, key=jax.random.key(0)))
    for step, (low, high) in ((0, (30, 60)), (99, (30, 60)), (124, (15, 45)), (149, (0, 30)), (10_000, (0, 30))):
        values = np.asarray(
            draw(np.zeros((2000, 1), np.float32), np.ones(2000, np.int32), step=np.int32(step))["snr_db"]
        )
        assert low <= values.min() < low + 0.2
        assert high - 0.2 < values.max() <= high


@pytest.mark.parametrize("num_voices", [3, 8])
def test_babble_is_the_next_voice_repeated(num_voices):
    """With and without rows of padding."""
    voices_hz, lengths = [300 + 400 * number for number in range(num_voices)], [8000, 2000] + [8000] * (num_voices - 2)
    num_padding = 8 - num_voices
    rows = [tone(hz) for hz in voices_hz] + [np.zeros(8000, np.float32)] * num_padding
    found = changed(VOICES, rows, lengths + [0] * num_padding)[:num_voices]
    pairs = zip(voices_hz, voices_hz[1:] + voices_hz[:1], strict=True)
    for row, length, both in zip(found, lengths, pairs, strict=True):
        spectrum = np.abs(np.fft.rfft(row[:length]))
        peaks_hz = np.flatnonzero(spectrum > 0.3 * spectrum.max()) * RATE / length
        assert all(np.abs(peaks_hz - hz).min() < 10 for hz in both)
        assert all(min(abs(peak - hz) for hz in both) < 20 for peak in peaks_hz)


def test_a_room_is_a_convolution_with_the_power_before():
    rng = np.random.default_rng(0)
    impulse = np.zeros((2, 400), np.float32)
    impulse[0, [0, 100, 300]] = [0.8, 0.5, 0.2]
    impulse[1, 0] = 1.0
    rows = [rng.normal(0, 900, 3000).astype(np.float32)] * 12
    lengths = [3000] * 6 + [2000] * 6
    drawn, found = drawn_and_changed(ROOM, rows, lengths, sound=impulse)
    chosen = np.floor(drawn["place"] * 2).astype(int)
    assert set(chosen) == {0, 1}
    for row, length, which in zip(found, lengths, chosen, strict=True):
        dry = rows[0][:length]
        wet = np.convolve(dry, impulse[which])[:length]
        wet *= np.sqrt(power(dry) / power(wet))
        assert_close(row[:length], wet, atol=0.1)
        assert not row[length:].any()


def test_a_telephone_leaves_nothing_above_half_of_its_rate():
    settings = NarrowBand(probability=1.0)
    low, high = changed(settings, [tone(1000), tone(5500)])
    assert_close(low[200:-200], tone(1000)[200:-200], atol=30)
    assert_within(power(high[200:-200]), 1e-4, scale=power(tone(5500)))
    same = changed(NarrowBand(probability=0.0), [tone(5500)])
    np.testing.assert_array_equal(same[0], tone(5500))
    with pytest.raises(ValueError, match="NarrowBand resamples to 8000 Hz"):
        settings.check(KaldiFbank(rate_hz=8000))


def test_what_is_not_drawn_is_left_as_it_is():
    every = Gain(probability=0.0), Babble(probability=0.0), UniformNoise(probability=0.0)

    @jax.jit
    def by_each(values, lengths, key):
        return [settings(values, lengths, key, step=STEP, front_end=KaldiFbank(), sounds={}) for settings in every]

    rows = np.stack([tone(300), tone(500)])
    for found in by_each(rows, np.full(2, 8000), jax.random.key(0)):
        np.testing.assert_array_equal(found, rows)


def test_the_probability_rises_during_the_ramp():
    @jax.jit
    def share(step):
        rows, lengths = jnp.zeros((4000, 2)), jnp.full(4000, 2)
        settings = Gain(probability=0.8, ramp_updates=4)
        return settings.drawn(rows, lengths, jax.random.key(0), step=step)["applied"].mean()

    for step, expected in ((0, 0.2), (1, 0.4), (2, 0.6), (3, 0.8), (9000, 0.8)):
        assert float(share(step)) == approx(expected, abs=0.04)  # five standard deviations


def test_a_probability_may_be_a_whole_number():
    settings = Gain()
    object.__setattr__(settings, "probability", 1)  # a config can contain an int
    assert (changed(settings, [tone(300)])[0] != tone(300)).any()


def test_sounds_are_read_from_folders(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    (tmp_path / "noise" / "inner").mkdir(parents=True)
    for name, seconds in (("a.flac", 1), ("inner/b.flac", 4), ("c.flac", 4)):
        write_flac(tmp_path / "noise" / name, rng.integers(-900, 900, seconds * 8000).astype(np.int16), 8000)
    settings = BackgroundNoise(folder=str(tmp_path / "noise"), minutes=5 / 60)
    (noise,) = read_sounds([settings], rate_hz=RATE).values()
    assert noise.dtype == np.int16
    assert abs(len(noise) - 5 * RATE) < 5  # the short recording, and equal parts of the others
    every = BackgroundNoise(folder=str(tmp_path / "noise"))
    both = read_sounds([settings, every], rate_hz=RATE)
    assert [len(both[settings.sound]), len(both[every.sound])] == [len(noise), 9 * RATE]
    (tmp_path / "rooms").mkdir()
    impulse = np.zeros(4000, np.int16)
    impulse[700], impulse[900] = 20000, -10000
    for number in range(4):
        write_flac(tmp_path / "rooms" / f"{number}.flac", np.roll(impulse, number), RATE)
    monkeypatch.setattr("asr_jax.audio.sounds.MAX_RESPONSES", 3)
    (rooms,) = read_sounds([Reverberation(folder=str(tmp_path / "rooms"))], rate_hz=RATE).values()
    assert rooms.shape == (3, RATE // 2)
    assert_close(rooms[:, 200] / rooms[:, 0], -0.5)
    assert_close(np.square(rooms).sum(axis=1), 1, rtol=1e-6)


def test_responses_are_read_at_any_scale_and_by_their_first_channel(tmp_path):
    for name, scale in (("quiet", 1e-4), ("loud", 2.0)):
        response = np.zeros((500, 2), np.float32)
        response[10], response[210] = (scale, -scale), (0.4 * scale, 0.1 * scale)
        soundfile.write(tmp_path / f"{name}.wav", response, RATE, subtype="FLOAT")
    (rooms,) = read_sounds([Reverberation(folder=str(tmp_path))], rate_hz=RATE).values()
    assert_close(rooms[:, 200] / rooms[:, 0], 0.4, rtol=1e-6)
    write_av(tmp_path / "room.m4a", tone(300).astype(np.int16), "aac", RATE)
    assert len(*read_sounds([Reverberation(folder=str(tmp_path))], rate_hz=RATE).values()) == 3
    (tmp_path / "quiet.wav").write_bytes(b"RIFF")
    os.mkfifo(tmp_path / "apipe.wav")
    for name, reason in (("apipe", "a pipe or a device"), ("quiet", "not audio that libsndfile can read")):
        with pytest.raises(UserError, match=rf"{name}\.wav: {reason}"):
            read_sounds([Reverberation(folder=str(tmp_path))], rate_hz=RATE)
        (tmp_path / f"{name}.wav").unlink()


def test_one_voice_alone_gets_no_babble():
    rows = [tone(300)] + [np.zeros(8000, np.float32)] * 7
    np.testing.assert_array_equal(changed(VOICES, rows, [8000] + [0] * 7), rows)


def test_folders_without_sounds_are_named(tmp_path):
    with pytest.raises(UserError, match="no such folder"):
        read_sounds([BackgroundNoise(folder=str(tmp_path / "none"))], rate_hz=RATE)
    with pytest.raises(UserError, match="has no audio"):
        read_sounds([Reverberation(folder=str(tmp_path))], rate_hz=RATE)
    (tmp_path / "damaged.wav").write_bytes(b"RIFF")
    with pytest.raises(UserError, match=r"damaged\.wav"):
        read_sounds([BackgroundNoise(folder=str(tmp_path))], rate_hz=RATE)
    (tmp_path / "damaged.wav").unlink()
    write_flac(tmp_path / "silent.flac", np.zeros(800, np.int16), RATE)
    for settings in (BackgroundNoise(folder=str(tmp_path)), Reverberation(folder=str(tmp_path))):
        with pytest.raises(UserError, match="silent"):
            read_sounds([settings], rate_hz=RATE)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Gain(db=(1, 0)), r"db is \(1, 0\): expected the lower limit first"),
        (lambda: Gain(db=(0.0, math.inf)), r"db is \(0.0, inf\): expected each at least -100 and at most 100"),
        (lambda: Ramp(first=(0.0, math.inf)), "expected each a finite number"),
        (lambda: Ramp(first=(0.0,)), r"first is \(0.0,\) and last is .*: expected equal numbers of values"),
        (lambda: Babble(snr_db=Ramp((0.0,), (1.0,))), "snr_db is .*: expected a minimum and a maximum"),
        (lambda: UniformNoise(level=(0, 2)), "expected each at least 0 and at most 1"),
        (lambda: BackgroundNoise(), "folder is empty"),
        (lambda: BackgroundNoise(folder="x", minutes=0), "minutes is 0"),
        (lambda: Ramp(first=(3.0, 1.0)), r"first is \(3.0, 1.0\)"),
        (lambda: Ramp(ramp_updates=-1), "ramp_updates is -1"),
    ],
)
def test_impossible_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        (VOICES, (8, 8000)),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (NOISE, (20, 8000)), (ROOM, (12, 3000)), (Gain(), (8, 3000)), (UniformNoise(), (8, 3000)),
                (NarrowBand(probability=0.5), (8, 3000)),
            )
        ),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_the_same_is_drawn_on_one_and_on_four_devices(settings, shape):
    rng = np.random.default_rng(0)
    values, lengths = rng.normal(0, 900, shape).astype(np.float32), rng.integers(1000, 3000, shape[0])
    noise, rooms = rng.integers(-900, 900, 5000).astype(np.int16), rng.normal(size=(2, 400)).astype("f4")
    sounds = {settings.sound: rooms if settings == ROOM else noise} if hasattr(settings, "sound") else {}
    of_all, mesh = (jax.random.key(3), STEP, sounds), data_mesh(4)
    drawn, changed = jax.device_get(run(settings, values, lengths, *of_all))
    rows, of_all = jax.device_put((values, lengths), by_rows(mesh)), jax.device_put(of_all, replicated(mesh))
    drawn_there, changed_there = jax.device_get(run(settings, *rows, *of_all))
    jax.tree.map(np.testing.assert_array_equal, drawn, drawn_there)
    if settings == ROOM:  # Fourier transforms round differently with another batch size
        assert_close(changed, changed_there, atol=0.01)
    else:
        np.testing.assert_array_equal(changed, changed_there)
