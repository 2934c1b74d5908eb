"""Attention decoder: search compared with a loop in Python without cache, padding, devices, NaN, what is refused."""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.batch import Encoded, Frames
from asr_jax.core.meshes import data_mesh, global_batch, replicated
from asr_jax.core.random_streams import random_streams
from asr_jax.heads.attention_decoder import AttentionDecoder
from asr_jax.heads.ctc import CTC
from asr_jax.losses.ctc_align import align
from asr_jax.nn.decoders.label_decoder import LabelDecoder
from asr_jax.search.label_synchronous import LabelDecoding
from tests.heads.drawn_params import drawn_params
from tests.search.test_ctc_prefix import prefix_log_prob, texts_of
from tests.support import approx, assert_close, assert_trees_close
from tests.training.toy import toy_batch, toy_model

VOCAB, BLANK = 4, 2  # as in test_ctc_prefix, whose enumeration the reference uses
DECODER = LabelDecoder(dim=8, num_layers=2, attention_dim=12, num_heads=2, feedforward_dim=10, dropout=0.2)
HEAD = AttentionDecoder(decoder=DECODER, ctc="ctc")
JOINT = LabelDecoding(kind="beam", beam_width=3, num_best=2, ctc_weight=0.4, label_bonus=0.3)
LENGTHS = np.array([6, 4, 1, 0, 5], np.int32)


def encoded_of(num_frames=6, seed=1):
    """Returns random frames of an encoder with CTC log-probabilities; padding is NaN."""
    rng = np.random.default_rng(seed)
    values, logits = rng.normal(0, 2, (5, 6, 7)), rng.normal(0, 2, (5, 6, VOCAB))
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    more, padding = (
        ((0, 0), (0, num_frames - 6), (0, 0)),
        np.arange(num_frames)[None, :, None] >= LENGTHS[:, None, None],
    )
    frames, emitted = (
        Frames(np.where(padding, np.nan, np.pad(each, more)).astype(np.float32), LENGTHS)
        for each in (values, log_probs)
    )
    return Encoded(frames, emitted={"ctc": emitted})


@cache
def parts_of(settings):
    """Returns the head, and parameters with which labels differ from place to place."""
    head = settings.build(vocab_size=VOCAB, blank_id=BLANK, dtype=jnp.float32)
    batch = toy_batch(rows=5, vocab_size=VOCAB)
    return head, drawn_params(head, encoded_of(), batch)


@cache
def log_probs_of(head):
    """Returns a function that computes the decoder for all labels at once."""

    def run(params, labels, frames):
        return jax.nn.log_softmax(head.bind({"params": params}).decoder(labels, frames, step=None))

    return jax.jit(run)


def plain_search(head, params, row, decoding):
    """Beam search of one row as a loop over Python lists; the decoder computes each hypothesis from its first label."""
    encoded, ids = encoded_of(), head.ids
    length = int(LENGTHS[row])
    frames = Frames(np.nan_to_num(encoded.frames.values[row : row + 1]), LENGTHS[row : row + 1])
    texts = texts_of(np.asarray(encoded.emitted["ctc"].values[row, :length], np.float64))

    def next_of(labels):
        padded = np.zeros((1, 8), np.int32)
        padded[0, : len(labels) + 1] = (ids.begin, *labels)
        return np.asarray(log_probs_of(head)(params, padded, frames))[0, len(labels)]

    limit = max(int(length * decoding.max_labels_per_frame), min(length, 1))
    beam = [(0.0, 0.0, (), (), False)]  # score, attention, labels, log-probabilities, has ended
    while not all(has_ended for *_, has_ended in beam):
        found = [each for each in beam if each[-1]]
        for _, attention, labels, logps, _ in (each for each in beam if not each[-1]):
            for label, logp in enumerate(next_of(labels)):
                is_end = label == ids.end
                if not is_end and (len(labels) == limit or label in (ids.begin, ids.blank)):
                    continue
                longer = labels if is_end else (*labels, label)
                ctc = np.log(texts.get(labels, np.exp(-700.0))) if is_end else prefix_log_prob(texts, longer)
                total = attention + float(logp)
                score = (1 - decoding.ctc_weight) * total + decoding.ctc_weight * ctc
                score += decoding.label_bonus * len(longer)
                found.append((score, total, longer, logps if is_end else (*logps, float(logp)), is_end))
        beam = sorted(found, key=lambda each: -each[0])[: decoding.width]
    return beam[: decoding.num_best]


@cache
def search_of(head, decoding):
    return jax.jit(lambda params, encoded: head.apply({"params": params}, encoded, decoding, method="search")[0])


