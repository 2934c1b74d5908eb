"""Training programs on several devices: the updates of one device, and one sum of gradients over the devices."""

import functools
from dataclasses import replace

import jax
import numpy as np
import pytest

from asr_jax.audio.distort import Babble
from asr_jax.audio.presets import rust_squeezeformer
from asr_jax.audio.specaugment import SpecAugment
from asr_jax.core.errors import UserError
from asr_jax.core.hlo import Module
from asr_jax.core.meshes import data_mesh, global_batch, mesh_of, replicated
from asr_jax.core.pytrees import num_bytes
from asr_jax.core.sharding import Sharding
from asr_jax.data.batching.buckets import Bucket, Scale
from asr_jax.heads.contrastive import Contrastive
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.heads.paraformer_v2 import Enhancement, ParaformerV2
from asr_jax.heads.transducer import Transducer
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.decoders.cif import CIF
from asr_jax.nn.decoders.parallel_decoder import SANMDecoder, TransformerDecoder
from asr_jax.nn.recurrent.prediction import LSTMPrediction
from asr_jax.nn.recurrent.state_passing import StatePassing
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.training import programs
from asr_jax.training.initial_state import abstract_state, initial_state, lower_initial_state
from asr_jax.training.programs import StepPrograms, compile_steps
from asr_jax.training.recipe import Recipe
from tests.support import approx, assert_close, assert_trees_close
from tests.training.test_pretraining_step import HEAD, Hiding
from tests.training.toy import joined, toy_batch, toy_model

SCALE = Scale(16000, 160, 80)
BUCKET = Bucket(6400, 3, 8, 6400)
MASKS = SpecAugment(max_time_frames=5)
ZIPFORMER = Zipformer(
    downsampling=(1, 2), dims=(32, 64), num_layers=(1, 1), unmasked_dims=(16, 24), num_heads=(2, 2), query_dims=(8, 8),
    value_dims=(6, 6), position_dims=(4, 4), feedforward_dims=(32, 64), kernel_sizes=(5, 5), positions_dim=8,
    embed_channels=(2, 4, 8),
)  # fmt: skip
LSTM = LSTMEncoder(num_mels=80, dim=12, layers_before=1, layers_after=1, dropout=0.1)
RNNT = Transducer(prediction=LSTMPrediction(8, num_layers=1, dropout=0.2), joint_dim=12, dropout=0.3)
CONTRASTIVE = Contrastive(**HEAD, diversity=0.1, penalty=10.0, across_negatives=2, codebook_negatives=2)
DECODER = SANMDecoder(num_layers=2, num_attention_layers=1, num_heads=2, feedforward_dim=12, kernel_size=3, dropout=0.2)
PARAFORMER = Paraformer(predictor=CIF(kind="depthwise", dropout=0.2), decoder=DECODER, sampling=1.0)
CONFORMER = Conformer.paraformer(
    "small", dim=24, num_layers=2, num_heads=2, feedforward_dim=32, kernel_size=5, taps=("layer_0",)
)
ALIGNED = {
    "paraformer": ParaformerV2(
        decoder=TransformerDecoder(num_layers=2, num_heads=2, feedforward_dim=12), enhanced=Enhancement(tap="layer_0")
    ),
    "ctc": CTC(dropout=0.0),
    "shallow": CTC(dropout=0.0, tap="layer_0", scale=0.3),
}
"""Heads of configs/paraformer_rust.py with ENHANCED=1."""
MODELS = {
    "batch norm and babble": replace(toy_model(norm=True, dropout=0.1), augment=(Babble(probability=1.0), MASKS)),
    "regularisers": Model(encoder=ZIPFORMER, heads={"ctc": CTC()}, augment=()),
    "passed states": Model(encoder=LSTM, heads={"ctc": RNNT}, augment=()),
    "micro-batches": Model(encoder=Hiding(), heads={"ctc": CONTRASTIVE}, augment=(), sub_batches=2),
    "parallel decoder": replace(toy_model(dropout=0.1), heads={"ctc": PARAFORMER}),
    "decoder of aligned labels": Model(
        front_end=rust_squeezeformer(), encoder=CONFORMER, heads=ALIGNED, augment=(), primary="paraformer"
    ),
}


def recipe_of(name):
    model = MODELS[name].build(vocab_size=6, blank_id=5, precision="f32")
    passing = StatePassing((0.0, 0.0, 1.0)) if name == "passed states" else StatePassing()
    scales = {name: head.scale for name, head in MODELS[name].heads.items()}
    return Recipe(model, scales, AdamW().build(RunLength(100, 10)), passing=passing, most_rows=8)


