"""Long short-term memory (LSTM) layers."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.errors import UserError
from asr_jax.core.settings import PositiveFloat, ShareBelow1, settings
from asr_jax.nn.linear import uniform
from asr_jax.nn.normalization import BatchNorm
from asr_jax.nn.recurrent.lstm_cudnn import Implementation, check_runs, lstm_cudnn
from asr_jax.nn.recurrent.state_passing import PASSED
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Dropout

FORGET_BIAS = 1.0
"""Initial sum of both biases of the forget gate."""


@settings
class LSTMSettings:
    """Settings of a stack of LSTM layers."""

    dropout: ShareBelow1 = 0.0
    """Dropout rate of the output of each layer."""
    batch_norm: bool = False
    """Whether the output of each layer is normalised with the statistics of the batch."""
    weight_scale: PositiveFloat = 0.5
    """Factor of the initial values of the layers, except for the bias of the forget gates, which is 1."""
    implementation: Implementation = "auto"
    """Implementation of the LSTM: scan, a loop of JAX, or cudnn, cuDNN's in training on NVIDIA GPUs; evaluation, which
    continues states, uses the scan. auto: the scan, until cuDNN's LSTM was measured on a GPU."""


class LSTMState(NamedTuple):
    """State of a stack of L LSTM layers after a frame `[L B H]`, or after each of T frames `[L B T H]`."""

    hidden: Float[Array, "L B *T H"]
    cell: Float[Array, "L B *T H"]


@jax.custom_vjp
def lstm_scan(
    inputs: Float[Array, "T B G"],
    recurrent: Float[Array, "H G"],
    hidden: Float[Array, "B H"],
    cell: Float[Array, "B H"],
) -> tuple[Float[Array, "T B H"], Float[Array, "T B H"]]:
    """Computes the recurrence of an LSTM layer.

    The gates are input, forget, cell and output, in this order (G = 4 H). The gradient of the recurrent kernel is one
    product over all frames, instead of a sum that each step adds to.

    Source: Hochreiter & Schmidhuber 1997; the equations of `torch.nn.LSTM`.

    Args:
        inputs: Input part of the gates, with biases.

    Returns:
        Hidden states and cell states after each frame.
    """
    return _lstm_forward(inputs, recurrent, hidden, cell)[0]


def _lstm_forward(inputs: Array, recurrent: Array, hidden: Array, cell: Array) -> tuple[tuple[Array, Array], tuple]:
    def step(state: tuple[Array, Array], of_input: Array) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        hidden, cell = state
        gates = _activated(of_input + _product(hidden, recurrent))
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        cell = f * cell + i * g
        hidden = o * jnp.tanh(cell)
        return (hidden, cell), (hidden, cell, gates)

    _, (hiddens, cells, gates) = lax.scan(step, (hidden, cell), inputs)
    return (hiddens, cells), (recurrent, hidden, cell, hiddens, cells, gates)


def _lstm_backward(residuals: tuple, cotangents: tuple[Array, Array]) -> tuple[Array, Array, Array, Array]:
    recurrent, hidden, cell, hiddens, cells, gates = residuals
    before = jnp.concatenate([cell[None], cells[:-1]])

    def step(carried: tuple[Array, Array], given: tuple[Array, ...]) -> tuple[tuple[Array, Array], Array]:
        d_hidden, d_cell = carried
        of_hidden, of_cell, gates, cell, cell_before = given
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        d_hidden += of_hidden
        squashed = jnp.tanh(cell)
        d_cell += of_cell + d_hidden * o * (1 - squashed**2)
        d_gates = jnp.concatenate(
            [
                d_cell * g * i * (1 - i),
                d_cell * cell_before * f * (1 - f),
                d_cell * i * (1 - g**2),
                d_hidden * squashed * o * (1 - o),
            ],
            axis=-1,
        )
        # For one row, XLA on CPUs makes a slow product of the transposed kernel: 27 ms instead of 0.3 for H = 1024.
        is_row = len(d_gates) == 1
        d_before = _product(recurrent, d_gates.T).T if is_row else _product(d_gates, recurrent.T)
        return (d_before, d_cell * f), d_gates

    nothing = jnp.zeros_like(hidden), jnp.zeros_like(cell)
    (d_hidden, d_cell), d_gates = lax.scan(step, nothing, (*cotangents, gates, cells, before), reverse=True)
    hiddens_before = jnp.concatenate([hidden[None], hiddens[:-1]])
    d_recurrent = jnp.einsum("tbh,tbg->hg", hiddens_before, d_gates, preferred_element_type=jnp.float32)
    return d_gates, d_recurrent.astype(recurrent.dtype), d_hidden, d_cell


lstm_scan.defvjp(_lstm_forward, _lstm_backward)


def _product(a: Array, b: Array) -> Array:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32).astype(a.dtype)


def _activated(gates: Array) -> Array:
    """Applies the sigmoid, and tanh to the third quarter."""
    size = gates.shape[-1] // 4
    sigmoid = jax.nn.sigmoid(gates)
    return jnp.concatenate(
        [sigmoid[..., : 2 * size], jnp.tanh(gates[..., 2 * size : 3 * size]), sigmoid[..., 3 * size :]], -1
    )


