"""Streaming of Conformer and FastConformer: windows equal the whole utterance; contexts in training."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_suite import assert_refused
from support import assert_within, fast_jit, max_abs

from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import num_elements
from asr_jax.models.conformer import STREAMING, Conformer
from asr_jax.models.encoder import Context, Encoder, StreamWindow
from asr_jax.nn.attention import chunk_mask

BINS = 9
CONTEXTS = (Context(3, 6), Context(2, 4), Context())
TINY = Conformer.fast_streaming(
    "small", num_mels=BINS, dim=8, num_layers=2, num_heads=2, feedforward_dim=12, kernel_size=5, subsampling_channels=3,
    contexts=CONTEXTS, dropout=0.0, input_dropout=0.0, attention_dropout=0.0,
)  # fmt: skip
SETTINGS = {
    "fast": TINY,
    "chunks of one frame": TINY.with_context(Context(1, 4)),
    "left context of part of a chunk": replace(TINY.with_context(Context(3, 4)), positions="none", mask_padding=False),
    "no left context": replace(
        TINY.with_context(Context(2, 0)), subsampling="striding", subsampling_factor=4, norm="batch", tied_biases=True
    ),
}


@cache
def made(settings: Conformer) -> tuple[Encoder, Any]:
    """Returns an encoder and its random variables."""
    encoder, frames = settings.build(dtype=jnp.float32), Frames(jnp.zeros((1, 40, BINS)), jnp.array([40]))
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), frames, step=None))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(0.3, 0.4, leaf.shape).astype(np.float32), shapes.pop("params"))
    stats = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.7, np.float32), shapes)
    with jax.ensure_compile_time_eval():
        return encoder, jax.device_put({"params": params, **stats})


def encode(settings: Conformer, frames: Frames, key: Any = None, step: Any = None) -> Frames:
    encoder, variables = made(settings)
    rngs = {} if key is None else {"dropout": key}
    return encoder.apply(variables, frames, step=step, rngs=rngs).frames


def windows_of(values: np.ndarray, window: StreamWindow, *, first: int) -> Iterator[tuple[np.ndarray, int]]:
    """Yields the windows of a stream with their lengths. The stream begins at window `first` and ends once.

    Values outside of the stream are not 0, because they do not matter. The length of the first window includes the
    frames before the stream.
    """
    for number in range(-first, 7 - first):
        begin = number * window.shift - window.before
        count = max(min(len(values) - begin, window.size), 0) if number >= 0 else 0
        given = np.full((window.size, values.shape[1]), 7.0, np.float32)
        given[max(-begin, 0) : count] = values[max(begin, 0) : max(begin + count, 0)]
        yield given, count


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_windows_equal_the_whole_utterance(settings: Conformer) -> None:
    """The streams of a batch have different lengths and first windows; one program computes all windows."""
    encoder, variables = made(settings)
    window, rng, traces = encoder.stream_window, np.random.default_rng(1), list[Any]()
    end = window.size - window.before  # of the first window
    # Ends at the end of a window, in the first and the last frame of one, within one, and in the first window.
    lengths = np.array([end + 2 * window.size, end + window.size + 1, end + window.size - 1, end + 5, 3, 1, 0])
    firsts = (0, 0, 2, 1, 3, 0, 0)
    values = rng.normal(size=(len(lengths), lengths.max(), BINS)).astype(np.float32)
    valid = np.arange(lengths.max()) < lengths[:, None]
    padding = 0.0 if settings.mask_padding else 7.0
    given = jnp.asarray(np.where(valid[:, :, None], values, padding))
    expected = fast_jit(partial(encode, settings))(Frames(given, jnp.asarray(lengths)))

    @fast_jit
    def run(state: Any, begins: Any, frames: Frames) -> Any:
        traces.append(frames)
        begun = encoder.initial_state(len(lengths))
        state = jax.tree.map(
            lambda new, old: jnp.where(jnp.expand_dims(begins, range(1, old.ndim)), new, old), begun, state
        )
        return encoder.apply(variables, state, frames, method="stream")

    state = encoder.initial_state(len(lengths))
    sizes, found = jax.tree.map(lambda leaf: leaf.shape[1:], state), [list[np.ndarray]() for _ in lengths]
    streams = [
        windows_of(row[:length], window, first=first)
        for row, length, first in zip(values, lengths, firsts, strict=True)
    ]
    for number, parts in enumerate(zip(*streams, strict=True)):
        counts = np.array([count for _, count in parts])
        frames = Frames(jnp.asarray(np.stack([part for part, _ in parts])), jnp.asarray(counts))
        state, out = run(state, jnp.array([first == number for first in firsts]), frames)
        assert out.values.shape == (len(lengths), window.outputs, settings.dim)
        assert jax.tree.map(lambda leaf: leaf.shape[1:], state) == sizes
        assert all(np.asarray(out.lengths)[counts == window.size] == window.outputs)
        for row, count in enumerate(np.asarray(out.lengths)):
            found[row].append(np.asarray(out.values)[row, :count])
    assert len(traces) == 1
    for row, length in enumerate(lengths):
        outputs = np.concatenate(found[row])
        assert len(outputs) == encoder.output_length(int(length)) == expected.lengths[row]
        assert_within(max_abs(outputs, expected.values[row, : len(outputs)]), 1e-5, what=f"stream {row}")


def test_later_frames_change_only_later_chunks() -> None:
    settings, values = TINY.with_context(Context(3, 6)), np.random.default_rng(2).normal(size=(2, 120, BINS))
    values[1, 60:], values[1, :60] = 5.0, values[0, :60]
    out = fast_jit(partial(encode, settings))(Frames(jnp.float32(values), jnp.array([120, 120])))
    differ = np.abs(out.values[0] - out.values[1]).max(axis=-1) > 0
    # Frame 60 is the last that output frame 8 sees, which is in the chunk of the frames 6 to 8.
    assert not differ[:6].any()
    assert differ[6:].all()


def test_keys_of_a_chunk_and_of_frames_before_it() -> None:
    seen = np.asarray(chunk_mask(4, 7, 2, 2))  # three keys before the first query
    np.testing.assert_array_equal(seen, [[0, 1, 1, 1, 1, 0, 0]] * 2 + [[0, 0, 0, 1, 1, 1, 1]] * 2)


def test_training_draws_a_context() -> None:
    """One program trains with all contexts; evaluation uses the first one."""
    frames = Frames(jnp.float32(np.random.default_rng(3).normal(size=(1, 80, BINS))), jnp.array([80]))
    traces = list[Any]()

    @fast_jit
    def train(key: Any) -> Any:
        traces.append(key)
        return encode(TINY, frames, key, jnp.int32(0)).values

    each = [fast_jit(partial(encode, TINY.with_context(one)))(frames).values for one in CONTEXTS]
    drawn = [train(jax.random.key(seed)) for seed in range(12)]
    differences = np.array([[max_abs(one, other) for other in each] for one in drawn])
    assert_within(differences.min(axis=1).max(), 1e-5)
    assert set(differences.argmin(axis=1)) == {0, 1, 2}
    assert len(traces) == 1
    assert max_abs(fast_jit(partial(encode, TINY))(frames).values, each[0]) == 0


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (replace(TINY, causal=False), "cannot stream, because encoder.causal is False, expected True "),
        (TINY.with_context(Context()), r"encoder.contexts\[0\].chunk_frames is None, expected a number; .*left_frames"),
        (
            TINY.with_context(Context(2)),
            r"encoder.contexts\[0\].left_frames is None, .*; --chunk-frames 16 --left-frames 128",
        ),
        (replace(TINY, positions="abs_pos"), "encoder.positions is abs_pos, expected rel_pos or none "),
    ],
)
def test_models_that_cannot_stream(settings: Conformer, missing: str) -> None:
    encoder = settings.build(dtype=jnp.float32)
    for call in (lambda: encoder.stream_window, lambda: encoder.initial_state(1)):
        with pytest.raises(UserError, match=missing):
            call()


def test_windows_of_another_size() -> None:
    encoder, variables = made(TINY)
    frames = Frames(jnp.zeros((1, 25, BINS)), jnp.array([25]))
    with pytest.raises(ValueError, match="25 frames, expected 24"):
        encoder.apply(variables, encoder.initial_state(1), frames, method="stream")


def test_attention_without_scores_in_memory_has_no_chunks() -> None:
    assert_refused(TINY, attention="xla")


def test_published_size() -> None:
    """NeMo's streaming models look ahead by 1040, 480, 80 and 0 ms."""
    encoder = (large := Conformer.fast_streaming()).build(dtype=jnp.float32)
    frames = Frames(jnp.zeros((1, 80, 80)), jnp.array([80]))
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), frames, step=None))
    assert round(num_elements(shapes["params"]) / 1e6) == 109
    assert large.contexts == STREAMING
    assert [(each.chunk_frames - 1) * 80 for each in STREAMING if each.chunk_frames] == [1040, 480, 80, 0]
    assert encoder.stream_window == StreamWindow(112, 112, 14, before=7)
