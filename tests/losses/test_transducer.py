"""Transducer losses against sums over all paths, and their behaviour for padding, tiles, splits and penalties."""

import itertools
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.kernels.transducer_joint.xla import in_tiles
from asr_jax.losses.lattice import RNNT, Arcs, lattice_loss
from asr_jax.losses.pruned_transducer import (
    kept_log_probs,
    kept_positions,
    occupancies,
    pruned_log_probs,
    simple_log_probs,
)
from asr_jax.losses.transducer import Penalties, Since, penalised, tdt_arcs, tdt_log_probs
from tests.losses.transducer_loss import transducer_loss
from tests.support import assert_close, assert_within, log_softmax, relative


def paths(num_frames, num_labels, arcs):
    """Yields all paths as lists of arcs (kind, duration, frame, label position)."""

    def of(t, u):
        if t == num_frames:
            if u == num_labels:
                yield []
            return
        for kind, durations in (("blank", arcs.blank), ("label", arcs.label)):
            for number, d in enumerate(durations):
                after = t + d, u + (kind == "label")
                last = after == (num_frames, num_labels) and kind == "blank"
                if after[1] <= num_labels and (after[0] < num_frames or last):
                    for rest in of(*after):
                        yield [(kind, number, t, u), *rest]

    return of(0, 0)


def enumerated(blank, label, num_frames, num_labels, arcs):
    """Returns the loss and the occupancies of one row, in float64, by enumeration."""
    of = {"blank": np.zeros(blank.shape), "label": np.zeros(label.shape)}
    total = 0.0
    for path in paths(num_frames, num_labels, arcs):
        score = np.exp(sum({"blank": blank, "label": label}[kind][k, t, u] for kind, k, t, u in path))
        total += score
        for kind, *place in path:
            of[kind][tuple(place)] += score
    if not total:  # TDT without duration 0 has no path with more labels than frames
        return np.inf, of["blank"], of["label"]
    return -np.log(total), of["blank"] / total, of["label"] / total


def lattice(seed, arcs, *, rows, frames, labels, scale=1.0):
    random = np.random.default_rng(seed)
    blank = random.normal(size=(len(arcs.blank), rows, frames, labels + 1)) * scale - 1
    label = random.normal(size=(len(arcs.label), rows, frames, labels)) * scale - 1
    return blank, label


@partial(jax.jit, static_argnames=("arcs", "fast_emit"))
def swept(blank, label, num_frames, num_labels, *, arcs, fast_emit=0.0):
    losses, pull_back = jax.vjp(lambda *w: lattice_loss(*w, num_frames, num_labels, arcs, fast_emit), blank, label)
    return losses, *pull_back(jnp.ones_like(losses))


@pytest.mark.parametrize("arcs", [RNNT, tdt_arcs((0, 1, 2)), tdt_arcs((1, 3))])
def test_equals_the_sum_over_all_paths(arcs):
    """Rows with U = 0, T = 1, T < U and padding, in float64."""
    num_frames, num_labels = np.array([4, 1, 5, 2, 3, 0]), np.array([2, 1, 0, 3, 3, 1])
    with jax.enable_x64(True):
        blank, label = lattice(0, arcs, rows=6, frames=5, labels=3, scale=3.0)
        losses, of_blank, of_label = jax.device_get(swept(blank, label, num_frames, num_labels, arcs=arcs))
    assert losses[5] == 0
    assert not of_blank[:, 5].any()
    assert not of_label[:, 5].any()
    for row, (frames, labels) in enumerate(zip(num_frames[:5], num_labels[:5], strict=True)):
        expected = enumerated(blank[:, row], label[:, row], frames, labels, arcs)
        if np.isinf(expected[0]):
            assert np.isinf(losses[row])
            continue
        assert_close(losses[row], expected[0], rtol=1e-9)
        assert_close(of_blank[:, row], -expected[1], atol=1e-9)
        assert_close(of_label[:, row], -expected[2], atol=1e-9)


def test_long_rows_are_precise_in_float32():
    """Losses of about 2,000 nats have occupancies that agree with float64 to 1e-5."""
    blank, label = lattice(1, RNNT, rows=2, frames=300, labels=60, scale=4.0)
    lengths = np.array([300, 211]), np.array([60, 47])
    with jax.enable_x64(True):
        exact = jax.device_get(swept(blank, label, *lengths, arcs=RNNT))
    found = jax.device_get(swept(blank.astype(np.float32), label.astype(np.float32), *lengths, arcs=RNNT))
    assert_close(found[0], exact[0], rtol=1e-6)
    for a, b in zip(found[1:], exact[1:], strict=True):
        assert_close(a, b, atol=2e-5)


