"""Streaming recognisers as functions of a window and a state, for programs that keep the state themselves."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.audio.features import FULL_SCALE
from asr_jax.audio.streaming import FeatureWindows, SampleBuffer, SamplesOfWindow
from asr_jax.core.batch import Encoded, Frames
from asr_jax.core.pytrees import Tree, flatten
from asr_jax.exporting.parts import Arrays, File, Part, Parts, symbols
from asr_jax.heads.transducer import TransducerHead
from asr_jax.models.base import Recogniser

STATE, NEXT = "state_", "next_state_"
"""Prefixes of the names of inputs and outputs that are the state before and after a window."""
FEWEST = 4
"""Number of windows that files are tried with at least. A shorter recording is repeated."""


def streaming_parts(parts: Parts) -> list[Part]:
    """Returns the parts of a streaming recogniser: its features, the encoder with its state, and other networks.

    Raises:
        UserError: If the front-end, the encoder or the head cannot stream.
    """
    initial_state(parts, 1)  # raises before anything is computed
    if isinstance(parts.model.heads[parts.head], TransducerHead):
        return [features(parts), encoder(parts, "encoder", "encoder_out"), *parts.networks()]
    return [features(parts), encoder(parts, "model", "log_probs")]


def features(parts: Parts) -> Part:
    """Returns the part that computes the frames of one window from its samples."""
    windows = feature_windows(parts)

    def function(audio: Any, audio_lengths: Any, skipped: Any) -> Any:
        frames = windows(audio * FULL_SCALE, audio_lengths, skipped)
        return frames.values, frames.lengths

    (rows,) = symbols("batch")
    lengths = jax.ShapeDtypeStruct((rows,), jnp.int32)
    audio = jax.ShapeDtypeStruct((rows, windows.num_samples), jnp.float32)
    inputs = {"audio": audio, "audio_lengths": lengths, "skipped": lengths}
    example = _inputs(_windows_of(windows, parts.recording)[:2])
    return Part("features", function, inputs, ("frames", "frames_lengths"), example)


def _inputs(taken: Sequence[SamplesOfWindow]) -> Arrays:
    """Returns the inputs of `features` for a window in each row."""
    return {
        "audio": np.stack([each.samples for each in taken]).astype(np.float32) / np.float32(FULL_SCALE),
        "audio_lengths": np.asarray([each.length for each in taken], np.int32),
        "skipped": np.asarray([each.skipped for each in taken], np.int32),
    }


def _windows_of(windows: FeatureWindows, samples: np.ndarray) -> list[SamplesOfWindow]:
    """Returns the samples of all windows of a recording."""
    buffer, found = SampleBuffer(windows), list[SamplesOfWindow]()
    buffer.add(samples)
    buffer.end()
    while buffer.is_ready:
        found.append(buffer.take())
    return found


def feature_windows(parts: Parts) -> FeatureWindows:
    """Returns the windows of features that the encoder reads."""
    window = parts.model.encoder.stream_window
    return FeatureWindows(parts.model.front_end, window.size, window.shift, window.before)


def encoder(parts: Parts, name: str, output: str) -> Part:
    """Returns the part that encodes one window of each stream.

    Args:
        output: Name of its first output: log-probabilities of CTC, or projected frames of a transducer.
    """
    window, shapes = parts.model.encoder.stream_window, initial_state(parts, 1)
    (rows,) = symbols("batch")

    def function(frames: Any, frames_lengths: Any, **state: Any) -> Any:
        before = jax.tree.unflatten(jax.tree.structure(shapes), [state[name] for name in named(shapes, STATE)])
        after, outputs = streamed(parts, before, Frames(frames, frames_lengths))
        return outputs.values, outputs.lengths, *jax.tree.leaves(after)

    def check(file: File) -> Any:
        """Computes the windows of two streams, each from its first one to its last one."""
        of_samples, windows = features(parts), feature_windows(parts)
        ended = SamplesOfWindow(np.zeros(windows.num_samples, np.int16), 0, 0)
        streams = [_windows_of(windows, each) for each in parts.recordings]
        state = {name: np.asarray(leaf) for name, leaf in named(initial_state(parts, len(streams)), STATE).items()}
        found: list[list[np.ndarray]] = [[] for _ in streams]
        for taken in zip_longest(*streams, fillvalue=ended):
            frames, frames_lengths = of_samples.computed(_inputs(taken))
            values, lengths, *after = map(np.asarray, file(frames=frames, frames_lengths=frames_lengths, **state))
            state = dict(zip(state, after, strict=True))
            for outputs, row, length in zip(found, values, lengths, strict=True):
                outputs.append(row[:length])
        return parts.outputs(parts.recordings), joined(found)

    num_features = parts.model.front_end.num_features
    inputs = {
        "frames": jax.ShapeDtypeStruct((rows, window.size, num_features), jnp.float32),
        "frames_lengths": jax.ShapeDtypeStruct((rows,), jnp.int32),
        **{
            name: jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype)
            for name, leaf in named(shapes, STATE).items()
        },
    }
    return Part(name, function, inputs, (output, f"{output}_lengths", *named(shapes, NEXT)), check=check)


def joined(outputs: Sequence[Sequence[np.ndarray]]) -> list[np.ndarray]:
    """Returns the outputs `[B T V]` of streams, whose windows have outputs `[N V]`, and their numbers `[B]`."""
    rows = [np.concatenate(each) for each in outputs]
    most = max(map(len, rows))
    return [np.stack([np.pad(each, ((0, most - len(each)), (0, 0))) for each in rows]), np.asarray([*map(len, rows)])]


def long_enough(parts: Parts) -> Parts:
    """Returns the parts with a recording of at least `FEWEST` windows."""
    windows = feature_windows(parts)
    num_samples = windows.num_samples + FEWEST * windows.shift * parts.model.front_end.hop
    return replace(parts, recording=np.resize(parts.recording, max(num_samples, len(parts.recording))))


def initial_state(parts: Parts, num_rows: int) -> Tree:
    """Returns the encoder's state before the first window.

    Raises:
        UserError: If the encoder or the head cannot recognise streams.
    """
    options = {"head": parts.head, "decoding": parts.model.heads[parts.head].settings.decoding}
    found: Any = parts.model.apply(parts.variables, num_rows, **options, method="initial_state")
    return found["encoder"]


def streamed(parts: Parts, state: Tree, frames: Frames) -> tuple[Tree, Frames]:
    """Encodes a window; returns the state after it, and log-probabilities of CTC or a transducer's projected frames."""

    def function(module: Recogniser, state: Tree, frames: Frames) -> Any:
        after, outputs = module.encoder.stream(state, frames)
        head: Any = module.heads[parts.head]
        if isinstance(head, TransducerHead):
            return after, outputs.replace(values=head.of_frames(outputs.values))
        return after, head.emit(Encoded(outputs))

    found: Any = parts.model.apply(parts.variables, state, frames, method=function)
    return found


def named(state: Tree, prefix: str) -> dict[str, Any]:
    """Returns the arrays of a state in the order of its leaves, by their paths with `_` instead of `/`."""
    return {prefix + path.replace("/", "_"): leaf for path, leaf in flatten(state).items()}


def packed(state: Tree) -> Any:
    """Returns a state as one array of float32, `[B S]`. Counts of frames are exact below 2²⁴."""
    return jnp.concatenate(
        [leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:])).astype(jnp.float32) for leaf in jax.tree.leaves(state)],
        axis=1,
    )


def unpacked(like: Tree, values: Any) -> Tree:
    """Returns the state that `packed` has packed into `values` `[B S]`, in the form of `like`, of one stream."""
    sizes = [math.prod(leaf.shape[1:]) for leaf in jax.tree.leaves(like)]
    columns = jnp.split(values, np.cumsum(sizes)[:-1].tolist(), axis=1)
    leaves = [
        column.reshape(values.shape[0], *leaf.shape[1:]).astype(leaf.dtype)
        for column, leaf in zip(columns, jax.tree.leaves(like), strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(like), leaves)
