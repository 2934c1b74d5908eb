"""Streams of Zipformer: windows, arrays of the state, settings that cannot stream; contexts that training draws."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from streaming_suite import ONE_STACK, drawn
from streaming_suite import ZIPFORMER as TINY
from support import assert_within, fast_jit, max_abs

from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten
from asr_jax.models.encoder import Context, contexts_of
from asr_jax.models.zipformer import Zipformer


def test_a_window_is_that_of_icefall() -> None:
    window = Zipformer(causal=True, contexts=(Context(16, 128),)).build(dtype=jnp.float32).stream_window
    assert (window.size, window.shift, window.outputs) == (45, 32, 8)


def test_arrays_of_the_state() -> None:
    state = TINY.build(dtype=jnp.bfloat16).initial_state(3)
    shapes = {path: leaf.shape for path, leaf in flatten(state).items()}
    expected = {"embed": (3, 3, 3, 4), "frames": (3,)}
    expected |= {"stack_0/key": (3, 1, 8, 8), "stack_1/key": (3, 2, 2, 6)}
    expected |= {"stack_0/nonlinear": (3, 1, 8, 6), "stack_1/nonlinear": (3, 2, 2, 9)}
    for n in (1, 2):
        expected |= {f"stack_0/value_{n}": (3, 1, 8, 8), f"stack_1/value_{n}": (3, 2, 2, 4)}
        expected |= {f"stack_0/convolution_{n}": (3, 1, 7, 8), f"stack_1/convolution_{n}": (3, 2, 1, 12)}
    assert shapes == expected
    assert state["stack_0"]["key"].dtype == jnp.bfloat16


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"causal": False, "contexts": (Context(),)},
            r"causal is False, expected True; encoder.contexts\[0\].chunk_frames is None, expected a number; ",
        ),
        (
            {"contexts": (Context(4), Context(4, 8))},
            r"Zipformer cannot stream, because encoder.contexts\[0\].left_frames is None",
        ),
        ({"mask_padding": False}, "because encoder.mask_padding is False, expected True. Train"),
        ({"output_downsampling": 3}, r"chunk_frames 4: expected a multiple of output_downsampling, 3"),
    ],
)
def test_settings_that_cannot_stream(changes: dict[str, Any], message: str) -> None:
    encoder = replace(TINY, **changes).build(dtype=jnp.float32)
    for call in (lambda: encoder.stream_window, lambda: encoder.initial_state(1)):
        with pytest.raises(UserError, match=message):
            call()


CONTEXTS = (Context(4, 8), Context(4), Context(8, 16), Context())


def in_training(settings: Zipformer) -> Any:
    """Returns a program for the loss and its gradients in training, which has nothing random but the context.

    It fails if it is traced twice.
    """
    encoder, traces = settings.build(dtype=jnp.float32), iter([None])

    def loss(params: Any, frames: Frames, key: Any) -> Any:
        next(traces)
        values = encoder.apply({"params": params}, frames, step=jnp.int32(0), rngs={"dropout": key}).frames.values
        return jnp.sum(values**2)

    return fast_jit(jax.value_and_grad(loss))


@pytest.mark.slow
def test_training_draws_a_context_for_each_key_in_one_program() -> None:
    several = replace(ONE_STACK, contexts=CONTEXTS)
    params = drawn(several.build(dtype=jnp.float32))["params"]
    values = np.random.default_rng(3).normal(size=(2, 61, 16)).astype(np.float32)
    frames, keys = Frames(values, np.array([61, 40], np.int32)), jax.random.split(jax.random.key(0), 24)
    expected = [in_training(several.with_context(each))(params, frames, keys[0]) for each in CONTEXTS]
    program, counts = in_training(several), [0] * len(CONTEXTS)
    for key in keys:
        found, gradients = jax.device_get(program(params, frames, key))
        (place,) = [n for n, (loss, _) in enumerate(expected) if abs(float(found / loss) - 1) < 1e-5]
        counts[place] += 1
        if counts[place] == 1:
            others = {path: np.asarray(leaf) for path, leaf in flatten(expected[place][1]).items()}
            largest = {path: float(np.abs(leaf).max()) for path, leaf in others.items()}
            for path, leaf in flatten(gradients).items():
                scale = largest[path] + 1e-3 * max(largest.values())
                assert_within(max_abs(leaf, others[path]), 1e-4, scale=scale, what=path)
    assert all(counts), counts


def test_contexts_of_all_pairs() -> None:
    assert contexts_of((4, None), (8, None)) == (Context(4, 8), Context(4), Context(), Context())
