"""Python interface to load a trained run and use it, or to train one. The commands run the same code.

>>> import asr_jax
>>> run = asr_jax.load("runs/mine")
>>> transcript = run.transcribe("a.wav")
>>> [(word.text, word.start_s) for word in transcript.words]  # doctest: +ELLIPSIS
[...]
>>> counts = run.evaluate("test.jsonl")
>>> counts["utterances"]
4
>>> aligned = run.align("a.wav", text="ab ca")
>>> aligned.text
'ab ca'
"""

import functools
import logging
import numbers
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args, overload

import numpy as np
from jaxtyping import Int16

from asr_jax.audio.io import write_flac
from asr_jax.audio.mono import MAX_PEAK, as_int16, out_of_range
from asr_jax.audio.streaming import StreamResampler
from asr_jax.cli.command_line import load_config
from asr_jax.config import Experiment
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.interrupts import uninterrupted
from asr_jax.core.names import counted
from asr_jax.core.paths import at_home
from asr_jax.core.precision import Precision
from asr_jax.core.processes import join
from asr_jax.data.batching.evaluation import NoUtterances
from asr_jax.data.manifests.audio_inputs import with_durations
from asr_jax.data.manifests.durations import without_durations
from asr_jax.data.manifests.locations import Location, local_location
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import Utterances, read_utterances
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.inference import aligning
from asr_jax.inference.batches import BatchOptions
from asr_jax.inference.decoder import Decoder
from asr_jax.inference.endpoints import ENDPOINTS, Endpoints
from asr_jax.inference.importing import run_and_checkpoint
from asr_jax.inference.scored_sets import changed_texts, scored
from asr_jax.inference.streaming import Streamer, StreamProgram, StreamResult
from asr_jax.inference.trained import Trained, load_trained
from asr_jax.inference.transcription import Transcriber, recognise_all
from asr_jax.models.encoder import Context
from asr_jax.search.base import Decoding
from asr_jax.transcripts.transcript import Transcript

__all__ = ["Experiment", "Run", "Transcript", "load", "load_config", "train"]

Audio = str | os.PathLike[str] | np.ndarray
"""Path of an audio file, or mono samples [S]: floats from -1 to 1, or int16."""
RATES_HZ = range(1000, 655_351)
"""Sample rates of arrays in Hz, as in FLAC. A smaller number is a rate in kHz by mistake."""
logger = logging.getLogger(__name__)


def load(
    run: str | os.PathLike[str],
    *,
    checkpoint: int | None = None,
    live: bool = False,
    precision: Precision | None = None,
    head: str = "",
    decoding: Decoding | None = None,
    batch_seconds: float | None = None,
    batch_size: int | None = None,
    max_duration: float | None = None,
    state_resets: tuple[float, float] = (0.0, 0.0),
    context: Context | None = None,
) -> "Run":
    """Loads a trained run for transcription, evaluation and alignment.

    Args:
        run: Folder of the run, or a checkpoint, as `RUN/checkpoints/N`.
        checkpoint: Number of updates of the checkpoint. None: the best one by validation.
        live: Whether to use the live parameters instead of the averaged ones.
        precision: Precision of activations. None: as in training.
        head: Head that texts come from. Empty: the primary head.
        decoding: Decoding of the head. None: as in validation.
        batch_seconds: Maximum padded audio per batch in seconds, over all devices. None: 60 per CPU device; on
            accelerators, as much as fits the memory.
        batch_size: Maximum number of rows per batch, over all devices. None: 512.
        max_duration: Longest audio in seconds that is computed at once; longer audio is computed in windows. None: the
            longest utterance of training in `transcribe`, and four times as much in `evaluate` and `align`.
        state_resets: Length and overlap in seconds of windows with CAIMAN-ASR's state resets, such as (15.0, 3.0), in
            `transcribe` and `evaluate`. (0, 0): other windows, joined by seams.
        context: Context of attention, for encoders with contexts. None: the first one of the model.

    Raises:
        UserError: If the folder is not a run, or has no such checkpoint or head, or if `state_resets` are no sizes of
            windows.
        ValueError: If a size of batches is not above 0.
    """
    if precision is not None and precision not in get_args(Precision):
        raise UserError(f"precision is {precision!r}: expected one of {', '.join(get_args(Precision))}")
    folder, updates = run_and_checkpoint(Path(at_home(os.fspath(run))), checkpoint)
    batches = BatchOptions(batch_seconds=batch_seconds, batch_size=batch_size, max_duration=max_duration)
    trained = load_trained(folder, updates=updates, live=live, precision=precision, batches=batches, context=context)
    return Run(trained.with_resets(state_resets), head=head, decoding=decoding)


