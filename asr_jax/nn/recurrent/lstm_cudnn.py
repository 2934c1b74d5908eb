"""cuDNN's LSTM, by `jax.experimental.rnn`, with the parameters of `nn.recurrent.lstm`."""

from typing import Literal

import jax.numpy as jnp
from jax.experimental import rnn
from jaxtyping import Array, Float

from asr_jax.core.devices import traced_for
from asr_jax.core.errors import UserError

Implementation = Literal["auto", "scan", "cudnn"]


def check_runs(implementation: Implementation) -> None:
    """Checks that an implementation runs on the devices of this process.

    Raises:
        UserError: If it does not.
    """
    if implementation != "cudnn":
        return
    reason = ""
    if (platform := traced_for().platform) != "gpu":
        reason = f"the devices are of the kind {platform}, and cuDNN runs on NVIDIA GPUs"
    elif not hasattr(rnn.gpu_rnn, "compute_rnn_workspace_reserve_space_sizes"):
        reason = "JAX has no plugin for CUDA with cuDNN's recurrent networks"
    if reason:
        raise UserError(f"implementation is 'cudnn': {reason}: expected 'auto' or 'scan'")


def lstm_cudnn(
    x: Float[Array, "B T D"],
    kernel: Float[Array, "D G"],
    recurrent: Float[Array, "H G"],
    biases: tuple[Float[Array, " G"], Float[Array, " G"]],
    hidden: Float[Array, "B H"],
    cell: Float[Array, "B H"],
) -> Float[Array, "B T H"]:
    """Computes an LSTM layer in float32, or TF32 where products may use it (`jax_default_matmul_precision`).

    Only the hidden states are returned: cuDNN computes the cell states of the last frame alone. The size of its work
    space is asked of the GPU when the function is traced, so that it cannot be lowered without one.

    Args:
        kernel: Input kernel, with the gates input, forget, cell and output (G = 4 H).
    """
    dtype, (rows, num_frames, size), dim = x.dtype, x.shape, len(recurrent)
    x, hidden, cell = (each.astype(jnp.float32) for each in (x, hidden, cell))
    lengths = jnp.full(rows, num_frames, jnp.int32)
    # The settings are positional, because `rnn.lstm` names them as arguments without a derivative by their positions.
    hiddens, _, _ = rnn.lstm(
        x, hidden[None], cell[None], packed(kernel, recurrent, biases), lengths, size, dim, 1, 0.0, False
    )
    return hiddens.astype(dtype)


def packed(
    kernel: Float[Array, "D G"], recurrent: Float[Array, "H G"], biases: tuple[Float[Array, " G"], Float[Array, " G"]]
) -> Float[Array, " P"]:
    """Returns the parameters of a layer in cuDNN's order, P = G · (D + H + 2): transposed kernels, then biases."""
    return jnp.concatenate([kernel.T.reshape(-1), recurrent.T.reshape(-1), *biases]).astype(jnp.float32)
