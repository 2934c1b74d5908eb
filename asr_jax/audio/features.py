"""Front-ends: feature extraction on the device, with the same code in training, evaluation and transcription."""

from collections.abc import Iterator
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from asr_jax.audio.mel import mel_bank
from asr_jax.audio.spectrum import WindowShape, kaldi_windows, mel_energies
from asr_jax.audio.stages import Stage
from asr_jax.core.batch import Frames, length_mask
from asr_jax.core.devices import traced_for
from asr_jax.core.random_streams import row_keys
from asr_jax.core.settings import Finite, NonNegativeFloat, PositiveFloat, PositiveInt, settings
from asr_jax.core.shapes import DimSize, is_static

FULL_SCALE = 32768.0
SAMPLES_AT_A_TIME = (6 * 16000, 48 * 16000)
"""Minimum and maximum number of samples in the rows that a CPU computes at once: their intermediate results stay in the
CPU's caches (measurements: BUILD_NOTES.md)."""
FLOAT_EPSILON = 1.1920928955078125e-07
"""Kaldi's lower bound of the logarithm's argument."""
LOG_EPSILON = -15.942385152878742
"""Logarithm of FLOAT_EPSILON: Kaldi's value for silence."""


@settings
class FrontEnd:
    """Settings of a front-end; calling it computes the features of samples. It has no parameters.

    Padding and batching never change a valid frame: samples behind a row's length are not read.
    """

    rate_hz: PositiveInt = 16000
    """Sample rate in Hz; audio is resampled to it."""
    dither: NonNegativeFloat = 0.0
    """Standard deviation of the Gaussian noise added to the samples in training, in the sample scale of the features
    (full scale 1, or `KaldiFbank.scale`). 0: no dither."""
    padding: Finite = 0.0
    """Value of padding frames."""
    then: tuple[Stage, ...] = ()
    """Stages applied to the frames, in order."""

    def problems(self) -> Iterator[str]:
        num_features = self._num_values
        for stage in self.then:
            yield from stage.misfits(num_features)
            num_features = stage.num_features(num_features)

    @property
    def num_features(self) -> int:
        """Number of values per output frame."""
        num = self._num_values
        for stage in self.then:
            num = stage.num_features(num)
        return num

    @property
    def hop(self) -> int:
        """Distance between two output frames in samples."""
        hop = self._hop
        for stage in self.then:
            hop *= stage.stride
        return hop

    @property
    def band_hz(self) -> tuple[float, float]:
        """Lower and upper edge of the features' frequency band in Hz."""
        return 0.0, self.rate_hz / 2

    @property
    def bins(self) -> Literal["", "kaldi", "htk", "slaney"]:
        """Mel scale on which the bins are equally spaced; empty if features are not mel bins."""
        return ""

    @property
    def frame_s(self) -> float:
        """Distance between two frames before stacking in seconds."""
        return self._hop / self.rate_hz

    def output_length(self, num_samples: Any) -> Any:
        """Returns the number of frames for `num_samples` samples; accepts ints and arrays."""
        num = self._num_frames(num_samples)
        for stage in self.then:
            num = stage.output_length(num)
        return num

    def num_settled(self, num_samples: int) -> int:
        """Returns the number of frames that do not depend on samples after the first `num_samples`."""
        num = max(self._num_settled(num_samples), 0)
        for stage in self.then:
            num = stage.num_settled(num)
        return num

    @property
    def run_up(self) -> int:
        """Number of first frames that depend on the beginning of the signal.

        Further frames are the same if the signal begins a multiple of `hop` earlier.
        """
        num = self._run_up
        for stage in self.then:
            num = stage.run_up(num)
        return num

    @property
    def reads_all(self) -> str:
        """Setting with which frames depend on all samples of the utterance; empty if there is none."""
        return next((type(stage).__name__ for stage in self.then if stage.reads_all), "")

    def __call__(
        self,
        audio: Shaped[Array, "B S"],
        lengths: Int[Array, " B"],
        *,
        step: Int[Array, ""] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Frames:
        """Computes features.

        Args:
            audio: int16 or float samples of full scale 32768.
            lengths: Number of valid samples of each row.
            step: Number of updates applied so far in training; None in evaluation.
            key: Random key of the dither in training; None in evaluation.

        Returns:
            Features `[B, T, num_features]` with their lengths; padding frames contain `padding`.
        """
        return self.stacked(self.before_stacking(audio, lengths, step=step, key=key), step=step)

    def before_stacking(
        self,
        audio: Shaped[Array, "B S"],
        lengths: Int[Array, " B"],
        *,
        step: Int[Array, ""] | None = None,
        key: PRNGKeyArray | None = None,
    ) -> Frames:
        """Computes frames up to the first stage that stacks frames. In training these frames are augmented.

        `__call__` describes the arguments. Padding frames are undefined. `stacked` applies the remaining stages.
        """
        keys = row_keys(key, audio.shape[0]) if self.dither and key is not None else None
        group = self._rows_at_a_time(*audio.shape)
        if group == audio.shape[0]:
            return self._frames(audio, lengths, keys, step)
        rows = jax.tree.map(lambda of_rows: of_rows.reshape(-1, group, *of_rows.shape[1:]), (audio, lengths, keys))

        def of_few(few: tuple[Any, Any, Any]) -> tuple[Array, Array]:
            frames = self._frames(*few, step)
            return frames.values, frames.lengths

        values, num_frames = jax.lax.map(of_few, rows)
        return Frames(values.reshape(-1, *values.shape[2:]), num_frames.reshape(-1))

    def _frames(
        self,
        audio: Shaped[Array, "B S"],
        lengths: Int[Array, " B"],
        keys: Shaped[PRNGKeyArray, " B"] | None,
        step: Int[Array, ""] | None,
    ) -> Frames:
        """Computes `before_stacking` for all rows at once. `keys` are the rows' random keys of the dither."""
        samples = audio.astype(jnp.float32) * (self._scale / FULL_SCALE)
        if keys is not None:
            samples += self.dither * jax.vmap(lambda key: jax.random.normal(key, audio.shape[1:]))(keys)
        values = self._values(samples, lengths, self._num_frames(audio.shape[1]), dithered=keys is not None)
        frames = Frames(values, self._num_frames(lengths))
        for stage in self.then[: self._num_before_stacking]:
            frames = stage(frames, step=step)
        return frames

    def stacked(self, frames: Frames, *, step: Int[Array, ""] | None = None) -> Frames:
        """Applies the stages that follow `before_stacking`, and sets padding frames to `padding`."""
        for stage in self.then[self._num_before_stacking :]:
            frames = stage(frames, step=step)
        mask = length_mask(frames.lengths, frames.values.shape[1])[..., None]
        return frames.replace(values=jnp.where(mask, frames.values, self.padding))

    def _rows_at_a_time(self, num_rows: DimSize, num_samples: DimSize) -> DimSize:
        """Returns the number of rows to compute at once, a divisor of `num_rows`."""
        return num_rows

    @property
    def _num_before_stacking(self) -> int:
        """Number of stages before the first one that stacks frames."""
        return next((number for number, stage in enumerate(self.then) if stage.stride > 1), len(self.then))

    @property
    def _scale(self) -> float:
        """Full scale of the samples that features are computed from."""
        return 1.0

    @property
    def _num_values(self) -> int:
        """Number of values per frame before the stages."""
        raise NotImplementedError

    @property
    def _hop(self) -> int:
        """Distance between two frames before the stages in samples."""
        raise NotImplementedError

    def _num_frames(self, num_samples: Any) -> Any:
        """Returns the number of frames before the stages; accepts ints and arrays."""
        raise NotImplementedError

    def _num_settled(self, num_samples: int) -> int:
        """Returns `num_settled` before the stages; may be negative."""
        raise NotImplementedError

    @property
    def _run_up(self) -> int:
        """`run_up` before the stages."""
        raise NotImplementedError

    def _values(
        self, samples: Float[Array, "B S"], lengths: Int[Array, " B"], num_frames: DimSize, *, dithered: bool
    ) -> Float[Array, "B T D"]:
        """Returns the frames before the stages; padding frames may have any finite values."""
        raise NotImplementedError


@settings
class Waveform(FrontEnd):
    """Samples of full scale 1 as frames of one value: the input of wav2vec 2.0."""

    @property
    def _num_values(self) -> int:
        return 1

    @property
    def _hop(self) -> int:
        return 1

    def _num_frames(self, num_samples: Any) -> Any:
        return num_samples

    def _num_settled(self, num_samples: int) -> int:
        return num_samples

    @property
    def _run_up(self) -> int:
        return 0

    def _values(
        self, samples: Float[Array, "B S"], lengths: Int[Array, " B"], num_frames: DimSize, *, dithered: bool
    ) -> Float[Array, "B T D"]:
        return samples[..., None]


@settings
class MelFrontEnd(FrontEnd):
    """Common settings of front-ends with mel bins."""

    num_mels: PositiveInt = 80
    """Number of mel bins."""
    window_ms: PositiveFloat = 25.0
    """Length of a window in milliseconds."""
    hop_ms: PositiveFloat = 10.0
    """Distance between two windows in milliseconds."""
    low_hz: NonNegativeFloat = 0.0
    """Lower edge of the mel filter bank in Hz."""
    high_hz: Finite = 0.0
    """Upper edge of the mel filter bank in Hz. Values of 0 or less are added to half the sample rate."""
    window: WindowShape = "hann"
    """Shape of windows; povey is a Hann window to the power of 0.85."""
    preemphasis: Finite = 0.97
    """Pre-emphasis coefficient: the weight of the previous sample. 0: no pre-emphasis."""

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if self.hop_ms > self.window_ms:
            yield f"hop_ms is {self.hop_ms}: expected at most window_ms, {self.window_ms}"
        low_hz, high_hz = self.band_hz
        if not low_hz < high_hz <= self.rate_hz / 2:
            yield (
                f"low_hz is {self.low_hz} and high_hz is {self.high_hz}, which result in a mel filter bank from "
                f"{low_hz} to {high_hz} Hz: expected an upper edge above the lower one and at most {self.rate_hz / 2}"
            )

    @property
    def band_hz(self) -> tuple[float, float]:
        return self.low_hz, self.high_hz if self.high_hz > 0 else self.rate_hz / 2 + self.high_hz

    @property
    def _num_values(self) -> int:
        return self.num_mels

    @property
    def _hop(self) -> int:
        return int(self.rate_hz * self.hop_ms / 1000)

    @property
    def _window_length(self) -> int:
        return int(self.rate_hz * self.window_ms / 1000)

    @property
    def _first(self) -> int:
        """Sample at which the first window begins; negative before the signal."""
        raise NotImplementedError

    def _num_settled(self, num_samples: int) -> int:
        return (num_samples - self._first - self._window_length) // self._hop + 1

    @property
    def _run_up(self) -> int:
        # One hop more than the windows that begin before the signal: for pre-emphasis and for mirrored ends.
        return -(self._first // self._hop) + 1

    def _rows_at_a_time(self, num_rows: DimSize, num_samples: DimSize) -> DimSize:
        # With several devices, a loop over rows would gather the rows of all devices.
        if traced_for()[:2] != ("cpu", 1) or not is_static(num_rows, num_samples):
            return num_rows
        least, most = SAMPLES_AT_A_TIME
        sizes = [few for few in range(1, num_rows + 1) if num_rows % few == 0 and few * num_samples <= most]
        return sizes[-1] if sizes and sizes[-1] * num_samples >= least else num_rows


@settings
class KaldiFbank(MelFrontEnd):
    """Log-mel energies as Kaldi's `compute-fbank-feats` computes them, without energy; the defaults are icefall's.

    Each window is pre-emphasised after its mean is subtracted, and zero-padded to a power of two.

    Source: Kaldi `feat/feature-window.cc`, `feat/mel-computations.cc`, by way of kaldi-native-fbank 1.22.
    """

    padding = LOG_EPSILON
    low_hz = 20.0
    high_hz = -400.0
    window = "povey"
    snip_edges: bool = False
    """Whether only windows within the signal are used. Otherwise each hop has a window around its centre, and the
    signal is mirrored at both ends."""
    scale: PositiveFloat = 1.0
    """Full scale of the samples that features are computed from: 1 in icefall, 32768 in Kaldi."""

    @property
    def bins(self) -> Literal["", "kaldi", "htk", "slaney"]:
        return "kaldi"

    @property
    def _scale(self) -> float:
        return self.scale

    def _num_frames(self, num_samples: Any) -> Any:
        if self.snip_edges:
            frames = (num_samples - self._window_length) // self._hop + 1
            return frames * (frames > 0)
        return (num_samples + self._hop // 2) // self._hop

    @property
    def _first(self) -> int:
        return 0 if self.snip_edges else self._hop // 2 - self._window_length // 2

    def _values(
        self, samples: Float[Array, "B S"], lengths: Int[Array, " B"], num_frames: DimSize, *, dithered: bool
    ) -> Float[Array, "B T D"]:
        window = self._window_length
        fft_length = 1 << (window - 1).bit_length()
        frames = kaldi_windows(
            samples,
            lengths,
            num_frames,
            window=window,
            hop=self._hop,
            size=fft_length,
            snip_edges=self.snip_edges,
            preemphasis=self.preemphasis,
        )
        bank = mel_bank(self.num_mels, fft_length, self.rate_hz, *self.band_hz, scale="kaldi", equal_area=False)
        mels = mel_energies(frames, window=self.window, length=window, bank=bank)
        return jnp.log(jnp.maximum(mels, FLOAT_EPSILON))