def joint(frames, of_rows, first):
    """Logits of an additive joint network, with a part that depends on the number of the frame."""
    places = (first + jnp.arange(frames.shape[1]))[None, :, None, None]
    hidden = jnp.tanh(frames[:, :, None] + of_rows["predictions"][:, None] + 0.01 * places)
    return jnp.einsum("btsj,jv->btsv", hidden, of_rows["kernel"][0])


WHOLE, *IN_PARTS = [(0, 1), (3, 1), (0, 2), (4, 2), (7, 4)]
"""Frames of a tile, and numbers of splits."""


@cache
def totals_and_gradients():
    """The loss and its gradients in float64, for each way to compute the logits; all rows have one program."""
    random, ways = np.random.default_rng(2), (WHOLE, *IN_PARTS)
    given = [random.normal(size=size) for size in ((4, 7, 6), (4, 4, 6), (6, 5))]
    labels, *lengths = random.integers(1, 5, (4, 3)), np.array([7, 3, 5, 7]), np.array([3, 2, 0, 1])

    def logits(frames, predictions, kernel, tile_frames, num_splits):
        rest = {"predictions": predictions, "kernel": jnp.broadcast_to(kernel, (4, *kernel.shape))}
        return in_tiles(joint, frames, rest, tile_frames=tile_frames, num_splits=num_splits)

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def run(given):
        rows = jnp.concatenate([logits(*each, *way) for each, way in zip(given, ways, strict=True)])
        texts = [jnp.asarray(np.concatenate([each] * len(ways))) for each in (lengths[0], labels, lengths[1])]
        losses = transducer_loss(rows, *texts, blank_id=0)
        return losses.sum(), losses.reshape(len(ways), 4)

    with jax.enable_x64(True):
        gradients, losses = jax.device_get(run([given] * len(ways)))
    return dict(zip(ways, zip(losses, gradients, strict=True), strict=True))


@pytest.mark.parametrize("way", IN_PARTS)
def test_tiles_and_splits_change_nothing(way):
    found = totals_and_gradients()
    jax.tree.map(partial(assert_close, rtol=1e-9, atol=1e-12), found[way], found[WHOLE])


def test_rows_that_cannot_be_split_are_named():
    with pytest.raises(ValueError, match="a batch of 4 rows cannot be split into 3 equal parts"):
        in_tiles(joint, jax.device_put(np.zeros((4, 2, 1))), {}, tile_frames=0, num_splits=3)


def test_padding_and_other_rows_have_no_influence():
    random = np.random.default_rng(3)
    logits, labels = random.normal(size=(2, 6, 4, 5)).astype(np.float32), random.integers(0, 4, (2, 3))
    changed, others = logits.copy(), labels.copy()
    changed[1, 4:], changed[1, :, 3:], others[1, 2:] = 1e4, -1e4, 3
    lengths = np.array([6, 4]), np.array([3, 2])

    @jax.jit
    @jax.value_and_grad
    def run(logits, labels):
        return transducer_loss(logits, jnp.asarray(lengths[0]), labels, jnp.asarray(lengths[1]), blank_id=4).sum()

    value, gradient = run(logits, labels)
    value_2, gradient_2 = run(changed, others)
    assert_close(value, value_2, rtol=1e-6)
    assert_close(gradient, gradient_2, atol=1e-6)


def test_penalties_change_the_log_probabilities_of_arcs():
    """The delay penalty, EOS penalty and star against arcs that are changed one by one."""
    random, blank_id = np.random.default_rng(4), 5
    with jax.enable_x64(True):
        logits, labels = random.normal(size=(1, 4, 4, 6)), np.array([[2, 3, 1]])
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        blank, label = (
            log_probs[None, 0, :, :, blank_id],
            np.stack([log_probs[0, :, u, labels[0, u]] for u in range(3)], 1)[None],
        )
        blank, label = blank.copy(), label.copy()
        for t in range(4):
            early = (4 - 1) / 2 - t
            label[0, t, :] += 0.3 * early
            label[0, t, 2] += 0.2 * early  # 1 is the end of the utterance
            label[0, t, 1] = 0.3 * early  # 3 is the star
            blank[0, t, 2] = np.log(0.75)
        expected, _, _ = enumerated(blank, label, 4, 3, RNNT)
        penalties = Penalties(delay=0.3, eos=0.2, eos_id=1, star=0.75, star_id=3)
        loss = jax.jit(partial(transducer_loss, blank_id=blank_id, penalties=penalties))
        found = loss(logits, np.array([4]), labels, np.array([3]))
    assert_close(found, expected, rtol=1e-9)


