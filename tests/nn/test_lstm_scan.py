"""The recurrence of LSTM layers."""

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.nn.lstm import lstm_scan


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
    np.testing.assert_allclose(of_batch[0][:, :1], of_row[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_batch[1], of_row[1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_batch[2][:, :1], of_row[2], rtol=1e-5, atol=1e-6)
