"""The transducer head in a model: padding, splits, tiles, devices, searches, and what does not fit."""

import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import asr_jax
from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import data_mesh, global_batch, replicated
from asr_jax.core.pytrees import num_elements
from asr_jax.core.random_streams import random_streams
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.losses.transducer import Penalties, Since
from asr_jax.nn.recurrent.prediction import LSTMPrediction, StatelessPrediction
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.search.transducer_beam import TransducerBeamSearch, TransducerSearch
from asr_jax.text.spelling import Spelling
from tests.heads.drawn_params import drawn_params
from tests.support import approx, assert_close, assert_trees_close, assert_within, log_softmax
from tests.training.toy import as_features, toy_batch, toy_model

CONFIGS = Path(__file__).parent.parent.parent / "configs"
SMALL = Transducer(prediction=LSTMPrediction(8, num_layers=1, dropout=0.2), joint_dim=12, dropout=0.3)
HEADS = {
    "lstm": SMALL,
    "stateless, pruned": replace(
        SMALL, prediction=StatelessPrediction(8, regularise=False), pruning=Pruning(2), activation="tanh"
    ),
    "durations": replace(
        SMALL, durations=(0, 1, 2), sigma=0.05, omega=0.2, prediction=LSTMPrediction(8, num_layers=1, dropout=0.2)
    ),
}
one_fast = pytest.mark.parametrize(
    "name", ["stateless, pruned", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lstm", "durations"))]
)


def model_of(head, **changes):
    settings = replace(toy_model(**changes), heads={"transducer": head})
    return settings.build(vocab_size=6, blank_id=5, precision="f32")


def loss_and_gradient(model, least_wer=np.inf):
    progress = {"heads_transducer": {"least_wer": jnp.float32(least_wer)}}

    @jax.jit
    def run(params, batch):
        def total(params):
            streams = random_streams(jax.random.key_data(jax.random.key(3)), jnp.int32(7))
            sums = model.apply({"params": params, "progress": progress}, batch, step=jnp.int32(7), rngs=streams)
            return sum(sums[f"transducer/{name}"].total for name in ("loss", "simple") if f"transducer/{name}" in sums)

        return jax.value_and_grad(total)(params)

    return run


@partial(jax.jit, static_argnames="name")
def sums_of(params, batch, *, name):
    """Sums of a model without dropout."""
    return model_of(HEADS[name]).apply({"params": params}, batch, step=None)


def params_of(model, batch):
    return jax.device_get(jax.jit(partial(model.init, step=None))(jax.random.key(0), batch)["params"])


@pytest.mark.slow  # tests/losses/test_transducer.py splits the loss too
@pytest.mark.parametrize("name", ["lstm", "stateless, pruned", "durations"])
def test_splits_tiles_and_devices_change_nothing_with_dropout_on(name, monkeypatch):
    head = HEADS[name]
    whole = model_of(head, dropout=0.2)
    batch = jax.device_get(as_features(toy_batch(seed=3), whole))
    params = drawn_params(whole, batch)
    value, gradient = loss_and_gradient(whole)(params, batch)
    in_parts = model_of(replace(head, split=2), dropout=0.2)
    monkeypatch.setattr("asr_jax.heads.transducer.logits_of_tile", lambda: 300)
    parts, mesh = loss_and_gradient(in_parts), data_mesh(2)
    assert_trees_close(parts(params, batch), (value, gradient), 1e-5)
    on_devices = loss_and_gradient(in_parts)
    assert_trees_close(
        on_devices(jax.device_put(params, replicated(mesh)), global_batch(batch, mesh)), (value, gradient), 1e-5
    )
    order = np.array([2, 0, 3, 1])
    assert_trees_close(parts(params, jax.tree.map(lambda array: array[order], batch)), (value, gradient), 1e-5)


@one_fast
def test_padding_has_no_influence(name):
    batch = jax.device_get(toy_batch(seed=4))
    params = drawn_params(model_of(HEADS[name]), batch)
    batch = batch.replace(lengths=np.minimum(batch.lengths, 4000), token_lengths=np.array([3, 2, 0, 1], np.int32))
    other = np.where(np.arange(3) < batch.token_lengths[:, None], batch.tokens, 4).astype(np.int32)
    longer = np.pad(batch.audio, ((0, 0), (0, 1600)), constant_values=77)
    plain, padded = (
        sums_of(params, each, name=name)["transducer/loss"].total
        for each in (batch, batch.replace(audio=longer, tokens=other))
    )
    assert_trees_close(padded, plain, 1e-5)


def one_by_one(model, params, encoded, head, *, max_symbols):
    """A Python loop over frames, with one decision at a time; the reference of the searches."""
    texts = []
    durations = head.durations or (0,)

    def joint(values, output):
        p = params["heads_transducer"]
        hidden = values @ p["of_frames"]["kernel"] + p["of_frames"]["bias"]
        hidden = hidden + output @ p["of_labels"]["kernel"] + p["of_labels"]["bias"]
        hidden = np.maximum(hidden, 0) if head.activation == "relu" else np.tanh(hidden)
        return hidden @ p["output"]["kernel"] + p["output"]["bias"]

    most = max_symbols * int(encoded.frames.lengths.max()) + 1

    @jax.jit
    def outputs_of(labels, num):
        bound = model.bind({"params": jax.tree.map(jnp.asarray, params)})
        return bound.heads["transducer"].prediction(labels, num, step=None)

    def predicted(labels):
        padded = np.zeros((1, most), np.int32)
        padded[0, : len(labels)] = labels
        return np.asarray(outputs_of(padded, np.array([len(labels)]))[0, len(labels)])

    for values, length in zip(np.asarray(encoded.frames.values), encoded.frames.lengths, strict=True):
        labels, at, t, output = [], 0, 0, predicted([])
        while t < length:
            logits = joint(values[t], output)
            label, jump = int(np.argmax(logits[:6])), 0
            if head.durations:
                jump = durations[int(np.argmax(logits[6:]))]
            if label == 5:
                t, at = t + max(jump, 1), 0
                continue
            labels.append(label)
            output, at = predicted(labels), at + 1
            jump = max(jump, int(at >= max_symbols))
            t, at = t + jump, at * (not jump)
        texts.append(labels)
    return texts


@one_fast
def test_search_equals_a_loop_over_frames(name):
    head, batch = HEADS[name], toy_batch(seed=5)
    model = model_of(head)
    params = params_of(model, batch)
    output = params["heads_transducer"]["output"]
    output["bias"] = np.where(np.arange(6 + len(head.durations)) == 5, 0.1 if head.durations else 0.7, 0)
    output["kernel"] = 4 * output["kernel"]

    @jax.jit
    def search(params, batch):
        given = {"head": "transducer", "decoding": TransducerDecoding(max_symbols=3), "method": "search"}
        encoded = model.apply({"params": params}, batch, step=None, method="encode")
        return model.apply({"params": params}, batch, **given)[0], encoded

    found, encoded = jax.device_get(search(params, batch))
    expected = one_by_one(model, params, encoded, head, max_symbols=3)
    assert [list(found.sequences(row)[0].tokens) for row in range(4)] == expected
    assert 0 < sum(map(len, expected)) < 3 * int(encoded.frames.lengths.sum())


@pytest.mark.slow
def test_a_wide_beam_finds_the_probability_of_all_paths(monkeypatch):
    """Texts of at most one label, with durations, of which those that exceed three frames end with them."""
    model, batch = model_of(HEADS["durations"]), toy_batch()
    variables = {"params": params_of(model, batch)}
    search = partial(model.apply, head="transducer", decoding=TransducerDecoding(kind="beam"), method="search")
    frames = jax.jit(lambda variables, batch: search(variables, batch)[0])(variables, batch)
    frames = frames.replace(values=3 * frames.values[:1, :3], lengths=jnp.array([3]))
    monkeypatch.setattr("asr_jax.search.transducer_beam.KEPT_IN_FRAME", 3)
    settings = TransducerSearch(beam_width=60, num_best=60)
    beam = TransducerBeamSearch(Spelling.of_surfaces([*"abcde", ""], blank_id=5), search=settings, max_symbols=2)
    found = {each.labels: each.log_prob for each in beam(frames)[0] if len(each.labels) <= 1}

    apply, labels = partial(frames.networks.apply, frames.variables), jnp.arange(5)
    state = apply(5, method="begin")
    outputs = jnp.stack([state["projected"], apply(state, labels, method="advance")["projected"]], 1)
    at_frames = [apply(jnp.tile(frames.values[:, t : t + 1], (5, 1, 1)), outputs, method="logits") for t in range(3)]
    logits = np.asarray(jnp.stack(at_frames, 1), np.float64)  # label, frame, position, logit
    of_labels, of_durations = (np.exp(log_softmax(each)) for each in (logits[..., :6], logits[..., 6:]))
    assert found.keys() == {(), *((label,) for label in range(5))}
    for label in range(5):
        paths = np.zeros((4, 2))
        paths[0, 0] = 1.0
        for t, u in itertools.product(range(3), range(2)):
            for duration in range(3):
                after, share = min(t + duration, 3), paths[t, u] * of_durations[label, t, u, duration]
                if duration:
                    paths[after, u] += share * of_labels[label, t, u, 5]
                if u == 0:
                    paths[after, 1] += share * of_labels[label, t, 0, label]
        assert found[()] == approx(np.log(paths[3, 0]), abs=1e-5)
        assert found[(label,)] == approx(np.log(paths[3, 1]), abs=1e-5)


@pytest.mark.slow
def test_omega_is_the_share_of_rnnt():
    """TDT with omega 1 is the loss of RNN-T with the same weights, without those of durations."""
    head, batch = (
        replace(HEADS["durations"], dropout=0.0, prediction=LSTMPrediction(8, num_layers=1, dropout=0.0)),
        toy_batch(seed=7),
    )
    params = params_of(model_of(head), batch)

    def loss(head, params):
        run = jax.jit(partial(model_of(head).apply, step=None))
        return run({"params": params}, batch)["transducer/loss"].total

    without, half, alone = (loss(replace(head, omega=omega), params) for omega in (0.0, 0.5, 1.0))
    assert_close(half, (without + alone) / 2, rtol=1e-6)
    output = jax.tree.map(lambda leaf: leaf[..., :6], params["heads_transducer"]["output"])
    rnnt = {**params, "heads_transducer": {**params["heads_transducer"], "output": output}}
    assert_close(alone, loss(replace(head, durations=(), sigma=0.0, omega=0.0), rnnt), rtol=1e-6)
    assert abs(alone - without) > 0.1


@pytest.mark.slow
def test_two_views_beside_a_ctc_head_have_half_of_the_weight_each():
    """A hybrid model with CR-CTC: without augmentation and dropout, both views are the utterance itself."""
    plain = replace(HEADS["durations"], dropout=0.0, prediction=LSTMPrediction(8, num_layers=1, dropout=0.0))
    heads = {"plain": replace(plain, split=2), "ctc": CTC(dropout=0.0, consistency=0.2, scale=0.3)}
    settings, batch = replace(toy_model(), heads=heads, views=2, primary="plain"), toy_batch(seed=8)

    def built(settings):
        return settings.build(vocab_size=6, blank_id=5, precision="f32")

    params = params_of(built(settings), batch)

    def sums(settings):
        def compute(params, batch):
            model, streams = built(settings), random_streams(jax.random.key_data(jax.random.key(3)), jnp.int32(7))
            return model.apply({"params": params}, batch, step=jnp.int32(7), rngs=streams), model.denominators(batch)

        return jax.jit(compute)(params, batch)

    two, expected = sums(settings)
    one, _ = sums(replace(settings, heads={"plain": plain, "ctc": CTC(dropout=0.0)}, views=1))
    assert one.keys() == two.keys() - {"ctc/consistency"}
    for name, value in one.items():
        assert_close(two[name].total, value.total, rtol=1e-5)
        assert_close(two[name].weight, value.weight, rtol=1e-6)
    for name, weight in expected.items():
        assert_close(two[name].weight, weight, rtol=1e-6)


def test_number_of_parameters_of_nemo():
    """NeMo's modules of the recipe have a row of zeros for the blank in addition."""
    experiment = asr_jax.load_config(CONFIGS / "fastconformer_tdt.py")
    size = experiment.data.tokenizer.vocab_size
    model = experiment.model.build(vocab_size=size, blank_id=size - 1, precision="f32")
    shapes = jax.eval_shape(partial(model.init, step=None), jax.random.key(0), toy_batch(rows=1))["params"]
    assert num_elements(shapes) == 115_411_079 - 640


def test_rows_without_a_path_are_counted():
    name, batch = "stateless, pruned", toy_batch(seed=6)
    batch = batch.replace(lengths=np.asarray(batch.lengths) * np.array([0, 1, 1, 1], np.int32))
    sums = jax.device_get(sums_of(drawn_params(model_of(HEADS[name]), batch), batch, name=name))
    assert sums["transducer/infeasible"].total == 1
    assert sums["transducer/loss"].weight == 3
    assert np.isfinite(sums["transducer/loss"].total)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"durations": (0, 2)}, "expected distinct numbers of frames"),
        ({"durations": (0, 1), "pruning": Pruning()}, "expected one of them only"),
        ({"durations": (0, 1), "penalties": Penalties(delay=0.1)}, "durations and penalties are set"),
        ({"dropout": 1.0}, "dropout is 1.0: expected at least 0 and at most 0.996"),
        ({"dropout": 0.999}, "dropout is 0.999: expected at least 0 and at most 0.996"),
        ({"omega": 0.1}, "omega is 0.1: expected 0 without durations"),
        ({"split": 0}, "split is 0"),
        ({"tap": "layer_3"}, "tap is 'layer_3'"),
    ],
)
def test_wrong_settings(change, message):
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **change).check(taps=(), views=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"star": -0.5}, "star is -0.5: expected above 0 and at most 1"),
        ({"star": 2.0}, "star is 2.0"),
        ({"eos_id": -2}, "eos_id is -2: expected at least -1"),
        ({"delay": float("nan")}, "delay is nan"),
        ({"eos_id": 6}, "penalties.eos_id is 6: expected a label of the vocabulary, 0 to 5, other than the blank 5"),
        ({"star_id": 5}, "penalties.star_id is 5"),
    ],
)
def test_wrong_penalties(changes, message):
    with pytest.raises((ValueError, UserError), match=message):
        replace(SMALL, penalties=Penalties(**changes)).build(vocab_size=6, blank_id=5, dtype=jnp.float32)


