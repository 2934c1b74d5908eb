"""Faults in the training of transducers: values that are not finite, and processes that are killed."""

import functools
import signal
from dataclasses import replace

import jax
import numpy as np
import pytest

from asr_jax.core.meshes import data_mesh
from asr_jax.core.pytrees import flatten
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.models.terms import batch_denominators
from asr_jax.nn.recurrent.prediction import LSTMPrediction, StatelessPrediction
from asr_jax.nn.recurrent.state_passing import StatePassing
from asr_jax.observe.events import read_events
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.training.initial_state import initial_state, lower_initial_state
from asr_jax.training.recipe import Recipe
from asr_jax.training.step import apply_update
from tests.forked import finished, made_corpus
from tests.support import approx
from tests.training.accumulating import accumulate
from tests.training.arrays import contents
from tests.training.toy import toy_batch, toy_model

HEAD = Transducer(prediction=LSTMPrediction(8, num_layers=1, dropout=0.2), joint_dim=12, dropout=0.3)
HEADS = {
    "rnnt": HEAD,
    "pruned": replace(HEAD, prediction=StatelessPrediction(8, regularise=False), pruning=Pruning(2)),
    "tdt": replace(HEAD, durations=(0, 1, 2), omega=0.2),
}
BAD_SAMPLES = 4000
"""Length of the utterance that makes the joint network's input NaN; it has `BAD_FRAMES` feature frames."""
BAD_FRAMES = 25


def without_key(tree):
    return {path: leaf for path, leaf in flatten(tree).items() if path not in ("key", "passed/left")}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_nan_in_the_joint_network_changes_nothing(name):
    """One utterance of one of the two batches of an update; states that are passed on are zeros after it."""
    model = replace(toy_model(poison=(("loss", BAD_FRAMES),)), heads={"transducer": HEADS[name]})
    module = model.build(vocab_size=6, blank_id=5, precision="f32")
    passing = StatePassing((0.0, 0.0, 1.0)) if name == "rnnt" else StatePassing()
    updater = AdamW().build(RunLength(100, 10))
    recipe = Recipe(module, {"transducer": 1.0}, updater, passing=passing, most_rows=4)
    begun = initial_state(lower_initial_state(recipe, seed=0).compile(), data_mesh(1))
    weights_of = jax.jit(functools.partial(batch_denominators, module))
    add, update = (jax.jit(functools.partial(each, recipe)) for each in (accumulate, apply_update))
    good = toy_batch(seed=1)
    good = good.replace(lengths=np.maximum(np.asarray(good.lengths), BAD_SAMPLES + 800))
    bad = good.replace(lengths=np.asarray(good.lengths) * np.int32([0, 1, 1, 1]) + np.int32([BAD_SAMPLES, 0, 0, 0]))
    assert int(module.front_end.output_length(BAD_SAMPLES)) == BAD_FRAMES

    def after(state, average, batches, first):
        accumulated = None
        every = [weights_of(batch) for batch in batches]
        weights = {term: sum(each[term] for each in every) for term in every[0]}
        for number, batch in enumerate(batches):
            accumulated = add(state, accumulated, batch, weights, np.int32(first + number))
        return update(state, average, accumulated)

    state, average, report = after(*begun, [good, good], 0)
    assert report.applied
    voided, same, report = after(state, average, [good, bad], 2)
    assert not report.applied
    assert not report.finite
    assert int(report.bad_position) == 3
    before = jax.device_get(state)
    if name == "rnnt":
        assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(before.passed.states))
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(jax.device_get(voided.passed.states)))
    for one, other in ((voided.replace(passed={}), before.replace(passed={})), (same, average)):
        jax.tree.map(np.testing.assert_array_equal, without_key(one), without_key(other))
    _, _, report = after(voided, same, [good, good], 4)
    assert report.applied
    assert np.isfinite(report.gradient_norm)


@pytest.mark.slow
def test_killed_with_passed_states_nothing_differs(tmp_path):
    """The states of the middle of a sequence are those that an unbroken run has."""
    manifests = made_corpus(tmp_path / "corpus")

    def train(folder, when):
        sets = ["--data.train", manifests / "train.jsonl", "--data.validation", manifests / "validation.jsonl"]
        recorded = ["tests.training.recorded", folder.with_suffix(".log"), when]
        command = [*recorded, "--config", "tests/resume_transducer_config.py", *sets, "--run-dir", folder]
        done = finished(*command, devices=2)
        return done.returncode, done.stdout + done.stderr

    code, output = train(tmp_path / "unbroken", "never")
    assert code == 0, output[-3000:]
    for when in ("save:2", "update:1"):
        code, output = train(tmp_path / "killed", when)
        assert code == -signal.SIGKILL, output[-3000:]
    code, output = train(tmp_path / "killed", "never")
    assert code == 0, output[-3000:]
    assert "resumed at update 2" in output
    expected, found = (contents(tmp_path / name, 6) for name in ("unbroken", "killed"))
    assert found.keys() == expected.keys()
    assert any("passed/states" in path for path in found)
    for path, leaf in found.items():
        assert leaf.tobytes() == expected[path].tobytes(), path
    (least,) = (leaf for path, leaf in found.items() if path.endswith("least_wer"))
    assert np.isfinite(least)
    for name in ("unbroken", "killed"):  # the validation after update 2 begins the delay penalty
        steps = [event["data"] for event in read_events(tmp_path / name / "events.jsonl", "train_step")]
        for each in steps:
            assert each["metrics"]["transducer/delay_penalty"] == approx(0.05 if each["update"] > 2 else 0.0)
