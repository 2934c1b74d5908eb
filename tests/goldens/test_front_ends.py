"""Front-ends against the code of the systems whose models they serve, with the settings in each case's file.

NVIDIA's and NeMo's code applies reflection and pre-emphasis to the padded batch; our front-ends apply them to each row
without its padding. Our front-end therefore gets such rows including the silence of their padding, and normalises them
over their valid frames.

Tolerances: logarithms within 40 dB of a frame's strongest bin differ by less than 1e-4, or by the roundings of a
Fourier transform in float32 if these are more (`of_strong_bins`), and energies of weaker bins by less than 1e-6 of the
strongest. Energies without a logarithm differ by less than 1e-4, or by 1e-5 of the strongest bin of their row.
"""

import re
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.logmel import LogMel
from asr_jax.audio.mel import mel_bank
from asr_jax.audio.presets import wav2vec2, whisper
from asr_jax.audio.spectrum import mel_energies, window_shape
from asr_jax.audio.stages import Normalise, NormaliseByDataSet, RoundUp, Stack
from tests.support import ROUNDING, assert_within, golden_cases

pytestmark = pytest.mark.golden

TOLERANCE = 1e-4


def batch_of(waves, lengths=None):
    """Returns waveforms of full scale 1 as padded samples, and their lengths."""
    lengths = [len(wave) for wave in waves] if lengths is None else lengths
    padded = np.zeros((len(waves), max(map(len, waves))), np.float32)
    for row, wave in enumerate(waves):
        padded[row, : len(wave)] = wave * 32768
    return padded, np.asarray(lengths, np.int32)


def computed(functions, batches):
    """Returns the output of each function for its batch; one program computes all."""
    together = jax.jit(lambda batches: {name: functions[name](*batch) for name, batch in batches.items()})
    return jax.device_get(together(batches))


def compare(name, actual, expected, *, allowed=TOLERANCE):
    assert_within(np.max(np.abs(np.asarray(actual, np.float64) - expected) / allowed, initial=0.0), 1.0, what=name)


def of_strong_bins(depth, *, power=True):
    """Returns the allowed difference of logarithms of bins that are up to 40 dB below the strongest one of a frame.

    A Fourier transform of 512 samples has 9 stages, each with a complex product and a sum. They have 36 roundings of
    the strongest amplitude, of at most 2^-24. Two implementations differ by twice as much, and the logarithm of a bin
    by this times the ratio of the amplitudes.

    Args:
        depth: Logarithm of the strongest bin less that of the bin.
        power: Whether the bins are of power spectra instead of magnitude spectra.
    """
    exponent = 2.0 if power else 1.0
    return jnp.maximum(TOLERANCE, exponent * 2 * 36 * ROUNDING * jnp.exp(depth / exponent))


def tolerance(bare, front_end, *, power=True):
    """Returns the allowed difference of each value, from the frames before the stages."""
    is_there = np.arange(bare.values.shape[1])[None, :, None] < bare.lengths[:, None, None]
    if getattr(front_end, "log", "natural") == "none":
        strongest = jnp.max(jnp.where(is_there, bare.values, 0.0), axis=(1, 2), keepdims=True)
        allowed = jnp.broadcast_to(jnp.maximum(TOLERANCE, 1e-5 * strongest), bare.values.shape)
        return _after_stages(bare, allowed, front_end)
    depth = jnp.where(is_there, jnp.max(bare.values, axis=2, keepdims=True) - bare.values, 0.0)
    weak = 1e-6 * jnp.exp(jnp.minimum(depth, 40.0))
    is_strong = depth < np.log(1e4) * (1.0 if power else 0.5)
    allowed = jnp.where(is_strong, of_strong_bins(depth, power=power), weak)
    return _after_stages(bare, allowed, front_end)


def _after_stages(bare, allowed, front_end):
    found, allowed = bare, bare.replace(values=allowed)
    for stage in front_end.then:
        if isinstance(stage, Normalise):
            allowed = allowed.replace(values=allowed.values / stage.statistics(found)[1])
        elif isinstance(stage, NormaliseByDataSet):
            allowed = allowed.replace(values=allowed.values / np.asarray(stage.deviation)[None, None])
        else:
            allowed = stage(allowed, step=None)
        found = stage(found, step=None)
    return jnp.maximum(allowed.values, TOLERANCE)


