"""Outputs, gradients and moving statistics of the Squeezeformer authors' code (TensorFlow), from its own weights.

Its encoder has options that our Squeezeformer lacks: any order of modules, norms instead of scales before them, other
factors, several reductions of the frame rate. Cases with such options are computed by `PaperEncoder`, which combines
our modules.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from support import (
    GoldenCase,
    assert_gradients,
    assert_outputs,
    cases_in,
    fast_jit,
    golden_cases,
    part,
    slow_after_first,
)

from asr_jax.core.batch import Frames, length_mask
from asr_jax.core.pytrees import unflatten
from asr_jax.models.squeezeformer import Embedding, Squeezeformer
from asr_jax.nn.conformer.modules import ConformerConvolution, ConformerFeedForward, RelativeAttention
from asr_jax.nn.conformer.squeezeformer import DETAILS, RecoverTime, ReduceTime, ScaleBias, peer_lengths
from asr_jax.nn.positions import relative_sinusoids
from asr_jax.pretrained.keymap import Row, export_params, find_params
from asr_jax.pretrained.squeezeformer_keras import (
    CONVOLUTION,
    ENCODER,
    KERAS,
    REDUCTION,
    attention_rows,
    embed_rows,
    keras_rows,
    readable_names,
)

pytestmark = pytest.mark.golden

CASES = slow_after_first(golden_cases("squeezeformer_tf", "*") + cases_in(Path(__file__).parent / "squeezeformer_tf"))
PAPER = DETAILS["paper"]
DEFAULTS = {
    "kernel_size": 31, "fc_factor": 0.5, "fixed_arch": None, "conv_use_glu": False, "time_reduce_idx": None,
    "time_recover_idx": None, "no_post_ln": False, "ds_subsample": False, "adaptive_scale": False,
}  # fmt: skip
"""Defaults of the authors' code."""
CONFORMER, SQUEEZEFORMER = ["m", "f", "c", "f"], ["M", "s", "C", "s"]
"""Modules of a block. m: attention, f: feed-forward, c: convolution; M, C: attention or convolution, followed by a
norm, a feed-forward and a norm; s: none."""


def orders(config: dict[str, Any]) -> list[list[str]]:
    """Returns the modules of each block."""
    return config["fixed_arch"] or [CONFORMER] * config["num_blocks"]


