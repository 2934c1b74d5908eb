"""Outputs, gradients and moving statistics of the code of Squeezeformer's authors (TensorFlow), from its own weights.

Its Conformer is another order of the same modules, with norms before each: it is put together here.
"""

import json
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from support import GoldenCase, golden_cases, max_abs, relative, report

from asr_jax.core.batch import Frames, length_mask
from asr_jax.core.pytrees import unflatten
from asr_jax.models.squeezeformer import Embedding, Squeezeformer
from asr_jax.nn.conformer import ConformerConvolution, ConformerFeedForward, RelativeAttention
from asr_jax.nn.positions import relative_sinusoids
from asr_jax.nn.squeezeformer_layer import DETAILS, peer_lengths
from asr_jax.pretrained.keymap import Row, export_params, find_params
from asr_jax.pretrained.squeezeformer_keras import CONVOLUTION, MARK, attention_rows, embed_rows, find
from asr_jax.pretrained.squeezeformer_keras import export as export_keras

pytestmark = pytest.mark.golden

# Compile time is most of these tests' time, and what is compiled runs once.
fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
SQUEEZEFORMERS = golden_cases("squeezeformer_tf", "squeezeformer*")
CONFORMERS = golden_cases("squeezeformer_tf", "conformer*")
EPS, MOMENTUM = DETAILS["paper"].eps, DETAILS["paper"].momentum


