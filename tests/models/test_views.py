"""CR-CTC: an utterance is in a batch twice, heard alike and masked in other places, and drawn towards itself."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_suite import fast_jit

from asr_jax.audio.augment import Augmentation
from asr_jax.audio.distort import Gain
from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.specaugment import SpecAugment, TimeWarp, VocalTract
from asr_jax.core.meshes import data_mesh, global_batch, replicated
from asr_jax.core.pytrees import flatten
from asr_jax.heads.ctc import CTC
from asr_jax.losses.ctc import ctc_loss
from asr_jax.models.base import Model
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.training.beginning import initial_training, lower_beginning
from asr_jax.training.step import Recipe, accumulate, added_weights, batch_weights, nothing_accumulated
from tests.heads.test_ctc_head import BLANK, TwoLayers
from tests.training.toy import as_features, joined, toy_batch

MASKS = SpecAugment(probability=1.0, max_freq_bins=20, num_time_masks=2, max_time_frames=8, max_time_share=1.0,
                    fill="zero")  # fmt: skip
LATE = jnp.int32(10**6)


@dataclass(frozen=True)
class EverySecond(Augmentation):
    """Every second row is halved: views that differ in a way that depends on nothing drawn."""

    def drawn(self, values, lengths, key, *, step):
        return {"applied": jnp.arange(len(values)) % 2 == 1}

    def apply(self, row, length, drawn):
        return row / 2


def built(model):
    return model.build(vocab_size=BLANK + 1, blank_id=BLANK, precision="f32")


def two_views(*, augment=(EverySecond(),), dropout=0.0):
    heads = {"ctc": CTC(dropout=0.0, consistency=0.2), "inter": CTC(dropout=0.0, tap="inner", scale=0.3)}
    return built(Model(encoder=TwoLayers(dropout), heads=heads, augment=augment, views=2))


def drawn(model, batch):
    return fast_jit(lambda: model.init(jax.random.key(0), batch, step=None))()


def keys(seed=0):
    key = jax.random.key(seed)
    return {name: jax.random.fold_in(key, i) for i, name in enumerate(("augment", "dropout", "dither"))}


def seen(batch, *augment, views=2, seed=0):
    """The frames that the encoder gets."""
    model = built(Model(encoder=TwoLayers(), augment=augment, views=views))
    return fast_jit(lambda: model.apply({}, batch, step=LATE, method="augmented", rngs=keys(seed)))()


def test_views_share_what_is_done_to_audio_and_time_and_are_masked_in_other_places():
    batch = toy_batch(seconds=2.0)
    frames = seen(batch, Gain(min_db=-9.0, max_db=-3.0), TimeWarp(probability=1.0, max_frames=20), MASKS)
    plain = jax.device_get(jax.jit(KaldiFbank())(batch.audio, batch.lengths))
    frames = jax.device_get(frames)
    assert len(frames.values) == 2 * len(plain.values)
    np.testing.assert_array_equal(frames.lengths, np.repeat(plain.lengths, 2))
    for row, length in enumerate(plain.lengths):
        first, second = (np.asarray(frames.values[2 * row + view, :length]) for view in (0, 1))
        kept = (first != 0) & (second != 0)
        assert 0.1 < kept.mean() < 1
        np.testing.assert_array_equal(first[kept], second[kept])
        assert ((first == 0) != (second == 0)).any()
        assert (np.abs(first - plain.values[row, :length])[kept] > 0.1).any()


def test_what_moves_no_frame_is_drawn_for_each_view():
    frames = seen(toy_batch(), VocalTract())
    values = np.asarray(frames.values)
    assert (np.abs(values[::2] - values[1::2]) > 0.1).any()


def test_one_view_is_as_without_any_and_evaluation_has_one():
    batch = toy_batch(seed=1)
    one, two = seen(batch, MASKS, views=1), seen(batch, MASKS)
    np.testing.assert_array_equal(
        np.asarray(two.values)[0], np.asarray(one.values)[0]
    )  # row 0 of each: drawn by the row's number
    model = two_views()
    params = drawn(model, batch)

    def evaluate(model):
        return fast_jit(lambda: model.apply(params, batch, step=None))()

    sums = evaluate(model)
    assert sums["ctc/consistency"].total == 0
    plain = Model(encoder=TwoLayers(), heads={"ctc": CTC(dropout=0.0)}, augment=())
    for name, expected in evaluate(built(plain)).items():
        jax.tree.map(np.testing.assert_array_equal, sums[name], expected)
    emitted = jax.eval_shape(lambda batch: model.apply(params, batch, method="emit"), batch)
    assert emitted["ctc"].values.shape[0] == len(batch.lengths)


@pytest.fixture(scope="module")
def trained():
    """A model of two views, a batch with a row that does not count and one that is too short, and its sums."""
    model = two_views()
    batch = toy_batch(seed=2, labels=12)
    batch = batch.replace(
        lengths=jnp.array([6400, 1500, 5000, 6400], jnp.int32),
        token_lengths=jnp.array([5, 12, 3, 9], jnp.int32),
        weights=jnp.array([1.0, 1.0, 1.0, 0.0]),
    )
    params = drawn(model, batch)
    run = fast_jit(lambda batch, step: model.apply(params, batch, step=step, rngs=keys()))
    return model, params, batch, run


def log_softmax(logits):
    logits = np.asarray(logits, np.float64)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_loss_is_the_mean_over_views_and_the_divergence_between_them_with_icefalls_factors(trained):
    model, params, batch, run = trained
    sums = run(batch, LATE)
    encoded = fast_jit(lambda batch: model.apply(params, batch, step=LATE, rngs=keys(), method="encode"))(batch)
    assert encoded.views == 2
    output = {name: np.asarray(leaf) for name, leaf in params["params"]["heads_ctc"]["output"].items()}
    logits = np.asarray(encoded.frames.values) @ output["kernel"] + output["bias"]
    loss = fast_jit(functools.partial(ctc_loss, blank_id=BLANK))
    of_view = [
        loss(logits[view::2], encoded.frames.lengths[view::2], batch.tokens, batch.token_lengths)[0] for view in (0, 1)
    ]
    counted = np.asarray(batch.weights) * np.array([1, 0, 1, 1])
    np.testing.assert_allclose(sums["ctc/loss"].total, 0.5 * np.sum(counted * (of_view[0] + of_view[1])), rtol=1e-5)
    first, second = log_softmax(logits[0::2]), log_softmax(logits[1::2])
    valid = np.arange(first.shape[1])[None, :, None] < np.asarray(encoded.frames.lengths[::2])[:, None, None]
    both = np.exp(second) * (second - first) + np.exp(first) * (first - second)
    by_row = np.where(valid, both, 0.0).sum((1, 2))
    np.testing.assert_allclose(sums["ctc/consistency"].total, 0.2 * 0.5 * np.sum(counted * by_row), rtol=1e-5)
    np.testing.assert_array_equal(sums["ctc/consistency"].weight, sums["ctc/loss"].weight)
    early = run(batch, jnp.int32(499))["ctc/consistency"].total
    np.testing.assert_allclose(early, sums["ctc/consistency"].total / 4, rtol=1e-5)


def test_weights_known_before_are_those_of_a_batch_seen_once(trained):
    model, _, batch, run = trained
    for given in (batch, as_features(batch, model)):
        known = fast_jit(lambda given: model.apply({}, given, method="weights"))(given)
        sums = run(given, LATE)
        assert known.keys() == {"ctc/loss", "ctc/consistency", "inter/loss"}
        for name, weight in known.items():
            np.testing.assert_array_equal(weight, sums[name].weight)
        assert sums["ctc/infeasible"].mean() == sums["inter/infeasible"].mean() == pytest.approx(1 / 3)


def test_dropout_alone_makes_views_differ():
    batch = toy_batch(seed=3)
    for dropout in (0.0, 0.5):
        model = two_views(augment=(), dropout=dropout)
        params = drawn(model, batch)
        sums = fast_jit(lambda p, model=model: model.apply(p, batch, step=LATE, rngs=keys()))(params)
        total = sums["ctc/consistency"].total
        assert (total > 0) == (dropout > 0)


SUMS = ("ctc/loss", "ctc/infeasible", "ctc/consistency", "inter/loss", "inter/infeasible")


def parts(model):
    recipe = Recipe(model, {"ctc": 1.0, "inter": 0.3}, AdamW().build(RunLength(100, 10)))
    state, _ = initial_training(lower_beginning(recipe, seed=0).compile(), data_mesh(1))
    return recipe, state.replace(updates=LATE), fast_jit(functools.partial(accumulate, recipe))


def assert_close(actual, expected):
    expected = flatten(expected)
    for path, leaf in flatten(actual).items():
        np.testing.assert_allclose(leaf, expected[path], atol=1e-5 * np.abs(expected[path]).max(), err_msg=path)


def test_accumulation_equals_the_big_batch():
    recipe, state, add = parts(two_views())
    batches = [toy_batch(seed=4), toy_batch(seed=5).replace(weights=jnp.array([1.0, 0, 0, 1]))]

    def gradients(*batches):
        weights = added_weights([batch_weights(recipe.model, batch) for batch in batches])
        found = nothing_accumulated(recipe, state, SUMS)
        for position, batch in enumerate(batches):
            found = add(state, found, batch, weights, jnp.int32(position))
        return found

    split, whole = gradients(*batches), gradients(joined(*batches))
    assert_close(split.grads, whole.grads)
    np.testing.assert_allclose(split.sums["ctc/consistency"].mean(), whole.sums["ctc/consistency"].mean(), rtol=1e-5)
    assert whole.sums["ctc/consistency"].mean() > 0


def test_four_devices_draw_what_one_draws_and_move_no_row():
    recipe, state, add = parts(two_views(augment=(Gain(), TimeWarp(max_frames=5), MASKS), dropout=0.3))
    batch = toy_batch(rows=8, seed=6)
    weights, zeros = batch_weights(recipe.model, batch), nothing_accumulated(recipe, state, SUMS)
    expected = add(state, zeros, batch, weights, jnp.int32(3))
    mesh = data_mesh(4)
    given = *jax.device_put((state, zeros), replicated(mesh)), global_batch(batch, mesh)
    compiled = add.lower(*given, jax.device_put(weights, replicated(mesh)), jnp.int32(3)).compile()
    assert not any(word in compiled.as_text() for word in ("all-to-all", "collective-permute", "all-gather"))
    found = compiled(*given, jax.device_put(weights, replicated(mesh)), jnp.int32(3))
    assert_close(found.grads, expected.grads)
    assert_close({n: s.total for n, s in found.sums.items()}, {n: s.total for n, s in expected.sums.items()})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views": 0}, "views is 0: expected at least 1"),
        (
            {"heads": {"ctc": CTC(consistency=0.2)}},
            "heads.ctc: consistency is 0.2 and the model's views are 1",
        ),
        ({"views": 2, "augment": (MASKS, TimeWarp())}, "TimeWarp after SpecAugment and views is 2: expected it before"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(ValueError, match=message):
        Model(**{"encoder": TwoLayers(), **changes})
    with pytest.raises(ValueError, match="consistency is -1"):
        CTC(consistency=-1.0)
    Model(encoder=TwoLayers(), augment=(MASKS, TimeWarp()))
