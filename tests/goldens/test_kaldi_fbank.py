"""Kaldi fbank against kaldi-native-fbank: every configuration whose options this front-end has.

Both compute in float32, whose rounding in the Fourier transform is relative to a frame's strongest bin: a float64
computation is up to 3e-4 away from either in the weakest. So logarithms within 40 dB of the strongest must agree to
1e-4, and the energies of weaker bins to 1e-6 of it.
"""

import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.audio.features import KaldiFbank
from tests.support import golden_cases, max_abs

pytestmark = pytest.mark.golden

NAMES = {  # kaldi-native-fbank's option: ours
    "num_bins": "num_mels", "snip_edges": "snip_edges", "high_freq": "high_hz", "low_freq": "low_hz",
    "window_type": "window", "preemph": "preemphasis", "round": "round_to_power_of_two", "use_power": "power",
    "remove_dc": "remove_dc", "scale": "scale", "samp": "rate_hz",
}  # fmt: skip


@pytest.mark.parametrize("case", golden_cases("features", "fbank*"))
def test_equals_kaldi_native_fbank(case, record_property):
    arrays = case.arrays()
    compared = 0
    for name, options in case.info["configs"].items():
        if not name.startswith("knf/") or not set(options) <= set(NAMES):
            continue
        renamed = {NAMES[k]: "hann" if v == "hanning" else v for k, v in options.items()}
        settings = KaldiFbank(**({"snip_edges": True, "high_hz": 0.0} | renamed))
        rows = sorted((key for key in arrays if key.startswith(name + "/")), key=lambda key: int(key.rsplit("/", 1)[1]))
        step = 16000 // settings.rate_hz
        waves = [arrays["wav_" + key.rsplit("/", 1)[1]][::step] for key in rows]
        lengths = np.array([len(wave) for wave in waves], np.int32)
        padded = np.zeros((len(waves), lengths.max() + 777), np.float32)
        for row, wave in enumerate(waves):
            padded[row, : len(wave)] = wave * 32768
        frames = settings(jnp.asarray(padded), jnp.asarray(lengths))
        for row, key in enumerate(rows):
            expected = arrays[key]
            assert int(frames.lengths[row]) == len(expected), key
            actual = np.asarray(frames.values[row, : len(expected)])
            strong = expected > expected.max(axis=1, keepdims=True) - np.log(1e4) * (1.0 if settings.power else 0.5)
            difference = max_abs(actual[strong], expected[strong])
            record_property(key, difference)
            assert difference < 1e-4, f"{key}: {difference}"
            energy, strongest = np.exp(expected), np.exp(expected).max(axis=1, keepdims=True)
            assert (strong | (np.abs(np.exp(actual) - energy) <= 1e-6 * strongest)).all(), key
            compared += 1
    assert compared, "no configuration of kaldi-native-fbank in the case"