def train(experiment: Experiment) -> dict[str, Any]:
    """Trains a new run, or continues the run in the experiment's folder.

    >>> from dataclasses import replace
    >>> import asr_jax
    >>> experiment = replace(asr_jax.load_config("config.py"), run_dir="runs/another")
    >>> summary = asr_jax.train(experiment)  # doctest: +ELLIPSIS
    run ...
    >>> summary["folder"]
    'runs/another'

    Returns:
        Figures of the last validation (`wer` and `cer`, or `loss`), `measure`, by which the best checkpoint is chosen
        (`wer`, `cer` or `loss`), the best value of all validations (`best_wer` and so on), `update`, `folder` and
        `checkpoint`. With several validation sets also their figures, `sets` and `mean`, and the setting that chooses
        the best value, `best_of`. If the job ended before the run, only `continues`, a message. Empty for
        `Experiment(dry_run=True)`, which trains nothing.

    Raises:
        UserError: If the run cannot start.
        RunError: If the run has started and cannot continue.
    """
    from asr_jax.training import loop, preview  # imported here because it takes as long as all other imports

    join()
    if experiment.dry_run:
        preview.dry_run(experiment)
        return {}
    return loop.train(experiment)


class Run:
    """A trained run. Programs are compiled on first use and cached on disk between processes."""

    def __init__(self, trained: Trained, *, head: str = "", decoding: Decoding | None = None) -> None:
        self.trained = trained
        """Model, parameters, tokenizer and settings."""
        self._head, self._decoding = head, decoding
        if head:
            trained.experiment.model.decoding_of(head)

    @property
    def experiment(self) -> Experiment:
        """The settings that the run was trained with."""
        return self.trained.experiment

    # A str is also a sequence of str, which mypy cannot distinguish from a list of paths.
    @overload
    def transcribe(self, audio: Audio, *, rate_hz: int | None = None) -> Transcript: ...  # type: ignore[overload-overlap]

    @overload
    def transcribe(self, audio: Sequence[Audio], *, rate_hz: int | None = None) -> list[Transcript]: ...

    def transcribe(
        self, audio: Audio | Sequence[Audio], *, rate_hz: int | None = None
    ) -> Transcript | list[Transcript]:
        """Transcribes audio of any length and sample rate.

        Args:
            audio: Path of an audio file or an array of samples [S], or a list of them.
            rate_hz: Sample rate of arrays in Hz. Not used for files.

        Returns:
            The transcript, with the times of words in seconds and their confidences. For a list, one transcript per
            element, in order. Silence, which has no words, and clipped samples are logged as warnings.

        Raises:
            UserError: If an array has no sample rate, or a wrong shape, type or scale.
            RunError: If audio cannot be read. The message has each file with its reason.
        """
        with _utterances(audio, rate_hz) as utterances:
            found = list(self._transcriber(utterances))
        _refuse([(each.utterance, each.reason) for each in found if each.transcript is None])
        for given, each in zip(_listed(audio), found, strict=True):
            if each.differing and (remark := without_durations(each.differing)):
                logger.warning("%s: %s", given if isinstance(given, str | os.PathLike) else "array", remark.reason)
        transcripts = [each.transcript for each in found if each.transcript]
        return transcripts if _are_several(audio) else transcripts[0]

    def stream(self, *, rate_hz: int | None = None, endpoints: Endpoints = ENDPOINTS) -> "Stream":
        """Begins to recognise a stream of samples that arrive in pieces.

        Args:
            rate_hz: Sample rate of the samples in Hz. None: that of the model.
            endpoints: Rules by which utterances end.

        Raises:
            UserError: If the model cannot stream, or `rate_hz` is no sample rate.
        """
        streamer = Streamer(self._stream_program, endpoints=endpoints)
        return Stream(streamer, streamer.rate_hz if rate_hz is None else _checked_rate(rate_hz))

    def evaluate(self, manifest: str | os.PathLike[str], *, allow_pipes: bool = False) -> dict[str, Any]:
        """Computes error rates on a manifest, or on any other data that training reads.

        Args:
            allow_pipes: Whether commands in the place of files are run, as `Data.allow_pipes`.

        Returns:
            The figures of `python -m asr_jax.evaluate --json`: `run`, `checkpoint`, `weights`, `precision`, `head`,
            `decoding`, `normaliser`, `calibrated`, `labels` (their kind); `wer` and `cer` (fractions, None if the
            references have no words), `substitutions`, `deletions`, `insertions`, `words`, `utterances`, `rejected`,
            `wer_interval`, and the same by source, speaker and length; `windowed_ids`, the ids of the recordings that
            were computed in windows; `removed`, the characters that the normaliser removes from the references;
            `round_trip`, what the labels write otherwise than the references, and the lowest rates that follow.

        Raises:
            UserError: If the manifest cannot be read.
        """
        how = ReadOptions(allow_pipes=allow_pipes)
        utterances = read_utterances([os.fspath(manifest)], role="validation", options=how)
        data = self.trained.plan(utterances)
        found = recognise_all(self.trained, self._decoder, data)
        tokenizer = self.trained.tokenizer
        of_run = self.trained.description(self._decoder) | {"labels": tokenizer.kind}
        return of_run | scored(data, found, tokenizer) | changed_texts(utterances, tokenizer, tokenizer.normaliser)

    @overload
    def align(self, audio: Audio, text: str, *, rate_hz: int | None = None) -> Transcript: ...  # type: ignore[overload-overlap]

    @overload
    def align(self, audio: Sequence[Audio], text: Sequence[str], *, rate_hz: int | None = None) -> list[Transcript]: ...

    def align(
        self, audio: Audio | Sequence[Audio], text: str | Sequence[str], *, rate_hz: int | None = None
    ) -> Transcript | list[Transcript]:
        """Aligns known texts with audio (forced alignment).

        Args:
            audio: As in `transcribe`.
            text: Text of the audio; for a list of audio, a list of texts.
            rate_hz: Sample rate of arrays in Hz. Not used for files.

        Returns:
            A transcript with the times of words in seconds and their confidences. For a list, one transcript per
            element, in order.

        Raises:
            UserError: If the model has no CTC head, or the number of texts differs from the number of recordings.
            RunError: If audio cannot be read or is too short for its text. The message has each recording with its
                reason.
        """
        texts = [text] if isinstance(text, str) else list(text)
        with _utterances(audio, rate_hz) as utterances:
            if len(texts) != len(utterances):
                raise UserError(
                    f"{counted(len(texts), 'text')} for {counted(len(utterances), 'recording')}: expected one text for "
                    "each recording"
                )
            labelled = [replace(utterance, text=each) for utterance, each in zip(utterances, texts, strict=True)]
            try:
                data = aligning.plan(self.trained, Utterances.of(labelled))
            except NoUtterances as error:
                raise RunError(
                    "\n".join(f"{each.location}: {each.detail}" for each in error.rejections.entries)
                ) from error
            aligned = {each.utterance.id: each for each in aligning.aligned_utterances(self.trained, data)}
            rejected = {each.id: each.detail for each in data.rejections.entries}
        found = [aligned.get(utterance.id) for utterance in labelled]
        pairs = zip(labelled, found, strict=True)
        _refuse(
            [
                (utterance, each.reason if each else rejected.get(utterance.id, ""))
                for utterance, each in pairs
                if each is None or each.transcript is None
            ]
        )
        transcripts = [each.transcript for each in found if each and each.transcript]
        return transcripts if _are_several(audio) else transcripts[0]

    def export(
        self,
        out: str | os.PathLike[str],
        *,
        to: str,
        weights: Sequence[str] = ("f32",),
        recording: str | os.PathLike[str] = "",
        like: str | os.PathLike[str] | None = None,
        streaming: bool = False,
    ) -> list[str]:
        """Writes the run for another program, as `python -m asr_jax.export`. Load it with `precision="f32"`.

        Args:
            out: Folder or file to write, which must not exist.
            to: Format: onnx, sherpa-onnx, stablehlo, safetensors, icefall, nemo, huggingface, funasr, fairseq,
                deeplearningexamples, caiman, keras or rust.
            weights: Types of the weights in ONNX files, each in a file of its own: f32, f16, int8.
            recording: Audio file that the files are tried with. Empty: one of the run's validation set.
            like: `.nemo` file from which everything except the weights is copied, for nemo.
            streaming: Whether the files read windows, with the state of the encoder as inputs and outputs.

        Returns:
            Lines that describe what was written.

        Raises:
            UserError: If the format does not have the model, or an option does not belong to the format.
            RunError: If a written file has other outputs than the run.
        """
        from asr_jax.exporting.targets import export  # imported here because most programs do not export

        original = None if like is None else Path(at_home(os.fspath(like)))
        path, tried_with = Path(at_home(os.fspath(out))), os.fspath(recording)
        options = {"weights": weights, "recording": tried_with, "like": original, "streaming": streaming}
        return list(export(self.trained, path, to=to, head=self._head, **options))  # type: ignore[arg-type]

    @functools.cached_property
    def _decoder(self) -> Decoder:
        return self.trained.decoder(self._decoding, head=self._head)

    @functools.cached_property
    def _stream_program(self) -> StreamProgram:
        return StreamProgram(self.trained, self._decoder)

    @functools.cached_property
    def _transcriber(self) -> Transcriber:
        return Transcriber(self.trained, self._decoder)


