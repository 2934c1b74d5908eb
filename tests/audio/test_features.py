import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.audio.features import KaldiFbank


@pytest.mark.parametrize("snip_edges", [False, True])
def test_padding_and_batching_never_change_a_frame(snip_edges):
    front_end = KaldiFbank(snip_edges=snip_edges)
    rng = np.random.default_rng(0)
    lengths = np.array([4000, 3999, 1601, 400], np.int32)
    audio = rng.integers(-9000, 9000, (4, 5000)).astype(np.int16)
    jitted = jax.jit(front_end)
    noisy = jitted(jnp.asarray(audio), jnp.asarray(lengths))  # noise, not zeros, behind each row's end
    for row, length in enumerate(lengths):
        alone = front_end(jnp.asarray(audio[row : row + 1, :length]), jnp.asarray(lengths[row : row + 1]))
        num_frames = int(noisy.lengths[row])
        assert num_frames == int(alone.lengths[0]) == alone.values.shape[1]
        energy, expected = np.exp(noisy.values[row, :num_frames]), np.exp(alone.values[0])
        # Two compilations round differently, relative to a frame's strongest bin.
        assert (np.abs(energy - expected) < 1e-5 * expected.max(axis=1, keepdims=True)).all()
        quiet = np.zeros_like(audio)
        quiet[row, :length] = audio[row, :length]
        same_shape = jitted(jnp.asarray(quiet), jnp.asarray(lengths))
        np.testing.assert_array_equal(noisy.values[row, :num_frames], same_shape.values[row, :num_frames])
    silence = np.log(2.0**-23)
    assert np.allclose(noisy.values[3, int(noisy.lengths[3]) :], silence)


@pytest.mark.parametrize("snip_edges", [False, True])
def test_output_length_is_true_for_ints_and_arrays(snip_edges):
    front_end = KaldiFbank(snip_edges=snip_edges)
    for num_samples in (0, 79, 80, 399, 400, 401, 559, 560, 1600):
        frames = front_end(jnp.zeros((1, num_samples)), jnp.array([num_samples]))
        assert frames.values.shape[1] == front_end.output_length(num_samples) == int(frames.lengths[0])


def test_other_hops_and_rates_mirror_enough():
    front_end = KaldiFbank(rate_hz=8000, hop_ms=12.5, window_ms=32.0, num_mels=23)
    frames = front_end(jnp.ones((1, 1000)) * 3000, jnp.array([1000]))
    assert frames.values.shape == (1, front_end.output_length(1000), 23)
    assert np.isfinite(frames.values).all()


@pytest.mark.parametrize("wrong", [{"num_mels": 0}, {"hop_ms": 30.0}, {"low_hz": 9000.0}, {"high_hz": 8001.0}])
def test_impossible_settings_are_named(wrong):
    with pytest.raises(ValueError, match=str(next(iter(wrong.values())))):
        KaldiFbank(**wrong)