def rates(config: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Returns the blocks before which the frame rate is halved, and those before which it is recovered."""
    reduce_at, recover_at = (config[f"time_{name}_idx"] or [] for name in ("reduce", "recover"))
    return list(reduce_at), list(recover_at)


def settings_of(config: dict[str, Any], num_mels: int, **changes: Any) -> Squeezeformer:
    """Returns sizes of an encoder that treats padding as the authors' code does."""
    return Squeezeformer(
        num_mels=num_mels,
        dim=config["dmodel"],
        num_layers=config["num_blocks"],
        num_heads=config["num_heads"],
        subsampling="dw_striding" if config["ds_subsample"] else "striding",
        subsampling_channels=config["filters"],
        dropout=0.0,
        norm="batch_padded",
        mask_padding=False,
        **changes,
    )


def squeezeformer_of(config: dict[str, Any], num_mels: int) -> Squeezeformer | None:
    """Returns our Squeezeformer with the options of a case; None if it lacks one of them."""
    reduce_at, recover_at = rates(config)
    options = config["adaptive_scale"], config["no_post_ln"], config["fc_factor"]
    if options != (True, True, 1) or any(kinds != SQUEEZEFORMER for kinds in orders(config)):
        return None
    if (len(reduce_at), len(recover_at)) not in ((0, 0), (1, 1)) or config["kernel_size"] % 2 == 0:
        return None
    changed = {"reduce_at": reduce_at[0], "recover_at": recover_at[0]} if reduce_at else {"reduce_time": False}
    changed |= {"kernel_size": config["kernel_size"], "gated_convolution": config["conv_use_glu"]}
    return settings_of(config, num_mels, **changed)


class Part(NamedTuple):
    """A module with its residual connection, or a norm."""

    kind: str
    """Kind: f, m, c or norm."""
    path: str
    """Prefix of the authors' names of the module's weights."""

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


def parts_of(config: dict[str, Any], encoder: str) -> list[list[Part]]:
    """Returns the parts of each block; `encoder` is the authors' name of the encoder."""
    blocks = []
    for number, kinds in enumerate(orders(config)):
        block, parts = f"{encoder}/{encoder}_block_{number}/{encoder}_block_{number}", []
        for place, kind in enumerate(kinds, start=1):
            path = f"{block}_layer{place}"
            inner = f"{path}/{path.rsplit('/', 1)[-1]}"
            if kind in "fmc":
                parts.append(Part(kind, path))
            elif kind in "MC":
                name = {"M": "mhsa", "C": "conv"}[kind]
                parts += [Part(kind.lower(), f"{inner}_{name}"), Part("norm", f"{inner}_ln_mid")]
                parts += [Part("f", f"{inner}_ff"), Part("norm", f"{inner}_ln")]
            elif kind != "s":
                pytest.skip(f"fixed_arch has {kind!r}: expected f, m, c, M, C or s, as the authors' code has")
        blocks.append(parts if config["no_post_ln"] else [*parts, Part("norm", f"{block}_ln")])
    return blocks


class PaperEncoder(nn.Module):
    """The authors' `ConformerEncoder` with any options.

    It is a sequence of x + factor · module(norm(x) or x · scale + bias) and norms, with some blocks at lower frame
    rates.
    """

    settings: Squeezeformer
    config: Any
    blocks: Any
    """Output of `parts_of`."""

    @nn.compact
    def __call__(self, frames: Frames, *, step: Any) -> Any:
        reduce_at, recover_at = rates(self.config)
        x = Embedding(self.settings, name="embed")(frames.values, frames.lengths, step=step)
        lengths = jnp.minimum(peer_lengths(frames.lengths, self.settings.subsampling_factor), x.shape[1])
        reductions: dict[int, Any] = {}
        recoveries: dict[int, Any] = {}
        kept: list[Any] = []
        depth = 0
        for number, parts in enumerate(self.blocks):
            if number in reduce_at:
                kept.append((x, lengths))
                if depth not in reductions:
                    reductions[depth] = ReduceTime(PAPER, mask_padding=False, name=f"reduce_{depth}")
                x, lengths, depth = reductions[depth](x, lengths), (lengths + 1) // 2, depth + 1
            if number in recover_at:
                # Layers are shared by depth: a later reduction is recovered with the frames before the first reduction.
                depth -= 1
                before, lengths = kept[depth]
                if depth not in recoveries:
                    recoveries[depth] = RecoverTime(name=f"recover_{depth}")
                x = recoveries[depth](x, before)
            for each in parts:
                x = self._norm(each.name)(x) if each.kind == "norm" else self._added(each, x, lengths, step)
        return x

    def _norm(self, name: str) -> nn.Module:
        return nn.LayerNorm(epsilon=PAPER.eps, name=name)

    def _added(self, each: Part, x: Any, lengths: Any, step: Any) -> Any:
        config, name = self.config, each.name
        y = (ScaleBias(name=f"{name}_scale") if config["adaptive_scale"] else self._norm(f"{name}_ln"))(x)
        if each.kind == "f":
            return x + config["fc_factor"] * ConformerFeedForward(4 * x.shape[-1], name=name)(y, step=step)
        if each.kind == "m":
            mask = length_mask(lengths, x.shape[1])
            positions = jnp.asarray(relative_sinusoids(x.shape[1], x.shape[2]))
            attention = RelativeAttention(config["num_heads"], name=name)
            return x + attention(y, positions, mask[:, None] & mask[:, :, None], step=step)
        convolution = ConformerConvolution(
            config["kernel_size"], gated=config["conv_use_glu"], norm="batch_padded", norm_eps=PAPER.eps,
            norm_momentum=PAPER.momentum, norm_ddof=PAPER.ddof, name=name,
        )  # fmt: skip
        return x + convolution(y, lengths, step=step)


def rows_of(settings: Squeezeformer, config: dict[str, Any], encoder: str) -> list[Row]:
    """Returns the authors' names of all weights of `PaperEncoder`."""
    rows, (depth, unnamed) = embed_rows(settings, encoder), depths(config)
    for number in range(depth):
        theirs, ours = f"{encoder}/{encoder}_timereduce/{encoder}_timereduce", f"encoder/reduce_{number}"
        rows += keras_rows(REDUCTION, f"{theirs}_", ours)
    for number in range(unnamed):
        dense = f"dense_{number}" if number else "dense"
        rows += [
            Row(f"{encoder}/{dense}/{of}:0", f"params/encoder/recover_{number}/project/{of}")
            for of in ("kernel", "bias")
        ]
    for each in (each for parts in parts_of(config, encoder) for each in parts):
        ours, start = f"params/encoder/{each.name}", f"{each.path}/{each.name}"
        norm, name = (each.path, each.name) if each.kind == "norm" else (f"{start}_ln", f"{each.name}_ln")
        if each.kind == "norm" or not config["adaptive_scale"]:
            rows += [
                Row(f"{norm}/{theirs}:0", f"params/encoder/{name}/{mine}")
                for theirs, mine in (("gamma", "scale"), ("beta", "bias"))
            ]
        else:
            rows += [Row(f"{each.name}_{of}:0", f"{ours}_scale/{of}") for of in ("scale", "bias")]
        if each.kind == "f":
            rows += [
                Row(f"{start}_dense_{of}/{name}:0", f"{ours}/{mine}/{name}")
                for of, mine in ((1, "in"), (2, "out"))
                for name in ("kernel", "bias")
            ]
        if each.kind == "m":
            rows += attention_rows(f"{start}_mhsa/", f"encoder/{each.name}", unnamed, None, settings)
            unnamed += 3
        if each.kind == "c":
            rows += keras_rows(CONVOLUTION, f"{start}_", f"encoder/{each.name}")
    return rows


def depths(config: dict[str, Any]) -> tuple[int, int]:
    """Returns the numbers of different layers that reduce and recover the frame rate; they are shared by depth."""
    (reduce_at, recover_at), depth, deepest = rates(config), 0, 0
    for number in range(config["num_blocks"]):
        depth += number in reduce_at
        deepest = max(deepest, depth)
        depth -= number in recover_at
    return deepest, deepest if recover_at else 0


@dataclass(frozen=True)
class Run:
    """Our encoder with the reference's weights, and its outputs."""

    settings: Squeezeformer
    config: dict[str, Any]
    arrays: dict[str, np.ndarray]
    evaluated: Any
    trained: Any
    gradients: dict[str, np.ndarray]
    """Gradients by the reference's names, as `stats` and `exported`."""
    stats: dict[str, np.ndarray]
    exported: dict[str, np.ndarray]


def skip_what_is_not_computed(config: dict[str, Any]) -> None:
    heads, dim = config["num_heads"], config["dmodel"]
    if (size := config.get("head_size", dim // heads)) * heads != dim:
        pytest.skip(
            f"head_size is {size} and num_heads {heads}: our attention requires dmodel / num_heads = {dim // heads}"
        )
    depth, _ = depths(config)
    if depth > 1:
        pytest.skip(f"time_reduce_idx is {rates(config)[0]}: the weights of {depth} layers have the same names")
    if config.get("mha_type", "relmha") != "relmha":
        pytest.skip(
            f"mha_type is {config['mha_type']}, expected relmha: the authors' code adds 2T - 1 positions to T frames"
        )


def model_of(config: dict[str, Any], num_mels: int, weights: Any) -> tuple[Squeezeformer, Any, Any, Callable[..., Any]]:
    """Returns settings, a model, its variables by our paths, and a function that exports them."""
    encoder, names = readable_names(weights)
    if settings := squeezeformer_of(config, num_mels):
        found, left = KERAS.find(weights, settings)
        assert left == []
        names = {old: new.replace(encoder, ENCODER) for old, new in names.items()}
        back: Callable[..., Any] = partial(KERAS.export, encoder=settings)
        model: Any = settings.build(dtype=jnp.float32)
    else:
        settings = settings_of(config, num_mels, reduce_time=False)
        rows = rows_of(settings, config, encoder)
        renamed = find_params({names[name]: array for name, array in weights.items()}, rows)
        assert renamed[1:] == ([], [])
        found, back = renamed.params, partial(export_params, rows=rows)
        model = PaperEncoder(settings, config, parts_of(config, encoder))
    originals = {new: old for old, new in names.items()}
    return settings, model, found, lambda trees: {originals[name]: array for name, array in back(trees).items()}


@cache
def run_case(path: Path) -> Run:
    case = GoldenCase(path, json.loads(path.read_text(encoding="utf-8")))
    arrays, config = case.arrays(), DEFAULTS | case.info["config"]
    skip_what_is_not_computed(config)
    features = arrays["input/feat_BTF1"][..., 0]
    settings, model, found, export = model_of(config, features.shape[-1], part(arrays, "param/"))
    variables = {group: tree["encoder"] for group, tree in unflatten(found).items()}
    frames = Frames(jnp.asarray(features), jnp.asarray(arrays["input/lens"], jnp.int32))

    def forward(params: Any, stats: Any, step: Any) -> Any:
        out, changed = model.apply({"params": params, "batch_stats": stats}, frames, step=step, mutable=["batch_stats"])
        return getattr(getattr(out, "frames", out), "values", out), changed.get("batch_stats", {})

    @fast_jit
    def program(params: Any, stats: Any, weights: Any) -> Any:
        def loss(params: Any) -> Any:
            values, changed = forward(params, stats, jnp.int32(0))
            return jnp.sum(values * weights), (values, changed)

        return forward(params, stats, None)[0], jax.grad(loss, has_aux=True)(params)

    given = variables["params"], variables.get("batch_stats", {}), arrays["train/grad_weights"]
    evaluated, (gradients, (trained, changed)) = jax.device_get(program(*given))
    return Run(
        settings, config, arrays, evaluated, trained, export({"params": {"encoder": gradients}}),
        export({"batch_stats": {"encoder": changed}}), export({name: {"encoder": v} for name, v in variables.items()}),
    )  # fmt: skip


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    return run_case(request.param.path)


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_outputs(run: Run) -> None:
    """Compares all frames including padding, because the reference's gradients include it."""
    assert_outputs(run.evaluated, run.arrays["eval/out_BTD"], what="evaluation")
    assert_outputs(run.trained, run.arrays["train/out_BTD"], what="training")


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_lengths(run: Run) -> None:
    """The reference's lengths may exceed the number of frames; ours never do."""
    theirs, lengths = run.arrays["eval/out_lens"], run.arrays["input/lens"]
    expected, encoder = peer_lengths(lengths, run.settings.subsampling_factor), run.settings.build(dtype=jnp.float32)
    longest = encoder.output_length(run.arrays["input/feat_BTF1"].shape[1])
    if not_recovered := len(rates(run.config)[0]) - len(rates(run.config)[1]):
        halvings = 2**not_recovered
        longest = -(-longest // halvings)
        if not np.array_equal(theirs, expected):  # lengths may be those before the reduction
            expected = -(-expected // halvings)
    else:
        assert (encoder.output_length(lengths) <= theirs).all()
    np.testing.assert_array_equal(expected, theirs)
    assert run.evaluated.shape[1] == longest == run.arrays["eval/out_BTD"].shape[1]


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_gradients_by_the_peers_names(run: Run) -> None:
    expected = part(run.arrays, "train_grad/")
    assert run.gradients.keys() == expected.keys()
    biases = {name for name in expected if re.search(r"(?<!timereduce)_dw_conv/bias:0$", name)}
    assert_gradients(run.gradients, expected, before_norm=biases)


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_moving_statistics_after_an_update(run: Run) -> None:
    expected = part(run.arrays, "train_buffers_after_1/")
    assert run.stats.keys() == expected.keys()
    for name, array in expected.items():
        assert_outputs(run.stats[name], array, what=name)


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_export_inverts_import(run: Run) -> None:
    theirs = part(run.arrays, "param/")
    assert run.exported.keys() == theirs.keys()
    for name, array in run.exported.items():
        np.testing.assert_array_equal(array, theirs[name])