class Stream:
    """A stream that is recognised while its samples arrive, from `Run.stream`.

    If a method is interrupted (Ctrl-C), the next call returns also the results until then. The samples that `feed` got
    do not need to be given again.
    """

    def __init__(self, streamer: Streamer, rate_hz: int) -> None:
        self._streamer, self._stream = streamer, streamer.begin()
        self._resampled = StreamResampler(rate_hz, streamer.rate_hz)
        self._finishes = False
        """Whether `finish` was called, and was interrupted if it is not running."""

    def feed(self, samples: np.ndarray) -> list[StreamResult]:
        """Adds the next samples, in any number.

        Args:
            samples: Mono samples [S]: floats from -1 to 1, or int16.

        Returns:
            The new results: a partial one whenever the text of an utterance has changed, and a final one at its end.

        Raises:
            UserError: If `samples` has a wrong shape, type or scale, or the stream has ended.
        """
        self._streamer.check_open(self._stream)
        if getattr(samples, "shape", None) != (0,):
            with uninterrupted():
                self._streamer.feed(self._stream, self._resampled(_samples(samples, 0)))
        return self._streamer.results()

    def finish(self) -> list[StreamResult]:
        """Ends the stream, which takes no more samples, and returns the remaining results.

        Raises:
            UserError: If the stream has ended before.
        """
        if not self._finishes:
            self._streamer.check_open(self._stream)
            with uninterrupted():
                self._streamer.feed(self._stream, self._resampled(np.zeros(0, np.int16), is_last=True))
                self._streamer.end(self._stream)
                self._finishes = True
        results = self._streamer.results()
        self._finishes = False
        return results


