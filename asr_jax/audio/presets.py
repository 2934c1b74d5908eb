"""Front-ends of known systems: settings that give the features their models were trained on."""

from asr_jax.audio.features import FrontEnd, KaldiFbank, Waveform
from asr_jax.audio.logmel import LogMel
from asr_jax.audio.stages import LimitRange, Normalise, NormaliseByDataSet, RoundUp, Stack
from asr_jax.core.errors import UserError, nearest


def quartznet(*, num_mels: int = 64) -> LogMel:
    """NVIDIA's QuartzNet: 20 ms windows, dither, each bin normalised, frames padded to a multiple of 16."""
    return LogMel(
        num_mels=num_mels, window_ms=20.0, count="ceil", log_floor=0.0, log_offset=1e-20, dither=1e-5,
        dither_mean=True, then=(Normalise(), RoundUp(16)),
    )  # fmt: skip


def rnnt(statistics: NormaliseByDataSet | None = None) -> LogMel:
    """Myrtle's CAIMAN-ASR: 80 bins, windows that end with their hop (fit to stream), three frames stacked to 240.

    `statistics`: of the training set; without them each utterance is normalised by itself, which cannot stream.
    """
    return LogMel(
        place="hop_end", edges="zeros", window="hann_centred", dither=1e-5,
        then=(statistics or Normalise(ddof=0, eps_to="least"), Stack(3, 3)),
    )  # fmt: skip


def nemo(*, num_mels: int = 80) -> LogMel:
    """NVIDIA's NeMo (Conformer, FastConformer, Parakeet): silence beyond both ends, each bin normalised."""
    return LogMel(
        num_mels=num_mels, edges="zeros", log_floor=0.0, log_offset=2.0**-24, dither=1e-5, then=(Normalise(),)
    )  # fmt: skip


def rust_zipformer(*, num_mels: int = 80) -> LogMel:
    """The Rust trainer's Zipformer: HTK bins, no pre-emphasis, nothing normalised."""
    return LogMel(
        num_mels=num_mels, fft_length=400, window="hann_periodic", count="both_ends", mel_scale="htk",
        equal_area=False, log_floor=1e-5, preemphasis=0.0,
    )  # fmt: skip


def rust_squeezeformer(*, num_mels: int = 80) -> LogMel:
    """The Rust trainer's Squeezeformer and Paraformer: samples and bins normalised."""
    return LogMel(
        num_mels=num_mels, fft_length=400, window="hann_periodic", count="both_ends", mel_scale="htk",
        equal_area=False, log_floor=1e-5, normalise_samples=True,
        then=(Normalise(ddof=0, eps_to="least"),),
    )  # fmt: skip


def icefall(*, num_mels: int = 80) -> KaldiFbank:
    """Icefall (Zipformer and others): Kaldi's bank of samples of full scale 1."""
    return KaldiFbank(num_mels=num_mels)


def funasr(statistics: NormaliseByDataSet | None = None) -> KaldiFbank:
    """FunASR's Paraformer: Kaldi's bank with a Hamming window, seven frames of every six stacked to 560.

    `statistics`: `NormaliseByDataSet.of_kaldi("am.mvn")` of a trained model.
    """
    return KaldiFbank(
        high_hz=0.0, window="hamming", snip_edges=True, scale=32768.0, padding=0.0,
        then=(Stack(7, 6, before=3, at_end="last"), *([statistics] if statistics else [])),
    )  # fmt: skip


def w2v_bert() -> KaldiFbank:
    """Meta's W2V-BERT 2.0: Kaldi's bank, each bin normalised, two frames stacked to 160, padded with 1."""
    return KaldiFbank(
        high_hz=0.0, snip_edges=True, scale=32768.0, padding=1.0,
        then=(Normalise(eps=1e-7, eps_to="variance"), Stack(2, 2, at_end="dropped")),
    )  # fmt: skip


def wav2vec2(*, normalise: bool = False, eps: float = 1e-7) -> Waveform:
    """wav2vec 2.0: the samples; normalised for models of the large recipe. `eps`: 1e-7 as Hugging Face, 1e-5 as fairseq
    and NVIDIA, of which quiet recordings come out quieter.
    """
    return Waveform(then=(Normalise(over="all", ddof=0, eps=eps, eps_to="variance"),) if normalise else ())


def whisper(*, num_mels: int = 80) -> LogMel:
    """OpenAI's Whisper, 128 bins for large-v3. The range is limited by the utterance's own greatest value; Whisper's
    own audio is always padded to 30 seconds before.
    """
    return LogMel(
        num_mels=num_mels, fft_length=400, window="hann_periodic", preemphasis=0.0, log="decimal", log_floor=1e-10,
        then=(LimitRange(),),
    )  # fmt: skip


PRESETS = {
    make.__name__: make
    for make in (
        quartznet, rnnt, nemo, rust_zipformer, rust_squeezeformer, icefall, funasr, w2v_bert, wav2vec2, whisper
    )
}  # fmt: skip
"""By name."""


def preset(name: str) -> FrontEnd:
    """A front-end by name, with its own settings.

    Raises: UserError for a name that is none.
    """
    if name not in PRESETS:
        raise UserError(
            f"no front-end is called {name!r}: expected one of {', '.join(PRESETS)}{nearest(name, PRESETS)}"
        )
    return PRESETS[name]()
