"""Consecutive updates of wav2vec 2.0's pre-training against NVIDIA's code with the same weights, masks, distractors and
noise. scripts/goldens/w2v2_pretraining_steps.py writes the cases."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
from support import GoldenCase, assert_within, cases_in, fast_jit, max_abs, part, slow
from wav2vec2_programs import HeadCountingPadding, counting_padding, draws_of

from asr_jax.audio.presets import wav2vec2
from asr_jax.core.batch import Batch, Encoded
from asr_jax.core.pytrees import unflatten
from asr_jax.core.random_streams import random_streams
from asr_jax.core.sums import Sums
from asr_jax.heads.contrastive import Draws
from asr_jax.models.base import Model
from asr_jax.models.terms import batch_denominators
from asr_jax.models.wav2vec2 import Wav2Vec2Encoder
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import FairseqAdam
from asr_jax.optim.schedules import Polynomial, RunLength
from asr_jax.pretrained.wav2vec2 import FAIRSEQ
from asr_jax.pretrained.wav2vec2_fairseq import settings_of_fairseq
from asr_jax.training.initial_state import fresh_state
from asr_jax.training.recipe import Recipe
from asr_jax.training.state import TrainState
from asr_jax.training.step import UpdateReport, apply_update
from tests.training.accumulating import accumulate

pytestmark = pytest.mark.golden

NAME = "pretrain"
TERMS = {"loss": "loss_0", "diversity": "loss_1", "penalty": "loss_2"}
PERPLEXITIES = ("prob_perplexity", "code_perplexity")
CASES = slow(cases_in(Path(__file__).parent / "pretraining_steps"))


class GivenEncoder(Wav2Vec2Encoder):
    """Encoder with a given mask."""

    given: Any = None

    def draw_mask(self, *_: Any, **__: Any) -> Any:
        return self.given


class GivenHead(HeadCountingPadding):
    """Head with given draws."""

    given: Draws = Draws()

    def __call__(self, encoded: Encoded, batch: Batch, *, step: Any, draws: Any = None) -> Sums:
        return super().__call__(encoded, batch, step=step, draws=self.given)


def recipe_of(case: GoldenCase) -> Recipe:
    recorded = case.info["training"]
    encoder, head = counting_padding(settings_of_fairseq(case.info["config"], case.path))
    # NVIDIA's first update has the temperature of update 1; fairseq's and ours have that of update 0.
    start = head.quantizer.start_temperature * head.quantizer.decay
    diversity, penalty = recorded["loss_weights"]
    head = replace(
        head, diversity=diversity, penalty=penalty, quantizer=replace(head.quantizer, start_temperature=start)
    )
    schedule = Polynomial(
        peak_lr=recorded["lr"], warmup_updates=recorded["warmup_updates"], hold_updates=recorded["hold_updates"],
        power=recorded["lr_poly_power"], start_share=recorded["initial_lr_scale"],
        final_share=recorded["final_lr_scale"],
        rate_set="before_run_and_after_update",
    )  # fmt: skip
    b1, b2 = recorded["adam_betas"]
    optimizer = FairseqAdam(
        schedule=schedule, b1=b1, b2=b2, eps=recorded["adam_eps"], weight_decay=recorded["weight_decay"],
        clip_at=recorded["clip_norm"],
    )  # fmt: skip
    model = Model(encoder=encoder, heads={NAME: head}, front_end=wav2vec2(normalise=False), augment=())
    recogniser = model.build(vocab_size=1, blank_id=0, precision="f32")
    return Recipe(recogniser, {NAME: 1.0}, optimizer.build(RunLength(recorded["max_update"], 1)), ema=EMA(0.0))


def update_program(recipe: Recipe) -> Callable[..., tuple[TrainState, UpdateReport]]:
    """Returns a compiled update with given masked frames and draws, which calls the functions of training."""
    encoder, head = recipe.model.encoder.settings, recipe.model.heads[NAME].settings

    @fast_jit
    def update(state: TrainState, batch: Batch, mask: Any, draws: Draws) -> tuple[TrainState, UpdateReport]:
        modules = GivenEncoder(encoder, jnp.float32, given=mask), GivenHead(head, given=draws)
        given = replace(recipe, model=recipe.model.clone(encoder=modules[0], heads={NAME: modules[1]}))
        place = jnp.int32(0)
        weights = batch_denominators(given.model, batch, random_streams(state.key, place))
        added = accumulate(given, state, None, batch, weights, place)
        state, _, found = apply_update(given, state, given.evaluated(state), added)
        return state, found

    return update


class Run(NamedTuple):
    """Results of our updates."""

    recipe: Recipe
    reports: list[UpdateReport]
    after: dict[str, np.ndarray]
    """Parameters after the last update, by the reference's names."""