class LSTM(nn.Module):
    """Stack of unidirectional LSTM layers, each followed by batch normalisation, if it is on, and dropout.

    Parameters of layer n are in `layer_n`: `input` [D 4H], `recurrent` [H 4H], and two biases [4H], as in PyTorch.

    Source: `LSTM` in CAIMAN-ASR's rnnt/rnn.py at version 1.14.
    """

    dim: int
    """Width H."""
    num_layers: int
    settings: LSTMSettings = LSTMSettings()
    dtype: DTypeLike = jnp.float32

    @nn.compact
    def __call__(
        self,
        x: Float[Array, "B T D"],
        lengths: Int[Array, " B"] | None = None,
        state: LSTMState | None = None,
        *,
        step: Step,
        passed_after: Int[Array, " B"] | None = None,
    ) -> tuple[Float[Array, "B T H"], LSTMState | None]:
        """Computes all layers.

        In training with the collection `passed` (`nn.recurrent.state_passing`), the initial states are those in the
        collection, and the states after `passed_after` frames replace them.

        Args:
            lengths: Number of valid frames of each row, for the statistics of batch normalisation. None: all frames.
            state: State before the first frame. None: zeros.
            passed_after: Number of frames of each row after which its state is passed on; 0: the initial state is.
                None: no states are passed.

        Returns:
            Output frames, and the states after each frame, `[L B T H]`, for `state_at`; None in training by cuDNN.

        Raises:
            UserError: If the implementation does not run here, or states are passed with batch norm or by cuDNN.
        """
        settings = self.settings
        check_runs(settings.implementation)
        by_cudnn = settings.implementation == "cudnn" and step is not None
        zeros = jnp.zeros((x.shape[0], self.dim), self.dtype)
        passed = None
        if step is not None and passed_after is not None and self.is_mutable_collection(PASSED):
            passed = self._passed(len(x), by_cudnn=by_cudnn)
            state = LSTMState(*(values.swapaxes(0, 1) for values in passed.value))
        hiddens, cells = [], []
        x = x.astype(self.dtype)
        for number in range(self.num_layers):
            hidden, cell = (zeros, zeros) if state is None else (state.hidden[number], state.cell[number])
            layer = LSTMLayer(self.dim, settings.weight_scale, self.dtype, by_cudnn, name=f"layer_{number}")
            x, cell = layer(x, hidden, cell)
            hiddens.append(x)
            cells.append(cell)
            if settings.batch_norm:
                counted = jnp.full(x.shape[0], x.shape[1]) if lengths is None else lengths
                x = BatchNorm(name=f"norm_{number}")(x, counted, use_running=step is None).astype(self.dtype)
            x = Dropout(settings.dropout)(x, step=step)
        if by_cudnn:
            return x, None
        states = LSTMState(jnp.stack(hiddens), jnp.stack(cells))
        if passed is not None and state is not None and passed_after is not None:
            is_new, last = passed_after[None, :, None] > 0, state_at(states, passed_after)
            after = (jnp.where(is_new, new, old).swapaxes(0, 1) for new, old in zip(last, state, strict=True))
            passed.value = LSTMState(*after)
        return x, states

    def _passed(self, num_rows: int, *, by_cudnn: bool) -> nn.Variable[LSTMState]:
        """Returns the variable with the states that were passed on, [B L H]."""
        if self.settings.batch_norm:
            raise UserError("training.pass_states is set and batch_norm is True: expected one of them only")
        if by_cudnn:
            raise UserError(
                "training.pass_states is set and implementation is 'cudnn', which has no cell states of frames: "
                "expected implementation 'scan'"
            )
        zeros = jnp.zeros((num_rows, self.num_layers, self.dim), self.dtype)
        return self.variable(PASSED, "state", lambda: LSTMState(zeros, zeros))


class LSTMLayer(nn.Module):
    """One LSTM layer. The input part of all frames is one product."""

    dim: int
    weight_scale: float
    dtype: DTypeLike
    by_cudnn: bool = False

    @nn.compact
    def __call__(
        self, x: Float[Array, "B T D"], hidden: Float[Array, "B H"], cell: Float[Array, "B H"]
    ) -> tuple[Float[Array, "B T H"], Any]:
        """Returns the hidden states, and the cell states after each frame; None instead of these by cuDNN."""
        initial = uniform(self.weight_scale / math.sqrt(self.dim))
        kernel = self.param("input", initial, (x.shape[-1], 4 * self.dim))
        recurrent = self.param("recurrent", initial, (self.dim, 4 * self.dim))
        bias = self.param("input_bias", _with_forget_bias(initial, FORGET_BIAS, self.dim), (4 * self.dim,))
        other = self.param("recurrent_bias", _with_forget_bias(initial, 0.0, self.dim), (4 * self.dim,))
        if self.by_cudnn:
            return lstm_cudnn(x, kernel, recurrent, (bias, other), hidden, cell), None
        # From "btd,dg->tbg", XLA on CPUs makes a product of the transposed kernel, which is slow, and which it does not
        # implement in bfloat16 on CPUs with instructions for bfloat16.
        inputs = jnp.matmul(x.swapaxes(0, 1), kernel.astype(self.dtype), preferred_element_type=jnp.float32)
        inputs = (inputs + (bias + other)[None, None]).astype(self.dtype)
        hiddens, cells = lstm_scan(inputs, recurrent.astype(self.dtype), hidden, cell)
        return hiddens.swapaxes(0, 1), cells.swapaxes(0, 1)


def _with_forget_bias(initial: Callable[..., Array], value: float, dim: int) -> Callable[..., Array]:
    """Returns an initialiser whose values of the forget gate are `value`."""

    def init(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
        return initial(key, shape, dtype).at[dim : 2 * dim].set(value)

    return init


def state_at(states: LSTMState, lengths: Int[Array, " B"]) -> LSTMState:
    """Returns the state after the last valid frame of each row.

    Args:
        lengths: Number of valid frames of each row, at least 1.
    """

    def last(values: Array) -> Array:
        places = jnp.maximum(lengths - 1, 0)[None, :, None, None]
        return jnp.take_along_axis(values, jnp.broadcast_to(places, (*values.shape[:2], 1, 1)), axis=2)[:, :, 0]

    return LSTMState(last(states.hidden), last(states.cell))