CASES = {
    "greedy": (HEAD, LabelDecoding()),
    "joint": (HEAD, JOINT),
    "beam, other ids": (
        replace(HEAD, begin_id=0, end_id=1, ctc=""), LabelDecoding(kind="beam", beam_width=3, max_labels_per_frame=0.7)
    ),
    "greedy, joint": (replace(HEAD, begin_id=1, end_id=1), LabelDecoding(ctc_weight=0.5, label_bonus=-0.2)),
}  # fmt: skip
SLOW = [pytest.param(name, marks=pytest.mark.slow) if name != "joint" else name for name in CASES]


@pytest.mark.parametrize("name", SLOW)
def test_search_equals_a_loop_without_cache(name):
    settings, decoding = CASES[name]
    head, params = parts_of(settings)
    found, num = jax.device_get(search_of(head, decoding)(params, encoded_of())), 0
    for row in range(5):
        expected = plain_search(head, params, row, decoding)
        lists = found.sequences(row)
        assert [each.tokens for each in lists] == [each[2] for each in expected]
        for one, (score, _, _, logps, _) in zip(lists, expected, strict=True):
            assert_close(one.score, score, atol=1e-3)
            assert_close(one.log_probs, logps, atol=1e-4)
            num += len(one.tokens)
    assert num > 2


def test_padding_and_other_rows_have_no_influence():
    head, params = parts_of(HEAD)
    plain, longer = (jax.device_get(search_of(head, JOINT)(params, encoded_of(size))) for size in (6, 9))
    for row in range(5):
        for one, other in zip(plain.sequences(row), longer.sequences(row), strict=True):
            assert one[:3] == other[:3]
            assert_close(one.score, other.score, rtol=1e-5)
    order = np.array([4, 1, 0, 3, 2])
    moved = jax.device_get(search_of(head, JOINT)(params, jax.tree.map(lambda each: each[order], encoded_of())))
    assert [moved.sequences(row)[0].tokens for row in range(5)] == [
        plain.sequences(row)[0].tokens for row in order.tolist()
    ]


def test_times_are_those_of_the_ctc_path_where_there_is_one():
    head, params = parts_of(HEAD)
    encoded = encoded_of()
    found = jax.device_get(search_of(head, JOINT)(params, encoded))
    places = [(row, place) for row in range(5) for place in range(min(2, len(found.sequences(row))))]
    sequences = {each: found.sequences(each[0])[each[1]] for each in places}
    labels, numbers = np.zeros((10, 6), np.int32), np.zeros(10, np.int32)
    rows = np.repeat(np.arange(5), 2)
    for (row, place), each in sequences.items():
        numbers[2 * row + place] = len(each.tokens)
        labels[2 * row + place, : len(each.tokens)] = each.tokens
    values = encoded.emitted["ctc"].values[rows]
    paths = jax.device_get(jax.jit(partial(align, blank_id=BLANK))(values, LENGTHS[rows], labels, numbers))
    num_aligned = 0
    for (row, place), each in sequences.items():
        number, length = 2 * row + place, len(each.tokens)
        if length and paths.is_possible[number]:
            assert each.starts == tuple(paths.starts[number, :length].tolist())
            assert each.ends == tuple(paths.ends[number, :length].tolist())
            num_aligned += 1
        assert all(0 <= start < end <= LENGTHS[row] for start, end in zip(each.starts, each.ends, strict=True))
        assert list(each.starts) == sorted(each.starts)
    assert num_aligned > 2


def test_nan_gives_no_tokens_and_the_score_nan():
    head, params = parts_of(HEAD)
    encoded, search = encoded_of(), search_of(head, JOINT)
    plain = jax.device_get(search(params, encoded))
    values = encoded.frames.values.copy()
    values[1, 2] = np.nan
    found = jax.device_get(search(params, encoded.replace(frames=Frames(values, LENGTHS))))
    (sequence,) = found.sequences(1)
    assert sequence.tokens == ()
    assert np.isnan(sequence.score)
    for row in (0, 2, 3, 4):
        assert found.sequences(row) == plain.sequences(row)


@cache
def model_of(dropout=0.0):
    head = replace(HEAD, decoder=replace(DECODER, dropout=dropout))
    heads = {"attention": head, "ctc": CTC(dropout=0.0, scale=0.3)}
    return replace(toy_model(dropout=dropout), heads=heads, primary="attention").build(
        vocab_size=6, blank_id=5, precision="f32"
    )


