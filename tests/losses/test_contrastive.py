"""The contrastive loss against its definition with explicit distractors, and the distribution of distractors."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import assert_close, assert_within, fast_jit, max_abs, relative

from asr_jax.losses.contrastive import Distractors, contrastive_loss, counted, draw_distractors

ROWS, FRAMES, WIDTH, NUM = 2, 6, 5, 4


def case(seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 3, (ROWS, FRAMES))
    targets = rng.normal(size=(3, WIDTH))[codes]  # frames of one code have one target
    return {
        "predictions": rng.normal(size=(ROWS, FRAMES, WIDTH)).astype(np.float32),
        "targets": targets.astype(np.float32),
        "places": rng.integers(0, FRAMES, (ROWS, FRAMES, NUM)),
        "equal": codes[:, :, None] == codes[:, None],
        "others": rng.normal(size=(ROWS, FRAMES, 2, WIDTH)).astype(np.float32),
        "others_equal": np.arange(ROWS * FRAMES * 2).reshape(ROWS, FRAMES, 2) % 5 == 0,
    }


def ours(predictions: Any, targets: Any, others: Any, given: dict[str, Any]) -> Any:
    return contrastive_loss(
        predictions, targets, counted(given["places"], FRAMES), equal=given["equal"], temperature=0.3,
        others=Distractors(others, given["others_equal"]),
    )  # fmt: skip


def by_definition(predictions: Any, targets: Any, others: Any, given: dict[str, Any]) -> tuple[Any, Any]:
    """Computes the loss as the papers' code: a list of vectors for each frame; equal ones have a logit of -inf."""

    def of_frame(x: Any, frame: Any, targets: Any, others: Any, places: Any, equal: Any, others_equal: Any) -> Any:
        vectors = jnp.concatenate([targets[frame][None], targets[places], others])
        excluded = jnp.concatenate([jnp.array([False]), equal[places], others_equal])
        norms = jnp.linalg.norm(vectors, axis=-1) * jnp.linalg.norm(x)
        logits = jnp.where(excluded, -jnp.inf, vectors @ x / norms / 0.3)
        loss = jax.nn.logsumexp(jnp.where(excluded, -1e9, logits)) - logits[0]
        return loss, (jnp.argmax(logits) == 0) & (jnp.argmin(logits) != 0)

    of_row = jax.vmap(of_frame, in_axes=(0, 0, None, 0, 0, 0, 0))
    choices = (given[name] for name in ("places", "equal", "others_equal"))
    return jax.vmap(of_row, in_axes=(0, None, 0, 0, 0, 0, 0))(
        predictions, jnp.arange(FRAMES), targets, others, *choices
    )


def test_values_and_gradients() -> None:
    weights = np.random.default_rng(1).normal(size=(ROWS, FRAMES)).astype(np.float32)

    @fast_jit
    def both(given: Any) -> Any:
        def total(loss: Any, *arrays: Any) -> Any:
            losses, correct = loss(*arrays, given)
            return jnp.sum(losses * weights), (losses, correct)

        arrays = tuple(given[name] for name in ("predictions", "targets", "others"))
        differentiate = partial(jax.grad, argnums=(0, 1, 2), has_aux=True)
        return [differentiate(partial(total, loss))(*arrays) for loss in (ours, by_definition)]

    (of_ours, (losses, correct)), (of_theirs, (expected, expected_correct)) = jax.device_get(both(case()))
    assert_within(max_abs(losses, expected), 1e-5)
    np.testing.assert_array_equal(correct, expected_correct)
    assert 0 < correct.sum() < correct.size
    for mine, theirs in zip(of_ours, of_theirs, strict=True):
        assert_within(relative(mine, theirs), 1e-5)


def test_nothing_is_right_where_all_are_equal() -> None:
    """The accuracy is 0 for a collapsed model with equal targets, and for a model with predictions of 0."""
    ones, unequal = np.ones((1, 4, 3), np.float32), np.zeros((1, 4, 4), bool)
    counts, loss = np.ones((1, 4, 4), np.int32), fast_jit(partial(contrastive_loss, temperature=0.1))
    all_alike = jax.device_get(loss(ones, ones, counts, equal=unequal))
    assert not all_alike.correct.any()
    assert_close(all_alike.losses, np.log(5), rtol=1e-6)
    nothing = jax.device_get(loss(0 * ones, ones, counts, equal=unequal))
    assert np.isfinite(nothing.losses).all()
    assert not nothing.correct.any()


@pytest.mark.parametrize("same_row", [True, False])
def test_distractors_are_other_eligible_frames_alike(same_row: bool) -> None:
    eligible = np.zeros((3, 9), bool)
    eligible[0, [1, 4, 5, 8]] = eligible[1, [0, 2]] = eligible[2, [3]] = True
    draw = fast_jit(partial(draw_distractors, num=3000, same_row=same_row))
    places = np.asarray(draw(jax.random.key(0), eligible))
    for row, frame in np.argwhere(eligible):
        drawn = np.bincount(places[row, frame], minlength=27 if not same_row else 9)
        others = eligible.ravel() if not same_row else eligible[row]
        others = np.flatnonzero(others)
        own = frame + (9 * row if not same_row else 0)
        others = others[others != own] if len(others) > 1 else others
        assert set(np.flatnonzero(drawn)) == set(others)
        expected = 3000 / len(others)
        assert np.abs(drawn[others] - expected).max() < 5 * np.sqrt(expected)


def test_counts() -> None:
    found = fast_jit(partial(counted, size=3))(np.array([[[0, 2, 2], [1, 1, 1]]]))
    np.testing.assert_array_equal(found, [[[1, 0, 2], [0, 3, 0]]])