def part(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def settings_of(config: dict[str, Any], num_mels: int, **changes: Any) -> Squeezeformer:
    """As the authors' code has it, padding and all."""
    (reduce_at,), (recover_at,) = (config.get(f"time_{name}_idx", [None]) for name in ("reduce", "recover"))
    return Squeezeformer(
        num_mels=num_mels,
        dim=config["dmodel"],
        num_layers=config["num_blocks"],
        num_heads=config["num_heads"],
        kernel_size=config["kernel_size"],
        reduce_time=reduce_at is not None,
        reduce_at=reduce_at,
        recover_at=recover_at,
        subsampling="dw_striding" if config["ds_subsample"] else "striding",
        subsampling_channels=config["filters"],
        dropout=0.0,
        norm="batch_padded",
        mask_padding=False,
        **changes,
    )


class PaperConformer(nn.Module):
    """x + ½ feed-forward, x + attention, x + convolution, x + ½ feed-forward, each of norm(x); and a norm."""

    settings: Squeezeformer
    config: Any

    @nn.compact
    def __call__(self, frames: Frames, *, step: Any) -> Any:
        x = Embedding(self.settings, name="embed")(frames.values, frames.lengths, step=step)
        lengths = jnp.minimum(peer_lengths(frames.lengths, self.settings.subsampling_factor), x.shape[1])
        mask = length_mask(lengths, x.shape[1])
        allowed = mask[:, None] & mask[:, :, None]
        positions = jnp.asarray(relative_sinusoids(x.shape[1], self.settings.dim))
        for number in range(self.settings.num_layers):
            for place, kind in enumerate(self.config["fixed_arch"][number], start=1):
                name = f"layer_{number}_{place}"
                y = nn.LayerNorm(epsilon=EPS, name=f"{name}_norm")(x)
                if kind == "f":
                    module = ConformerFeedForward(4 * self.settings.dim, name=name)
                    x += self.config["fc_factor"] * module(y, step=step)
                elif kind == "m":
                    x += RelativeAttention(self.settings.num_heads, name=name)(y, positions, allowed, step=step)
                else:
                    convolution = ConformerConvolution(
                        self.settings.kernel_size,
                        gated=self.config["conv_use_glu"],
                        norm="batch_padded",
                        norm_eps=EPS,
                        norm_momentum=MOMENTUM,
                        norm_ddof=0,
                        name=name,
                    )
                    x += convolution(y, lengths, step=step)
            x = nn.LayerNorm(epsilon=EPS, name=f"layer_{number}_norm")(x)
        return x


def conformer_rows(settings: Squeezeformer, config: dict[str, Any], encoder: str) -> list[Row]:
    rows, attentions = embed_rows(settings, encoder), 0
    for number, kinds in enumerate(config["fixed_arch"]):
        block = f"{encoder}/{encoder}_block_{number}/{encoder}_block_{number}"
        norms = [(f"{block}_ln", f"layer_{number}")]
        for place, kind in enumerate(kinds, start=1):
            start, ours = f"{block}_layer{place}/{encoder}_block_{number}_layer{place}", f"layer_{number}_{place}"
            norms.append((f"{start}_ln", ours))
            if kind == "f":
                rows += [
                    Row(f"{start}_dense_{of}/{name}:0", f"params/encoder/{ours}/{mine}/{name}")
                    for of, mine in ((1, "in"), (2, "out"))
                    for name in ("kernel", "bias")
                ]
            elif kind == "m":
                rows += attention_rows(f"{start}_mhsa/", f"params/encoder/{ours}/", 3 * attentions, None, settings)
                attentions += 1
            else:
                rows += [
                    Row(f"{start}_{name}:0", f"params/encoder/{ours}/{mine}", layout)
                    for name, mine, layout in CONVOLUTION
                ]
                rows += [
                    Row(f"{start}_bn/moving_{of}:0", f"batch_stats/encoder/{ours}/norm/{of}")
                    for of in ("mean", "variance")
                ]
        for theirs, ours in norms:
            for name, mine in (("gamma", "scale"), ("beta", "bias")):
                rows.append(Row(f"{theirs}/{name}:0", f"params/encoder/{ours}_norm/{mine}"))
    return rows


@dataclass(frozen=True)
class Run:
    """What ours gives with the peer's weights."""

    settings: Squeezeformer
    arrays: dict[str, np.ndarray]
    lengths: Any
    evaluated: Any
    trained: Any
    gradients: dict[str, np.ndarray]
    """By the peer's names, as the rest."""
    stats: dict[str, np.ndarray]
    exported: dict[str, np.ndarray]


@cache
def run_case(path: Path) -> Run:
    case = GoldenCase(path, json.loads(path.read_text()))
    arrays, config = case.arrays(), case.info["config"]
    weights, features = part(arrays, "param/"), arrays["input/feat_BTF1"][..., 0]
    settings = settings_of(config, features.shape[-1])
    name = next(name for name in weights if name.endswith(MARK)).split("/")[0]
    if config["adaptive_scale"]:
        assert config["fc_factor"] == 1, "Squeezeformer's modules are added as they are"
        assert config["no_post_ln"]
        assert not config["conv_use_glu"]
        assert all(kinds == ["M", "s", "C", "s"] for kinds in config["fixed_arch"])
        model: nn.Module = settings.build(dtype=jnp.float32)
        found, left = find(weights, settings, ctc_head=None)
        assert left == []
        export = partial(export_keras, settings=settings, ctc_head=None, encoder=name)
    else:
        model, rows = PaperConformer(settings, config), conformer_rows(settings, config, name)
        found = find_params(weights, rows).params
        assert find_params(weights, rows)[1:] == ([], [])

        def export(variables: Any) -> dict[str, np.ndarray]:
            return export_params(variables, rows)

    variables = jax.device_put({group: tree["encoder"] for group, tree in unflatten(found).items()})
    params, stats = variables["params"], {"batch_stats": variables["batch_stats"]}
    frames = Frames(jnp.asarray(features), jnp.asarray(arrays["input/lens"], jnp.int32))

    def forward(params: Any, step: Any) -> Any:
        out, changed = model.apply({"params": params, **stats}, frames, step=step, mutable=["batch_stats"])
        return getattr(getattr(out, "frames", out), "values", out), changed

    def loss(params: Any) -> Any:
        values, changed = forward(params, jnp.int32(0))
        return jnp.sum(values * arrays["train/grad_weights"]), (values, changed)

    evaluated = fast_jit(lambda params: forward(params, None)[0])(params)
    gradients, (trained, changed) = fast_jit(jax.grad(loss, has_aux=True))(params)
    return Run(
        settings,
        arrays,
        settings.build(dtype=jnp.float32).output_length(arrays["input/lens"]),
        evaluated,
        trained,
        export({"params": {"encoder": gradients}}),
        export({"batch_stats": {"encoder": changed["batch_stats"]}}),
        export({group: {"encoder": tree} for group, tree in variables.items()}),
    )


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    return run_case(request.param.path)


@pytest.mark.parametrize("run", SQUEEZEFORMERS + CONFORMERS, indirect=True)
def test_outputs(run: Run, record_property: Any) -> None:
    """Of all frames, padding as well: the peer's gradients are those of all."""
    assert report(record_property, "evaluation", max_abs(run.evaluated, run.arrays["eval/out_BTD"])) < 1e-4
    assert report(record_property, "training", max_abs(run.trained, run.arrays["train/out_BTD"])) < 1e-4


@pytest.mark.parametrize("run", SQUEEZEFORMERS + CONFORMERS, indirect=True)
def test_lengths(run: Run) -> None:
    """The peer masks by lengths that may be greater than there are frames; ours never are."""
    factor = run.settings.subsampling_factor
    np.testing.assert_array_equal(peer_lengths(run.arrays["input/lens"], factor), run.arrays["eval/out_lens"])
    longest = run.arrays["input/feat_BTF1"].shape[1]
    assert run.settings.build(dtype=jnp.float32).output_length(longest) == run.arrays["eval/out_BTD"].shape[1]
    assert (run.lengths <= run.arrays["eval/out_lens"]).all()


@pytest.mark.parametrize("run", SQUEEZEFORMERS + CONFORMERS, indirect=True)
def test_gradients_by_the_peers_names(run: Run, record_property: Any) -> None:
    expected = part(run.arrays, "train_grad/")
    assert run.gradients.keys() == expected.keys()
    # Gradients that are zero but for rounding on both sides (the bias of keys before softmax, any bias right before a
    # batch norm) have no relative accuracy.
    small = 1e-5 * max(float(np.abs(array).max()) for array in expected.values())
    differences = {
        name: relative(run.gradients[name], array)
        for name, array in expected.items()
        if max(np.abs(array).max(), np.abs(run.gradients[name]).max()) > small
    }
    assert len(differences) > 0.8 * len(expected)
    worst = max(differences, key=lambda name: differences[name])
    assert report(record_property, f"gradients, worst ({worst})", differences[worst]) < 1e-3


@pytest.mark.parametrize("run", SQUEEZEFORMERS + CONFORMERS, indirect=True)
def test_moving_statistics_after_an_update(run: Run, record_property: Any) -> None:
    expected = part(run.arrays, "train_buffers_after_1/")
    assert run.stats.keys() == expected.keys()
    worst = max(max_abs(run.stats[name], expected[name]) for name in expected)
    assert report(record_property, "moving statistics", worst) < 1e-4


@pytest.mark.parametrize("run", SQUEEZEFORMERS + CONFORMERS, indirect=True)
def test_export_inverts_import(run: Run) -> None:
    theirs = part(run.arrays, "param/")
    assert run.exported.keys() == theirs.keys()
    for name, array in run.exported.items():
        np.testing.assert_array_equal(array, theirs[name])
