"""CR-CTC: a batch has two views of each utterance, with different masks and a consistency loss."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.audio.augmentation import Augmentation
from asr_jax.audio.distort import Gain
from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.specaugment import SpecAugment, TimeWarp, VocalTract
from asr_jax.core.meshes import data_mesh, global_batch, replicated
from asr_jax.heads.ctc import CTC
from asr_jax.losses.ctc import ctc_loss
from asr_jax.models.base import Model
from asr_jax.models.terms import batch_denominators
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.training.initial_state import initial_state, lower_initial_state
from asr_jax.training.recipe import Recipe
from asr_jax.training.step import added_denominators
from tests.heads.drawn_params import drawn_params
from tests.heads.test_ctc_head import BLANK, TwoLayers, features_batch
from tests.support import approx, assert_close, assert_trees_close, fast_jit, log_softmax
from tests.training.accumulating import accumulate
from tests.training.toy import joined, toy_batch

MASKS = SpecAugment(probability=1.0, max_freq_bins=20, num_time_masks=2, max_time_frames=8, max_time_share=1.0,
                    system="nemo")  # fmt: skip
LATE = jnp.int32(10**6)


@dataclass(frozen=True)
class EverySecond(Augmentation):
    """Halves every second row: the difference of views is not random."""

    def drawn(self, values, lengths, key, *, step):
        return {"applied": jnp.arange(len(values)) % 2 == 1}

    def apply(self, row, length, drawn):
        return row / 2


def built(model):
    return model.build(vocab_size=BLANK + 1, blank_id=BLANK, precision="f32")


def two_views(*, augment=(EverySecond(),), dropout=0.0):
    heads = {"ctc": CTC(dropout=0.0, consistency=0.2), "inter": CTC(dropout=0.0, tap="inner", scale=0.3)}
    return built(Model(encoder=TwoLayers(dropout), heads=heads, augment=augment, views=2, primary="ctc"))


def keys(seed=0):
    key = jax.random.key(seed)
    return {name: jax.random.fold_in(key, i) for i, name in enumerate(("augment", "dropout", "dither"))}


def seen(batch, *augment, views=2, seed=0):
    """Input frames of the encoder."""
    model = built(Model(encoder=TwoLayers(), augment=augment, views=views))
    augmented = fast_jit(lambda batch, keys: model.apply({}, batch, step=LATE, method="augmented", rngs=keys))
    return jax.device_get(augmented(batch, keys(seed)))


def test_views_share_what_is_done_to_audio_and_time_and_are_masked_in_other_places():
    batch = toy_batch(seconds=2.0)
    frames = seen(batch, Gain(db=(-9.0, -3.0)), TimeWarp(probability=1.0, max_frames=20), MASKS)
    plain = jax.device_get(fast_jit(KaldiFbank())(batch.audio, batch.lengths))
    assert len(frames.values) == 2 * len(plain.values)
    np.testing.assert_array_equal(frames.lengths, np.repeat(plain.lengths, 2))
    for row, length in enumerate(plain.lengths):
        first, second = (frames.values[2 * row + view, :length] for view in (0, 1))
        kept = (first != 0) & (second != 0)
        assert 0.1 < kept.mean() < 1
        np.testing.assert_array_equal(first[kept], second[kept])
        assert ((first == 0) != (second == 0)).any()
        assert (np.abs(first - plain.values[row, :length])[kept] > 0.1).any()


def test_what_moves_no_frame_is_drawn_for_each_view():
    values = seen(features_batch(), VocalTract()).values
    assert (np.abs(values[::2] - values[1::2]) > 0.1).any()


def test_one_view_is_as_without_any_and_evaluation_has_one():
    batch = features_batch(seed=1)
    one, two = seen(batch, MASKS, views=1), seen(batch, MASKS)
    np.testing.assert_array_equal(two.values[0], one.values[0])  # row 0 of each: drawn by the row's number
    model = two_views()
    plain = built(Model(encoder=TwoLayers(), heads={"ctc": CTC(dropout=0.0)}, augment=()))
    evaluate = fast_jit(lambda params, batch: [each.apply(params, batch, step=None) for each in (model, plain)])
    params = {"params": drawn_params(model, batch)}
    sums, expected = evaluate(params, batch)
    assert sums["ctc/consistency"].total == 0
    for name, value in expected.items():
        jax.tree.map(np.testing.assert_array_equal, sums[name], value)
    emitted = jax.eval_shape(lambda batch: model.apply(params, batch, method="emit"), batch)
    assert emitted["ctc"].values.shape[0] == len(batch.lengths)


@pytest.fixture(scope="module")
def trained():
    """Returns a model of two views, a batch with a row of weight 0 and a row that is too short, and its sums."""
    model = two_views()
    batch = features_batch(seed=2, labels=12).replace(
        lengths=np.array([40, 7, 29, 40], np.int32),
        token_lengths=np.array([5, 12, 3, 9], np.int32),
        weights=np.array([1, 1, 1, 0], np.float32),
    )
    params = {"params": drawn_params(model, batch)}
    run = fast_jit(lambda batch, step: model.apply(params, batch, step=step, rngs=keys()))
    return model, params, batch, run


def test_loss_is_the_mean_over_views_and_the_divergence_between_them_with_icefalls_factors(trained):
    model, params, batch, run = trained
    sums = run(batch, LATE)
    encoded = fast_jit(lambda batch: model.apply(params, batch, step=LATE, rngs=keys(), method="encode"))(batch)
    encoded = jax.device_get(encoded)
    assert encoded.views == 2
    output = {name: np.asarray(leaf) for name, leaf in params["params"]["heads_ctc"]["output"].items()}
    logits = encoded.frames.values @ output["kernel"] + output["bias"]
    loss = fast_jit(functools.partial(ctc_loss, blank_id=BLANK))
    of_view = [
        np.asarray(loss(logits[view::2], encoded.frames.lengths[view::2], batch.tokens, batch.token_lengths)[0])
        for view in (0, 1)
    ]
    counted = np.asarray(batch.weights) * np.array([1, 0, 1, 1])
    assert_close(sums["ctc/loss"].total, 0.5 * np.sum(counted * (of_view[0] + of_view[1])), rtol=1e-5)
    first, second = log_softmax(logits[0::2]), log_softmax(logits[1::2])
    valid = np.arange(first.shape[1])[None, :, None] < encoded.frames.lengths[::2, None, None]
    both = np.exp(second) * (second - first) + np.exp(first) * (first - second)
    by_row = np.where(valid, both, 0.0).sum((1, 2))
    assert_close(sums["ctc/consistency"].total, 0.2 * 0.5 * np.sum(counted * by_row), rtol=1e-5)
    np.testing.assert_array_equal(sums["ctc/consistency"].weight, sums["ctc/loss"].weight)
    early = run(batch, jnp.int32(499))["ctc/consistency"].total
    assert_close(early, sums["ctc/consistency"].total / 4, rtol=1e-5)


def test_weights_known_before_are_those_of_a_batch_seen_once(trained):
    """Denominators are equal for features and for audio with the same number of frames."""
    model, _, batch, run = trained
    audio = batch.replace(audio=np.zeros((4, 6400), np.int16), features=None, lengths=160 * batch.lengths)
    np.testing.assert_array_equal(model.front_end.output_length(audio.lengths), batch.lengths)
    known, of_audio = fast_jit(lambda *each: [model.apply({}, one, method="denominators") for one in each])(
        batch, audio
    )
    sums = run(batch, LATE)
    assert known.keys() == of_audio.keys() == {"ctc/loss", "ctc/consistency", "inter/loss"}
    for name, weight in known.items():
        np.testing.assert_array_equal(weight, sums[name].weight)
        np.testing.assert_array_equal(of_audio[name], weight)
    assert sums["ctc/infeasible"].mean() == sums["inter/infeasible"].mean() == approx(1 / 3)


@pytest.mark.slow
def test_dropout_alone_makes_views_differ():
    batch = features_batch(seed=3)
    without, with_it = (two_views(augment=(), dropout=dropout) for dropout in (0.0, 0.5))
    run = fast_jit(lambda p: [model.apply(p, batch, step=LATE, rngs=keys()) for model in (without, with_it)])
    of_none, of_half = (sums["ctc/consistency"].total for sums in run({"params": drawn_params(without, batch)}))
    assert of_none == 0 < of_half


@pytest.mark.slow
def test_accumulation_equals_the_big_batch():
    recipe = Recipe(two_views(), {"ctc": 1.0, "inter": 0.3}, AdamW().build(RunLength(100, 10)))
    state, _ = initial_state(lower_initial_state(recipe, seed=0).compile(), data_mesh(1))
    state, add = state.replace(updates=LATE), fast_jit(functools.partial(accumulate, recipe))
    batches = [features_batch(seed=4), features_batch(seed=5).replace(weights=np.array([1, 0, 0, 1], np.float32))]

    def gradients(*batches):
        weights = added_denominators(
            [jax.jit(functools.partial(batch_denominators, recipe.model))(batch) for batch in batches]
        )
        found = None
        for position, batch in enumerate(batches):
            found = add(state, found, batch, weights, jnp.int32(position))
        return found

    split, whole = gradients(*batches), gradients(joined(*batches))
    assert_trees_close(split.grads, whole.grads, 1e-5)
    assert_close(split.sums["ctc/consistency"].mean(), whole.sums["ctc/consistency"].mean(), rtol=1e-5)
    assert whole.sums["ctc/consistency"].mean() > 0


@pytest.mark.slow
def test_four_devices_draw_what_one_draws_and_move_no_row():
    heads = {"ctc": CTC(dropout=0.0, consistency=0.2)}
    model = built(Model(encoder=TwoLayers(0.3), heads=heads, augment=(TimeWarp(max_frames=5), MASKS), views=2))
    batch = features_batch(rows=8, seed=6)

    @fast_jit
    @functools.partial(jax.value_and_grad, has_aux=True)
    def gradients(params, batch, keys):
        totals = {name: term.total for name, term in model.apply(params, batch, step=LATE, rngs=keys).items()}
        return totals["ctc/loss"] + totals["ctc/consistency"], totals

    params, mesh = {"params": drawn_params(model, batch)}, data_mesh(4)
    (_, expected_totals), expected = gradients(params, batch, keys())
    given = *jax.device_put((params, keys()), replicated(mesh)), global_batch(batch, mesh)
    compiled = gradients.lower(given[0], given[2], given[1]).compile()
    assert not any(word in compiled.as_text() for word in ("all-to-all", "collective-permute", "all-gather"))
    (_, totals), found = compiled(given[0], given[2], given[1])
    assert_trees_close(found, expected, 1e-5)
    assert_trees_close(totals, expected_totals, 1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"views": 0}, "views .*0"),
        ({"heads": {"ctc": CTC(consistency=0.2)}}, r"heads\.ctc: .*consistency is 0\.2, .*views is 1"),
        ({"views": 2, "augment": (MASKS, TimeWarp())}, "TimeWarp .*SpecAugment .*views .*2"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(ValueError, match=message):
        Model(**{"encoder": TwoLayers(), **changes})
    with pytest.raises(ValueError, match=r"consistency .*-1"):
        CTC(consistency=-1.0)
    Model(encoder=TwoLayers(), augment=(MASKS, TimeWarp()))