def updates(recipe, mesh):
    """State and reports of two updates of two batches."""
    lowered = lower_initial_state(recipe, seed=0)
    shapes = abstract_state(lowered, mesh, recipe.sharding)
    steps = compile_steps(recipe, [BUCKET], shapes, scale=SCALE, mesh=mesh, num_batches=2)
    state, average = initial_state(lowered.compile(), mesh, recipe.sharding)
    reports = []
    for number in range(2):
        batches = [joined(toy_batch(seed=4 * number + k), toy_batch(seed=4 * number + k + 2)) for k in range(2)]
        batches = [each.replace(utterances=np.arange(8, dtype=np.int32) + 9 * number) for each in batches]
        parts = [(BUCKET, global_batch(each, mesh), np.int32(2 * number + k)) for k, each in enumerate(batches)]
        state, average, report = steps.apply_update(state, average, steps.accumulate(state, parts))
        reports.append(jax.device_get(report))
    for leaf, shape in zip(jax.tree.leaves((state, average)), jax.tree.leaves(shapes), strict=True):
        assert leaf.sharding.is_equivalent_to(shape.sharding, leaf.ndim)
    return jax.device_get(state), reports


FAST = "batch norm and babble"
MESHES = {
    "4 × data": {},
    "2 × data, 2 × fsdp": {"fsdp": 2},
    "4 × fsdp": {"fsdp": 4},
    "2 × fsdp, 2 × model": {"fsdp": 2, "model": 2},
    "4 × model": {"model": 4},
}
FAST_MESH = "2 × fsdp, 2 × model"


@functools.cache
def updates_of_one_device(name):
    return updates(recipe_of(name), data_mesh(1))


WITHOUT_RULES = ("passed states", "micro-batches", "parallel decoder")
"""Models in which the test's rules spread no layer over the axis model."""
OF_ONE_MESH = {"decoder of aligned labels": "2 × data, 2 × fsdp"}
"""Models whose compilation takes minutes."""
CASES = [
    pytest.param(name, sizes, marks=() if name == FAST and sizes == FAST_MESH else pytest.mark.slow)
    for name in MODELS for sizes in MESHES
    if not ("model" in MESHES[sizes] and name in WITHOUT_RULES) and OF_ONE_MESH.get(name, sizes) == sizes
]  # fmt: skip


@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_four_devices_compute_the_updates_of_one(name, sizes):
    sharding = Sharding(((r"encoder/(hidden|embed)/(kernel|bias)", -1), (r".*/in/(kernel|bias)", -1)), min_sharded=100)
    recipe, mesh = replace(recipe_of(name), sharding=sharding), mesh_of(jax.devices()[:4], **MESHES[sizes])
    (state, reports), (expected, others) = updates(recipe, mesh), updates_of_one_device(name)
    for found, other in zip(reports, others, strict=True):
        assert found.applied
        assert_close(found.gradient_norm, other.gradient_norm, rtol=1e-5)
        for term in other.sums:
            assert_close(found.sums[term].weight, other.sums[term].weight, rtol=1e-5, what=term)
            assert_close(found.sums[term].mean(), other.sums[term].mean(), rtol=1e-5, what=term)
    for tree, of_one in ((state.batch_stats, expected.batch_stats), (state.passed, expected.passed)):
        assert_trees_close(tree, of_one, 1e-5)


@pytest.mark.slow
def test_gradients_are_summed_over_the_devices_once_per_update():
    recipe, mesh = recipe_of("passed states"), data_mesh(4)
    shapes = abstract_state(lower_initial_state(recipe, seed=0), mesh)
    step = StepPrograms(recipe, shapes, mesh, SCALE, num_batches=2)
    gradient = step.gradient(BUCKET)
    accumulated = step.accumulated(gradient)
    size = num_bytes(shapes.state.params)
    of_gradient = Module(gradient.compile().as_text()).collectives()
    assert sum(moved for _, moved in of_gradient.values()) < 0.1 * size  # sums of losses, and passed states
    of_sum = Module(step.added(accumulated).compile().as_text()).collectives()
    assert sum(moved for _, moved in of_sum.values()) < 0.01 * size  # norms
    of_update = Module(step.update(accumulated).compile().as_text()).collectives()
    assert set(of_update) == {"all-reduce"}
    assert of_update["all-reduce"][1] == approx(size, rel=0.01)
    assert {each.sharding for each in jax.tree.leaves(accumulated.sums)} == {replicated(mesh)}


@pytest.mark.slow
def test_a_batch_that_exceeds_the_memory_of_the_machine_is_refused(monkeypatch):
    monkeypatch.setattr(programs, "available_bytes", lambda: 200_000)
    message = r"the batch of 8 × 0.4 s needs 0.\d+ GB with the training state, and a device has 0.0002 GB; "
    with pytest.raises(UserError, match=message):
        updates(recipe_of(FAST), data_mesh(1))
