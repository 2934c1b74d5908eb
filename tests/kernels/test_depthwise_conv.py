"""The forms of depthwise convolution against a sum written out in NumPy, and against each other's gradients."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import max_abs, relative

from asr_jax.kernels.depthwise_conv import xla
from asr_jax.kernels.depthwise_conv.api import depthwise_conv, depthwise_conv_2d

# rows, frames, channels, taps, padding, stride, dilation: odd and even kernels, causal, more taps than frames,
# cropping, one of each, more rows than are unrolled and not a multiple of them; strides that reach the last frame and
# that do not, dilation, both
CASES = [
    (3, 11, 4, 3, (1, 1), 1, 1),
    (2, 12, 5, 4, (1, 2), 1, 1),
    (2, 9, 3, 5, (4, 0), 1, 1),
    (1, 3, 2, 7, (3, 3), 1, 1),
    (2, 10, 3, 3, (-1, 2), 1, 1),
    (1, 1, 1, 1, (0, 0), 1, 1),
    (13, 6, 2, 3, (1, 1), 1, 1),
    (2, 11, 3, 3, (1, 1), 2, 1),
    (2, 12, 3, 3, (0, 0), 2, 1),
    (9, 13, 2, 4, (3, 1), 3, 1),
    (2, 14, 3, 5, (4, 4), 1, 2),
    (2, 15, 3, 3, (2, 1), 2, 3),
]
SHAPES = ("rows", "frames", "width", "taps", "padding", "stride", "dilation")


def draw(*shape: int, seed: int = 0) -> jnp.ndarray:
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def by_definition(
    x: np.ndarray, kernel: np.ndarray, padding: tuple[int, int], stride: int, dilation: int
) -> np.ndarray:
    rows, frames, width = x.shape
    out = np.zeros((rows, (frames + sum(padding) - dilation * (len(kernel) - 1) - 1) // stride + 1, width))
    for t in range(out.shape[1]):
        for k in range(len(kernel)):
            source = stride * t + dilation * k - padding[0]
            if 0 <= source < frames:
                out[:, t] += kernel[k] * x[:, source]
    return out


@pytest.mark.parametrize("implementation", ["lax", "shifted"])
@pytest.mark.parametrize(SHAPES, CASES)
def test_value(rows, frames, width, taps, padding, stride, dilation, implementation):
    x, kernel = draw(rows, frames, width), draw(taps, width, seed=1)
    window = {"padding": padding, "stride": stride, "dilation": dilation}
    y = jax.jit(partial(depthwise_conv, **window, implementation=implementation))(x, kernel)
    assert max_abs(y, by_definition(np.asarray(x), np.asarray(kernel), **window)) < 1e-5


@cache
def of_reference(*case):
    """Gradients of a case by XLA's own convolution."""
    return jax.device_get(jax.jit(jax.grad(loss_of(*case, implementation="lax"), argnums=(0, 1)))(*given(*case)))


def given(rows, frames, width, taps, padding, stride, dilation):
    return draw(rows, frames, width), draw(taps, width, seed=1)


def loss_of(rows, frames, width, taps, padding, stride, dilation, *, implementation):
    conv = partial(depthwise_conv, padding=padding, stride=stride, dilation=dilation, implementation=implementation)
    num_frames = (frames + sum(padding) - dilation * (taps - 1) - 1) // stride + 1
    dy = draw(rows, num_frames, width, seed=2)
    return lambda x, kernel: jnp.sum(dy * jnp.tanh(conv(x, kernel)))


@pytest.mark.parametrize("by_fft", [False, True])
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize(SHAPES, CASES)
def test_gradients_are_those_of_the_reference(
    rows, frames, width, taps, padding, stride, dilation, remat, by_fft, monkeypatch
):
    fewest = 1 if by_fft else 10**9
    monkeypatch.setattr(xla, "FEWEST_TAPS_BY_FFT", fewest)
    monkeypatch.setattr(xla, "FEWEST_VALUES_BY_FFT", fewest)
    jax.clear_caches()  # what is traced does not know
    case = rows, frames, width, taps, padding, stride, dilation
    loss = loss_of(*case, implementation="shifted")
    found = jax.jit(jax.grad(jax.checkpoint(loss) if remat else loss, argnums=(0, 1)))(*given(*case))
    for actual, expected in zip(found, of_reference(*case), strict=True):
        assert relative(actual, expected) < 1e-5


