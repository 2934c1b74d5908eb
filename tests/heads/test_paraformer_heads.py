"""Paraformer's heads in a model: padding, devices, order, NaN, search, and what does not fit."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.batch import Encoded, Frames
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import data_mesh, global_batch, replicated
from asr_jax.core.random_streams import random_streams
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.heads.paraformer_v2 import Enhancement, ParaformerV2
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.nn.decoders.cif import CIF
from asr_jax.nn.decoders.parallel_decoder import SANMDecoder, TransformerDecoder
from asr_jax.search.parallel import ParallelDecoding
from tests.heads.drawn_params import drawn_params
from tests.support import assert_close, assert_trees_close
from tests.training.toy import toy_batch, toy_model

DROPOUT = {"dropout": 0.2, "attention_dropout": 0.1}
SANM = SANMDecoder(
    num_layers=2, num_attention_layers=1, num_heads=2, feedforward_dim=12, kernel_size=3, memory_dropout=0.1, **DROPOUT
)
TRANSFORMER = TransformerDecoder(num_layers=1, num_heads=2, feedforward_dim=12, **DROPOUT)
V1 = Paraformer(predictor=CIF(kind="depthwise", dropout=0.2), decoder=SANM, sampling=1.0)
V2 = ParaformerV2(decoder=TRANSFORMER)
CTC_HEAD = CTC(dropout=0.0, scale=0.3)
HEADS = {
    "v1": {"paraformer": V1},
    "v1, shared embedding": {"paraformer": replace(V1, decoder=TRANSFORMER, shares_embedding=True, ends=False)},
    "v2": {"paraformer": V2, "ctc": CTC_HEAD},
    "v2, uniform, normed": {
        "paraformer": replace(V2, alignment="uniform", queries="normed", decoder=SANM, smoothing=0.1), "ctc": CTC_HEAD
    },
    "v2, greedy": {"paraformer": replace(V2, alignment="greedy"), "ctc": CTC_HEAD},
    "enhanced": {
        "paraformer": replace(V2, enhanced=Enhancement(tap="", refine_below=0.2)), "ctc": CTC_HEAD,
        "shallow": CTC(dropout=0.0),
    },
}  # fmt: skip
FAST = ("enhanced",)
NAMES = [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in HEADS]


@cache
def model_of(name, dropout=0.0):
    heads = HEADS[name]
    settings = replace(toy_model(dropout=dropout), heads=heads, primary="paraformer" if len(heads) > 1 else "")
    return settings.build(vocab_size=6, blank_id=5, precision="f32")


def total(sums):
    return sum(each.total / each.weight for name, each in sums.items() if name.split("/")[1] in TERMS)


TERMS = ("loss", "quantity", "refinement", "boundary")


def loss_and_gradient(model):
    @jax.jit
    def run(params, batch):
        def loss(params):
            streams = random_streams(jax.random.key_data(jax.random.key(3)), jnp.int32(7))
            return total(model.apply({"params": params}, batch, step=jnp.int32(7), rngs=streams))

        return jax.value_and_grad(loss)(params)

    return run


@cache
def params_of(name):
    return jax.jit(partial(model_of(name).init, step=None))(jax.random.key(0), toy_batch(seed=3))["params"]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "numbers"), [(name, (2, 4)) for name in HEADS])
def test_devices_and_order_change_nothing_with_dropout_and_sampler_on(name, numbers):
    batch, params, model = toy_batch(seed=3), params_of(name), model_of(name, dropout=0.2)
    run = loss_and_gradient(model)
    value, gradient = run(params, batch)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient["heads_paraformer"]["decoder"]))
    order = np.array([2, 0, 3, 1])
    assert_trees_close(run(params, jax.tree.map(lambda array: array[order], batch)), (value, gradient), 1e-4)
    for number in numbers:
        mesh = data_mesh(number)
        on_devices = loss_and_gradient(model)
        found = on_devices(jax.device_put(params, replicated(mesh)), global_batch(batch, mesh))
        assert_trees_close(found, (value, gradient), 1e-4)


@pytest.mark.parametrize("decoder", [SANM, TRANSFORMER])
def test_a_number_of_heads_that_does_not_divide_the_width_is_refused(decoder):
    settings = replace(toy_model(), heads={"paraformer": replace(V1, decoder=replace(decoder, num_heads=5))})
    model = settings.build(vocab_size=6, blank_id=5, precision="f32")
    with pytest.raises(UserError, match=r"decoder.num_heads is 5: expected a divisor of the encoder's width, 16"):
        jax.eval_shape(partial(model.init, step=None), jax.random.key(0), toy_batch(seed=3))


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_padding_and_short_rows_have_no_influence(name):
    model, params, batch = model_of(name), params_of(name), toy_batch(seed=4)
    batch = batch.replace(lengths=jnp.minimum(batch.lengths, 4000), token_lengths=jnp.array([3, 2, 0, 1]))
    run = jax.jit(lambda params, batch: model.apply({"params": params}, batch, step=None))
    plain = run(params, batch)
    denominators = model.apply({"params": params}, batch, method="denominators")
    assert denominators.keys() == {term for term in plain if term.split("/")[1] in TERMS}
    for term, weight in denominators.items():
        assert_close(plain[term].weight, weight)
    noise = jnp.where(jnp.arange(3)[None] < batch.token_lengths[:, None], batch.tokens, 4)
    longer = jnp.pad(batch.audio, ((0, 0), (0, 1600)), constant_values=77)
    found = run(params, batch.replace(audio=longer, tokens=jnp.pad(noise, ((0, 0), (0, 2)), constant_values=2)))
    assert_trees_close(
        {term: each.total for term, each in found.items()}, {term: each.total for term, each in plain.items()}, 1e-4
    )
    short = run(params, batch.replace(lengths=batch.lengths.at[0].set(500)))  # one frame for three labels
    others = run(params, batch.replace(weights=jnp.array([0.0, 1.0, 1.0, 1.0])))
    for term in ("loss", "accuracy"):
        assert_trees_close(short[f"paraformer/{term}"], others[f"paraformer/{term}"], 1e-5)
    assert float(short["paraformer/infeasible"].total) == 1


@pytest.mark.parametrize("name", NAMES)
def test_nan_in_padding_is_ignored_and_elsewhere_reported(name):
    """Padding of the encoder's output has no influence even if it is NaN; a NaN frame makes loss and score NaN."""
    model, batch = model_of(name), toy_batch(seed=5)
    params = drawn_params(model, batch)

    @jax.jit
    def run(params, values, lengths):
        def loss(module, values):
            encoded = module.with_emitted(Encoded(Frames(values, lengths)))
            sums = {f"{name}/{term}": each for name, head in module.heads.items()
                    for term, each in head(encoded, batch, step=None).items()}  # fmt: skip
            return total(sums), module.search_in(encoded, head="paraformer", decoding=ParallelDecoding())

        return model.apply({"params": params}, values, method=loss)

    values = np.random.default_rng(0).normal(size=(4, 12, 16)).astype(np.float32)
    lengths = np.array([12, 7, 9, 10], np.int32)
    padding = np.arange(12)[None, :, None] >= lengths[:, None, None]
    zeros, nans = (
        jax.device_get(run(params, np.where(padding, np.float32(fill), values), lengths)) for fill in (0.0, np.nan)
    )
    assert_trees_close(nans, zeros, 1e-6)
    values[1, 2] = np.nan
    loss, found = jax.device_get(run(params, np.where(padding, np.float32(0), values), lengths))
    assert np.isnan(loss)
    assert np.isnan(found.scores[1, 0])
    assert found.lengths[1, 0] == 0
    assert np.isfinite(np.asarray(found.scores)[[0, 2, 3]]).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_search_gives_the_most_likely_labels_with_times(name):
    model, batch = model_of(name), jax.device_get(toy_batch(seed=6))
    params = params_of(name)
    search = jax.jit(
        lambda params, batch: (
            model.apply({"params": params}, batch, head="paraformer", decoding=ParallelDecoding(), method="search")[0],
            model.apply({"params": params}, batch, head="paraformer", method="emit")["paraformer"],
            model.apply({"params": params}, batch.lengths, method="output_length"),
        )
    )
    found, emitted, frames = jax.device_get(search(params, batch))
    num = 0
    for row in range(4):
        log_probs = emitted.values[row, : emitted.lengths[row]]
        best, (sequence,) = log_probs.argmax(-1), found.sequences(row)
        kept = best != 5
        assert list(sequence.tokens) == best[kept].tolist()
        assert_close(sequence.log_probs, log_probs.max(-1)[kept], rtol=1e-5)
        assert_close(sequence.score, log_probs.max(-1).sum(), rtol=1e-5)
        assert all(0 <= start < end <= frames[row] for start, end in zip(sequence.starts, sequence.ends, strict=True))
        assert list(sequence.ends) == sorted(sequence.ends)
        num += len(sequence.tokens)
        alone = jax.tree.map(lambda array, row=row: np.repeat(array[row : row + 1], 4, axis=0), batch)
        assert jax.device_get(search(params, alone))[0].sequences(2)[0].tokens == sequence.tokens
    assert num > 4


