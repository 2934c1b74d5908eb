"""Features computed by trained runs, for other uses: a layer of the encoder, or the codes of the quantiser."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from asr_jax.core.batch import OUTPUT, Batch, Frames
from asr_jax.core.devices import local_devices
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import digest_of
from asr_jax.data.loading.extraction import Extractor
from asr_jax.heads.contrastive import ContrastiveHead
from asr_jax.inference.model import make_model
from asr_jax.inference.trained import Trained
from asr_jax.models.base import Recogniser

LAST = "output"
"""Name of the encoder's output for users."""


def of_layer(trained: Trained, layer: str) -> Extractor:
    """Returns an extractor of a layer's frames [T D].

    Args:
        trained: The run.
        layer: Name of a tap of the encoder, number of a layer, or `output`.

    Raises:
        UserError: If the encoder has no such tap.
    """
    tap = {LAST: OUTPUT}.get(layer, f"layer_{layer}" if layer.isdecimal() else layer)
    model = _with_tap(trained, tap, layer)

    def frames(variables: Any, batch: Batch) -> Any:
        encoded: Any = model.apply(variables, batch, step=None, method="encode")
        return encoded.at(tap)

    return _extractor(trained, frames, what=tap)


def of_codes(trained: Trained) -> Extractor:
    """Returns an extractor of quantiser codes: the most likely entry of each group [T G], numbered from 0.

    Raises:
        UserError: If no head has a quantiser.
    """
    model: Recogniser = trained.model
    head = next((name for name, head in model.heads.items() if isinstance(head, ContrastiveHead)), None)
    if head is None:
        raise UserError(
            f"--codes: {trained.folder} has no quantiser, its heads are {', '.join(model.heads)}; expected a run that "
            "was pre-trained"
        )

    def codes(variables: Any, batch: Batch) -> Any:
        emitted: Any = model.apply(variables, batch, method="emit")
        return emitted[head]

    return replace(_extractor(trained, codes, what="codes"), dtype="int32")


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


def _extractor(trained: Trained, function: Callable[[Any, Batch], Any], *, what: str) -> Extractor:
    program = jax.jit(function)
    variables = jax.device_put(jax.device_get(trained.variables), local_devices()[0])
    least = 1  # samples: encoders do not support batches without any frame
    while not trained.model.output_length(least):
        least *= 2

    def compute(audio: np.ndarray, lengths: np.ndarray) -> Frames:
        rows, size = audio.shape
        audio = np.pad(audio, ((0, 0), (0, max(least - size, 0))))
        batch = Batch(
            audio=audio, features=None, lengths=lengths, tokens=np.zeros((rows, 0), np.int32),
            token_lengths=np.zeros(rows, np.int32), weights=np.ones(rows, np.float32),
            utterances=np.zeros(rows, np.int32),
        )  # fmt: skip
        frames: Frames = program(variables, batch)
        return frames

    experiment = trained.experiment
    made_of = [what, digest_of(trained.variables), repr(experiment.model), experiment.training.precision]
    return Extractor(experiment.model.front_end, compute, " ".join(made_of))
