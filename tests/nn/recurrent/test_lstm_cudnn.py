"""cuDNN's LSTM has the parameters of the scan, by the reference of `jax.experimental.rnn`, and is refused on CPUs.

cuDNN itself needs a GPU.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import rnn

from asr_jax.core.errors import UserError
from asr_jax.nn.recurrent import lstm, lstm_cudnn
from asr_jax.nn.recurrent.lstm import LSTM
from tests.support import assert_close


def reference(x, hidden, cell, weights, lengths, size, dim, num_layers, dropout, bidirectional):
    """The function that JAX tests cuDNN's LSTM against."""
    sizes = {"input_size": size, "hidden_size": dim, "num_layers": num_layers, "bidirectional": bidirectional}
    parts = rnn.unpack_lstm_weights(weights, *sizes.values())
    return rnn.lstm_ref(x, hidden, cell, *parts, seq_lengths=lengths, dropout=dropout, **sizes)


@pytest.mark.slow
def test_parameters_of_the_scan_have_the_same_outputs_and_gradients(monkeypatch):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5, 7)), jnp.float32)
    scan = LSTM(4, 2, forget_bias=1.0)
    variables = scan.init(jax.random.key(0), x, step=None)
    monkeypatch.setattr(rnn, "lstm", reference)
    monkeypatch.setattr(lstm, "check_runs", lambda implementation: None)
    by_cudnn = LSTM(4, 2, forget_bias=1.0, implementation="cudnn")

    def run(module, variables, x):
        output, states = module.apply(variables, x, step=jnp.int32(0))
        assert (states is None) == (module is by_cudnn)
        return jnp.sum(output * jnp.arange(4)[None, None]), output

    found, expected = (
        jax.jit(jax.value_and_grad(partial(run, module), argnums=(0, 1), has_aux=True))(variables, x)
        for module in (by_cudnn, scan)
    )
    jax.tree.map(lambda a, b: assert_close(a, b, rtol=1e-5, atol=1e-6), found, expected)
    # Evaluation returns states.
    (output, states), (usual, of_usual) = (each.apply(variables, x, step=None) for each in (by_cudnn, scan))
    np.testing.assert_array_equal(output, usual)
    np.testing.assert_array_equal(states.cell, of_usual.cell)


def test_the_traced_program_calls_cudnn_in_both_directions(monkeypatch):
    """Only the size of the work space is not known without a GPU. Lowering needs JAX's plugin for CUDA."""
    name = "compute_rnn_workspace_reserve_space_sizes"
    monkeypatch.setattr(rnn.gpu_rnn, name, lambda *sizes: (0, 64), raising=False)
    shapes = (3, 5, 7), (7, 16), (4, 16), (16,), (16,), (3, 4), (3, 4)
    given = [jax.ShapeDtypeStruct(shape, jnp.bfloat16 if shape == (3, 5, 7) else jnp.float32) for shape in shapes]

    def loss(x, kernel, recurrent, bias, other, hidden, cell):
        return lstm_cudnn.lstm_cudnn(x, kernel, recurrent, (bias, other), hidden, cell).astype(jnp.float32).sum()

    traced = jax.jit(jax.value_and_grad(loss, argnums=range(7))).trace(*given)
    primitives = [equation.primitive for equation in traced.jaxpr.eqns]
    assert [each for each in primitives if each.name.startswith("rnn_")] == [rnn.rnn_fwd_p, rnn.rnn_bwd_p]
    assert [(each.shape, each.dtype) for each in traced.out_info[1]] == [(each.shape, each.dtype) for each in given]


def test_what_does_not_run_is_refused_before_anything_is_compiled(monkeypatch):
    x, module = jax.ShapeDtypeStruct((3, 5, 7), jnp.float32), LSTM(4, 1, implementation="cudnn")
    with pytest.raises(UserError, match=r"implementation is 'cudnn': the devices are of the kind cpu.* or 'scan'"):
        jax.eval_shape(partial(module.init, step=None), jax.random.key(0), x)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(UserError, match="JAX has no plugin for CUDA"):
        lstm_cudnn.check_runs("cudnn")
    monkeypatch.setattr(lstm, "check_runs", lambda implementation: None)
    passing = partial(module.init, step=jnp.int32(0), passed_after=jnp.array([5, 5, 5]))
    with pytest.raises(UserError, match="pass_states is set and implementation is 'cudnn'"):
        jax.eval_shape(passing, {"params": jax.random.key(0), "passed": jax.random.key(0)}, x)
    passing = partial(LSTM(4, 1, batch_norm=True).init, step=jnp.int32(0), passed_after=jnp.array([5, 5, 5]))
    with pytest.raises(UserError, match="pass_states is set and batch_norm is True"):
        jax.eval_shape(passing, {"params": jax.random.key(0), "passed": jax.random.key(0)}, x)
