"""Training step: accumulation equals one big batch, padding rows do not count, non-finite updates change nothing."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from asr_jax.audio.features import KaldiFbank
from asr_jax.core.batch import Batch
from asr_jax.core.meshes import data_mesh, global_batch, replicated
from asr_jax.core.pytrees import flatten
from asr_jax.core.sums import Sum
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model, Recogniser
from asr_jax.models.conformer import Conformer
from asr_jax.models.encoder import Encoder
from asr_jax.models.terms import batch_denominators
from asr_jax.nn.gradients import penalize_large
from asr_jax.optim.lora import LoRA
from asr_jax.optim.optimizers import EVERYTHING, NEVER, AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.training.initial_state import fresh_state, initial_state, lower_initial_state
from asr_jax.training.recipe import Recipe
from asr_jax.training.step import apply_update, summed
from tests.support import assert_close, assert_trees_close, assert_within
from tests.training.accumulating import accumulate
from tests.training.toy import as_features, toy_batch, toy_model

SCALES = {"ctc": 1.0}
LENGTH = RunLength(100, 10)


def features_of(seed, rows=4, num_frames=40, labels=3):
    """Returns a batch of features, whose programs lack the front-end and compile faster."""
    rng = np.random.default_rng(seed)
    return Batch(
        audio=None, features=rng.normal(12, 4, (rows, num_frames, 80)).astype(np.float32),
        lengths=rng.integers(num_frames // 2, num_frames + 1, rows).astype(np.int32),
        tokens=rng.integers(0, 5, (rows, labels)).astype(np.int32),
        token_lengths=rng.integers(1, labels + 1, rows).astype(np.int32),
        weights=np.ones(rows, np.float32), utterances=np.arange(rows, dtype=np.int32),
    )  # fmt: skip


def joined(*batches):
    """Returns one batch with the rows of several batches of equal shape."""
    return jax.tree.map(lambda *rows: np.concatenate(rows), *batches)


class Parts:
    """Compiled functions of a recipe, and its initial state."""

    def __init__(self, model):
        self.recipe = recipe = Recipe(model, SCALES, AdamW().build(LENGTH))
        self.state, self.average = initial_state(lower_initial_state(recipe, seed=0).compile(), data_mesh(1))
        self.weights = jax.jit(functools.partial(batch_denominators, model))
        self.accumulate = jax.jit(functools.partial(accumulate, recipe))

    def gradients(self, *batches, state=None):
        """Returns the accumulated sums of the batches of one update."""
        weights = {"ctc/loss": np.sum([self.weights(batch)["ctc/loss"] for batch in batches])}
        accumulated = None
        for position, batch in enumerate(batches):
            accumulated = self.accumulate(state or self.state, accumulated, batch, weights, np.int32(position))
        return jax.device_get(accumulated)


@pytest.fixture(scope="module")
def parts():
    return Parts(toy_model(dropout=0.5).build(vocab_size=6, blank_id=5, precision="f32"))


def test_accumulation_equals_the_big_batch_when_micro_batches_differ_in_what_they_count(parts):
    first, second = features_of(seed=1), features_of(seed=2)
    second = second.replace(weights=np.float32([1.0, 0, 0, 1]))
    split, whole = parts.gradients(first, second), parts.gradients(joined(first, second))
    assert_trees_close(split.grads, whole.grads, 1e-5)
    assert_close(split.sums["ctc/loss"].mean(), whole.sums["ctc/loss"].mean(), rtol=1e-6)


def test_denominators_computed_before_are_the_denominators_of_the_loss(parts):
    batch = features_of(seed=3)
    batch = batch.replace(lengths=np.int32([40, 1, 40, 17]))  # the second cannot hold its labels
    known = parts.weights(batch)["ctc/loss"]
    sums = parts.gradients(batch).sums
    assert_close(known, sums["ctc/loss"].weight)
    assert_close(sums["ctc/infeasible"].total, 1.0)


def test_rows_of_weight_zero_send_no_gradient(parts):
    batch = features_of(seed=4)
    padded = joined(batch, features_of(seed=5).replace(weights=np.zeros(4, np.float32)))
    assert_trees_close(parts.gradients(padded).grads, parts.gradients(batch).grads, 1e-5)


@pytest.mark.slow
def test_ready_features_give_the_same_loss_as_their_audio(parts):
    batch = toy_batch(seed=6)
    features = as_features(batch, parts.recipe.model)
    expected = parts.gradients(batch).sums["ctc/loss"].mean()
    assert_close(parts.gradients(features).sums["ctc/loss"].mean(), expected, rtol=1e-5)


@pytest.mark.parametrize("num_devices", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_devices_agree_with_one(parts, num_devices):
    batch = joined(features_of(seed=7), features_of(seed=8))
    expected = parts.gradients(batch)
    mesh = data_mesh(num_devices)
    state, weights, position = jax.device_put((parts.state, parts.weights(batch), np.int32(0)), replicated(mesh))

    @jax.jit
    def on_devices(*arguments):
        return summed(accumulate(parts.recipe, *arguments, mesh=mesh), num_devices=num_devices)

    found = jax.device_get(on_devices(state, None, global_batch(batch, mesh), weights, position))
    assert_trees_close(found.grads, expected.grads, 1e-5)
    assert_close(found.sums["ctc/loss"].total, expected.sums["ctc/loss"].total, rtol=1e-5)


def without_key(tree):
    return {path: leaf for path, leaf in flatten(tree).items() if path != "key"}


def test_what_is_not_finite_or_counts_nothing_voids_the_whole_update(parts):
    state, average = parts.state, parts.average
    good = parts.gradients(features_of(seed=8))
    bad = good.replace(grads=jax.tree.map(np.copy, good.grads))
    for leaf in jax.tree.leaves(bad.grads):
        leaf[(0,) * leaf.ndim] = np.nan
    nothing = parts.gradients(features_of(seed=8).replace(weights=np.zeros(4, np.float32)))
    update = jax.jit(functools.partial(apply_update, parts.recipe))
    for accumulated, finite in ((nothing, True), (bad, False)):
        after, after_average, report = update(state, average, accumulated)
        assert not report.applied
        assert report.finite == finite
        for before, now in ((state, after), (average, after_average)):
            jax.tree.map(np.testing.assert_array_equal, without_key(now), without_key(before))
    infinite_metric = good.replace(sums=good.sums | {"ctc/infeasible": Sum(np.float32(np.inf), np.float32(1.0))})
    after, _, report = update(state, average, infinite_metric)
    assert report.applied
    assert int(after.updates) == int(state.updates) + 1


def test_dropout_depends_on_the_update_and_the_utterance_alone(parts):
    """An update in two batches, with its rows in another order, has the gradient of one batch."""
    batch = features_of(seed=9)
    halves = [
        jax.tree.map(lambda array, rows=rows: array[np.array(rows)], batch) for rows in ((3, 0, 1, 2), (2, 1, 3, 0))
    ]
    halves = [half.replace(weights=np.float32([1, 1, 0, 0])) for half in halves]
    whole, split = parts.gradients(batch).grads, parts.gradients(*halves).grads
    jax.tree.map(lambda a, b: assert_close(a, b, rtol=1e-5, atol=1e-6), split, whole)
    updates = jax.device_put(np.int32(1), parts.state.updates.sharding)
    other = parts.gradients(batch, state=parts.state.replace(updates=updates)).grads
    assert any(np.abs(a - b).max() > 1e-3 for a, b in zip(*map(jax.tree.leaves, (whole, other)), strict=True))


def test_what_modules_add_to_the_gradient_counts_against_the_sum_over_the_batch():
    """The gradient of a regulariser is divided by the same denominator as the sum of the losses."""

    class Penalised(Recogniser):
        @nn.compact
        def __call__(self, batch, *, step):
            value = self.param("value", nn.initializers.ones, ())
            always = jnp.array(True)
            value = penalize_large(value, always, limit=0.5, penalty=10.0)
            return {"ctc/loss": Sum(value * jnp.sum(batch.weights), jnp.sum(batch.weights))}

    model, batch = Penalised(KaldiFbank(), (), Encoder(), {}), features_of(seed=0)
    recipe = Recipe(model, SCALES, AdamW(decay_factors=EVERYTHING).build(LENGTH))
    state = jax.jit(lambda params: fresh_state(recipe, params, {}, seed=0))({"value": np.float32(1.0)})
    add = jax.jit(functools.partial(accumulate, recipe))
    found = add(state, None, batch, {"ctc/loss": np.float32(4.0)}, np.int32(0))
    assert_close(found.grads["value"], (4 * 1.0 + 10.0) / 4, rtol=1e-6)
    nothing = batch.replace(weights=np.zeros(4, np.float32))
    found = add(state, None, nothing, {"ctc/loss": np.float32(0.0)}, np.int32(0))
    assert np.asarray(found.grads["value"]) == 0  # the penalty alone is not an update
    update = jax.jit(functools.partial(apply_update, recipe))
    assert not update(state, recipe.evaluated(state), found)[2].applied


def after_a_batch(model, optim, batch, *, lora=None, updates=(0,)):
    """Yields, for each number of applied updates, whether a batch leaves every running statistic as it is, and the
    losses of training and of evaluation."""
    recipe = Recipe(
        model.build(vocab_size=6, blank_id=5, precision="f32"), SCALES, optim.build(LENGTH), lora=lora or LoRA()
    )

    shapes = jax.eval_shape(functools.partial(recipe.model.init, jax.random.key(0), step=None), batch)
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), shapes["params"])
    before = jax.tree.map(lambda leaf: np.full(leaf.shape, 1.5, np.float32), shapes["batch_stats"])

    @jax.jit
    def computed(params, before, batch, updates):
        state = fresh_state(recipe, params, before, seed=0).replace(updates=updates)
        denominators = batch_denominators(recipe.model, batch)
        after = accumulate(recipe, state, None, batch, denominators, jnp.int32(0))
        evaluated = recipe.model.apply({"params": params, "batch_stats": before}, batch, step=None)
        return after.batch_stats, after.sums["ctc/loss"], evaluated["ctc/loss"]

    for number in updates:
        after, trained, evaluated = jax.device_get(computed(params, before, batch, np.int32(number)))
        flat = flatten(after)
        kept = {np.array_equal(flat[path], stat) for path, stat in flatten(before).items()}
        assert len(kept) == 1
        yield kept.pop(), trained.mean(), evaluated.mean()


FROZEN = (("encoder/.*", NEVER), ("rest", 0.0))


@pytest.mark.parametrize(
    ("optim", "frozen"),
    [
        (AdamW(freeze_updates=FROZEN), {0: True}),
        pytest.param(AdamW(freeze_updates=FROZEN, frozen_statistics="updated"), {0: False}, marks=pytest.mark.slow),
        (AdamW(freeze_updates=(("encoder/.*", 3), ("rest", 0.0))), {2: True, 3: False}),
        pytest.param(
            AdamW(freeze_updates=(("encoder/norm/gain", NEVER), ("rest", 0.0))), {0: False}, marks=pytest.mark.slow
        ),
    ],
    ids=["always", "as in PyTorch", "for three updates", "not the bias"],
)
def test_a_frozen_batch_norm_keeps_its_statistics_and_computes_as_in_evaluation(optim, frozen):
    found = after_a_batch(toy_model(norm=True), optim, features_of(seed=10), updates=frozen)
    for is_frozen, (kept, trained, evaluated) in zip(frozen.values(), found, strict=True):
        assert kept == is_frozen
        if is_frozen:
            assert_within(abs(trained - evaluated), 1e-6, scale=evaluated)
        else:
            assert abs(trained - evaluated) > 1e-4 * evaluated


@pytest.mark.slow
def test_frozen_batch_norms_of_scanned_layers():
    """Low-rank adapters freeze all other parameters of the encoder."""
    encoder = Conformer(
        dim=16, num_layers=1, num_heads=2, kernel_size=3, subsampling_channels=4, dropout=0.0, input_dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip
    model = Model(encoder=encoder, heads={"ctc": CTC(dropout=0.0)}, augment=())
    ((kept, trained, evaluated),) = after_a_batch(model, AdamW(), features_of(seed=10), lora=LoRA(rank=2))
    assert kept
    assert_within(abs(trained - evaluated), 1e-6 * evaluated)


class Wide(Recogniser):
    """A small network in float64 without running statistics; each row has its own weight."""

    @nn.compact
    def __call__(self, batch, *, step):
        kernel = self.param("kernel", nn.initializers.normal(0.3), (3, 5), jnp.float64)
        out = self.param("out", nn.initializers.normal(0.3), (5,), jnp.float64)
        hidden = jnp.tanh(batch.features @ kernel)
        rows = jnp.sum(jnp.sin(hidden @ out) ** 2, axis=1)
        of_labels, of_rows = batch.weights * batch.token_lengths, batch.weights
        return {
            "a/loss": Sum(jnp.sum(of_labels * rows), jnp.sum(of_labels)),
            "b/loss": Sum(jnp.sum(of_rows * jnp.exp(-rows)), jnp.sum(of_rows)),
        }

    def denominators(self, batch):
        return {name: value.weight for name, value in self(batch, step=None).items()}


def test_in_float64_accumulation_is_the_big_batch_to_nine_digits():
    with jax.enable_x64(True):
        rng, parts = np.random.default_rng(0), []
        for labels, rows in (([1, 2, 3], [1, 1, 1]), ([7, 1, 9], [1, 0, 1]), ([4, 4, 4], [0, 0, 1])):
            batch = features_of(seed=0, rows=3).replace(features=rng.normal(size=(3, 6, 3)))
            parts.append(batch.replace(token_lengths=np.int32(labels), weights=np.float32(rows)))
        model = Wide(KaldiFbank(), (), Encoder(), {})
        recipe = Recipe(model, {"a": 1.0, "b": 0.3}, AdamW(decay_factors=EVERYTHING).build(LENGTH))

        @jax.jit
        def computed(params, parts, whole):
            """Returns the gradient of the parts, that of the whole, and the same without `accumulate`."""
            state = fresh_state(recipe, params, {}, seed=0)
            sums = [model.apply({"params": params}, batch, step=None) for batch in parts]
            total = {name: sum(each[name].weight for each in sums) for name in ("a/loss", "b/loss")}

            def gradient(*batches):
                found = None
                for position, batch in enumerate(batches):
                    found = accumulate(recipe, state, found, batch, total, jnp.int32(position))
                return found.grads

            def direct(params):
                sums = model.apply({"params": params}, whole, step=None)
                return sums["a/loss"].total / total["a/loss"] + 0.3 * sums["b/loss"].total / total["b/loss"]

            return gradient(*parts), gradient(whole), jax.grad(direct)(params)

        params = {"kernel": rng.normal(0, 0.3, (3, 5)), "out": rng.normal(0, 0.3, 5)}
        split, at_once, direct = computed(params, parts, joined(*parts))
        assert split["kernel"].dtype == jnp.float64
        assert_trees_close(split, at_once, 1e-9)
        assert_trees_close(split, direct, 1e-6)  # the denominators are float32
