"""Rows that fit a memory budget: maximal, by the memory of the compiled step, and measured once."""

import math
import random
from dataclasses import replace

import jax
import pytest

from asr_jax.config import Experiment, Training
from asr_jax.core import programs
from asr_jax.core.errors import UserError
from asr_jax.core.layout import Layout
from asr_jax.core.meshes import data_mesh
from asr_jax.core.programs import TRACED, Programs
from asr_jax.core.pytrees import num_bytes
from asr_jax.data.batching.buckets import Bucket, Scale
from asr_jax.data.batching.dataset import Data
from asr_jax.inference.model import make_model
from asr_jax.optim.optimizers import AdamW
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.training.initial_state import abstract_state, lower_initial_state
from asr_jax.training.memory_fit import ANY_LENGTH, MemoryFit, most_within
from asr_jax.training.programs import compile_steps
from asr_jax.training.recipe import make_recipe
from tests.support import approx
from tests.training.toy import toy_model

SCALE = Scale(16000, 160, 80)
BUCKET = Bucket(16000, 8, 64, 15900)


def test_the_most_within_a_budget_is_found_with_few_trials():
    rng = random.Random(0)
    for _ in range(500):
        most, base, slope = rng.randint(1, 300), rng.uniform(0, 50), rng.uniform(0.1, 9)
        steps, budget = rng.uniform(0, 3), rng.uniform(0, 1000)
        trials = []

        def needed(number, base=base, slope=slope, steps=steps, trials=trials):
            trials.append(number)
            return base + slope * number + steps * (number // 8)  # jumps, as of padded tiles

        found = most_within(needed, most, budget)
        assert len(trials) == len(set(trials)) <= 12
        assert found == max((n for n in range(most + 1) if n == 0 or needed(n) <= budget), default=0)
    assert most_within(lambda number: float("inf") if number > 5 else number, 100, 50.0) == 5
    assert most_within(float, 0, 5.0) == 0


@pytest.mark.parametrize(
    "needed",
    [
        lambda number: 7 * -(-number // 8),  # tiles of 8 rows
        lambda number: max(5.0, number / 8),
        lambda number: number if number <= 150 else math.inf,
        lambda number: number**2 / 300,
        lambda number: 0.0,
        lambda number: 1e-3 * number,
    ],
)
@pytest.mark.parametrize("budget", [0.5, 6.0, 290.0, 8_000.0, 61_000.0])
def test_needs_that_are_not_linear_take_few_trials(needed, budget):
    trials, most = [], 70_000

    def counted(number):
        trials.append(number)
        return needed(number)

    found = most_within(counted, most, budget)
    assert found == most or needed(found + 1) > budget
    assert not found or needed(found) <= budget
    assert len(trials) == len(set(trials)) <= 26


def made_fit(*, budget_bytes: float) -> MemoryFit:
    experiment = Experiment(
        name="x", model=toy_model(dim=24), data=Data(train=("t",), validation=("v",)), optim=AdamW(),
        training=Training(num_updates=10),
    )  # fmt: skip
    tokenizer = CharacterTokenizer(symbols=(*"abc", None), normaliser="none")
    recipe = make_recipe(experiment, make_model(experiment, tokenizer), ANY_LENGTH)
    known = Programs(()).given(of="test")
    return MemoryFit(budget_bytes, recipe, Layout(), data_mesh(1), accumulate=1, seed=0, programs=known)


@pytest.fixture(autouse=True)
def cache(tmp_path):
    kept = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    yield tmp_path
    jax.config.update("jax_compilation_cache_dir", kept)


@pytest.mark.slow
def test_rows_are_the_most_whose_step_fits_and_are_measured_once(cache, monkeypatch):
    fit = made_fit(budget_bytes=12e6)
    [rows] = fit([BUCKET], scale=SCALE, unit=2, devices=1)
    shapes = abstract_state(lower_initial_state(fit.recipe, seed=0, programs=fit.programs), fit.mesh)

    def step_bytes(number):
        """Memory of an executable that is traced and compiled anew."""
        bucket = replace(BUCKET, batch_size=number)
        return replace(fit, programs=TRACED).step_bytes(bucket, shapes, scale=SCALE)

    assert 2 < rows < 64
    assert rows % 2 == 0
    assert step_bytes(rows) <= 12e6 < step_bytes(rows + 2)
    monkeypatch.setattr(programs, "memory_of", None)  # another measurement would raise an error
    assert made_fit(budget_bytes=12e6)([BUCKET], scale=SCALE, unit=2, devices=1) == [rows]
    assert [path.read_text().strip().isdecimal() for path in cache.glob("traced/gradient-memory-*")].count(True) >= 3
    # Rows for four devices are four times those of one.
    assert fit([replace(BUCKET, batch_size=256)], scale=SCALE, unit=8, devices=4) == [4 * rows]
    # More rows than are useful are not tried.
    assert fit([replace(BUCKET, batch_size=2)], scale=SCALE, unit=2, devices=1) == [2]
    message = r"budget is 0.001 GB, and a batch of 2 × 1.00 s with 8 labels needs 0\.\d+ GB on each of 1 device"
    with pytest.raises(UserError, match=message):
        made_fit(budget_bytes=1e6)([BUCKET], scale=SCALE, unit=2, devices=1)


@pytest.mark.slow
def test_the_gradients_of_several_batches_need_memory_as_well():
    fit = made_fit(budget_bytes=0)
    shapes = abstract_state(lower_initial_state(fit.recipe, seed=0), fit.mesh)
    bucket = replace(BUCKET, batch_size=4)
    several = replace(fit, accumulate=2).step_bytes(bucket, shapes, scale=SCALE)
    steps = compile_steps(
        fit.recipe, [bucket], shapes, scale=SCALE, mesh=fit.mesh, num_batches=2, programs=fit.programs
    )
    assert several == approx(steps.memory["maximum_bytes"], abs=4096)  # sums of losses and the like
    assert several > num_bytes(shapes.average) + 2 * num_bytes(shapes.state.params)