@pytest.mark.slow
def test_the_second_decoder_changes_only_uncertain_labels():
    """The output layer of refinement is that of all labels."""
    model, params, batch = model_of("enhanced"), params_of("enhanced"), toy_batch(seed=6)

    def both(module, batch):
        encoded = module.with_emitted(module.encode(batch, step=None))
        head = module.heads["paraformer"]
        return [head._found(encoded, refine=refine)[0] for refine in (True, False)], head(encoded, batch, step=None)

    of = jax.jit(lambda params: model.apply({"params": params}, batch, method=both))
    (refined, draft), sums = of(params)
    assert 0 < sums["refined"].mean() < 1
    uncertain = np.asarray(jax.nn.softmax(draft).max(-1)) < 0.2
    assert 0 < uncertain.mean() < 1
    head = params["heads_paraformer"]
    (other, same_draft), _ = of(
        params | {"heads_paraformer": head | {"draft": jax.tree.map(jnp.negative, head["draft"])}}
    )
    np.testing.assert_array_equal(same_draft, draft)
    changes = np.abs(np.asarray(other - refined)).max(-1)
    assert not changes[~uncertain].any()
    assert changes[uncertain].max() > 1e-3
    output = jax.tree.map(jnp.negative, head["refined_output"])
    (negative, _), _ = of(params | {"heads_paraformer": head | {"refined_output": output}})
    assert_close(negative, -refined, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "query_gradient"),
    [
        ("v2", False),
        pytest.param("v2", True, marks=pytest.mark.slow),
        *(pytest.param("enhanced", each, marks=pytest.mark.slow) for each in (True, False)),
    ],
)
def test_the_decoder_may_have_no_gradient_with_respect_to_the_posteriors(name, query_gradient):
    heads = HEADS[name] | {"paraformer": replace(HEADS[name]["paraformer"], query_gradient=query_gradient)}
    model = replace(toy_model(), heads=heads, primary="paraformer").build(vocab_size=6, blank_id=5, precision="f32")

    batch = toy_batch(seed=3)

    def loss(params):
        return model.apply({"params": params}, batch, step=None)["paraformer/loss"].total

    gradient = jax.jit(jax.grad(loss))(drawn_params(model, batch))
    assert any(np.any(leaf) for leaf in jax.tree.leaves(gradient["encoder"]))
    for ctc in heads.keys() - {"paraformer"}:
        assert any(np.any(leaf) for leaf in jax.tree.leaves(gradient[f"heads_{ctc}"])) == query_gradient