class Given(NamedTuple):
    """Inputs of a front-end, and the reference's frames."""

    front_end: Any
    waves: Any
    lengths: Any
    expected: Any
    counts: Any = None
    """Numbers of valid frames, if the reference's differ from those of the lengths."""
    power: bool = True
    """Whether the mel bins are of power spectra instead of magnitude spectra."""

    def with_tolerance(self, waves, lengths):
        """Returns frames and the allowed difference of each value."""
        bare = replace(self.front_end, then=())(waves, lengths)
        if self.counts is None:
            return self.front_end(waves, lengths), tolerance(bare, self.front_end, power=self.power)
        frames = bare = bare.replace(lengths=jnp.asarray(self.counts, jnp.int32))
        for stage in self.front_end.then:
            frames = stage(frames, step=None)
        return frames, tolerance(bare, self.front_end, power=self.power)


def check(given):
    """Compares all valid frames of all rows of each named front-end."""
    functions = {name: each.with_tolerance for name, each in given.items()}
    batches = {name: batch_of(each.waves, each.lengths) for name, each in given.items()}
    found = computed(functions, batches)
    for name, (frames, allowed) in found.items():
        for row, count in enumerate(frames.lengths):
            expected = given[name].expected[row][:count]
            compare(f"{name}/{row}", frames.values[row, :count], expected, allowed=allowed[row, :count])
    return {name: frames for name, (frames, _) in found.items()}


def normalisation(name):
    return {"per_feature": (Normalise(),), "all_features": (Normalise(over="all"),), "none": (), None: ()}[name]


@pytest.mark.parametrize("case", golden_cases("dle_quartznet", "features*"))
def test_nvidia_quartznet(case):
    arrays, given = case.arrays(), {}
    for name, config in case.info["configs"].items():
        rate, window_ms = config["sample_rate"], 1000 * config["window_size"]
        width = int(rate * config["window_size"])
        align = config["pad_align"]
        front_end = LogMel(
            rate_hz=rate, num_mels=config["n_filt"], window_ms=window_ms, hop_ms=1000 * config["window_stride"],
            window=config["window"], fft_length=config["n_fft"] or 1 << (width - 1).bit_length(), framing="ceil",
            low_hz=config.get("lowfreq", 0), high_hz=config.get("highfreq") or 0.0,
            preemphasis=config["preemph"] or 0.0, log="natural_of_sum" if config["log"] else "none",
            then=(*normalisation(config["normalize"]), *([RoundUp()] if align else [])),
        )  # fmt: skip
        bank = mel_bank(
            front_end.num_mels, front_end.fft_length, rate, *front_end.band_hz, scale="slaney", equal_area=True
        )
        compare(f"{name}/fb", bank.T, arrays[f"{name}/fb"][0])
        compare(f"{name}/window", window_shape(front_end.window, width), arrays[f"{name}/window"])
        lengths, counts = arrays["input/lengths"], arrays[f"{name}/lens"]
        np.testing.assert_array_equal(front_end.output_length(lengths), counts)
        expected, waves = arrays[f"{name}/feat"].transpose(0, 2, 1), arrays["input/waveform"]
        given[name] = Given(front_end, waves, None, expected, counts)
        if whole := np.flatnonzero(lengths == waves.shape[1]).tolist():  # without padding: unchanged
            given[f"{name}/whole"] = Given(front_end, waves[whole], None, expected[whole])
    found = check(given)
    for name, config in case.info["configs"].items():
        assert found[name].values.shape[1] % (config["pad_align"] or 1) == 0


NEMO = {
    "sample_rate": 16000, "n_window_size": 320, "n_window_stride": 160, "window": "hann", "normalize": "per_feature",
    "n_fft": None, "preemph": 0.97, "nfilt": 64, "lowfreq": 0, "highfreq": None, "log": True,
    "log_zero_guard_type": "add", "log_zero_guard_value": 2.0**-24, "dither": 0.0, "exact_pad": False, "mag_power": 2.0,
    "mel_norm": "slaney", "frame_splicing": 1, "nb_augmentation_prob": 0.0, "stft_conv": False, "stft_exact_pad": False,
}  # fmt: skip
"""Defaults of FilterbankFeatures, except dither, which is 0."""
NEMO_WITHOUT_EFFECT = {"pad_to", "pad_value", "max_duration", "nb_max_freq", "use_grads", "rng"}
"""Options of padding, which is not compared, and options without effect in these cases."""
NEMO_GUARDS = {"tiny": float(np.finfo(np.float32).tiny), "eps": float(np.finfo(np.float32).eps)}


