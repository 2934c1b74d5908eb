"""Features computed by trained runs, for other uses: a layer of the encoder, or the codes of the quantiser."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Int16

from asr_jax.core.batch import OUTPUT, Batch, Frames
from asr_jax.core.devices import local_devices
from asr_jax.core.errors import UserError
from asr_jax.core.frame_times import FrameTimes
from asr_jax.core.pytrees import digest_of
from asr_jax.data.batching.limits import BatchLimits
from asr_jax.data.loading.extraction import Extractor
from asr_jax.heads.contrastive import ContrastiveHead
from asr_jax.inference.model import make_model
from asr_jax.inference.trained import Trained
from asr_jax.models.base import Recogniser
from asr_jax.transcripts.windows import Windows, windows_of

LAST = "output"
"""Name of the encoder's output for users."""


def of_layer(trained: Trained, layer: str) -> Extractor:
    """Returns an extractor of a layer's frames [T D].

    Args:
        layer: Name of a tap of the encoder, number of a layer, or `output`.

    Raises:
        UserError: If the encoder has no such tap.
    """
    tap = {LAST: OUTPUT}.get(layer, f"layer_{layer}" if layer.isdecimal() else layer)
    model = _with_tap(trained, tap, layer)
    length = functools.partial(model.output_length, tap=tap)

    def frames(variables: Any, batch: Batch) -> Any:
        encoded: Any = model.apply(variables, batch, step=None, method="encode")
        return encoded.at(tap)

    return _extractor(trained, frames, length, what=tap)


def of_codes(trained: Trained) -> Extractor:
    """Returns an extractor of quantiser codes: the most likely entry of each group [T G], numbered from 0.

    Raises:
        UserError: If no head has a quantiser.
    """
    model: Recogniser = trained.model
    head = next((name for name, head in model.heads.items() if isinstance(head, ContrastiveHead)), None)
    if head is None:
        raise UserError(
            f"--codes: {trained.name} has no quantiser, its heads are {', '.join(model.heads)}; expected a run that "
            "was pre-trained"
        )

    def codes(variables: Any, batch: Batch) -> Any:
        emitted: Any = model.apply(variables, batch, method="emit")
        return emitted[head]

    length = functools.partial(model.output_length, tap=model.heads[head].tap)
    return replace(_extractor(trained, codes, length, what="codes"), dtype="int32")


def with_windows(
    extractor: Extractor, output_length: Callable[[Any], Any], limits: BatchLimits, window_s: float
) -> Extractor:
    """Returns an extractor with limits of batches, which computes longer audio in windows."""
    front_end = extractor.front_end
    times = FrameTimes.of(output_length, hop=front_end.hop, rate_hz=front_end.rate_hz)
    windows = Windows.of(times, round(window_s * front_end.rate_hz))

    def in_windows(blocks: Iterable[Int16[np.ndarray, " _"]]) -> np.ndarray:
        parts, end = list[np.ndarray](), 0
        for window in windows_of(blocks, windows):
            audio = np.zeros((1, windows.size), np.int16)  # one shape for all windows
            audio[0, : len(window.samples)] = window.samples
            frames = extractor.compute(audio, np.array([len(window.samples)], np.int32))
            own = np.asarray(frames.values[0])[: int(frames.lengths[0])]
            if parts:  # in the middle of the overlap, both windows have context
                seam = (window.first_frame + end) // 2
                parts[-1] = parts[-1][: len(parts[-1]) - (end - seam)]
                own = own[seam - window.first_frame :]
            parts.append(own)
            end = window.first_frame + int(frames.lengths[0])
        return np.concatenate(parts)

    about = f"windows of {windows.size} by {windows.step} samples"
    return replace(extractor, limits=limits, in_windows=in_windows, windows=about)


def _with_tap(trained: Trained, tap: str, layer: str) -> Recogniser:
    """Returns the model with a tap added to its encoder. `layer`: the user's name for the tap."""
    settings = trained.experiment.model
    encoder: Any = settings.encoder
    there = getattr(encoder, "taps", ())
    if tap == OUTPUT or tap in there:
        return trained.model
    try:
        tapped = replace(settings, encoder=replace(encoder, taps=(*there, tap)))
    except (ValueError, TypeError) as error:  # TypeError: the encoder has no taps
        raise UserError(f"--layer {layer}: {type(encoder).__name__}'s {error}; or {LAST}") from error
    return make_model(replace(trained.experiment, model=tapped), trained.tokenizer)


def _extractor(
    trained: Trained, function: Callable[[Any, Batch], Any], output_length: Callable[[Any], Any], *, what: str
) -> Extractor:
    program = jax.jit(function)
    variables = jax.device_put(jax.device_get(trained.variables), local_devices()[0])
    least = 1  # samples: encoders do not support batches without any frame
    while not trained.model.output_length(least):
        least *= 2

    def compute(audio: np.ndarray, lengths: np.ndarray) -> Frames:
        rows, size = audio.shape
        audio = np.pad(audio, ((0, 0), (0, max(least - size, 0))))
        batch = Batch(
            audio=audio,
            features=None,
            lengths=lengths,
            tokens=np.zeros((rows, 0), np.int32),
            token_lengths=np.zeros(rows, np.int32),
            weights=np.ones(rows, np.float32),
            utterances=np.zeros(rows, np.int32),
        )
        frames: Frames = program(variables, batch)
        return frames

    experiment = trained.experiment
    made_of = [what, digest_of(trained.variables), repr(experiment.model), experiment.training.precision]
    extractor = Extractor(experiment.model.front_end, compute, " ".join(made_of))
    limits = trained.for_sets()
    return with_windows(extractor, output_length, limits, min(trained.longest_s, limits.longest_s))
