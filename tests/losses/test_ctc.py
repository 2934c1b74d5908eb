"""CTC against the sum over all paths and finite differences, and its behaviour for padding, repeats and short rows."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.meshes import by_rows, data_mesh
from asr_jax.losses import ctc
from asr_jax.losses.ctc import ctc_loss, is_feasible
from tests.support import assert_close, assert_within, skip_without_float16


def collapse(path, blank_id):
    return [symbol for symbol, _ in itertools.groupby(path) if symbol != blank_id]


def earliness(path, blank_id):
    """Returns the sum over the labels of a path of (T - 1) / 2 - t, where t is the first frame of the label."""
    starts = [t for t, symbol in enumerate(path) if symbol != blank_id and (not t or path[t - 1] != symbol)]
    return sum((len(path) - 1) / 2 - t for t in starts)


def enumerated(logits, labels, blank_id, delay_penalty=0.0):
    """Returns the negative logarithm of the sum over all paths that collapse to the labels, in float64."""
    logits = logits.astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    num_frames, vocabulary = logits.shape
    paths = itertools.product(range(vocabulary), repeat=num_frames)
    fitting = [path for path in paths if collapse(path, blank_id) == list(labels)]
    scores = [log_probs[range(num_frames), path].sum() + delay_penalty * earliness(path, blank_id) for path in fitting]
    return -np.logaddexp.reduce(scores) if fitting else np.inf


def batch(*, seed=0, num_rows=8, num_frames=12, vocabulary=7, num_labels=5, blank_id=0):
    """Returns logits, lengths, labels (with many repeats) and their lengths; all rows are feasible."""
    random = np.random.default_rng(seed)
    labels = random.choice([i for i in range(vocabulary) if i != blank_id][:3], (num_rows, num_labels)).astype(np.int32)
    label_lengths = random.integers(0, num_labels + 1, num_rows).astype(np.int32)
    repeats = (labels[:, 1:] == labels[:, :-1]) & (np.arange(1, num_labels) < label_lengths[:, None])
    logit_lengths = random.integers(label_lengths + repeats.sum(1), num_frames + 1).astype(np.int32)
    logits = random.normal(size=(num_rows, num_frames, vocabulary)).astype(np.float32) * 2
    return logits, logit_lengths, labels, label_lengths


@functools.partial(jax.jit, static_argnames=("blank_id", "delay_penalty"))
def losses_and_gradient(logits, logit_lengths, labels, label_lengths, weights, *, blank_id, delay_penalty=0.0):
    """Returns losses, feasibility and the gradient of the weighted sum."""
    options = {"blank_id": blank_id, "delay_penalty": delay_penalty}

    def total(logits):
        losses, feasible = ctc_loss(logits, logit_lengths, labels, label_lengths, **options)
        return (losses * weights).sum(), (losses, feasible)

    (_, found), gradient = jax.value_and_grad(total, has_aux=True)(logits)
    return *found, gradient


def run(logits, logit_lengths, labels, label_lengths, *, blank_id=0, weights=None, delay_penalty=0.0):
    weights = np.ones(len(logits), np.float32) if weights is None else weights
    given = logits, logit_lengths, labels, label_lengths, weights
    return jax.device_get(losses_and_gradient(*given, blank_id=blank_id, delay_penalty=delay_penalty))


@pytest.mark.parametrize("blank_id", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_equals_the_sum_over_all_paths(blank_id):
    others = [i for i in range(3) if i != blank_id]
    targets = [labels for length in range(4) for labels in itertools.product(others, repeat=length)]
    rows = [(frames, labels) for frames in range(1, 6) for labels in targets]
    logits = np.random.default_rng(1).normal(size=(len(rows), 5, 3)).astype(np.float32) * 2
    labels = np.array([(*labels, *[others[0]] * (3 - len(labels))) for _, labels in rows], np.int32)
    lengths = np.array([frames for frames, _ in rows], np.int32)
    label_lengths = np.array([len(labels) for _, labels in rows], np.int32)
    losses, feasible, gradient = run(logits, lengths, labels, label_lengths, blank_id=blank_id)
    expected = np.array([enumerated(logits[i, :frames], row, blank_id) for i, (frames, row) in enumerate(rows)])
    np.testing.assert_array_equal(feasible, np.isfinite(expected))
    assert_close(losses, np.where(np.isfinite(expected), expected, 0), rtol=1e-5, atol=1e-6)
    assert not gradient[~np.isfinite(expected)].any()
    without_gradient = jax.jit(functools.partial(ctc_loss, blank_id=blank_id))
    alone, _ = without_gradient(logits, lengths, labels, label_lengths)
    assert_close(alone, losses, rtol=1e-6)  # computed from one direction instead of two


@pytest.mark.parametrize(("vocabulary", "blank_id"), [(7, 0), (ctc.ONE_HOT_VOCABULARY + 1, 1)])
def test_gradient_equals_finite_differences_in_float64(vocabulary, blank_id):
    with jax.enable_x64(True):
        logits, *rest = batch(seed=2, vocabulary=vocabulary, blank_id=blank_id)
        logits, weights = logits.astype(np.float64), np.array([1.0, -2.0, 0.5, 1.5, 0.0, -1.0, 3.0, 0.25])

        def total(logits):
            return (run(logits, *rest, blank_id=blank_id, weights=weights)[0] * weights).sum()

        losses, _, gradient = run(logits, *rest, blank_id=blank_id, weights=weights)
        assert losses.dtype == gradient.dtype == np.float64
        for seed in range(4):
            towards = np.random.default_rng(seed).normal(size=logits.shape)
            difference = (total(logits + 1e-5 * towards) - total(logits - 1e-5 * towards)) / 2e-5
            assert_close((gradient * towards).sum(), difference, rtol=1e-7, atol=1e-8)


def test_the_delay_penalty_is_that_of_all_paths():
    """Losses and gradients in float64 against enumeration: repeats, padding of frames and labels, no labels."""
    texts = [[], [1], [2, 2], [1, 2], [2, 1], [1, 1], [1, 2, 1], [2, 2, 2], [2, 1, 1]]
    rows = [(frames, text) for text in texts for frames in (1, 3, 5)]
    logits = np.random.default_rng(3).normal(size=(len(rows), 6, 3)) * 2
    labels = np.array([(*text, *[0] * (3 - len(text))) for _, text in rows], np.int32)
    frames, sizes = (np.array(each, np.int32) for each in ([frames for frames, _ in rows], [len(t) for _, t in rows]))
    weights = np.ones(len(rows))
    with jax.enable_x64(True):
        losses, feasible, gradient = run(logits, frames, labels, sizes, weights=weights, delay_penalty=2.0)
        alone, _ = jax.jit(functools.partial(ctc_loss, blank_id=0, delay_penalty=2.0))(logits, frames, labels, sizes)
    assert losses.min() < 0
    for row in np.flatnonzero(feasible):
        num, text = rows[row]
        assert_close(losses[row], enumerated(logits[row, :num], text, 0, 2.0), rtol=1e-10, atol=1e-10)
        for place in np.ndindex(num, 3):
            step = np.zeros((num, 3))
            step[place] = 1e-5
            ahead, behind = (enumerated(logits[row, :num] + d, text, 0, 2.0) for d in (step, -step))
            assert_close(gradient[row][place], (ahead - behind) / 2e-5, atol=1e-8)
        assert not gradient[row, num:].any()
    assert not losses[~feasible].any()
    assert_close(alone, losses, rtol=1e-12, atol=1e-12)  # computed from one direction instead of two


@pytest.mark.slow
def test_the_delay_penalty_of_long_rows_is_precise_in_float32():
    logits, *rest = batch(seed=4, num_rows=2, num_frames=800, vocabulary=20, num_labels=100)
    losses, _, gradient = run(logits, *rest, delay_penalty=0.05)
    with jax.enable_x64(True):
        exact = run(logits.astype(np.float64), *rest, weights=np.ones(2), delay_penalty=0.05)
    assert_close(losses, exact[0], rtol=1e-5)
    assert_within(np.abs(gradient - exact[2]).max(), 1e-4)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -1e30, 1e4])
def test_padding_never_matters(seed, garbage):
    logits, logit_lengths, labels, label_lengths = batch(seed=seed)
    padding = np.arange(logits.shape[1]) >= logit_lengths[:, None]
    unused = np.arange(labels.shape[1]) >= label_lengths[:, None]
    expected = run(logits, logit_lengths, labels, label_lengths)
    logits = np.where(padding[..., None], np.float32(garbage), logits)
    for label in (0, -1, 9999):  # the blank, and invalid ids
        found = run(logits, logit_lengths, np.where(unused, np.int32(label), labels), label_lengths)
        for value, same in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value, same)
        assert not found[2][padding].any()


def test_infeasible_rows_have_no_loss_and_no_gradient_and_leave_others_alone():
    logits, logit_lengths, labels, label_lengths = batch(seed=5)
    alone = run(logits, logit_lengths, labels, label_lengths)
    short = np.array([True, False] * 4) & (label_lengths > 0)
    assert short.any()
    lengths = np.where(short, label_lengths - 1, logit_lengths)
    logits[short & (np.arange(8) > 2)] = np.nan
    weights = np.where(short & (np.arange(8) < 2), np.float32(np.inf), np.float32(1))  # 0 · inf must not become NaN
    assert np.isinf(weights).any()
    losses, feasible, gradient = run(logits, lengths, labels, label_lengths, weights=weights)
    np.testing.assert_array_equal(feasible, ~short)
    assert not losses[short].any()
    assert not gradient[short].any()
    np.testing.assert_array_equal(losses[~short], alone[0][~short])
    np.testing.assert_array_equal(gradient[~short], alone[2][~short])


def test_empty_targets_single_frames_and_no_frames():
    logits = np.random.default_rng(0).normal(size=(3, 1, 4)).astype(np.float32)
    log_probs = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    frames, labels = np.array([1, 1, 0], np.int32), np.full((3, 1), 2, np.int32)
    losses, feasible, gradient = run(logits, frames, labels, np.array([1, 0, 0], np.int32))
    assert feasible.all()
    assert_close(losses, [-log_probs[0, 0, 2], -log_probs[1, 0, 0], 0], rtol=1e-6)
    expected = np.exp(log_probs) - np.eye(4)[[2, 0, 0]][:, None]
    expected[2] = 0
    assert_close(gradient, expected, atol=1e-6)
    losses, feasible, gradient = run(logits, frames, labels[:, :0], np.zeros(3, np.int32))
    assert_close(losses, [*-log_probs[:2, 0, 0], 0], rtol=1e-6)
    assert feasible.all()


def test_is_never_negative_and_is_zero_for_certainty():
    logits, _, labels, _ = batch()
    logits[0], labels[0, :2] = -40, (1, 2)
    logits[0, np.arange(6), [0, 1, 1, 0, 2, 0]] = 40
    losses, _, gradient = run(logits, np.full(8, 6, np.int32), labels, np.full(8, 2, np.int32))
    assert_within(losses[0], 1e-6)
    assert_within(np.abs(gradient[0]).max(), 1e-6)


def test_logits_that_are_not_finite_show_in_the_loss():
    logits, _, labels, _ = batch()
    logits[:], labels[:, 0] = 0, 1
    logits[0, 1, 0], logits[1, :, 1], logits[2, :, 2:] = np.nan, -np.inf, -np.inf
    losses, _, gradient = run(logits, np.full(8, 4, np.int32), labels, np.ones(8, np.int32))
    assert np.isnan(losses[0])
    assert losses[1] == np.inf
    assert_close(losses[2], enumerated(np.zeros((4, 2)), [1], 0), rtol=1e-6)
    assert np.isfinite(gradient[2]).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_logits_are_computed_in_float32(dtype):
    if dtype == jnp.float16:
        skip_without_float16()
    logits, *rest = batch(seed=3)
    logits = logits.astype(dtype)
    losses, _, gradient = run(logits, *rest)
    expected, _, exact = run(logits.astype(np.float32), *rest)
    assert losses.dtype == np.float32
    assert gradient.dtype == dtype
    np.testing.assert_array_equal(losses, expected)
    np.testing.assert_array_equal(gradient, exact.astype(dtype))


def test_long_rows_keep_a_gradient_of_float32_precision():
    logits, *rest = batch(seed=4, num_rows=2, num_frames=800, vocabulary=20, num_labels=100)
    gradient = run(logits, *rest)[2]
    with jax.enable_x64(True):
        exact = run(logits.astype(np.float64), *rest, weights=np.ones(2))[2]
    assert_within(np.abs(gradient - exact).max(), 5e-5)  # without scaled states the error is 1e-3


@pytest.mark.parametrize("offset", [1e4, -1e4])
def test_large_logits_keep_the_precision_of_float32(offset):
    logits, *rest = batch(seed=8)
    logits = logits + np.float32(offset)
    logits[::2] *= np.float32(1 + 1e-4)  # other offsets, which are not the same in all frames
    losses, _, gradient = run(logits, *rest)
    with jax.enable_x64(True):
        exact, _, exact_gradient = run(logits.astype(np.float64), *rest, weights=np.ones(len(logits)))
    assert_close(losses, exact, rtol=1e-6, atol=1e-6)
    assert_within(np.abs(gradient - exact_gradient).max(), 5e-6)


@pytest.mark.parametrize("vocabulary", [pytest.param(7, marks=pytest.mark.slow), ctc.ONE_HOT_VOCABULARY + 1])
def test_a_sharded_batch_gives_the_same_without_communication(vocabulary):
    inputs = (*batch(seed=6, vocabulary=vocabulary), np.ones(8, np.float32))
    expected = losses_and_gradient(*inputs, blank_id=0)
    sharded = jax.device_put(inputs, by_rows(data_mesh(4)))
    compiled = losses_and_gradient.lower(*sharded, blank_id=0).compile()
    found = compiled(*sharded)
    for value, same in zip(found, expected, strict=True):
        # Each frame adds, takes a logarithm and adds again, and both sides round. Gradients are at most 1, and are
        # differences of a probability and of an exponential, which is a tenth of 1 or less in nearly all places.
        rounding = 2 * 3 * inputs[0].shape[1] * 2.0**-24
        assert_close(value, same, rtol=rounding, atol=rounding / 10)
        assert value.sharding.is_equivalent_to(by_rows(data_mesh(4)), value.ndim)
    collectives = ("all-gather", "all-to-all", "collective-permute", "all-reduce")
    assert not [name for name in collectives if name in compiled.as_text()]


def test_vmap_and_remat_give_the_same():
    logits, *rest = batch(seed=7)
    expected = run(logits, *rest)

    def total(logits, *rest):
        return ctc_loss(logits, *rest, blank_id=0)[0].sum()

    @jax.jit
    def gradients(*given):
        doubled = jax.tree.map(lambda x: jnp.stack([x, x[::-1]]), given)
        return jax.grad(jax.checkpoint(total))(*given), jax.vmap(jax.grad(total))(*doubled)

    again, (one, reversed_rows) = jax.device_get(gradients(logits, *rest))
    for gradient in (again, one, reversed_rows[::-1]):
        assert_close(gradient, expected[2], rtol=1e-6, atol=1e-7)


def test_memory_stays_below_a_lattice_over_the_vocabulary():
    logits, *rest = batch(num_rows=2, num_frames=50, vocabulary=300, num_labels=20)
    memory = losses_and_gradient.lower(logits, *rest, np.ones(2, np.float32), blank_id=0).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4 * (2 * 50 * 300 + 20 * 2 * 50 * 21)


@pytest.mark.parametrize("jitted", [False, True])
def test_is_feasible_counts_labels_and_repeats(jitted):
    """Tests NumPy arrays on the host, and arrays within a compiled program."""
    compute = jax.jit(is_feasible) if jitted else is_feasible
    labels = np.array([[1, 1, 1], [1, 1, 1], [1, 2, 1], [2, 2, 0], [2, 2, 2], [3, 3, 3]])
    found = compute(np.array([5, 4, 3, 2, 1, 0]), labels, np.array([3, 3, 3, 2, 1, 0]))
    assert isinstance(found, jax.Array if jitted else np.ndarray)
    assert found.tolist() == [True, False, True, False, True, True]
    assert compute(np.array([0]), np.zeros((1, 0), np.int32), np.array([0])).tolist() == [True]
