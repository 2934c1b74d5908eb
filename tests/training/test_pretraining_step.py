"""Pre-training loss in a step: over the masked frames of all batches of an update and of all devices."""

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.meshes import data_mesh, global_batch, replicated
from asr_jax.core.random_streams import random_streams
from asr_jax.core.sums import Sums
from asr_jax.heads.contrastive import Contrastive, ContrastiveHead, Draws
from asr_jax.models.base import Model
from asr_jax.models.encoder import EncoderSettings, MaskingEncoder
from asr_jax.models.terms import batch_denominators
from asr_jax.nn.wav2vec.quantizer import Quantizer
from asr_jax.nn.wav2vec.span_masks import SpanMask
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.training.initial_state import initial_state, lower_initial_state
from asr_jax.training.recipe import Recipe
from asr_jax.training.step import summed
from tests.support import assert_close, assert_trees_close
from tests.training.accumulating import accumulate
from tests.training.toy import joined, toy_batch

NUM_NEGATIVES = 5
HEAD: dict[str, Any] = {
    "quantizer": Quantizer(groups=2, entries=4), "codes_dim": 6, "dim": 6, "num_negatives": NUM_NEGATIVES,
}  # fmt: skip


@dataclass(frozen=True)
class Hiding(EncoderSettings):
    """Pairs of frames, masked in spans or, with `every`, every second to fourth frame depending on the row's length."""

    every: bool = False

    def build(self, *, dtype: Any) -> "HidingEncoder":
        return HidingEncoder(self)