def test_labels_without_frames_have_no_loss():
    """With the alignment uniform, the third of four labels has none of six frames."""
    head = replace(V2, alignment="uniform", decoder=replace(TRANSFORMER, dropout=0.0)).build(
        vocab_size=6, blank_id=5, dtype=jnp.float32
    )
    rng = np.random.default_rng(0)
    values, logits = (rng.normal(size=size).astype(np.float32) for size in ((1, 6, 8), (1, 6, 6)))
    ctc = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    batch = jax.tree.map(lambda array: array[:1], jax.device_get(toy_batch()))
    batch = batch.replace(token_lengths=np.array([4], np.int32))
    lengths = np.array([6], np.int32)
    encoded = Encoded(Frames(values, lengths), emitted={"ctc": Frames(ctc, lengths)})
    texts = np.array([[[0, 1, 2, 3]], [[0, 1, 4, 3]], [[0, 4, 2, 3]]], np.int32)
    batches = [batch.replace(tokens=tokens) for tokens in texts]
    losses = jax.jit(partial(head.apply, step=None))
    params = {"params": drawn_params(head, encoded, batches[0])}
    found, other, changed = (jax.device_get(losses(params, encoded, each)) for each in batches)
    assert (found["accuracy"].weight, found["loss"].weight) == (3, 4)
    assert found["loss"].total == other["loss"].total != changed["loss"].total


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"heads.paraformer: the head reads 'ctc': expected the name of a CTC head"):
        replace(toy_model(), heads={"paraformer": V2})
    with pytest.raises(ValueError, match=r"the head reads 'ctc', whose tap is 'layer_0': expected the tap ''"):
        Model(
            Conformer.tiny(taps=("layer_0",)), augment=(), primary="ctc",
            heads={"paraformer": V2, "ctc": CTC(tap="layer_0")},
        )  # fmt: skip
    with pytest.raises(ValueError, match=r"tap is 'layer_5': expected one of the encoder's taps"):
        replace(toy_model(), heads={"paraformer": replace(V2, enhanced=Enhancement()), "ctc": CTC_HEAD}, primary="ctc")
    with pytest.raises(
        ValueError, match=r"end_id is 9 and dropped_ids is \(\): expected ids below the number of labels"
    ):
        replace(V1, end_id=9).build(vocab_size=6, blank_id=5, dtype=jnp.float32)
    with pytest.raises(ValueError, match=r"dropped_ids is \(99,\): expected ids below the number of labels, 6"):
        replace(V2, dropped_ids=(99,)).build(vocab_size=6, blank_id=5, dtype=jnp.float32)
    with pytest.raises(ValueError, match=r"dropped_ids is \(-3,\): expected each at least 0"):
        replace(V2, dropped_ids=(-3,))
    with pytest.raises(ValueError, match=r"sampling is 1.5"):
        replace(V1, sampling=1.5)
    with pytest.raises(ValueError, match=r"num_attention_layers is 3: expected at most num_layers, 2"):
        replace(SANM, num_attention_layers=3)
    with pytest.raises(ValueError, match=r"tail is 1.0: expected at least 0 and below 1"):
        CIF(tail=1.0)