@cache
def run_of(path: Path) -> Run:
    case = next(case.values[0] for case in CASES if case.values[0].path == path)
    arrays, recipe, reports = case.arrays(), recipe_of(case), []
    encoder, head = recipe.model.encoder.settings, recipe.model.heads[NAME].settings
    weights, left = FAIRSEQ.find(part(arrays, "param/"), encoder, {f"heads_{NAME}": head})
    assert left == []
    params = unflatten(weights)["params"]
    state, update = fast_jit(partial(fresh_state, recipe, batch_stats={}, seed=0))(params), update_program(recipe)
    for number in range(len(case.info["updates"])):
        given = part(arrays, f"input_{number}/")
        draws = draws_of(head, given["mask_indices"], given["neg_idxs"], given["gumbel_noise"])
        state, found = update(state, batch_of(given), given["mask_indices"], draws)
        reports.append(found)
    after = FAIRSEQ.export({"params": state.params}, encoder, {f"heads_{NAME}": head})
    return Run(recipe, reports, after)


def batch_of(given: dict[str, np.ndarray]) -> Batch:
    rows = np.arange(len(given["source"]), dtype=np.int32)
    return Batch(
        audio=None, features=given["source"][..., None], lengths=(~given["padding_mask"]).sum(1).astype(np.int32),
        tokens=0 * rows[:, None], token_lengths=0 * rows, weights=np.ones(len(rows), np.float32), utterances=rows,
    )  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_losses(case: GoldenCase) -> None:
    run, expected = run_of(case.path), case.info["updates"]
    quantizer = run.recipe.model.heads[NAME].settings.quantizer
    for number, (found, recorded) in enumerate(zip(run.reports, expected, strict=True)):
        assert found.applied
        sums = {name.removeprefix(f"{NAME}/"): value for name, value in found.sums.items()}
        assert float(sums["loss"].weight) == recorded["sample_size"]
        assert float(sums["accuracy"].total) == recorded["correct"]
        for name, key in TERMS.items():
            difference = abs(float(sums[name].total) / recorded[key] - 1)
            assert_within(difference, 1e-5, what=f"{number} {name}, relative")
        for name in PERPLEXITIES:
            assert_within(abs(sums[name].mean() / recorded[name] - 1), 1e-5)
        assert_within(abs(float(quantizer.temperature(jnp.int32(number))) / recorded["temp"] - 1), 1e-6)


@pytest.mark.parametrize("case", CASES)
def test_rates_and_norms(case: GoldenCase) -> None:
    """Each case has gradients that are clipped and gradients that are not."""
    limit, expected = case.info["training"]["clip_norm"], case.info["updates"]
    assert len({recorded["grad_norm"] > limit for recorded in expected}) == 2
    for number, (found, recorded) in enumerate(zip(run_of(case.path).reports, expected, strict=True)):
        assert_within(abs(float(found.learning_rate) / recorded["lr"] - 1), 1e-6)
        difference = abs(float(found.gradient_norm) / recorded["grad_norm"] - 1)
        assert_within(difference, 1e-5, what=f"{number} norm, relative")


@pytest.mark.parametrize("case", CASES)
def test_parameters(case: GoldenCase) -> None:
    """Differences are in units of the maximum change of a value, the sum of the learning rates.

    In these units, parameters of up to 4 are rounded to 4e-5. The gradient of the bias of keys is 0 except for
    rounding; its changes are therefore compared separately.
    """
    after, expected = run_of(case.path).after, part(case.arrays(), "after/")
    assert after.keys() == expected.keys()
    rates = sum(recorded["lr"] for recorded in case.info["updates"])
    differences = {name: max_abs(after[name], expected[name]) / rates for name in expected}
    keys = {name for name in expected if name.endswith("k_proj.bias")}
    for names, limit in ((keys, 1e-3), (expected.keys() - keys, 2e-4)):
        worst = max(names, key=differences.__getitem__)
        assert_within(differences[worst], limit, what=f"parameters, worst ({worst})")
