"""Front-ends of known systems: settings that compute the features that their models were trained on."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from asr_jax.audio.features import FrontEnd, KaldiFbank, Waveform
from asr_jax.audio.logmel import LogMel
from asr_jax.audio.stages import LimitRange, Normalise, NormaliseByDataSet, RoundUp, Stack
from asr_jax.core.errors import UserError, nearest


def quartznet(*, num_mels: int = 64) -> LogMel:
    """Returns the front-end of NVIDIA's QuartzNet.

    It has windows of 20 ms, dither, bins normalised per utterance, and a number of frames padded to a multiple of 16.
    """
    return LogMel(
        num_mels=num_mels,
        window_ms=20.0,
        framing="ceil",
        log="natural_of_sum",
        dither=1e-5,
        dither_mean=True,
        then=(Normalise(), RoundUp()),
    )


def rnnt(statistics: NormaliseByDataSet | None = None) -> LogMel:
    """Returns the front-end of Myrtle's CAIMAN-ASR.

    It has 80 bins, windows that end with their hop, which allows streaming, and three frames stacked to 240 values.

    Args:
        statistics: Statistics of the training set. None: each utterance is normalised by its own statistics, which does
            not allow streaming.
    """
    return LogMel(
        framing="hop_end",
        edges="zeros",
        window="hann_centred",
        dither=1e-5,
        then=(statistics or Normalise(divisor="maximum"), Stack(3, 3)),
    )


def nemo(*, num_mels: int = 80) -> LogMel:
    """Returns the front-end of NVIDIA's NeMo (Conformer, FastConformer, Parakeet).

    The signal is extended by zeros at both ends, and bins are normalised per utterance.
    """
    return LogMel(
        num_mels=num_mels,
        edges="zeros",
        log="natural_of_sum",
        log_guard=2.0**-24,
        dither=1e-5,
        then=(Normalise(),),
    )


def squeezeformer(*, num_mels: int = 80) -> LogMel:
    """Returns the front-end of Squeezeformer's authors.

    It has HTK bins in dB, at most 80 dB below the maximum, normalised over the utterance. Differs from: the authors'
    code does not subtract the mean of the samples.
    """
    return LogMel(
        num_mels=num_mels,
        window="hann_periodic",
        framing="both_ends",
        mel_scale="htk",
        log="decimal",
        log_guard=1e-10,
        normalise_samples=True,
        then=(LimitRange(), Normalise(over="all", divisor="root", eps=1e-9)),
    )


def rust_zipformer(*, num_mels: int = 80) -> LogMel:
    """Returns the front-end of the Rust trainer's Zipformer: HTK bins, no pre-emphasis, no normalisation."""
    return LogMel(
        num_mels=num_mels,
        fft_length=400,
        window="hann_periodic",
        framing="both_ends",
        mel_scale="htk",
        log_guard=1e-5,
        preemphasis=0.0,
    )


def rust_squeezeformer(*, num_mels: int = 80) -> LogMel:
    """Returns the front-end of the Rust trainer's Squeezeformer and Paraformer: samples and bins are normalised."""
    like = rust_zipformer(num_mels=num_mels)
    return replace(like, preemphasis=0.97, normalise_samples=True, then=(Normalise(divisor="maximum"),))


def icefall(*, num_mels: int = 80) -> KaldiFbank:
    """Returns the front-end of icefall (Zipformer and others): Kaldi's filter bank on samples of full scale 1."""
    return KaldiFbank(num_mels=num_mels)


def funasr(statistics: NormaliseByDataSet | None = None) -> KaldiFbank:
    """Returns the front-end of FunASR's Paraformer.

    It is Kaldi's filter bank with a Hamming window; seven frames are stacked to 560 values every six frames.

    Args:
        statistics: `NormaliseByDataSet.of_kaldi("am.mvn")` of a trained model. None: no normalisation.
    """
    return KaldiFbank(
        high_hz=0.0,
        window="hamming",
        snip_edges=True,
        scale=32768.0,
        padding=0.0,
        then=(Stack(7, 6, ends="copies"), *([statistics] if statistics else [])),
    )


def w2v_bert() -> KaldiFbank:
    """Returns the front-end of Meta's W2V-BERT 2.0.

    It is Kaldi's filter bank with bins normalised per utterance, two frames stacked to 160 values, and padding of 1.
    """
    return KaldiFbank(
        high_hz=0.0,
        snip_edges=True,
        scale=32768.0,
        padding=1.0,
        then=(Normalise(divisor="unbiased_root", eps=1e-7), Stack(2, 2, ends="dropped")),
    )


def wav2vec2(*, normalise: bool = False, eps: float = 1e-7) -> Waveform:
    """Returns the front-end of wav2vec 2.0: the samples.

    Args:
        normalise: Whether utterances are normalised to mean 0 and variance 1, as for models of the large recipe.
        eps: Value added to the variance: 1e-7 in Hugging Face, 1e-5 in fairseq and NVIDIA, with which quiet recordings
            remain quieter.
    """
    return Waveform(then=(Normalise(over="all", divisor="root", eps=eps),) if normalise else ())


def wav2vec2_normalised() -> Waveform:
    """Returns the front-end of wav2vec 2.0 with normalised samples, as in fairseq's and NVIDIA's large recipes."""
    return wav2vec2(normalise=True, eps=1e-5)


def whisper(*, num_mels: int = 80) -> LogMel:
    """Returns the front-end of OpenAI's Whisper; large-v3 has 128 bins.

    The range is limited relative to the maximum of the utterance. Differs from: Whisper, which pads all audio to 30
    seconds before.
    """
    return LogMel(
        num_mels=num_mels,
        fft_length=400,
        window="hann_periodic",
        preemphasis=0.0,
        log="decimal",
        log_guard=1e-10,
        then=(LimitRange(),),
    )


PRESETS = {
    make.__name__: make
    for make in (
        quartznet,
        rnnt,
        nemo,
        squeezeformer,
        rust_zipformer,
        rust_squeezeformer,
        icefall,
        funasr,
        w2v_bert,
        wav2vec2,
        wav2vec2_normalised,
        whisper,
    )
}
"""Functions that return front-ends, keyed by the front-end's name."""
ARCHITECTURES: dict[str, Callable[..., FrontEnd]] = {
    "zipformer": icefall,
    "conformer": nemo,
    "fastconformer": nemo,
    "squeezeformer": squeezeformer,
    "quartznet": quartznet,
    "wav2vec2": wav2vec2,
    "w2v_bert": w2v_bert,
}
"""Functions that return the front-end of the recipe of each architecture, keyed by the architecture's name."""


def preset(name: str) -> FrontEnd:
    """Returns the front-end of a name in PRESETS with its default settings.

    Raises:
        UserError: If the name is unknown.
    """
    return _named(name, "front-end", PRESETS)


def of_architecture(name: str) -> FrontEnd:
    """Returns the front-end of an architecture in ARCHITECTURES with its default settings. `-` stands for `_`.

    Raises:
        UserError: If the name is unknown.
    """
    return _named(name.replace("-", "_"), "architecture", ARCHITECTURES)


def _named(name: str, what: str, known: Mapping[str, Callable[..., FrontEnd]]) -> FrontEnd:
    if name not in known:
        raise UserError(f"unknown {what} {name!r}: expected one of {', '.join(known)}{nearest(name, known)}")
    return known[name]()
