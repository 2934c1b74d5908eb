"""The recurrence of LSTM layers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, assert_within, relative

from asr_jax.nn.recurrent.lstm import LSTM, lstm_scan


def test_gradients_of_one_row_are_those_in_a_batch():
    random = np.random.default_rng(0)
    inputs = jnp.asarray(random.normal(size=(5, 3, 16)), jnp.float32)
    recurrent = jnp.asarray(random.normal(size=(4, 16)), jnp.float32)
    state = jnp.asarray(random.normal(size=(2, 3, 4)), jnp.float32)

    def total(inputs, recurrent, state):
        hiddens, cells = lstm_scan(inputs, recurrent, state[0], state[1])
        return jnp.sum(jnp.sin(hiddens[:, :1])) + jnp.sum(cells[:, :1] ** 2)

    gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    of_batch, of_row = gradient(inputs, recurrent, state), gradient(inputs[:, :1], recurrent, state[:, :1])
    assert_close(of_batch[0][:, :1], of_row[0], rtol=1e-5, atol=1e-6)
    assert_close(of_batch[1], of_row[1], rtol=1e-5, atol=1e-6)
    assert_close(of_batch[2][:, :1], of_row[2], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_values_and_gradients_in_bfloat16_are_near_those_in_float32():
    """On CPUs with instructions for bfloat16, XLA does not compile all such products of transposed arrays."""
    random = np.random.default_rng(0)
    x, dy = (jnp.asarray(random.normal(size=(3, 7, size)), jnp.float32) for size in (6, 16))
    params = LSTM(16, 2).init(jax.random.key(0), x, step=None)

    def both(dtype):
        def total(params, x):
            y, _ = LSTM(16, 2, dtype=dtype).apply(params, x, step=jnp.int32(0))
            return jnp.sum(y.astype(jnp.float32) * dy), y

        return jax.jit(jax.grad(total, (0, 1), has_aux=True))(params, x)

    expected = jax.tree.leaves(both(jnp.float32))
    for found, exact in zip(jax.tree.leaves(both(jnp.bfloat16)), expected, strict=True):
        assert_within(relative(found, exact), 8 * 2.0**-8)  # seven steps and an output are rounded
