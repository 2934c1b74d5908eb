"""The implementations of depthwise convolution against an explicit sum in NumPy, and their gradients."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_within, max_abs, relative

from asr_jax.core.devices import TracedFor
from asr_jax.kernels import implementations
from asr_jax.kernels.depthwise_conv import xla
from asr_jax.kernels.depthwise_conv.api import depthwise_conv, depthwise_conv_2d
from asr_jax.kernels.depthwise_conv.reference import Window
from tests.kernels.compiled import compiled_for
from tests.kernels.convolutions import DRAWN, KERNEL_CASES, draw, for_kernels

# rows, frames, channels, taps, padding, stride, dilation: odd and even kernels, causal, more taps than frames,
# cropping, sizes of 1, a number of rows above MOST_ROWS_UNROLLED that is no multiple of it, strides that reach the last
# frame and strides that do not, dilation, stride and dilation
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


@pytest.mark.parametrize(SHAPES, CASES)
def test_values_and_gradients_of_all_forms(rows, frames, width, taps, padding, stride, dilation, monkeypatch):
    """Includes the kernel's gradient by Fourier transforms, which is otherwise used for larger arrays."""
    x, kernel = draw(rows, frames, width), draw(taps, width, seed=1)
    window = {"padding": padding, "stride": stride, "dilation": dilation}
    expected = by_definition(x, kernel, **window)
    in_both_axes = Window((padding, (0, 0)), (stride, 1), (dilation, 1))

    @jax.jit
    def all_forms(x, kernel, dy):
        found = []
        for implementation in ("reference", "xla"):
            y, backward = jax.vjp(partial(depthwise_conv, **window, implementation=implementation), x, kernel)
            found.append((y, *backward(dy)))
        with monkeypatch.context() as changed:
            changed.setattr(xla, "FEWEST_TAPS_BY_FFT", 1)
            changed.setattr(xla, "FEWEST_VALUES_BY_FFT", 1)
            _, dk = xla.gradients(x[:, :, None], kernel[:, None], dy[:, :, None], window=in_both_axes)
        return *found, dk[:, 0]

    given = x, kernel, draw(*expected.shape, seed=2)
    lowered = all_forms.lower(*given)
    (y, *reference), (shifted, *gradients), by_fft = jax.device_get(lowered.compile()(*given))
    assert_within(max_abs(y, expected), 1e-5)
    assert_within(max_abs(shifted, expected), 1e-5)
    assert ("fft" in lowered.as_text()) == (width > 1)
    for found, exact in zip((*gradients, by_fft), (*reference, reference[1]), strict=True):
        assert_within(relative(found, exact), 1e-5)


@cache
def of_reference(sizes):
    return jax.device_get(jax.jit(lambda: for_kernels(*sizes))())


SHORT, FEW_FRAMES, BLOCKS = (case for case in KERNEL_CASES if case[5] == 1)
EACH_DTYPE = ("float32", 1e-5), ("bfloat16", 2e-2)


@pytest.mark.parametrize(
    ("sizes", "dtype", "tolerance"),
    [
        *((sizes, *EACH_DTYPE[0]) for sizes in (SHORT, FEW_FRAMES, BLOCKS)),
        (BLOCKS, *EACH_DTYPE[1]),
        *(pytest.param(sizes, *EACH_DTYPE[1], marks=pytest.mark.slow) for sizes in (SHORT, FEW_FRAMES)),
        *(
            pytest.param(sizes, *each, marks=pytest.mark.slow)
            for sizes in DRAWN if sizes[5] == 1
            for each in EACH_DTYPE
        ),
    ],
)  # fmt: skip
def test_the_kernel_for_tpus(sizes, dtype, tolerance, interpreted):
    *_, padding, _, dilation = sizes
    given, expected = of_reference(sizes)
    call = partial(depthwise_conv, padding=padding, dilation=dilation, implementation="mosaic_tpu")

    @jax.jit
    def values_and_gradients(*given):
        x, kernel, dy = (each.astype(dtype) for each in given)
        y, transpose = jax.vjp(call, x, kernel)
        return y, *transpose(dy)

    for found, exact in zip(values_and_gradients(*given), expected, strict=True):
        assert found.dtype == dtype
        assert_within(relative(found, exact), tolerance)


def test_auto_is_the_same_and_so_is_what_is_computed_again():
    rows, frames, width, taps, padding, *_ = CASES[0]

    def loss(x, kernel, implementation):
        return jnp.sum(jnp.tanh(depthwise_conv(x, kernel, padding=padding, implementation=implementation)))

    @jax.jit
    def gradients(x, kernel):
        again = jax.checkpoint(loss, static_argnums=2)
        forms = (loss, "reference"), (loss, "auto"), (again, "xla")
        return [jax.value_and_grad(of, argnums=(0, 1))(x, kernel, implementation) for of, implementation in forms]

    expected, *others = map(jax.tree.leaves, gradients(draw(rows, frames, width), draw(taps, width, seed=1)))
    for other in others:
        for found, exact in zip(other, expected, strict=True):
            assert_within(relative(found, exact), 1e-5)


@pytest.mark.parametrize("channels", [1, 5])
@pytest.mark.parametrize("padding", [((0, 0), (1, 1)), ((1, 1), (0, 3))])
def test_two_axes_and_one_shared_channel(channels, padding):
    def loss(x, kernel, implementation):
        y = depthwise_conv_2d(x, kernel, padding=padding, implementation=implementation)
        return jnp.sum(y**2), y

    compare(loss, draw(3, 7, 6, channels), draw(3, 3, 5, seed=1))