def exact_loss(logits, starts, labels):
    """Returns the loss of one row with the delay penalty 0.7, by enumeration in float64.

    Args:
        logits: Logits [T R V] of R label positions, which begin with `starts` at each frame; the blank is 0.
    """
    num_frames, size, _ = logits.shape
    log_probs = log_softmax(logits)
    blank, label = np.full((1, num_frames, len(labels) + 1), -np.inf), np.full((1, num_frames, len(labels)), -np.inf)
    for t, r in itertools.product(range(num_frames), range(size)):
        u = starts[t] + r
        if u <= len(labels):
            blank[0, t, u] = log_probs[t, r, 0]
        if u < len(labels):
            label[0, t, u] = log_probs[t, r, labels[u]] + 0.7 * ((num_frames - 1) / 2 - t)
    return enumerated(blank, label, num_frames, len(labels), RNNT)[0]


@pytest.mark.parametrize(
    "starts", [[[0, 0, 0, 0], [0, 0, 0, 0]], [[0, 0, 1, 1], [0, 1, 1, 0]]], ids=["whole", "pruned"]
)
def test_the_delay_penalty_is_that_of_all_paths(starts):
    """Losses and gradients of logits in float64 against enumeration, with all label positions and with two of three."""
    starts, size = np.array(starts), 2 if np.any(starts) else 3
    logits = np.random.default_rng(7).normal(size=(2, 4, size, 4)) * 2
    labels, num_frames, num_labels = np.array([[2, 1], [3, 3]]), np.array([4, 3]), np.array([2, 2])

    @jax.jit
    @partial(jax.grad, has_aux=True)
    def run(logits, starts, labels, num_frames, num_labels):
        arcs = kept_log_probs(logits, starts, labels, blank_id=0)
        arcs = pruned_log_probs(*arcs, starts, num_labels=2)
        blank, label = penalised(*arcs, num_frames, labels, Penalties(delay=0.7))
        losses = lattice_loss(blank[None], label[None], num_frames, num_labels)
        return losses.sum(), losses

    with jax.enable_x64(True):
        gradient, losses = jax.device_get(run(logits, starts, labels, num_frames, num_labels))
        if size == 3:
            loss = jax.jit(partial(transducer_loss, blank_id=0, penalties=Penalties(delay=0.7)))
            assert_close(losses, loss(logits, num_frames, labels, num_labels), rtol=1e-12)
    for row, num in enumerate(num_frames):
        given = logits[row, :num], starts[row], labels[row]
        assert_close(losses[row], exact_loss(*given), rtol=1e-10)
        for place in np.ndindex(given[0].shape):
            step = np.zeros(given[0].shape)
            step[place] = 1e-5
            ahead, behind = (exact_loss(given[0] + each, *given[1:]) for each in (step, -step))
            assert_close(gradient[row][place], (ahead - behind) / 2e-5, atol=1e-8)
        assert not gradient[row, num:].any()


def test_penalties_begin_with_a_word_error_rate_or_an_update():
    late = Penalties(delay=0.7, delay_since=Since(before=0.1, wer=0.3, updates=50), star=0.9, star_id=2,
                     star_since=Since(before=0.75, updates=20))  # fmt: skip
    for step, wer, delay, star in (
        (10, np.inf, 0.1, 0.75), (10, 0.3, 0.1, 0.75), (10, 0.29, 0.7, 0.75), (20, 0.31, 0.1, 0.9), (50, 0.9, 0.7, 0.9),
        (None, np.inf, 0.7, 0.9),
    ):  # fmt: skip
        values = late.values(step if step is None else jnp.int32(step), jnp.float32(wer))
        assert_close([values["delay"], values["star"]], [delay, star], rtol=1e-6)
        given = jnp.full((1, 3, 3), -1.0), jnp.full((1, 3, 2), -2.0), jnp.array([3]), jnp.array([[1, 2]])
        found, constant = penalised(*given, late, values), penalised(*given, Penalties(delay, star=star, star_id=2))
        for ours, expected in zip(found, constant, strict=True):
            assert_close(ours, expected, rtol=1e-6)
    with pytest.raises(ValueError, match=r"star_since.before is 0.0: expected a probability above 0"):
        Penalties(star_since=Since(wer=0.2))