def test_the_delay_penalty_is_in_the_pruned_and_in_the_simple_loss():
    """Without labels it changes nothing."""
    batch = jax.device_get(toy_batch(seed=4))
    penalised = replace(HEADS["stateless, pruned"], pruning=Pruning(4), penalties=Penalties(delay=0.3))
    models = [model_of(each) for each in (replace(penalised, penalties=Penalties()), penalised)]
    params = drawn_params(models[0], batch)

    @jax.jit
    def terms(params, batch):
        sums = [model.apply({"params": params}, batch, step=None) for model in models]
        return [[each[f"transducer/{name}"].total for name in ("loss", "simple")] for each in sums]

    plain, found = np.array(jax.device_get(terms(params, batch)))
    assert (np.abs(found - plain) > 1e-2).all()
    plain, found = np.array(jax.device_get(terms(params, batch.replace(token_lengths=0 * batch.token_lengths))))
    np.testing.assert_array_equal(found, plain)


@pytest.mark.slow  # six programs
@pytest.mark.parametrize("name", ["lstm", "stateless, pruned"])
def test_the_word_error_rate_of_a_validation_begins_the_delay_penalty(name):
    """Losses and gradients of a step equal those with a constant penalty, before the validation and after it."""
    batch, late = jax.device_get(toy_batch(seed=4)), Penalties(delay=0.3, delay_since=Since(before=0.1, wer=0.5))
    models = [
        model_of(replace(HEADS[name], penalties=each)) for each in (late, Penalties(delay=0.1), Penalties(delay=0.3))
    ]
    params = drawn_params(models[0], batch)
    before, after = (loss_and_gradient(model)(params, batch) for model in models[1:])
    for wer, expected in ((np.inf, before), (0.5, before), (0.49, after)):
        found = loss_and_gradient(models[0], least_wer=wer)(params, batch)
        assert_close(found[0], expected[0], rtol=1e-6)
        assert_trees_close(found[1], expected[1], 1e-5)
    assert abs(before[0] - after[0]) > 1e-2


