"""Swoosh activations and shifted swish, with an implementation chosen for the device.

All compute in float32, return the dtype of their input, and keep only the input for the gradient.
"""

from jaxtyping import Array, Float

from asr_jax.kernels.implementations import Implementation, module_of


def swoosh_l(x: Float[Array, "..."], *, implementation: Implementation = "auto") -> Float[Array, "..."]:
    """Swoosh-L activation, log(1 + exp(x - 4)) - 0.08 x - 0.035.

    Source: Yao et al. 2023 (arXiv:2310.11230), section 3.4.
    """
    return _computed("swoosh_l", x, implementation)


def swoosh_r(x: Float[Array, "..."], *, implementation: Implementation = "auto") -> Float[Array, "..."]:
    """Swoosh-R activation, log(1 + exp(x - 1)) - 0.08 x - 0.313261687. The activation of 0 is 0.

    Source: Yao et al. 2023 (arXiv:2310.11230), section 3.4.
    """
    return _computed("swoosh_r", x, implementation)


def shifted_swish_l(x: Float[Array, "..."], *, implementation: Implementation = "auto") -> Float[Array, "..."]:
    """Shifted swish x σ(x - 4), which rust-asr has as Swoosh-L.

    Source: `swoosh_l` in rust-asr's src/cubecl_kernels.rs.
    """
    return _computed("shifted_swish_l", x, implementation)


def shifted_swish_r(x: Float[Array, "..."], *, implementation: Implementation = "auto") -> Float[Array, "..."]:
    """Shifted swish x σ(x - 1), which rust-asr has as Swoosh-R.

    Source: `swoosh_r` in rust-asr's src/cubecl_kernels.rs.
    """
    return _computed("shifted_swish_r", x, implementation)


def _computed(name: str, x: Array, implementation: Implementation) -> Array:
    return module_of("swoosh", implementation, x).FUNCTIONS[name](x)
