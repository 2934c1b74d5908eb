"""Kaldi fbank against kaldi-native-fbank, for every configuration whose options our front-end has.

Both compute in float32. The rounding error of the Fourier transform is relative to a frame's strongest bin: a float64
computation differs by up to 3e-4 from either in the weakest bins. Therefore logarithms within 40 dB of the strongest
bin must agree to `of_strong_bins`, and energies of weaker bins to 1e-6 of the strongest.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.audio.features import FLOAT_EPSILON, KaldiFbank
from asr_jax.audio.mel import mel_bank
from asr_jax.audio.spectrum import kaldi_windows, mel_energies
from asr_jax.core.batch import Frames
from tests.goldens.test_front_ends import of_strong_bins
from tests.support import assert_within, golden_cases

pytestmark = pytest.mark.golden

NAMES = {  # our option for each one of kaldi-native-fbank
    "num_bins": "num_mels", "snip_edges": "snip_edges", "high_freq": "high_hz", "low_freq": "low_hz",
    "window_type": "window", "preemph": "preemphasis", "scale": "scale", "samp": "rate_hz",
}  # fmt: skip
CONSTANT = {"round": True, "use_power": True, "remove_dc": True}
"""Options that our front-end does not have, and their values in it."""


def settings_of(options):
    renamed = {NAMES[name]: "hann" if value == "hanning" else value for name, value in options.items() if name in NAMES}
    return KaldiFbank(**({"snip_edges": True, "high_hz": 0.0} | renamed))


def frames_of(front_end, options, audio, lengths):
    """Returns the front-end's frames, with the other values of CONSTANT in `options`."""
    given = CONSTANT | {name: options[name] for name in CONSTANT if name in options}
    if given == CONSTANT:
        return front_end(audio, lengths)
    assert not given["round"]
    rate, size = front_end.rate_hz, round(front_end.window_ms * front_end.rate_hz / 1000)
    num_frames = front_end.output_length(audio.shape[1])
    frames = kaldi_windows(
        audio * (front_end.scale / 32768), lengths, num_frames, window=size, hop=front_end.hop, size=size,
        snip_edges=front_end.snip_edges, preemphasis=front_end.preemphasis, removes_mean=given["remove_dc"],
    )  # fmt: skip
    bank = mel_bank(front_end.num_mels, size, rate, *front_end.band_hz, scale="kaldi", equal_area=False)
    mels = mel_energies(frames, window=front_end.window, length=size, bank=bank, power=given["use_power"])
    return Frames(jnp.log(jnp.maximum(mels, FLOAT_EPSILON)), front_end.output_length(lengths))


@pytest.mark.parametrize("case", golden_cases("features", "fbank*"))
def test_equals_kaldi_native_fbank(case):
    arrays, front_ends, batches, keys = case.arrays(), {}, {}, {}
    configs = case.info["configs"]
    for name, options in configs.items():
        if not name.startswith("knf/") or not set(options) <= {*NAMES, *CONSTANT}:
            continue
        front_ends[name] = settings_of(options)
        step = 16000 // front_ends[name].rate_hz
        rows = sorted((key for key in arrays if key.startswith(name + "/")), key=lambda key: int(key.rsplit("/", 1)[1]))
        waves = [arrays["wav_" + key.rsplit("/", 1)[1]][::step] for key in rows]
        lengths = np.array([len(wave) for wave in waves], np.int32)
        padded = np.zeros((len(waves), lengths.max() + 777), np.float32)
        for row, wave in enumerate(waves):
            padded[row, : len(wave)] = wave * 32768
        batches[name], keys[name] = (padded, lengths), rows
    # One program for all; operation by operation, hundreds of programs would be compiled.
    computed = jax.device_get(
        jax.jit(
            lambda batches: {
                name: frames_of(front_ends[name], configs[name], *batch) for name, batch in batches.items()
            }
        )(batches)
    )
    shapes = [arrays[key].shape for rows in keys.values() for key in rows]
    most_frames, most_bins = map(max, zip(*shapes, strict=True))
    for name, frames in computed.items():
        for row, key in enumerate(keys[name]):
            expected = arrays[key]
            assert int(frames.lengths[row]) == len(expected), key
            actual = frames.values[row, : len(expected)]
            power = configs[name].get("use_power", True)
            depth = expected.max(axis=1, keepdims=True) - expected
            strong = depth < np.log(1e4) * (1.0 if power else 0.5)
            padded = np.zeros((most_frames, most_bins), np.float32)  # of one shape, for which alone it is compiled
            padded[: depth.shape[0], : depth.shape[1]] = depth
            allowed = np.asarray(of_strong_bins(padded, power=power))[: depth.shape[0], : depth.shape[1]]
            share = (np.abs(actual - expected) / allowed)[strong]
            assert_within(share.max(), 1.0, what=key)
            energy, strongest = np.exp(expected), np.exp(expected).max(axis=1, keepdims=True)
            weak = np.where(strong, 0.0, np.abs(np.exp(actual) - energy) / strongest)
            assert_within(weak.max(), 1e-6, what=f"{key}, energy of weak bins")
    assert any(keys.values()), "no configuration of kaldi-native-fbank in the case"