def test_dropout_has_its_rate_and_keeps_the_mean():
    """Numbers depend on the row and the frame, not on the first frame of a tile."""
    head = replace(SMALL, dropout=0.3).build(vocab_size=6, blank_id=5, dtype=jnp.float32)

    @jax.jit
    def dropped():
        keys, ones = jax.random.key_data(jax.random.split(jax.random.key(1), 2)), jnp.ones((2, 10, 5, 128))
        return head._dropped(ones, keys, 0), head._dropped(ones[:, :4], keys, 6)

    found, later = jax.device_get(dropped())
    rate = round(0.3 * 256) / 256
    assert np.unique(found) == approx([0, 1 / (1 - rate)])
    assert np.mean(found == 0) == approx(rate, abs=0.02)  # seven standard deviations
    assert np.mean(found[0] != found[1]) == approx(2 * rate * (1 - rate), abs=0.04)
    assert np.mean(found[0, 0] != found[0, 1]) == approx(2 * rate * (1 - rate), abs=0.1)
    np.testing.assert_array_equal(later, found[:, 6:])


def test_least_frames_of_a_text():
    assert [SMALL.frames_needed(n, 0) for n in (0, 5)] == [1, 1]
    assert [replace(SMALL, pruning=Pruning(3)).frames_needed(n, 0) for n in (0, 1, 2, 5)] == [1, 1, 1, 3]
    assert replace(SMALL, durations=(1, 2)).frames_needed(4, 0) == 5