class HidingEncoder(MaskingEncoder):
    settings: Hiding

    def draw_mask(self, key: Any, lengths: Any, size: int, *, sub_batches: int) -> Any:
        lengths, size = self.output_length(lengths), self.output_length(size)
        if self.settings.every:
            place, every = jnp.arange(size)[None], 2 + lengths[:, None] % 3
            return (place % every == 0) & (place < lengths[:, None])
        return SpanMask(0.5, 3)(key, lengths, size, sub_batches=sub_batches)

    @nn.compact
    def __call__(self, frames: Frames, *, step: Any, mask: Any = None) -> Encoded:
        rows, time, bins = frames.values.shape
        lengths = self.output_length(frames.lengths)
        features = frames.values[:, : time // 2 * 2].reshape(rows, time // 2, 2 * bins) / 10
        features = nn.Dense(8, name="features")(features)
        hidden = features if mask is None else jnp.where(mask[..., None], 0, features)
        output = nn.tanh(nn.Conv(8, (5,), name="context")(hidden))
        taps = {"features": Frames(features, lengths), "extractor": Frames(features, lengths)}
        return Encoded(Frames(output, lengths), taps=taps, mask=mask)

    def output_length(self, num_frames: Any) -> Any:
        return num_frames // 2

    def tap_lengths(self, num_frames: Any) -> dict[str, Any]:
        return dict.fromkeys(("features", "extractor"), self.output_length(num_frames))


@dataclass(frozen=True)
class Known(Contrastive):
    """A head whose draws depend only on the utterance of a row, and are therefore equal in any batch."""

    def build(self, **_: Any) -> "KnownHead":
        return KnownHead(self)


class KnownHead(ContrastiveHead):
    def __call__(self, encoded: Encoded, batch: Batch, *, step: Any, draws: Any = None) -> Sums:
        quantizer, frames = self.settings.quantizer, encoded.frames.values.shape[1]

        def of_row(utterance: Any, length: Any) -> Draws:
            noise, places = jax.random.split(jax.random.fold_in(jax.random.key(0), utterance))
            within = jnp.floor(jax.random.uniform(places, (frames, NUM_NEGATIVES)) * jnp.maximum(length, 1))
            drawn = jax.random.gumbel(noise, (frames, quantizer.groups, quantizer.entries))
            return Draws(drawn, within.astype(jnp.int32))

        return super().__call__(
            encoded, batch, step=step, draws=jax.vmap(of_row)(batch.utterances, encoded.frames.lengths)
        )


def recipe_of(head: Contrastive, *, sub_batches: int = 1) -> Recipe:
    encoder = Hiding(every=isinstance(head, Known))
    model = Model(encoder=encoder, heads={"pretrain": head}, augment=(), sub_batches=sub_batches)
    return Recipe(
        model.build(vocab_size=1, blank_id=0, precision="f32"), {"pretrain": 1.0}, AdamW().build(RunLength(9, 9))
    )


def batch_of(seed: int, rows: int = 4) -> Batch:
    """Rows of different lengths with different fractions of masked frames; the last row has weight 0."""
    batch = jax.device_get(toy_batch(rows=rows, seed=seed))
    weights = np.float32([1.0] * (rows - 1) + [0.0])
    return batch.replace(weights=weights, utterances=batch.utterances + 100 * seed)


@cache
class Steps:
    """Compiled functions of a recipe."""

    def __init__(self, head: Contrastive, *, sub_batches: int = 1) -> None:
        self.recipe = recipe = recipe_of(head, sub_batches=sub_batches)
        self.weights = jax.jit(
            lambda state, batch: batch_denominators(recipe.model, batch, random_streams(state.key, state.updates))
        )
        self._accumulate = cache(lambda num_devices: jax.jit(partial(accumulate, recipe, mesh=data_mesh(num_devices))))

    def gradients(self, state: Any, *batches: Batch, num_devices: int = 1) -> Any:
        """Returns the accumulated sums of the batches of one update."""
        mesh = data_mesh(num_devices)
        state = jax.device_put(state, replicated(mesh))
        spread = [(jnp.int32(number), global_batch(batch, mesh)) for number, batch in enumerate(batches)]
        each = [self.weights(state, batch) for _, batch in spread]
        weights = jax.tree.map(lambda *of_batches: sum(of_batches), *each)
        found = None
        for place, batch in spread:
            found = self._accumulate(num_devices)(state, found, batch, weights, place)
        assert_close(weights["pretrain/loss"], found.sums["pretrain/loss"].weight)
        return summed(found, num_devices=num_devices)


@pytest.fixture(scope="module")
def state() -> Any:
    """Initial state of all recipes, which have equal parameters."""
    lowered = lower_initial_state(recipe_of(Contrastive(**HEAD)), seed=0).compile()
    return initial_state(lowered, data_mesh(1))[0]


@pytest.mark.parametrize(
    ("diversity", "penalty", "sub_batches"), [pytest.param(0.0, 0.0, 1, marks=pytest.mark.slow), (0.1, 10.0, 2)]
)
@pytest.mark.slow
def test_two_batches_are_one_of_both(state: Any, diversity: float, penalty: float, sub_batches: int) -> None:
    """If rows do not depend on each other, or if the joined batch has the two batches as its sub-batches."""
    head = Known(**HEAD, diversity=diversity, penalty=penalty)
    steps, first, second = Steps(head), batch_of(1), batch_of(2)
    hidden = [steps.weights(state, batch)["pretrain/loss"] for batch in (first, second)]
    assert hidden[0] != hidden[1] > 0
    split = steps.gradients(state, first, second)
    whole = Steps(head, sub_batches=sub_batches).gradients(state, joined(first, second))
    assert_trees_close(split.grads, whole.grads, 1e-5)
    terms = {name for name in split.sums if sub_batches > 1 or "perplexity" not in name}
    assert len(terms) >= 2
    for name in terms:
        assert_close(split.sums[name].total, whole.sums[name].total, rtol=1e-5, what=name)
        assert_close(split.sums[name].weight, whole.sums[name].weight, rtol=1e-6, what=name)


OF_PARTS = {"diversity": 0.1, "penalty": 10.0}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "num_devices"),
    [
        (Known(**HEAD, **OF_PARTS), 4),
        (Contrastive(**HEAD), 2),
        (Contrastive(**HEAD), 4),
    ],
    ids=["known draws, 4", "its own draws, 2", "its own draws, 4"],
)
def test_any_number_of_devices_gives_the_same_gradient(state: Any, head: Contrastive, num_devices: int) -> None:
    """A device has one sub-batch or a part of one."""
    steps, batch = Steps(head, sub_batches=2), joined(batch_of(1), batch_of(2))
    alone = steps.gradients(state, batch)
    assert alone.sums["pretrain/loss"].weight > 0
    found = steps.gradients(state, batch, num_devices=num_devices)
    assert_trees_close(found.grads, alone.grads, 1e-5)
    for name, value in alone.sums.items():
        assert_close(found.sums[name].mean(), value.mean(), rtol=1e-5, what=name)


def test_a_row_that_counts_nothing_changes_nothing(state: Any) -> None:
    steps, batch = Steps(Known(**HEAD, **OF_PARTS), sub_batches=2), joined(batch_of(4), batch_of(5))
    factors = np.where(np.arange(8) == 7, 3, 1).astype(np.int16)[:, None]
    louder = batch.replace(audio=np.asarray(batch.audio) * factors)
    assert_trees_close(steps.gradients(state, louder).grads, steps.gradients(state, batch).grads, 1e-5)
    assert replace(Contrastive(**HEAD), num_negatives=9).chance() == {"accuracy": 0.1, "code_perplexity": 2.0}
