"""Every preset: frames are independent of padding and batching, lengths are correct, and only training is random."""

import functools
import importlib
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.audio import features
from asr_jax.audio.features import KaldiFbank, Waveform
from asr_jax.audio.logmel import LogMel
from asr_jax.audio.mel import mel_bank
from asr_jax.audio.presets import ARCHITECTURES, PRESETS, funasr, of_architecture, rnnt
from asr_jax.audio.ramp import Ramp
from asr_jax.audio.stages import Normalise, NormaliseByDataSet, Stack
from asr_jax.core.batch import Frames
from asr_jax.core.devices import tracing_for
from asr_jax.core.errors import UserError
from tests.support import assert_close, max_abs

STATISTICS = NormaliseByDataSet(mean=(-6.0,) * 80, deviation=(3.0,) * 80, share=Ramp((0.0,), (1.0,), ramp_updates=10))
OF_STACKED = NormaliseByDataSet(mean=(12.0,) * 560, deviation=(4.0,) * 560)
FRONT_ENDS = {name: make() for name, make in PRESETS.items()} | {
    "wav2vec2_normalised": PRESETS["wav2vec2"](normalise=True),
    "rnnt_of_data": rnnt(STATISTICS),
    "funasr_of_data": funasr(OF_STACKED),
    "whisper_128": PRESETS["whisper"](num_mels=128),
}


SHORT = (0, 1, 399, 160, 401, 960)
"""Numbers of samples: none, fewer than are mirrored, fewer than a window, …"""
ROWS = 11
"""Rows of the batch of all presets."""
OF_EACH_KIND = ("quartznet", "rnnt", "rust_squeezeformer", "icefall", "funasr", "whisper", "wav2vec2")
"""Presets that together cover all classes and edges, with and without normalised samples, stages and rounding."""


jitted = functools.cache(lambda name: jax.jit(FRONT_ENDS[name]))


def computed(name, samples, lengths):
    """Returns frames of a few rows with padding, computed by the program of the next test."""
    audio, padding = np.pad(samples, ((0, ROWS - len(samples)), (0, 9000 - samples.shape[1]))), ROWS - len(lengths)
    return jax.device_get(jitted(name)(audio, np.array([*lengths, *[0] * padding], np.int32)))


def speech_like(rows, num_samples, seed=0):
    """Returns noise with an offset and a tone, which has energy in all bins."""
    rng = np.random.default_rng(seed)
    time = np.arange(num_samples) / 16000
    tone = 3000 * np.sin(2 * np.pi * 220 * time) * (1 + np.sin(2 * np.pi * 3 * time))
    return (tone + rng.normal(0, 900, (rows, num_samples)) + 40).astype(np.int16)


@pytest.mark.parametrize(
    "name", [name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.slow) for name in FRONT_ENDS]
)
def test_padding_and_batching_never_change_a_frame(name):
    """Silent rows and rows shorter than a window have finite frames as well."""
    front_end = FRONT_ENDS[name]
    lengths = np.array([8123, 8000, 4001, 1123, *SHORT, 1600], np.int32)  # multiples of the hop, and others
    audio = speech_like(ROWS, 9000)
    within = np.arange(9000) < lengths[:, None]
    audio[4:] = np.where(within[4:], np.int16(0), audio[4:])
    noisy = jax.device_get(jitted(name)(audio, lengths))  # signal, not zeros, behind each row's end
    quiet = jax.device_get(jitted(name)(np.where(within, audio, np.int16(0)), lengths))
    assert noisy.values.shape[2] == front_end.num_features
    assert np.isfinite(noisy.values).all()
    np.testing.assert_array_equal(noisy.lengths, front_end.output_length(lengths))
    for row, count in enumerate(noisy.lengths):
        assert (noisy.values[row, count:] == front_end.padding).all()
        np.testing.assert_array_equal(noisy.values[row, :count], quiet.values[row, :count])


