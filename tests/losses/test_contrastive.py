"""The contrastive loss against its definition, distractor by distractor, and how distractors are drawn."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import max_abs, relative

from asr_jax.losses.contrastive import Distractors, contrastive_loss, counted, draw_distractors

fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
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
        predictions, targets, counted(jnp.asarray(given["places"]), FRAMES), equal=jnp.asarray(given["equal"]),
        temperature=0.3, others=Distractors(others, jnp.asarray(given["others_equal"])),
    )  # fmt: skip


def by_definition(predictions: Any, targets: Any, others: Any, given: dict[str, Any]) -> tuple[Any, Any]:
    """As the papers' code: a list of vectors for each frame, the equal ones at minus infinity."""
    losses, correct = [], []
    for row in range(ROWS):
        for frame in range(FRAMES):
            places = given["places"][row, frame]
            vectors = jnp.concatenate([targets[row, frame][None], targets[row, places], others[row, frame]])
            excluded = np.concatenate([[False], given["equal"][row, frame, places], given["others_equal"][row, frame]])
            norms = jnp.linalg.norm(vectors, axis=-1) * jnp.linalg.norm(predictions[row, frame])
            logits = jnp.where(excluded, -jnp.inf, vectors @ predictions[row, frame] / norms / 0.3)
            losses.append(jax.nn.logsumexp(jnp.where(excluded, -1e9, logits)) - logits[0])
            correct.append((jnp.argmax(logits) == 0) & (jnp.argmin(logits) != 0))
    return jnp.stack(losses).reshape(ROWS, FRAMES), jnp.stack(correct).reshape(ROWS, FRAMES)


def test_values_and_gradients() -> None:
    given = case()
    arrays = tuple(jnp.asarray(given[name]) for name in ("predictions", "targets", "others"))
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(ROWS, FRAMES)), jnp.float32)

    def total(loss: Any, *arrays: Any) -> Any:
        losses, correct = loss(*arrays, given)
        return jnp.sum(losses * weights), (losses, correct)

    differentiate = partial(jax.grad, argnums=(0, 1, 2), has_aux=True)
    (of_ours, (losses, correct)), (of_theirs, (expected, expected_correct)) = (
        fast_jit(differentiate(partial(total, loss)))(*arrays) for loss in (ours, by_definition)
    )
    assert max_abs(losses, expected) < 1e-5
    np.testing.assert_array_equal(correct, expected_correct)
    assert 0 < correct.sum() < correct.size
    assert all(relative(mine, theirs) < 1e-5 for mine, theirs in zip(of_ours, of_theirs, strict=True))


def test_nothing_is_right_where_all_are_equal() -> None:
    """A collapsed model, whose targets are all alike, has no accuracy: nor has one that predicts nothing."""
    ones, equal = jnp.ones((1, 4, 3)), jnp.ones((1, 4, 4), bool)
    counts = jnp.ones((1, 4, 4), jnp.int32)
    loss = fast_jit(partial(contrastive_loss, temperature=0.1))
    all_alike = loss(ones, ones, counts, equal=~equal)
    assert not all_alike.correct.any()
    np.testing.assert_allclose(all_alike.losses, np.log(5), rtol=1e-6)
    nothing = loss(jnp.zeros((1, 4, 3)), ones, counts, equal=~equal)
    assert np.isfinite(nothing.losses).all()
    assert not nothing.correct.any()


@pytest.mark.parametrize("same_row", [True, False])
def test_distractors_are_other_eligible_frames_alike(same_row: bool) -> None:
    eligible = np.zeros((3, 9), bool)
    eligible[0, [1, 4, 5, 8]] = eligible[1, [0, 2]] = eligible[2, [3]] = True
    draw = fast_jit(partial(draw_distractors, num=3000, same_row=same_row))
    places = np.asarray(draw(jax.random.key(0), jnp.asarray(eligible)))
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
    places = jnp.array([[[0, 2, 2], [1, 1, 1]]])
    np.testing.assert_array_equal(counted(places, 3), [[[1, 0, 2], [0, 3, 0]]])