def compare(loss, *given):
    """Compares gradients and values of both implementations."""
    forms = ("xla", "reference")
    both = jax.jit(lambda *given: [jax.grad(loss, argnums=(0, 1), has_aux=True)(*given, form) for form in forms])
    for actual, expected in zip(*map(jax.tree.leaves, both(*given)), strict=True):
        assert actual.shape == expected.shape
        assert_within(relative(actual, expected), 1e-5)


def test_one_bin_that_is_padded_is_no_convolution_over_time_alone(monkeypatch):
    monkeypatch.setattr(xla, "FEWEST_TAPS_BY_FFT", 1)
    monkeypatch.setattr(xla, "FEWEST_VALUES_BY_FFT", 1)

    def loss(x, kernel, implementation):
        y = depthwise_conv_2d(x, kernel, padding=((1, 1), (1, 1)), implementation=implementation)
        return jnp.sum(y * np.float32([1, 2, 3])[None, None, :, None]), y

    compare(loss, draw(2, 9, 1, 3), draw(3, 1, 3, seed=1))


def test_vmap():
    x, kernel = draw(2, 3, 8, 4), draw(2, 3, 4, seed=1)
    grad = jax.grad(lambda x, k: jnp.sum(depthwise_conv(x, k, padding=(1, 1)) ** 2), argnums=(0, 1))
    together, *alone = jax.jit(lambda x, k: [jax.vmap(grad)(x, k), grad(x[0], k[0]), grad(x[1], k[1])])(x, kernel)
    for i in range(2):
        for actual, expected in zip(together, alone[i], strict=True):
            assert_within(relative(np.asarray(actual)[i], expected), 1e-5)


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_bfloat16_is_near_float32(implementation):
    def gradients(x, kernel, dtype):
        def loss(x, kernel):
            y = depthwise_conv(x.astype(dtype), kernel, padding=(2, 2), implementation=implementation)
            assert y.dtype == dtype
            return jnp.sum(y.astype(jnp.float32) ** 2)

        return jax.grad(loss, argnums=(0, 1))(x, kernel)

    both = jax.jit(lambda *given: [gradients(*given, dtype) for dtype in (jnp.bfloat16, jnp.float32)])
    for actual, expected in zip(*both(draw(2, 20, 4), draw(5, 4, seed=1)), strict=True):
        assert actual.dtype == jnp.float32
        assert_within(relative(actual, expected), 2e-2)


def test_on_a_cpu_the_shifted_form_is_compiled_and_nothing_else():
    x, kernel = draw(2, 20, 4), draw(5, 4, seed=1)
    loss = jax.grad(lambda x, k: depthwise_conv(x, k, padding=(2, 2)).sum(), argnums=(0, 1))
    text = jax.jit(loss).lower(x, kernel).compile().as_text()
    assert "convolution(" not in text
    assert "conditional(" not in text


def test_what_cannot_be():
    one_bin = jax.eval_shape(lambda: (jnp.zeros((1, 5, 1, 4)), jnp.zeros((3, 1, 3))))
    with pytest.raises(ValueError, match="4 channels but the kernel has 3"):
        jax.eval_shape(partial(depthwise_conv_2d, padding=((1, 1), (0, 0))), *one_bin)
    short = jax.eval_shape(lambda: (jnp.zeros((1, 2, 4)), jnp.zeros((5, 4))))
    with pytest.raises(ValueError, match="2 frames padded by"):
        jax.eval_shape(partial(depthwise_conv, padding=(1, 1)), *short)


def test_what_a_kernel_cannot_compute_is_named(monkeypatch):
    def call(x, kernel, **steps):
        return jax.eval_shape(lambda: depthwise_conv_2d(jnp.zeros(x), jnp.zeros(kernel), **steps))

    row, filters = (1, 9, 1, 4), (3, 1, 4)
    steps = {"padding": ((1, 1), (0, 0)), "implementation": "mosaic_tpu"}
    with pytest.raises(ValueError, match="mosaic_tpu on cpu: it is for TPUs; expected reference or xla"):
        call(row, filters, **steps)
    monkeypatch.setattr(implementations, "traced_for", lambda: TracedFor("tpu", 1))
    with pytest.raises(ValueError, match="stride 2: expected 1 for mosaic_tpu, or reference or xla"):
        call(row, filters, strides=(2, 1), **steps)
    with pytest.raises(ValueError, match="5121 frames with padding: expected at most 5120 for mosaic_tpu"):
        call((1, 5119, 1, 4), filters, **steps)
    with pytest.raises(ValueError, match=r"x has 6 bins .* expected 1 bin without padding, 4 channels and 1 tap"):
        call((1, 9, 6, 4), filters, **steps)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("device", "implementation"), [("v5e", "mosaic_tpu"), ("h100", "triton"), ("a100", "triton")])
@pytest.mark.parametrize(("shape", "taps", "steps"), [
    ((8, 512, 512), 31, {"padding": (15, 15)}), ((2, 5000, 80), 15, {"padding": (28, 0), "dilation": 2}),
])  # fmt: skip
def test_it_compiles_for_accelerators(device, implementation, shape, taps, steps, dtype):
    call = partial(depthwise_conv, implementation=implementation, **steps)

    def gradient(x, kernel):
        return jax.value_and_grad(lambda *given: jnp.sum(call(*given).astype(jnp.float32) ** 2), (0, 1))(x, kernel)

    given = [jax.ShapeDtypeStruct(each, dtype) for each in (shape, (taps, shape[2]))]
    assert compiled_for(device, gradient, *given).as_text().count("custom-call(") >= 3