@pytest.mark.parametrize("name", FRONT_ENDS)
def test_lengths_are_true_for_ints_and_arrays_and_without_padding(name):
    """Includes batches without samples, with fewer than are mirrored, and with fewer than a window. Without padding,
    rows have the frames that they have with padding."""
    front_end, sizes = FRONT_ENDS[name], (*SHORT[:3], 8123)
    lengths = [front_end.output_length(number) for number in SHORT]
    assert front_end.output_length(np.array(SHORT)).tolist() == lengths
    for number, length in zip(SHORT, lengths, strict=True):
        batch = np.zeros((1, number), np.int16), np.array([number], np.int32)
        assert jax.eval_shape(front_end, *batch).values.shape[1] >= length
        assert length == 0 or number
    if name in OF_EACH_KIND:
        audio = speech_like(len(sizes), max(sizes))
        batches = [(row[None, :number], np.array([number])) for row, number in zip(audio, sizes, strict=True)]
        found = jax.device_get(jax.jit(lambda batches: [front_end(*batch) for batch in batches])(batches))
        padded = computed(name, audio, sizes)
        assert [frames.lengths.tolist() for frames in found] == [[front_end.output_length(each)] for each in sizes]
        for frames, row in zip(found, padded.values, strict=False):
            count = int(frames.lengths[0])
            assert np.isfinite(frames.values).all()
            assert_close(frames.values[0, :count], row[:count], atol=2e-4)  # two compilations round differently


@pytest.mark.parametrize(
    ("name", "dither"),
    [
        ("icefall", 0.01), ("wav2vec2", 0.01), ("quartznet", 0.0),
        *(
            pytest.param(name, 0.01, marks=pytest.mark.slow)
            for name in OF_EACH_KIND
            if name not in ("icefall", "wav2vec2")
        ),
    ],
)  # fmt: skip
def test_a_few_rows_at_a_time_are_the_same_frames(name, dither, monkeypatch):
    front_end = replace(FRONT_ENDS[name], dither=dither)
    lengths = np.array([8000, 7999, 4001, 1123, 6000, 8000])
    given = {"step": jnp.int32(3), "key": jax.random.key(1)}
    if dither:
        at_once = jax.jit(lambda *of_rows: front_end(*of_rows, **given))(speech_like(6, 8000), lengths)
    else:
        at_once = computed(name, speech_like(6, 8000), lengths)
    monkeypatch.setattr(features, "SAMPLES_AT_A_TIME", (8000, 20000))
    with tracing_for(jax.devices()[:1]):  # as on a CPU that is not split for tests
        looped = jax.jit(lambda *of_rows: front_end(*of_rows, **given)).trace(speech_like(6, 8000), lengths)
    assert ("scan" in str(looped.jaxpr)) == (not isinstance(front_end, Waveform))
    few = looped.lower().compile()(speech_like(6, 8000), lengths)
    np.testing.assert_array_equal(at_once.lengths[:6], few.lengths)
    assert_close(np.asarray(at_once.values)[:6, : few.values.shape[1]], few.values, atol=2e-4)


def rows_at_a_time(rows, num_samples):
    """Returns the number of rows computed at once, from the length of the loop in the program."""
    shapes = jax.ShapeDtypeStruct((rows, num_samples), jnp.int16), jax.ShapeDtypeStruct((rows,), jnp.int32)
    program = str(jax.make_jaxpr(lambda *batch: KaldiFbank()(*batch))(*shapes))
    loop = re.search(r"scan\[.*?length=(\d+)", program, re.DOTALL)
    return rows // int(loop[1]) if loop else rows


def test_as_many_rows_at_a_time_as_stay_in_the_caches():
    second = 16000
    assert rows_at_a_time(16, 12 * second) == 16  # several devices
    with tracing_for(jax.devices()[:1]):
        assert rows_at_a_time(16, 12 * second) == 4
        assert rows_at_a_time(13, 12 * second) == 1
        assert rows_at_a_time(46, second) == 46
        assert rows_at_a_time(97, 2 * second) == 97  # a row alone is too short
        assert rows_at_a_time(2, 60 * second) == 2
        assert rows_at_a_time(0, second) == 0


def test_bins_are_normalised_over_the_valid_frames_and_rounding_up_adds_no_length():
    frames = computed("quartznet", speech_like(2, 8100), [8100, 4000])
    assert frames.values.shape == (ROWS, 64, 64)
    assert frames.lengths[:2].tolist() == [51, 25]
    for values, count in zip(frames.values[:2], frames.lengths, strict=False):
        assert_close(values[:count].mean(axis=0), 0, atol=1e-5)
        assert_close(values[:count].std(axis=0, ddof=1), 1, atol=1e-4)