def test_durations_have_probabilities_of_their_own():
    arcs = tdt_arcs((0, 1, 2))
    random = np.random.default_rng(5)
    logits, labels = random.normal(size=(1, 3, 3, 4 + 3)).astype(np.float32), np.array([[1, 2]])
    log_probs = jax.jit(partial(tdt_log_probs, blank_id=0, arcs=arcs, sigma=0.05))
    blank, label = jax.device_get(log_probs(logits, labels))
    assert (blank.shape, label.shape) == ((2, 1, 3, 3), (3, 1, 3, 2))
    of_labels, of_durations = logits[..., :4].astype(np.float64), logits[..., 4:].astype(np.float64)
    tokens, durations = (x - np.log(np.exp(x).sum(-1, keepdims=True)) for x in (of_labels, of_durations))
    assert_close(blank[1, 0, 2, 1], tokens[0, 2, 1, 0] + durations[0, 2, 1, 2] - 0.05, rtol=1e-6)
    assert_close(label[0, 0, 1, 1], tokens[0, 1, 1, 2] + durations[0, 1, 1, 0] - 0.05, rtol=1e-6)


@pytest.mark.slow
def test_pruning_nothing_is_the_whole_loss():
    """With all label positions kept, the pruned loss is the loss; with few, it is an upper bound."""
    random = np.random.default_rng(6)
    logits, labels = random.normal(size=(3, 8, 5, 6)).astype(np.float32) * 2, random.integers(1, 6, (3, 4))
    logits, labels, *lengths = map(jnp.asarray, (logits, labels, [8, 6, 5], [4, 4, 2]))
    whole = transducer_loss(logits, lengths[0], labels, lengths[1], blank_id=0)
    acoustic, language = logits[:, :, 0], logits[:, 0]
    of_arcs = occupancies(*simple_log_probs(acoustic, language, labels, blank_id=0), *lengths)
    for size in (2, 3, 5):
        starts = kept_positions(*of_arcs, *lengths, size=size)
        places = starts[..., None] + np.arange(size)[None, None]
        kept = jnp.take_along_axis(logits, jnp.minimum(places, 4)[..., None], axis=2)
        blank, label = pruned_log_probs(*kept_log_probs(kept, starts, labels, blank_id=0), starts, num_labels=4)
        found = lattice_loss(blank[None], label[None], *lengths)
        if size == 5:
            assert_close(found, whole, rtol=1e-6)
        else:
            assert np.isfinite(found).all()
            assert_within(np.max(whole - found, initial=0.0), 1e-4, what="a pruned loss below the whole one")


def forward_and_backward(blank, label):
    """Returns the log-likelihood of one row and the occupancies of its arcs, node by node in float64."""
    num_frames, num_places = blank.shape
    before = np.full((num_frames, num_places), -np.inf)
    after = np.full((num_frames + 1, num_places + 1), -np.inf)
    after[num_frames, num_places - 1] = 0
    nodes = list(np.ndindex(num_frames, num_places))
    for t, u in nodes:
        entering = [0.0] if (t, u) == (0, 0) else []
        entering += [before[t - 1, u] + blank[t - 1, u]] if t else []
        entering += [before[t, u - 1] + label[t, u - 1]] if u else []
        before[t, u] = np.logaddexp.reduce(entering)
    for t, u in reversed(nodes):
        of_label = label[t, u] + after[t, u + 1] if u < num_places - 1 else -np.inf
        after[t, u] = np.logaddexp(blank[t, u] + after[t + 1, u], of_label)
    of_blank = np.exp(before + blank + after[1:, :-1] - after[0, 0])
    of_label = np.exp(before[:, :-1] + label + after[:-1, 1:-1] - after[0, 0])
    return after[0, 0], of_blank, of_label


def first_positions(of_blank, of_label, size):
    """Returns the first kept position of each frame of one row, and the margin of the choice, frame by frame."""
    num_frames, num_places = of_blank.shape
    places = max(num_places - size + 1, 1)
    entering = np.pad(of_label, ((0, 0), (1, 0)))
    scores = np.array(
        [
            [row[u : u + size].sum() - enter[u] for u in range(places)]
            for row, enter in zip(of_blank, entering, strict=True)
        ]
    )
    starts, ordered = scores.argmax(axis=1), np.sort(scores, axis=1)
    starts[-1] = places - 1
    for t in reversed(range(num_frames - 1)):
        starts[t] = min(starts[t], starts[t + 1])
    for t in reversed(range(num_frames - 1)):
        starts[t] = max(starts[t], starts[t + 1] - (size - 1))
    starts = np.minimum(starts, (size - 1) * np.arange(num_frames))
    return starts, (ordered[:, -1] - ordered[:, -2]).min() if places > 1 else np.inf