def test_auto_is_one_of_them():
    case = CASES[0]
    auto, *others = (
        float(jax.jit(loss_of(*case, implementation=implementation))(*given(*case)))
        for implementation in ("auto", "lax", "shifted")
    )
    assert auto == pytest.approx(others[0], rel=1e-5)
    assert auto == pytest.approx(others[1], rel=1e-5)


@pytest.mark.parametrize("channels", [1, 5])
@pytest.mark.parametrize("padding", [((0, 0), (1, 1)), ((1, 1), (0, 3))])
def test_two_axes_and_one_shared_channel(channels, padding):
    x, kernel = draw(3, 7, 6, channels), draw(3, 3, 5, seed=1)

    def run(implementation):
        def loss(x, kernel):
            y = depthwise_conv_2d(x, kernel, padding=padding, implementation=implementation)
            return jnp.sum(y**2), y

        return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))(x, kernel)

    for actual, expected in zip(jax.tree.leaves(run("shifted")), jax.tree.leaves(run("lax")), strict=True):
        assert actual.shape == expected.shape
        assert relative(actual, expected) < 1e-5


def test_one_bin_that_is_padded_is_no_convolution_over_time_alone(monkeypatch):
    monkeypatch.setattr(xla, "FEWEST_TAPS_BY_FFT", 1)
    monkeypatch.setattr(xla, "FEWEST_VALUES_BY_FFT", 1)
    x, kernel = draw(2, 9, 1, 3), draw(3, 1, 3, seed=1)

    def gradients(implementation):
        def loss(x, kernel):
            y = depthwise_conv_2d(x, kernel, padding=((1, 1), (1, 1)), implementation=implementation)
            return jnp.sum(y * jnp.arange(1.0, 4.0)[None, None, :, None])

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(x, kernel)

    for actual, expected in zip(gradients("shifted"), gradients("lax"), strict=True):
        assert relative(actual, expected) < 1e-5


def test_vmap():
    x, kernel = draw(2, 3, 8, 4), draw(2, 3, 4, seed=1)
    grad = jax.grad(lambda x, k: jnp.sum(depthwise_conv(x, k, padding=(1, 1)) ** 2), argnums=(0, 1))
    together, alone = jax.jit(jax.vmap(grad))(x, kernel), jax.jit(grad)
    x, kernel, together = jax.device_get((x, kernel, together))
    for i in range(2):
        for actual, expected in zip(together, alone(x[i], kernel[i]), strict=True):
            assert relative(actual[i], expected) < 1e-5


@pytest.mark.parametrize("implementation", ["lax", "shifted"])
def test_bfloat16_is_near_float32(implementation):
    x, kernel = draw(2, 20, 4), draw(5, 4, seed=1)

    def run(dtype):
        def loss(x, kernel):
            y = depthwise_conv(x.astype(dtype), kernel, padding=(2, 2), implementation=implementation)
            assert y.dtype == dtype
            return jnp.sum(y.astype(jnp.float32) ** 2)

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(x, kernel)

    for actual, expected in zip(run(jnp.bfloat16), run(jnp.float32), strict=True):
        assert actual.dtype == jnp.float32
        assert relative(actual, expected) < 2e-2


def test_on_a_cpu_the_shifted_form_is_compiled_and_nothing_else():
    x, kernel = draw(2, 20, 4), draw(5, 4, seed=1)
    loss = jax.grad(lambda x, k: depthwise_conv(x, k, padding=(2, 2)).sum(), argnums=(0, 1))
    text = jax.jit(loss).lower(x, kernel).compile().as_text()
    assert "convolution(" not in text
    assert "conditional(" not in text


def test_what_cannot_be():
    with pytest.raises(ValueError, match="4 channels but the kernel has 3"):
        depthwise_conv_2d(draw(1, 5, 1, 4), draw(3, 1, 3), padding=((1, 1), (0, 0)))
    with pytest.raises(ValueError, match="2 frames padded by"):
        depthwise_conv(draw(1, 2, 4), draw(5, 4), padding=(1, 1))