def test_silence_at_evaluation_is_what_dither_makes_of_it_on_average():
    front_end = LogMel(dither=1e-3, dither_mean=True, log="none", preemphasis=0.97)
    audio = np.zeros((1, 64000), np.int16)
    audio[0, :8000] = speech_like(1, 8000)[0]
    lengths, given = np.array([64000], np.int32), {"step": jnp.int32(0), "key": jax.random.key(0)}
    undithered = replace(front_end, dither_mean=False)
    program = jax.jit(
        lambda *batch: [front_end(*batch, **given).values, front_end(*batch).values, undithered(*batch).values]
    )
    training, evaluation, without = (np.asarray(values)[0] for values in program(audio, lengths))
    silent = slice(60, 390)
    assert_close(training[silent].mean(0), evaluation[silent].mean(0), rtol=0.3)
    assert_close(training[silent].mean(), evaluation[silent].mean(), rtol=0.03)
    assert not without[silent].any()
    assert_close(evaluation[:48], without[:48], atol=2e-3 * float(without[:48].max()))


def test_dither_is_for_training_alone_and_the_same_for_a_row_in_any_batch():
    front_end = jax.jit(LogMel(dither=1e-3))
    audio, lengths = np.zeros((3, 4000), np.int16), np.full(3, 4000, np.int32)
    silent = jax.device_get(front_end(audio, lengths))
    assert_close(silent.values[:, :25], np.log(1e-20), rtol=1e-6)
    key = jax.random.key(0)
    noisy = jax.device_get(front_end(audio, lengths, key=key, step=jnp.int32(0)))
    assert (noisy.values[:, :25] > -40).all()
    assert max_abs(noisy.values[0], noisy.values[1]) > 0.01
    fewer = front_end(audio[:2], lengths[:2], key=key, step=jnp.int32(0))
    assert_close(fewer.values, noisy.values[:2], rtol=1e-5)


def test_normalisation_moves_from_the_utterance_to_the_data_set():
    share = Ramp((0.2,), (1.0,), begin_updates=100, ramp_updates=50)
    stage = NormaliseByDataSet(mean=(1.0, 2.0), deviation=(2.0, 4.0), share=share)
    values = np.random.default_rng(0).normal(3, 5, (1, 30, 2)).astype(np.float32)
    frames = Frames(values, np.array([30]))
    by_data = (values - np.array([1.0, 2.0])) / np.array([2.0, 4.0])
    by_utterance = (values - values.mean(1)) / values.std(1)
    jitted = jax.jit(stage)
    for step, share in ((0, 0.2), (99, 0.2), (124, 0.6), (149, 1.0), (9999, 1.0), (None, 1.0)):
        found = jitted(frames, step=None if step is None else jnp.int32(step)).values
        assert_close(found, share * by_data + (1 - share) * by_utterance, rtol=1e-4, atol=1e-5)


def test_stacking_at_both_ends():
    values = np.broadcast_to(np.arange(1.0, 9, dtype=np.float32)[None, :, None], (2, 8, 1))
    stages = Stack(3, 3), Stack(3, 2, ends="copies"), Stack(3, 3, ends="dropped")
    frames = Frames(values, np.array([8, 4]))
    zeros, low_rate, dropped = jax.device_get(
        jax.jit(lambda frames: [stage(frames, step=None) for stage in stages])(frames)
    )
    assert zeros.values[0].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 0]]
    assert zeros.values[1, :2].tolist() == [[1, 2, 3], [4, 0, 0]]
    assert zeros.lengths.tolist() == [3, 2]
    assert low_rate.values[0].tolist() == [[1, 1, 2], [2, 3, 4], [4, 5, 6], [6, 7, 8]]
    assert low_rate.values[1, :2].tolist() == [[1, 1, 2], [2, 3, 4]]
    assert dropped.values[0].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert dropped.lengths.tolist() == [2, 1]