def _are_several(audio: Audio | Sequence[Audio]) -> bool:
    return not isinstance(audio, str | os.PathLike) and not hasattr(audio, "__array__")


def _listed(audio: Audio | Sequence[Audio]) -> Sequence[Any]:
    return audio if _are_several(audio) else [audio]  # type: ignore[return-value]


@contextmanager
def _utterances(audio: Audio | Sequence[Audio], rate_hz: int | None) -> Iterator[list[Utterance]]:
    """Yields utterances with durations. Arrays are written to a temporary folder, which is deleted at the end."""
    with tempfile.TemporaryDirectory(prefix="asr_jax-") as folder:
        named = [
            Utterance(str(place), str(_location(each, rate_hz, folder, place)))
            for place, each in enumerate(_listed(audio))
        ]
        measured = with_durations(named)
        _refuse([(entry, entry.reason) for entry in measured if isinstance(entry, Rejected)])
        yield [entry for entry in measured if isinstance(entry, Utterance)]


def _location(audio: Audio, rate_hz: int | None, folder: str, place: int) -> Location:
    if isinstance(audio, str | os.PathLike):
        try:
            return Location.parse(local_location(os.fspath(audio), allow_pipes=False))
        except ValueError as error:
            raise UserError(f"{os.fspath(audio)}: {error}") from None
    samples = _samples(audio, place)
    path = Path(folder) / f"{place}.flac"
    write_flac(path, samples, _checked_rate(rate_hz))
    return Location(str(path))