def test_pruned_loss_of_few_labels_equals_one_in_float64():
    """Rows with fewer labels than kept positions, and no acoustic part in the interpolation of the simple loss."""
    random, size, num_frames, num_labels = np.random.default_rng(8), 5, [33, 46, 14, 11], [9, 6, 4, 2]
    acoustic, frames = random.normal(size=(4, 46, 43)) / 5, random.normal(size=(4, 46, 32))
    language, places = random.normal(size=(4, 10, 43)) / 5, random.normal(size=(4, 10, 32))
    kernel, labels = random.normal(size=(32, 43)), random.integers(1, 43, (4, 9))

    @jax.jit
    def run(acoustic, language, frames, places, kernel, labels, lengths):
        simple = simple_log_probs(acoustic, language, labels, blank_id=0, language_scale=0.25)
        starts = kept_positions(*occupancies(*simple, *lengths), *lengths, size=size)
        kept = jax.vmap(lambda row, firsts: row[firsts[:, None] + jnp.arange(size)[None]])(places, starts)
        logits = jnp.tanh(frames[:, :, None] + kept) @ kernel
        arcs = pruned_log_probs(*kept_log_probs(logits, starts, labels, blank_id=0), starts, num_labels=9)
        return starts, *(lattice_loss(blank[None], label[None], *lengths) for blank, label in (simple, arcs))

    given = map(np.float32, (acoustic, language, frames, places, kernel))
    found = jax.device_get(run(*given, labels, (np.array(num_frames), np.array(num_labels))))
    for row, (t, u) in enumerate(zip(num_frames, num_labels, strict=True)):
        of_both = log_softmax(acoustic[row, :t, None] + language[row, None, : u + 1])
        log_probs = 0.75 * of_both + 0.25 * log_softmax(language[row, : u + 1])
        ids = labels[row, :u]
        total, of_blank, of_label = forward_and_backward(log_probs[..., 0], log_probs[:, np.arange(u), ids])
        assert_within(relative(found[1][row], -total), 1e-6, what=f"simple loss {row}")
        starts, margin = first_positions(of_blank, of_label, size)
        assert margin > 1e-4, "rounding decides which positions are kept"
        np.testing.assert_array_equal(found[0][row, :t], starts)
        log_probs = log_softmax(np.tanh(frames[row, :t, None] + places[row, None, : u + 1]) @ kernel)
        is_kept = (np.arange(u + 1) >= starts[:, None]) & (np.arange(u + 1) < starts[:, None] + size)
        blank = np.where(is_kept, log_probs[..., 0], -np.inf)
        label = np.where(is_kept[:, :u], log_probs[:, np.arange(u), ids], -np.inf)
        with np.errstate(invalid="ignore"):
            total, *_ = forward_and_backward(blank, label)
        assert_within(relative(found[2][row], -total), 1e-6, what=f"pruned loss {row}")


def test_pruning_of_texts_without_labels():
    """A batch whose texts are all empty has one label position, which is kept."""
    logits, num_frames = np.random.default_rng(8).normal(size=(2, 4, 1, 5)).astype(np.float32), np.array([4, 1])

    @jax.jit
    def run(logits, num_frames, labels, none):
        starts = kept_positions(logits[..., 0], logits[:, :, :0, 0], num_frames, none, size=1)
        kept = kept_log_probs(logits, starts, labels, blank_id=0)
        blank, label = pruned_log_probs(*kept, starts, num_labels=0)
        losses = lattice_loss(blank[None], label[None], num_frames, none)
        return starts, losses, transducer_loss(logits, num_frames, labels, none, blank_id=0)

    starts, found, expected = jax.device_get(run(logits, num_frames, np.zeros((2, 0), np.int32), np.zeros(2, np.int32)))
    assert not starts.any()
    assert_close(found, expected, rtol=1e-6)


def test_paths_of_this_file_are_those_of_rnnt():
    assert sum(1 for _ in paths(4, 2, RNNT)) == len(list(itertools.combinations(range(5), 2)))
    assert Arcs().span == 1