def test_statistics_of_files(tmp_path):
    (tmp_path / "am.mvn").write_text(
        "<Nnet>\n<Splice> 2 2\n[ 0 ]\n<AddShift> 2 2\n<LearnRateCoef> 0 [ -1.5 -2 ]\n<Rescale> 2 2\n"
        "<LearnRateCoef> 0 [ 0.5 0.25 ]\n</Nnet>\n"
    )
    assert NormaliseByDataSet.of_kaldi(tmp_path / "am.mvn") == NormaliseByDataSet((1.5, 2.0), (2.0, 4.0))
    (tmp_path / "s.json").write_text('{"mean": [1.0], "deviation": [2.0]}')
    share = Ramp((0.0,), (1.0,), ramp_updates=7)
    assert NormaliseByDataSet.of_json(tmp_path / "s.json", share=share) == NormaliseByDataSet((1.0,), (2.0,), share)
    (tmp_path / "wrong").write_text("<AddShift> [ 1 ]")
    with pytest.raises(UserError, match="1 values of <AddShift> and 0 of <Rescale>"):
        NormaliseByDataSet.of_kaldi(tmp_path / "wrong")
    with pytest.raises(UserError, match="expected"):
        NormaliseByDataSet.of_json(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LogMel(fft_length=256), "fft_length is 256: expected at least the samples of a window, 400"),
        (lambda: LogMel(log_guard=0.0), "log_guard is 0.0"),
        (lambda: LogMel(then=(OF_STACKED,)), "statistics of 560 bins cannot normalise frames of 80 values"),
        (lambda: KaldiFbank(dither=-1.0), "dither is -1.0"),
        (lambda: Waveform(rate_hz=0), "rate_hz is 0"),
        (lambda: Stack(2, 3), "every is 3: expected at most num, 2"),
        (lambda: Normalise(eps=0.0), "eps is 0.0"),
        (lambda: NormaliseByDataSet((1.0,), (0.0,)), r"deviation is \(0.0,\): expected each above 0"),
        (lambda: NormaliseByDataSet((1.0,), ()), "1 means and 0 deviations"),
        (lambda: NormaliseByDataSet(share=Ramp((0.5,), (2.0,))), "share is .*: expected one value from 0 to 1"),
    ],
)
def test_impossible_settings_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def reference(samples, *, window, pad, place, mels, floor, preemphasis):
    """Computes features in float64, one window at a time. Window 0 begins at sample `place` of the padded signal."""
    x = samples.astype(np.float64)
    if preemphasis:
        x = np.concatenate([x[:1], x[1:] - preemphasis * x[:-1]])
    x = pad(x)
    num = (len(x) - place - 400) // 160 + 1
    frames = np.stack([x[place + 160 * n : place + 160 * n + 400] for n in range(num)])
    spectrum = np.abs(np.fft.rfft(frames * window, 2 * (mels.shape[0] - 1))) ** 2
    return np.log(np.maximum(spectrum @ mels, floor))


def test_systems_without_goldens_by_their_formula():
    """CAIMAN-ASR's and the Rust trainer's front-ends; the filter banks are librosa's (tests/goldens)."""
    audio, place = speech_like(1, 8123)[0], np.arange(400)
    scaled = audio / 32768
    slaney = mel_bank(80, 512, 16000, 0.0, 8000.0, scale="slaney", equal_area=True).astype(np.float64)
    ahead = reference(
        scaled, window=0.5 - 0.5 * np.cos(2 * np.pi * (place + 0.5) / 400), pad=lambda x: np.pad(x, (240, 0)), place=0,
        mels=slaney, floor=1e-20, preemphasis=0.97,
    )  # fmt: skip
    normalised = (ahead - ahead.mean(0)) / ahead.std(0)
    stacked = np.pad(normalised, ((0, -len(normalised) % 3), (0, 0))).reshape(-1, 240)
    found = computed("rnnt", audio[None], [len(audio)])
    assert int(found.lengths[0]) == len(stacked)
    assert_close(found.values[0, : len(stacked)], stacked, atol=1e-3)
    htk = mel_bank(80, 400, 16000, 0.0, 8000.0, scale="htk", equal_area=False).astype(np.float64)
    common = {
        "window": 0.5 - 0.5 * np.cos(2 * np.pi * place / 400), "pad": lambda x: np.pad(x, 200, mode="reflect"),
        "place": 0, "mels": htk, "floor": 1e-5,
    }  # fmt: skip
    plain = reference(scaled, preemphasis=0.0, **common)
    found = computed("rust_zipformer", audio[None], [len(audio)])
    assert int(found.lengths[0]) == len(plain) == 8123 // 160 + 1
    assert_close(found.values[0, : len(plain)], plain, atol=1e-3)
    levelled = scaled - scaled.mean()
    logs = reference(levelled / np.abs(levelled).max(), preemphasis=0.97, **common)
    expected = (logs - logs.mean(0)) / np.maximum(logs.std(0), 1e-5)
    found = computed("rust_squeezeformer", audio[None], [len(audio)])
    assert_close(found.values[0, : len(expected)], expected, atol=1e-3)


RECIPES = {"zipformer": "zipformer", "wav2vec2": "wav2vec2_pretrain", "w2v_bert": "w2v_bert_finetune"}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_front_end_of_an_architecture_is_that_of_its_recipe(architecture):
    config = RECIPES.get(architecture, f"{architecture}_librispeech")
    model = importlib.import_module(f"configs.{config}").experiment().model
    assert of_architecture(architecture) == of_architecture(architecture.replace("_", "-")) == model.front_end
    assert type(model.encoder).__module__.rpartition(".")[2] in (architecture, architecture.removeprefix("fast"))
