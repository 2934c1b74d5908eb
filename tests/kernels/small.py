"""Small operations and their values in NumPy, for the tests of all implementations."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.kernels import cases as kernel_cases
from asr_jax.kernels.cases import Case
from tests.kernels.drawn import SEED, drawn
from tests.support import assert_close


def drawn_sizes(number: int, fewest: int) -> tuple[int, int, int]:
    """Rows, and odd numbers of frames and of channels."""
    random = np.random.default_rng(SEED + number)
    return int(random.integers(2, 4)), *(2 * int(each) + 1 for each in random.integers(fewest, 2 * fewest, 2))


SIZES = [drawn_sizes(0, 8), drawn_sizes(1, 40), (2, 1, 1)]
"""The second sizes have several blocks of frames and of channels, if blocks are small."""
DRAWN = drawn("small", (2, 4), (1, 150), (1, 200))


def cases(sizes: tuple[int, int, int]) -> dict[str, Case]:
    """Returns the small operations, also with groups of other sizes than pairs."""
    found = kernel_cases.small(*sizes)
    pairs = found["pairwise_downsample"]
    x, _, lengths = pairs.arguments
    for size in (1, 3):
        logits = np.random.default_rng(size).normal(size=size).astype(np.float32)
        found[f"pairwise_downsample of {size}"] = pairs._replace(arguments=(x, logits, lengths))
    return found


def expected_of(name: str, sizes: tuple[int, int, int]) -> Any:
    """Values in NumPy."""
    case, (_, frames, channels) = cases(sizes)[name], sizes
    x, lengths = case.arguments[0], case.arguments[-1]

    def sigmoid(x: Any) -> Any:
        return 1 / (1 + np.exp(-x))

    def valid(size: int) -> Any:
        return np.arange(size) < lengths[:, None]

    if name.startswith("pairwise_downsample"):
        return downsampled(*case.arguments)
    if name.startswith("attention_mask"):
        options = case.function.keywords  # type: ignore[attr-defined]
        pairs = valid(options["num_queries"])[..., None] & valid(options["num_keys"])[:, None]
        return np.repeat(pairs[:, None], options["num_heads"], 1) if name.endswith("4d") else pairs
    if name == "relative_shift":
        num_keys = x.shape[-1] - frames + 1
        keys = frames - 1 + np.arange(num_keys) - np.arange(frames)[:, None]
        return np.take_along_axis(x, np.broadcast_to(keys, (*x.shape[:2], *keys.shape)), -1)
    if name == "residual_add_mask_time":
        return np.where(valid(frames)[..., None], case.arguments[0] + case.arguments[1], 0)
    values = {
        "swoosh_l": lambda: np.log(1 + np.exp(x - 4)) - 0.08 * x - 0.035,
        "swoosh_r": lambda: np.log(1 + np.exp(x - 1)) - 0.08 * x - 0.313261687,
        "shifted_swish_l": lambda: x * sigmoid(x - 4),
        "shifted_swish_r": lambda: x * sigmoid(x - 1),
        "glu": lambda: x[..., :channels] * sigmoid(x[..., channels:]),
        "glu of channels": lambda: x[:, :channels] * sigmoid(x[:, channels:]),
        "mask_time": lambda: np.where(valid(frames)[..., None], x, 0),
        "mask_channel_time": lambda: np.where(valid(frames)[:, None], x, 0),
        "sequence_mask": lambda: valid(frames),
        "padding_mask": lambda: ~valid(frames),
    }
    return values[name]()


def downsampled(x: Any, logits: Any, lengths: Any) -> Any:
    """Loop over groups."""
    size, frames = len(logits), x.shape[1]
    found = np.zeros((len(x), -(-frames // size), x.shape[2]))
    for row, length in enumerate(lengths):
        for group in range(-(-length // size)):
            chosen = slice(group * size, min(group * size + size, length))
            weights = np.exp(logits[: chosen.stop - chosen.start])
            found[row, group] = weights / weights.sum() @ x[row, chosen]
    return found


def computed(case: Case, implementation: str) -> tuple[Any, ...]:
    """Values and gradients."""
    arguments = jax.device_put(case.arguments)
    arrays, others = arguments[: case.num_gradients], arguments[case.num_gradients :]

    def call(*arrays: Any) -> Any:
        return case.function(*arrays, *others, implementation=implementation)

    if not arrays:
        return (call(),)
    values, transpose = jax.vjp(call, *arrays)
    cotangent = np.random.default_rng(0).normal(size=values.shape)
    return values, *transpose(jax.device_put(cotangent.astype(values.dtype)))


def assert_computed(found: tuple[Any, ...], expected: tuple[Any, ...], dtype: Any = jnp.float32) -> None:
    """Compares results in a dtype with others in float32."""
    for one, other in zip(found, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype if other.dtype == bool else dtype, other.shape)
        scale = max(float(jnp.abs(other).max()), 1.0)
        tolerance = 1e-5 if dtype == jnp.float32 else 2e-2
        assert_close(one.astype(jnp.float32), other.astype(jnp.float32), atol=tolerance * scale, rtol=0)
