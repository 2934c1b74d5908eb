"""CTC against the sum over all paths, finite differences, and what padding, repeats and short rows must not do."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.meshes import by_rows, data_mesh
from asr_jax.losses import ctc
from asr_jax.losses.ctc import ctc_loss, is_feasible


def collapse(path, blank_id):
    return [symbol for symbol, _ in itertools.groupby(path) if symbol != blank_id]


def enumerated(logits, labels, blank_id):
    """Minus the logarithm of the summed probability of every path that collapses to the labels, in float64."""
    logits = logits.astype(np.float64)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    num_frames, vocabulary = logits.shape
    paths = itertools.product(range(vocabulary), repeat=num_frames)
    fitting = [path for path in paths if collapse(path, blank_id) == list(labels)]
    return -np.log(sum(np.exp(log_probs[range(num_frames), path].sum()) for path in fitting)) if fitting else np.inf


def batch(*, seed=0, num_rows=6, num_frames=12, vocabulary=7, num_labels=5, blank_id=0):
    """Logits, lengths, labels (many repeats) and their lengths, all feasible."""
    random = np.random.default_rng(seed)
    labels = random.choice([i for i in range(vocabulary) if i != blank_id][:3], (num_rows, num_labels)).astype(np.int32)
    label_lengths = random.integers(0, num_labels + 1, num_rows).astype(np.int32)
    repeats = (labels[:, 1:] == labels[:, :-1]) & (np.arange(1, num_labels) < label_lengths[:, None])
    logit_lengths = random.integers(label_lengths + repeats.sum(1), num_frames + 1).astype(np.int32)
    logits = random.normal(size=(num_rows, num_frames, vocabulary)).astype(np.float32) * 2
    return tuple(map(jnp.asarray, (logits, logit_lengths, labels, label_lengths)))


@functools.partial(jax.jit, static_argnames="blank_id")
def losses_and_gradient(logits, logit_lengths, labels, label_lengths, weights, *, blank_id):
    """Losses, feasibility and the gradient of the weighted sum."""

    def total(logits):
        losses, feasible = ctc_loss(logits, logit_lengths, labels, label_lengths, blank_id=blank_id)
        return (losses * weights).sum(), (losses, feasible)

    (_, found), gradient = jax.value_and_grad(total, has_aux=True)(logits)
    return *found, gradient


def run(logits, logit_lengths, labels, label_lengths, *, blank_id=0):
    return losses_and_gradient(
        logits, logit_lengths, labels, label_lengths, jnp.ones(len(logits), logits.dtype), blank_id=blank_id
    )


@pytest.mark.parametrize("blank_id", [0, 2])
def test_equals_the_sum_over_all_paths(blank_id):
    others = [i for i in range(3) if i != blank_id]
    targets = [labels for length in range(4) for labels in itertools.product(others, repeat=length)]
    rows = [(frames, labels) for frames in range(1, 6) for labels in targets]
    logits = np.random.default_rng(1).normal(size=(len(rows), 5, 3)).astype(np.float32) * 2
    labels = jnp.array([(*labels, *[others[0]] * (3 - len(labels))) for _, labels in rows], jnp.int32)
    lengths = jnp.array([frames for frames, _ in rows], jnp.int32)
    label_lengths = jnp.array([len(labels) for _, labels in rows], jnp.int32)
    losses, feasible, gradient = run(jnp.asarray(logits), lengths, labels, label_lengths, blank_id=blank_id)
    expected = np.array([enumerated(logits[i, :frames], row, blank_id) for i, (frames, row) in enumerate(rows)])
    np.testing.assert_array_equal(feasible, np.isfinite(expected))
    np.testing.assert_allclose(losses, np.where(np.isfinite(expected), expected, 0), rtol=1e-5, atol=1e-6)
    assert not gradient[~np.isfinite(expected)].any()
    alone, _ = ctc_loss(jnp.asarray(logits), lengths, labels, label_lengths, blank_id=blank_id)
    np.testing.assert_allclose(alone, losses, rtol=1e-6)  # one direction or two


@pytest.mark.parametrize("vocabulary", [7, ctc.ONE_HOT_VOCABULARY + 1])
def test_gradient_equals_finite_differences_in_float64(vocabulary):
    with jax.enable_x64(True):
        logits, *rest = batch(seed=2, num_rows=3, num_frames=8, num_labels=4, vocabulary=vocabulary, blank_id=1)
        logits = logits.astype(jnp.float64)
        weights = jnp.array([1.0, -2.0, 0.5])
        losses, _, gradient = losses_and_gradient(logits, *rest, weights, blank_id=1)
        assert losses.dtype == gradient.dtype == jnp.float64
        total = jax.jit(lambda logits: (ctc_loss(logits, *rest, blank_id=1)[0] * weights).sum())
        for seed in range(4):
            towards = jnp.asarray(np.random.default_rng(seed).normal(size=logits.shape))
            difference = (total(logits + 1e-5 * towards) - total(logits - 1e-5 * towards)) / 2e-5
            np.testing.assert_allclose((gradient * towards).sum(), difference, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("garbage", [np.nan, np.inf, -1e30, 1e4])
def test_padding_never_matters(seed, garbage):
    logits, logit_lengths, labels, label_lengths = batch(seed=seed)
    padding = jnp.arange(logits.shape[1])[None] >= logit_lengths[:, None]
    unused = jnp.arange(labels.shape[1])[None] >= label_lengths[:, None]
    expected = run(logits, logit_lengths, labels, label_lengths)
    logits = jnp.where(padding[..., None], garbage, logits)
    for label in (0, -1, 9999):  # the blank, and what is no label at all
        found = run(logits, logit_lengths, jnp.where(unused, label, labels), label_lengths)
        for value, same in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value, same)
        assert not found[2][padding].any()


def test_infeasible_rows_have_no_loss_and_no_gradient_and_leave_others_alone():
    logits, logit_lengths, labels, label_lengths = batch(seed=5, num_labels=4)
    alone = run(logits, logit_lengths, labels, label_lengths)
    short = jnp.array([True, False] * 3) & (label_lengths > 0)
    assert short.any()
    lengths = jnp.where(short, label_lengths - 1, logit_lengths)
    logits = jnp.where((short & (jnp.arange(6) > 2))[:, None, None], jnp.nan, logits)  # not even then
    losses, feasible, gradient = run(logits, lengths, labels, label_lengths)
    np.testing.assert_array_equal(feasible, ~short)
    assert not losses[short].any()
    assert not gradient[short].any()
    np.testing.assert_array_equal(losses[~short], alone[0][~short])
    np.testing.assert_array_equal(gradient[~short], alone[2][~short])


def test_infeasible_rows_stay_silent_under_an_infinite_weight():
    logits = jnp.zeros((2, 2, 3))
    lengths, labels, label_lengths = jnp.array([2, 2]), jnp.array([[1, 1], [1, 2]]), jnp.array([2, 2])
    found = losses_and_gradient(logits, lengths, labels, label_lengths, jnp.array([jnp.inf, 1.0]), blank_id=0)
    assert found[1].tolist() == [False, True]
    assert not found[2][0].any()
    assert np.isfinite(found[2]).all()


def test_empty_targets_single_frames_and_no_frames():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(3, 1, 4)).astype(np.float32))
    log_probs = jax.nn.log_softmax(logits)
    losses, feasible, gradient = run(logits, jnp.array([1, 1, 0]), jnp.array([[2], [2], [2]]), jnp.array([1, 0, 0]))
    assert feasible.all()
    np.testing.assert_allclose(losses, [-log_probs[0, 0, 2], -log_probs[1, 0, 0], 0], rtol=1e-6)
    expected = jnp.exp(log_probs) - jax.nn.one_hot(jnp.array([2, 0, 0]), 4)[:, None]
    np.testing.assert_allclose(gradient, expected.at[2].set(0), atol=1e-6)
    nothing = jnp.zeros((3, 0), jnp.int32), jnp.zeros(3, jnp.int32)
    losses, feasible, gradient = run(logits, jnp.array([1, 1, 0]), *nothing)
    np.testing.assert_allclose(losses, [*-log_probs[:2, 0, 0], 0], rtol=1e-6)
    assert feasible.all()


def test_is_never_negative_and_is_zero_for_certainty():
    logits = jnp.full((1, 6, 3), -40.0).at[0, jnp.arange(6), jnp.array([0, 1, 1, 0, 2, 0])].set(40.0)
    losses, _, gradient = run(logits, jnp.array([6]), jnp.array([[1, 2]]), jnp.array([2]))
    assert 0 <= losses[0] < 1e-6
    assert np.abs(gradient).max() < 1e-6


def test_logits_that_are_not_finite_show_in_the_loss():
    logits = jnp.zeros((3, 4, 3)).at[0, 1, 0].set(jnp.nan).at[1, :, 1].set(-jnp.inf).at[2, :, 2].set(-jnp.inf)
    losses, _, gradient = run(logits, jnp.full(3, 4), jnp.full((3, 1), 1), jnp.ones(3, jnp.int32))
    assert np.isnan(losses[0])
    assert losses[1] == np.inf
    np.testing.assert_allclose(losses[2], enumerated(np.zeros((4, 2)), [1], 0), rtol=1e-6)
    assert np.isfinite(gradient[2]).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_logits_are_computed_in_float32(dtype):
    logits, *rest = batch(seed=3)
    logits = logits.astype(dtype)
    losses, _, gradient = run(logits, *rest)
    expected, _, exact = run(logits.astype(jnp.float32), *rest)
    assert losses.dtype == jnp.float32
    assert gradient.dtype == dtype
    np.testing.assert_array_equal(losses, expected)
    np.testing.assert_array_equal(gradient, exact.astype(dtype))


def test_long_rows_keep_a_gradient_of_float32_precision():
    logits, *rest = batch(seed=4, num_rows=2, num_frames=800, vocabulary=20, num_labels=100)
    gradient = np.asarray(run(logits, *rest)[2])
    with jax.enable_x64(True):
        exact = np.asarray(run(logits.astype(jnp.float64), *rest)[2])
    assert np.abs(gradient - exact).max() < 5e-5  # states that are not scaled lose 1e-3 here


@pytest.mark.parametrize("vocabulary", [8, ctc.ONE_HOT_VOCABULARY + 1])
def test_a_sharded_batch_gives_the_same_without_communication(vocabulary):
    inputs = (*batch(seed=6, num_rows=8, vocabulary=vocabulary), jnp.ones(8))
    expected = losses_and_gradient(*inputs, blank_id=0)
    sharded = jax.device_put(inputs, by_rows(data_mesh(4)))
    compiled = losses_and_gradient.lower(*sharded, blank_id=0).compile()
    found = compiled(*sharded)
    for value, same in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, same, rtol=1e-6, atol=1e-7)
        assert value.sharding.is_equivalent_to(by_rows(data_mesh(4)), value.ndim)
    collectives = ("all-gather", "all-to-all", "collective-permute", "all-reduce")
    assert not [name for name in collectives if name in compiled.as_text()]


def test_vmap_and_remat_give_the_same():
    logits, *rest = batch(seed=7)
    expected = run(logits, *rest)

    def total(logits, *rest):
        return ctc_loss(logits, *rest, blank_id=0)[0].sum()

    gradient = jax.jit(jax.grad(jax.checkpoint(total)))(logits, *rest)
    np.testing.assert_allclose(gradient, expected[2], rtol=1e-6, atol=1e-7)
    doubled = jax.tree.map(lambda x: jnp.stack([x, x[::-1]]), (logits, *rest))
    gradient = jax.jit(jax.vmap(jax.grad(total)))(*doubled)
    np.testing.assert_allclose(gradient, jnp.stack([expected[2], expected[2][::-1]]), rtol=1e-6, atol=1e-7)


def test_memory_stays_below_a_lattice_over_the_vocabulary():
    logits, *rest = batch(num_rows=2, num_frames=50, vocabulary=300, num_labels=20)
    memory = losses_and_gradient.lower(logits, *rest, jnp.ones(2), blank_id=0).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 4 * (2 * 50 * 300 + 20 * 2 * 50 * 21)


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray])
def test_is_feasible_counts_labels_and_repeats(array):
    labels = array([[1, 1, 1], [1, 1, 1], [1, 2, 1], [2, 2, 0], [2, 2, 2], [3, 3, 3]])
    label_lengths = array([3, 3, 3, 2, 1, 0])
    found = is_feasible(array([5, 4, 3, 2, 1, 0]), labels, label_lengths)
    assert type(found) is type(labels) or isinstance(found, jax.Array)
    assert isinstance(found, np.ndarray) == isinstance(labels, np.ndarray)
    assert found.tolist() == [True, False, True, False, True, True]
    assert is_feasible(array([0]), array(np.zeros((1, 0), np.int32)), array([0])).tolist() == [True]
