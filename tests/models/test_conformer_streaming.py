"""Streaming of Conformer and FastConformer: settings that cannot stream; contexts in training; published sizes."""

from dataclasses import replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_suite import assert_refused
from streaming_suite import CONFORMER as TINY
from streaming_suite import drawn
from support import assert_within, fast_jit, max_abs

from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import num_elements
from asr_jax.models.conformer import STREAMING, Conformer
from asr_jax.models.encoder import Context, Encoder, StreamWindow
from asr_jax.nn.attention import chunk_mask

BINS, CONTEXTS = TINY.num_mels, TINY.contexts


@cache
def made(settings: Conformer) -> tuple[Encoder, Any]:
    """Returns an encoder and its random variables."""
    encoder = settings.build(dtype=jnp.float32)
    with jax.ensure_compile_time_eval():
        return encoder, jax.device_put(drawn(encoder))


def encode(settings: Conformer, frames: Frames, key: Any = None, step: Any = None) -> Frames:
    encoder, variables = made(settings)
    rngs = {} if key is None else {"dropout": key}
    return encoder.apply(variables, frames, step=step, rngs=rngs).frames


def test_keys_of_a_chunk_and_of_frames_before_it() -> None:
    seen = np.asarray(chunk_mask(4, 7, 2, 2))  # three keys before the first query
    np.testing.assert_array_equal(seen, [[0, 1, 1, 1, 1, 0, 0]] * 2 + [[0, 0, 0, 1, 1, 1, 1]] * 2)


@pytest.mark.slow
def test_training_draws_a_context() -> None:
    """One program trains with all contexts."""
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


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        (replace(TINY, causal=False), r"cannot stream, because encoder.causal is False, expected True\. Train"),
        (TINY.with_context(Context()), r"encoder.contexts\[0\].chunk_frames is None, expected a number; .*left_frames"),
        (
            TINY.with_context(Context(2)),
            r"encoder.contexts\[0\].left_frames is None, .* Add --left-frames, such as --left-frames ",
        ),
        (replace(TINY, positions="abs_pos"), "encoder.positions is abs_pos, expected rel_pos or none. Train"),
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
