"""Compares results of a GPU with those of the CPU of the same machine. Run by benchmarks/gpu_check.py."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, assert_within, relative

from asr_jax.audio.presets import PRESETS
from asr_jax.core.batch import Frames, length_mask
from asr_jax.core.pytrees import flatten
from asr_jax.losses.ctc import ctc_loss
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.wav2vec.transformer import fused_attention
from tests.kernels.triton_compared import COMPARED

pytestmark = pytest.mark.gpu

SMALL = Zipformer(
    downsampling=(1, 2, 4), dims=(64, 96, 64), num_layers=(1, 2, 1), unmasked_dims=(64, 64, 64), num_heads=(4,) * 3,
    query_dims=(16,) * 3, value_dims=(12,) * 3, position_dims=(4,) * 3, feedforward_dims=(128,) * 3,
    kernel_sizes=(31, 15, 31),
)  # fmt: skip


def random_params(encoder, frames):
    """Random parameters, drawn on the host, since initialising the model would compile each operation separately."""
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), frames, step=None))["params"]
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.1, leaf.shape), jnp.float32), shapes)


def on_both(function, *arguments):
    """Results on the accelerator and on the CPU; without an accelerator, both are those of the CPU."""
    return [jax.device_get(jax.jit(function)(*jax.device_put(arguments, jax.devices(kind)[0])))
            for kind in (jax.default_backend(), "cpu")]  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_features_agree(name):
    front_end = PRESETS[name]()
    rng = np.random.default_rng(0)
    audio = rng.integers(-9000, 9000, (4, 32000)).astype(np.int16)
    lengths = np.array([32000, 30001, 16000, 400], np.int32)
    found, expected = on_both(lambda a, n: front_end(a, n).values, audio, lengths)
    assert_close(found, expected, atol=2e-3)


@pytest.mark.parametrize("kernel", COMPARED)
def test_kernels_agree_with_their_references(kernel):
    pytest.importorskip("jax_triton", reason="needs the extra kernels")
    if jax.default_backend() != "gpu":
        pytest.skip("no GPU")
    compared = COMPARED[kernel]
    for sizes in (*compared.sizes, *compared.more):
        compared.compare(sizes)


def test_ctc_agrees_in_value_and_gradient():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 3, (8, 300, 200)).astype(np.float32)
    lengths = np.array([300, 280, 200, 90, 60, 300, 300, 10], np.int32)
    labels, label_lengths = rng.integers(0, 199, (8, 50)).astype(np.int32), np.full(8, 50, np.int32)

    def both(logits):
        return jax.value_and_grad(
            lambda x: ctc_loss(x, jnp.asarray(lengths), jnp.asarray(labels), jnp.asarray(label_lengths), blank_id=199)[
                0
            ].sum()
        )(logits)

    (loss, gradient), (expected_loss, expected) = on_both(both, logits)
    assert_close(loss, expected_loss, rtol=1e-5)
    assert_within(relative(gradient, expected), 1e-4)


def test_the_zipformer_agrees_in_output_and_gradients():
    encoder = SMALL.build(dtype=jnp.float32)
    rng = np.random.default_rng(2)
    frames = Frames(jnp.asarray(rng.normal(-5, 3, (3, 200, 80)), jnp.float32), jnp.array([200, 150, 40]))
    params = random_params(encoder, frames)

    def loss(params, frames):
        out = encoder.apply({"params": params}, frames, step=None).frames
        return jnp.sum(jnp.tanh(out.values) ** 2), out.values

    with jax.default_matmul_precision("highest"):
        (found, gradients), (expected, expected_gradients) = on_both(
            lambda p, f: (lambda v: (v[0][1], v[1]))(jax.value_and_grad(loss, has_aux=True)(p, f)), params, frames
        )
    assert_within(relative(found, expected), 1e-3)
    expected_gradients = flatten(expected_gradients)
    largest = max(np.abs(leaf).max() for leaf in expected_gradients.values())
    for path, leaf in flatten(gradients).items():
        assert_within(np.abs(leaf - expected_gradients[path]).max(), 1e-3 * largest, what=path)


def test_attention_in_one_kernel_agrees_in_half_precision():
    """Compares values and gradients of cuDNN's kernel with the formula; on a CPU, XLA computes both."""
    rng = np.random.default_rng(4)
    lengths = jnp.array([200, 133, 1, 0])
    query, key, value, dy = (jnp.asarray(rng.normal(size=(4, 200, 4, 64)), jnp.bfloat16) for _ in range(4))
    valid = np.asarray(length_mask(lengths, 200))[..., None, None]

    def plain(query, key, value, allowed):
        scores = jnp.einsum("bthc,bshc->bhts", query, key, preferred_element_type=jnp.float32) / 8
        weights = jax.nn.softmax(jnp.where(allowed[:, None], scores, -1e10), axis=-1).astype(jnp.bfloat16)
        return jnp.einsum("bhts,bshc->bthc", weights, value)

    def both(attention):
        def loss(*inputs):
            y = attention(*inputs, length_mask(lengths, 200)[:, None])
            return jnp.sum(jnp.where(valid, y.astype(jnp.float32) * dy, 0)), y

        (_, y), gradients = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(query, key, value)
        return [np.asarray(array, np.float32) for array in (y, *gradients)]

    for found, expected in zip(both(fused_attention), both(plain), strict=True):
        assert np.isfinite(found).all()
        assert_within(relative(np.where(valid, found, 0), np.where(valid, expected, 0)), 2e-2)


def test_the_same_step_twice_gives_the_same_bits():
    """With deterministic operations, resuming is exact on an accelerator too."""
    encoder = SMALL.build(dtype=jnp.bfloat16)
    rng = np.random.default_rng(3)
    frames = Frames(jnp.asarray(rng.normal(-5, 3, (4, 160, 80)), jnp.float32), jnp.array([160, 120, 90, 40]))
    params = random_params(encoder, frames)

    # Otherwise, cuDNN may choose convolutions whose sums have another order in each call.
    @functools.partial(jax.jit, compiler_options={"xla_gpu_deterministic_ops": True})
    def gradients(params, key):
        rngs = {"dropout": key, "regularise": key}
        return jax.grad(
            lambda p: jnp.sum(encoder.apply({"params": p}, frames, step=jnp.int32(5), rngs=rngs).frames.values ** 2)
        )(params)

    first, second = (flatten(gradients(params, jax.random.key(1))) for _ in range(2))
    for path, leaf in first.items():
        np.testing.assert_array_equal(leaf, second[path], err_msg=path)