def milliseconds(num_samples, rate_hz):
    """Returns slightly more than the exact milliseconds: the front-end rounds down, and 1000 / 22050 is not exact."""
    return 1000 * (num_samples + 1e-6) / rate_hz


def nemo_front_end(config):
    if unknown := config.keys() - NEMO.keys() - NEMO_WITHOUT_EFFECT:
        pytest.fail(f"unknown option: {', '.join(sorted(unknown))}")
    config = NEMO | config
    handled = {
        "dither": [0.0], "mag_power": [1.0, 2.0], "log_zero_guard_type": ["add", "clamp"], "mel_norm": ["slaney"],
        "frame_splicing": [1], "nb_augmentation_prob": [0.0], "stft_conv": [False], "stft_exact_pad": [False],
    }  # fmt: skip
    for name, values in handled.items():
        if config[name] not in values:
            pytest.fail(f"unknown option: {name} is {config[name]}, expected {' or '.join(map(str, values))}")
    rate, window = config["sample_rate"], config["n_window_size"]
    guard = NEMO_GUARDS.get(config["log_zero_guard_value"], config["log_zero_guard_value"])
    clamps = config["log_zero_guard_type"] == "clamp"
    return LogMel(
        rate_hz=rate, num_mels=config["nfilt"], window_ms=milliseconds(window, rate),
        hop_ms=milliseconds(config["n_window_stride"], rate), window=config["window"],
        fft_length=config["n_fft"] or 1 << (window - 1).bit_length(), edges="zeros",
        framing="hop_centred" if config["exact_pad"] else "floor", low_hz=config["lowfreq"],
        high_hz=config["highfreq"] or 0.0, preemphasis=config["preemph"] or 0.0,
        log=("natural" if clamps else "natural_of_sum") if config["log"] else "none", log_guard=guard,
        then=normalisation(config["normalize"]),
    )  # fmt: skip


@pytest.mark.parametrize("case", golden_cases("nemo", "features*"))
def test_nemo(case, monkeypatch):
    arrays, given = case.arrays(), {}
    for name, config in case.info["configs"].items():
        front_end, config = nemo_front_end(config), NEMO | config
        exact = config["exact_pad"]
        lengths, waves = arrays["input/lengths"], arrays["input/waveform"].copy()
        counts = arrays[f"{name}/lens"]
        if exact:
            # NeMo computes its time mask before padding and applies it to the padded signal, which cuts off the end
            # after pre-emphasis. A decaying end reproduces this. NeMo's lengths exclude the last frame.
            np.testing.assert_array_equal(front_end.output_length(lengths) - 1, counts)
            for row, length in enumerate(lengths):
                cut = length - (front_end.fft_length - config["n_window_stride"]) // 2
                waves[row, cut:length] = waves[row, cut - 1] * front_end.preemphasis ** np.arange(1, length - cut + 1)
        else:
            np.testing.assert_array_equal(front_end.output_length(lengths), counts)
        expected = arrays[f"{name}/feat"].transpose(0, 2, 1)
        given[name] = Given(front_end, waves, lengths, expected, counts if exact else None, config["mag_power"] == 2.0)
    check({name: each for name, each in given.items() if each.power})
    monkeypatch.setattr("asr_jax.audio.logmel.mel_energies", partial(mel_energies, power=False))
    check({name: each for name, each in given.items() if not each.power})