def _checked_rate(rate_hz: Any) -> int:
    """Returns the sample rate of arrays.

    Raises:
        UserError: If it is none.
    """
    if isinstance(rate_hz, bool) or not isinstance(rate_hz, numbers.Real) or rate_hz not in RATES_HZ:
        raise UserError(
            f"audio is an array and rate_hz is {rate_hz!r}: expected its sample rate in Hz, a whole number from "
            f"{RATES_HZ.start} to {RATES_HZ.stop - 1}, such as 16000"
        )
    found: int = int(rate_hz)  # type: ignore[call-overload]
    return found


def _samples(audio: Any, place: int) -> Int16[np.ndarray, " S"]:
    """Converts an array to 16-bit samples. Those that exceed full scale are clipped, with a warning.

    Raises:
        UserError: If it is no array, or has a wrong shape, type or scale.
    """
    if not hasattr(audio, "__array__"):
        raise UserError(f"audio is of type {type(audio).__name__}: expected a path, an array, or a list of them")
    try:
        audio = np.asarray(audio)
    except (TypeError, ValueError, RuntimeError) as error:  # such as a tensor on another device
        raise UserError(f"audio cannot be converted to a NumPy array: {error}") from None
    what = f"audio is an array of shape {audio.shape} and type {audio.dtype}"
    if audio.ndim == 2:
        axis = int(np.argmin(audio.shape))
        one = "audio[0]" if axis == 0 else "audio[:, 0]"
        raise UserError(
            f"{what}: expected one axis; if the axis of {audio.shape[axis]} is that of channels, pass one of them "
            f"({one}) or their mean (audio.mean(axis={axis}))"
        )
    if audio.ndim != 1 or not (np.issubdtype(audio.dtype, np.floating) or audio.dtype == np.int16):
        raise UserError(
            f"{what}: expected one axis of floats or int16; convert other types to floats from -1 to 1, such as int32 "
            "by audio / 2**31"
        )
    if not audio.size:
        raise UserError("audio is an empty array: expected samples")
    if audio.dtype == np.int16:
        return audio
    if num := int((~np.isfinite(audio)).sum()):
        raise UserError(f"audio is an array with {num} NaN or infinite values: expected finite samples from -1 to 1")
    if (peak := float(np.abs(audio).max())) > MAX_PEAK:
        raise UserError(f"audio is an array {out_of_range(peak)}")
    if peak > 1:
        logger.warning(
            "array %d: above full scale: the peak is %.4g, full scale is 1; samples are clipped", place, peak
        )
    return as_int16(audio.astype(np.float64))


def _refuse(rejected: Sequence[tuple[Utterance | Rejected, str]]) -> None:
    """Raises a RunError with the location and reason of each recording, if there are any."""
    if rejected:
        raise RunError("\n".join(f"{utterance.location}: {reason}" for utterance, reason in rejected))
