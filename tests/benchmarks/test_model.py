"""The model benchmark: operations are counted correctly, and all figures exist."""

import json

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from asr_jax.config import Experiment
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.programs import products
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.contrastive import Contrastive
from asr_jax.models.base import Model
from asr_jax.text.tokenizers import TokenizerSettings
from benchmarks import model
from benchmarks.stepping import Stepping, largest_operations, readable
from tests.training.test_pretraining_step import HEAD, Hiding

CONFIG = ("--config", "tests/toy_config.py")
SIZES = ("--rows", "2", "--seconds", "1", "--labels", "3", "--vocabulary", "12", "--model.encoder.dim", "10")


def count(function, *arguments, loops=True):
    return products(jax.make_jaxpr(function)(*arguments).jaxpr, loops=loops)


def test_products_are_counted_as_often_as_they_run():
    x, w = jnp.ones((3, 5)), jnp.ones((7, 5, 5))

    def layers(x, w):
        return lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]

    one = 2 * 3 * 5 * 5
    assert count(layers, x, w) == 7 * one
    assert count(layers, x, w, loops=False) == one
    both = jax.grad(lambda x, w: layers(x, w).sum(), argnums=(0, 1))
    assert count(jax.jit(both), x, w) == 7 * 3 * one
    assert count(lambda p, x: lax.cond(p, lambda x: x @ x.T, lambda x: x @ x.T @ x @ x.T, x), True, x) == (
        2 * 3 * 3 * 5 * 2 + 2 * 3 * 3 * 5
    )


@pytest.mark.parametrize("groups", [1, 4])
def test_convolutions_are_counted_by_their_taps_and_channels(groups):
    x, kernel = jnp.ones((2, 10, 4)), jnp.ones((3, 4 // groups, 8))

    def conv(x, kernel):
        return lax.conv_general_dilated(
            x, kernel, (2,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"), feature_group_count=groups
        )

    assert count(conv, x, kernel) == 2 * (2 * 5 * 8) * 3 * (4 // groups)


def test_operations_are_grouped_by_where_they_come_from():
    program = """
  %dot.4 = f32[4,4]{1,0} dot(%a, %b), metadata={op_name="jit(f)/transpose(jvp(Recogniser))/encoder/layers/while/body/dot" x=1}
  ROOT %fusion.2 = f32[4]{0} fusion(%c), kind=kLoop, calls=%d, metadata={op_name="jit(f)/jvp(Recogniser)/encoder/tanh"}
"""  # noqa: E501

    def event(name, us):
        return {"ph": "X", "dur": us, "args": {"hlo_op": name}}

    events = [event("dot.4", 30.0), event("dot.4", 30.0), event("fusion.2", 20.0), event("copy.1", 20.0)]
    events += [event("while.3", 500.0), {"ph": "X", "dur": 900.0}, {"ph": "M", "args": {"hlo_op": "dot.4"}}]
    found = largest_operations(events, program, number=2)
    assert found == [
        {"name": "backward: encoder/layers/dot", "share": 0.6, "calls": 2},
        {"name": "encoder/tanh", "share": 0.2, "calls": 1},
    ]
    assert largest_operations([], program, number=5) == []
    assert readable("copy.1") == "copy"
    assert (
        readable("jit(f)/transpose(jvp(Recogniser))/encoder/stack_3/layers/dot")
        == "backward: encoder/stack_*/layers/dot"
    )


@pytest.mark.slow
def test_a_configs_model(tmp_path, capsys):
    out = tmp_path / "figures" / "model.json"
    model.main([*CONFIG, *SIZES, "--repeats", "2", "--json", str(out)])
    output, figures = capsys.readouterr().out, json.loads(out.read_text())
    assert output.startswith("toy: 2 × 1 s, f32, 1,742 parameters")
    for words in ("forward", "gradient", "update", "step", "products, GFLOP", "copying", "share"):
        assert words in output
    assert figures["cost"]["parameters"] == 160 * 10 + 10 + 10 * 12 + 12
    assert figures["cost"]["memory"] > 0
    # The layer on 50 pairs of frames and the head on its output: the forward pass, and the gradients of both kernels
    # and of the head's input. The sum of the occupancies of labels is one more product, with one-hot rows.
    products = 2 * 50 * (2 * 160 * 10 + 3 * 10 * 12) * 2
    assert products <= figures["cost"]["flops"] < 1.2 * products
    assert {name: len(each) for name, each in figures["times_s"].items()} == dict.fromkeys(
        ("forward", "gradient", "update", "step"), 2
    )
    assert min(figures["rates"].values()) > 0
    assert 1 <= len(figures["operations"]) <= 5
    assert 0 < sum(each["share"] for each in figures["operations"]) <= 1


@pytest.mark.slow
def test_a_model_that_hides_frames_is_timed():
    model = Model(encoder=Hiding(every=True), heads={"pretrain": Contrastive(**HEAD)})
    of_audio = Data(train=("x",), tokenizer=TokenizerSettings(kind="none"))
    experiment = Experiment(name="x", model=model, data=of_audio)
    stepping = Stepping(experiment, rows=1, seconds=0.2, labels=3, vocabulary=5)
    assert {name: len(each) for name, each in stepping.times(1).items()} == dict.fromkeys(
        ("forward", "gradient", "update", "step"), 1
    )
    assert stepping.cost()["parameters"] > 160 * 8


@pytest.mark.slow
def test_another_model_is_not_timed_as_the_same(monkeypatch, tmp_path):
    theirs = {"parameters": 6_000_000, "forward_s": [1.0], "step_s": [2.0]}
    reference = tmp_path / "python"
    reference.write_text(f"#!/bin/sh\necho '{json.dumps(theirs)}'\n")
    reference.chmod(0o755)
    monkeypatch.setattr(model, "REFERENCE", reference)
    monkeypatch.setattr(model, "PEERS", {"Toy": "icefall"})
    monkeypatch.setattr(model, "OF_ZIPFORMER", ("dim",))
    with pytest.raises(RunError, match=r"1,742 .*6,000,000"):
        model.main((*CONFIG, *SIZES, "--repeats", "1", "--peer"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((*CONFIG, "--rows", "0"), "--rows 0"),
        ((*CONFIG, "--peer"), "Toy .* Zipformer"),
        (("--config", "configs/zipformer.py", "--peer"), r"scripts/setup_reference.sh --peers"),
        (("--rows", "2"), "--config is missing"),
    ],
)
def test_what_cannot_be_measured(arguments, message, monkeypatch, tmp_path):
    monkeypatch.setattr(model, "REFERENCE", tmp_path / "python")
    monkeypatch.setattr(model.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=message):
        model.main(arguments)