def bank_in_float32(num_mels, fft_length, rate_hz, low_hz, high_hz, *, scale, equal_area):
    """Returns Kaldi's mel bank with the rounding of torchaudio.compliance.kaldi, which changes logarithms by 2e-4."""
    assert (scale, equal_area) == ("kaldi", False)
    low, high = (1127.0 * np.log(1.0 + hz / 700.0) for hz in (low_hz, high_hz))
    delta = np.float32((high - low) / (num_mels + 1))
    left = np.float32(low) + np.arange(num_mels, dtype=np.float32) * delta
    centre, right = left + delta, left + np.float32(2) * delta
    hertz = np.float32(rate_hz / fft_length) * np.arange(fft_length // 2, dtype=np.float32)
    mel = (np.float32(1127) * np.log(np.float32(1) + hertz / np.float32(700)))[:, None]
    bank = np.maximum(np.minimum((mel - left) / (centre - left), (right - mel) / (right - centre)), np.float32(0))
    return np.pad(bank, ((0, 1), (0, 0)))


@pytest.mark.parametrize("case", golden_cases("funasr", "wav_frontend*"))
def test_funasr(case, monkeypatch):
    monkeypatch.setattr("asr_jax.audio.features.mel_bank", bank_in_float32)
    arrays, given = case.arrays(), {}
    names = {key.split("/")[0] for key in arrays if key.endswith("/feat")}
    assert names
    for name in sorted(names):
        expected, stacked = arrays[f"{name}/feat"], re.search(r"lfr(\d+)_(\d+)", name)
        num, every = map(int, stacked.groups()) if stacked else (1, 1)
        then = [Stack(num, every, ends="copies")] if stacked else []
        if "cmvn" in name:
            then.append(NormaliseByDataSet.of_kaldi(case.path.with_name(case.info["cmvn_file"])))
        front_end = KaldiFbank(
            num_mels=expected.shape[2] // num, high_hz=0.0, window="hann" if "hann" in name else "hamming",
            snip_edges="nosnip" not in name, scale=1.0 if "noscale" in name else 32768.0, then=tuple(then),
        )  # fmt: skip
        lengths = arrays["input/lengths"]
        np.testing.assert_array_equal(front_end.output_length(lengths), arrays[f"{name}/lens"])
        given[name] = Given(front_end, arrays["input/waveform"], lengths, expected)
    check(given)


@pytest.mark.parametrize("case", golden_cases("hf_w2vbert", "seamless_features*"))
def test_w2v_bert(case):
    """Compares all frames of the reference.

    The reference pads before it stacks. The last stacked frame may therefore be partly padding, and further ones may be
    only padding. Its mask counts a stacked frame if the second part is valid.
    """
    arrays, together = case.arrays(), {}
    for match in filter(None, (re.fullmatch(r"stride(\d+)_norm([01])_(\d+)", key) for key in arrays)):
        stride, normalises, number = map(int, match.groups())
        expected, mask, wave = arrays[match[0]], arrays.get(f"{match[0]}_mask", np.zeros(0)), arrays[f"wav_{number}"]
        bare = KaldiFbank(num_mels=expected.shape[1] // stride, high_hz=0.0, snip_edges=True, scale=32768.0)
        num = bare.output_length(len(wave))
        assert len(expected) >= num // stride
        assert not mask.size or (mask == (stride * np.arange(len(expected)) + 1 < num)).all(), match[0]
        then = [Normalise(divisor="unbiased_root", eps=1e-7)] if normalises else []
        if stride > 1:
            then.append(Stack(stride, stride, ends="zeros" if len(expected) * stride > num else "dropped"))
        rows = together.setdefault(replace(bare, then=tuple(then)), {})
        rows[match[0]] = wave, without_padding(expected, stride, num), min(len(expected), -(-num // stride))
    assert together
    given = {
        " ".join(rows): Given(front_end, [wave for wave, _, _ in rows.values()], None, [x for _, x, _ in rows.values()])
        for front_end, rows in together.items()
    }
    found = check(given)
    for frames, rows in zip(found.values(), together.values(), strict=True):
        assert frames.lengths.tolist() == [num for _, _, num in rows.values()]


def without_padding(stacked, stride, num_frames):
    """Returns stacked frames with zeros instead of padding. Checks that padding has one value."""
    frames = stacked.reshape(len(stacked) * stride, -1).copy()
    assert len(np.unique(frames[num_frames:])) <= 1
    frames[num_frames:] = 0
    return frames.reshape(stacked.shape)


@pytest.mark.parametrize("case", golden_cases("features", "hf_extractors*"))
def test_wav2vec2_and_whisper(case):
    arrays = case.arrays()
    rows = sorted(key for key in arrays if key.startswith("w2v2_norm/raw_"))
    front_ends, batches = {"wav2vec2": wav2vec2(normalise=True)}, {"wav2vec2": batch_of([arrays[key] for key in rows])}
    for key in (key for key in arrays if key.startswith("whisper")):
        num_mels, number = re.fullmatch(r"whisper(\d+)/(\d+)", key).groups()
        front_ends[key], batches[key] = whisper(num_mels=int(num_mels)), batch_of([arrays[f"wav_{number}"]])
    for name, frames in computed(front_ends, batches).items():
        if name == "wav2vec2":
            np.testing.assert_array_equal(frames.lengths, arrays["w2v2_norm/attention_mask"].sum(axis=1))
            compare(name, frames.values[..., 0], arrays["w2v2_norm/input_values"])
        else:
            compare(name, frames.values[0], arrays[name].T)


def front_end_in_words(words, mel_scale, num_mels, *, edges):
    """Parses settings such as `n_fft 512 hop 160 win 400 (hann periodic, center, constant pad), power 2` at 16 kHz.

    Both references have periodic windows. Our front-end has only the periodic Hann window; None is returned for others.
    """
    sizes = {name: int(value) for name, value in re.findall(r"\b(n_fft|win|hop|n_mels|power)[ =](\d+)", words)}
    if equal := re.search(r"\bn_fft=win=(\d+)", words):
        sizes |= {"n_fft": int(equal[1]), "win": int(equal[1])}
    if re.search("hamming|blackman|kaiser|gauss", words):
        return None
    assert "n_fft" in sizes, f"no n_fft in {words!r}"
    assert sizes.get("n_mels", num_mels) == num_mels
    assert sizes.get("power", 2) == 2, words
    assert "center False" not in words, words
    assert mel_scale == "htk" or "norm None" not in words, words
    for text, its_edges in (("reflect pad", "reflect"), ("constant pad", "zeros")):
        edges = its_edges if text in words else edges
    return LogMel(
        num_mels=num_mels, window_ms=sizes.get("win", sizes["n_fft"]) / 16, hop_ms=sizes.get("hop", 160) / 16,
        window="hann_periodic", fft_length=sizes["n_fft"], framing="both_ends", edges=edges,
        mel_scale=mel_scale, preemphasis=0.0, log="none",
    )  # fmt: skip


@pytest.mark.parametrize("case", golden_cases("features", "fbank*"))
def test_librosa_and_torchaudio(case):
    """The case's file has the sizes as text, and the names of its arrays state the output."""
    arrays, info = case.arrays(), case.info["configs"]
    settings = {}
    for name in sorted({key.rsplit("/", 1)[0] for key in arrays}):
        if torchaudio := re.fullmatch(r"ta_mel/(htk|slaney)(\d+)", name):
            settings[name] = front_end_in_words(info["ta_mel"], torchaudio[1], int(torchaudio[2]), edges="reflect")
        elif librosa := re.fullmatch(r"librosa/(mel(\d+)_(htk|slaney)\w*)", name):
            words = dict(each.strip().split(": ", 1) for each in info["librosa"].split(";") if ": " in each)
            settings[name] = front_end_in_words(words[librosa[1]], librosa[3], int(librosa[2]), edges="zeros")
    settings = {name: front_end for name, front_end in settings.items() if front_end}
    keys = {key: name for name in settings for key in arrays if key.startswith(name + "/")}
    assert keys
    batches = {key: batch_of([arrays["wav_" + key.rsplit("/", 1)[1]]]) for key in keys}
    for key, frames in computed({key: settings[name] for key, name in keys.items()}, batches).items():
        expected = arrays[key].T
        assert int(frames.lengths[0]) == len(expected)
        compare(key, frames.values[0], expected, allowed=1e-5 * expected.max())
    for key in (key for key in arrays if key.startswith("librosa/fb_")):
        scale, fft_length, num_mels = re.fullmatch(r"librosa/fb_(htk|slaney)_(\d+)_(\d+)", key).groups()
        rate = 16000
        bank = mel_bank(int(num_mels), int(fft_length), rate, 0.0, rate / 2, scale=scale, equal_area=scale == "slaney")
        compare(key, bank.T, arrays[key])