@cache
def params_of():
    return drawn_params(model_of(), toy_batch(seed=3))


def loss_and_gradient(model):
    @jax.jit
    def run(params, batch):
        def loss(params):
            streams = random_streams(jax.random.key_data(jax.random.key(3)), jnp.int32(7))
            return model.apply({"params": params}, batch, step=jnp.int32(7), rngs=streams)["attention/loss"].total

        return jax.value_and_grad(loss)(params)

    return run


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [(4,), (1, 2, 4)])
def test_devices_and_order_change_nothing(numbers):
    batch, params, model = toy_batch(seed=3), params_of(), model_of(dropout=0.2)
    run = loss_and_gradient(model)
    value, gradient = run(params, batch)
    used = jax.tree.leaves({name: gradient[name] for name in ("encoder", "heads_attention")})
    assert all(np.abs(leaf).max() > 0 for leaf in used)
    order = np.array([2, 0, 3, 1])

    def check(found):
        assert float(found[0]) == approx(float(value), rel=1e-5)
        largest = max(float(np.abs(leaf).max()) for leaf in used)
        jax.tree.map(lambda x, y: assert_close(x, y, rtol=1e-4, atol=1e-6 * largest), found[1], gradient)

    check(run(params, jax.tree.map(lambda each: each[order], batch)))
    for number in numbers:
        mesh = data_mesh(number)
        placed = jax.device_put(params, replicated(mesh)), global_batch(batch, mesh)
        check(loss_and_gradient(model)(*placed))


@pytest.mark.slow
def test_search_on_several_devices_finds_the_same():
    batch, params, decoding = toy_batch(seed=3), params_of(), replace(JOINT, beam_width=2)
    given = {"head": "attention", "decoding": decoding, "method": "search"}
    search = jax.jit(lambda params, batch: model_of().apply({"params": params}, batch, **given)[0])
    alone = jax.device_get(search(params, batch))
    for number in (1, 2, 4):
        mesh = data_mesh(number)
        found = jax.device_get(search(jax.device_put(params, replicated(mesh)), global_batch(batch, mesh)))
        for row in range(4):
            for one, other in zip(alone.sequences(row), found.sequences(row), strict=True):
                assert one[:3] == other[:3]
                assert_close(one.score, other.score, rtol=1e-5)


@pytest.mark.slow
def test_padding_of_batches_has_no_influence_on_the_loss():
    model, params, batch = model_of(), params_of(), toy_batch(seed=4)
    batch = batch.replace(lengths=jnp.minimum(batch.lengths, 4000), token_lengths=jnp.array([3, 2, 0, 1]))
    run = jax.jit(lambda params, batch: model.apply({"params": params}, batch, step=None))
    plain = run(params, batch)
    assert_close(
        model.apply({"params": params}, batch, method="denominators")["attention/loss"], plain["attention/loss"].weight
    )
    assert float(plain["attention/loss"].weight) == 3 + 2 + 0 + 1 + 4
    noise = jnp.where(jnp.arange(3)[None] < batch.token_lengths[:, None], batch.tokens, 4)
    longer = jnp.pad(batch.audio, ((0, 0), (0, 1600)), constant_values=77)
    found = run(params, batch.replace(audio=longer, tokens=jnp.pad(noise, ((0, 0), (0, 2)), constant_values=2)))
    for term in ("attention/loss", "attention/accuracy"):
        assert_trees_close(found[term], plain[term], 1e-5)
    broken = run(params, batch.replace(weights=batch.weights.at[1].set(jnp.nan)))
    assert np.isnan(float(broken["attention/loss"].total))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"heads.attention: the head reads 'ctc': expected the name of a CTC head"):
        replace(toy_model(), heads={"attention": HEAD})
    with pytest.raises(ValueError, match=r"decoding.ctc_weight is 0.4 and ctc is empty: expected the name of a CTC"):
        AttentionDecoder(decoding=JOINT)
    with pytest.raises(ValueError, match=r"begin_id is -1 and end_id is 9: expected ids below the number of labels, 4"):
        replace(HEAD, end_id=9).build(vocab_size=VOCAB, blank_id=BLANK, dtype=jnp.float32)
    with pytest.raises(ValueError, match=r"attention_dim is 12: expected a multiple of num_heads, 5"):
        replace(DECODER, num_heads=5)
    with pytest.raises(ValueError, match=r"ctc_weight is 1.0: expected at least 0 and below 1"):
        LabelDecoding(ctc_weight=1.0)
    with pytest.raises(ValueError, match=r"dim is 7: expected an even number"):
        replace(DECODER, dim=7)