@pytest.mark.slow
def test_tiles_add_gradients_in_float32(monkeypatch):
    rng, rows, frames, labels = np.random.default_rng(0), 2, 200, 4
    head = replace(SMALL, prediction=StatelessPrediction(8, regularise=False), dropout=0.0)
    values = jnp.asarray(rng.normal(size=(rows, frames, 8)), jnp.bfloat16)
    encoded = Encoded(Frames(values, np.full(rows, frames, np.int32)), {})
    tokens = rng.integers(0, 5, (rows, labels)).astype(np.int32)
    batch = Batch(
        audio=None, features=np.zeros((rows, 1, 1), np.float32), lengths=np.zeros(rows, np.int32), tokens=tokens,
        token_lengths=np.full(rows, labels, np.int32), weights=np.ones(rows, np.float32),
        utterances=np.zeros(rows, np.int32),
    )  # fmt: skip

    module = head.build(vocab_size=6, blank_id=5, dtype=jnp.bfloat16)
    params = drawn_params(module, encoded, batch)

    def gradient(tile_logits):
        def loss(params, encoded, batch):
            return module.apply({"params": params}, encoded, batch, step=None)["loss"].total

        monkeypatch.setattr("asr_jax.heads.transducer.logits_of_tile", lambda: tile_logits)
        return jax.device_get(jax.jit(jax.grad(loss))(params, encoded, batch))

    whole, tiled = gradient(10**6), gradient(1)
    for name in ("output", "of_labels"):
        one, other = tiled[name]["kernel"], whole[name]["kernel"]
        # Each side is rounded to bfloat16 once.
        assert_within(np.linalg.norm(one - other) / np.linalg.norm(other), 2 * 2.0**-8, what=name)
