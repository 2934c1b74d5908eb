"""Zipformer: the suite of all encoders, published sizes, and effects of the settings."""

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from encoder_suite import EncoderSuite, Made, assert_refused
from support import assert_within, fast_jit, max_abs

from asr_jax.cli.command_line import load_config
from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.pytrees import flatten, num_elements
from asr_jax.models.encoder import Context, Encoder
from asr_jax.models.zipformer import PER_STACK, Zipformer
from asr_jax.nn.remat import Remat

TINY = Zipformer(
    num_mels=16,
    embed_channels=(2, 3, 4),
    downsampling=(1, 2),
    dims=(12, 16),
    num_layers=(1, 2),
    unmasked_dims=(8, 12),
    num_heads=(2, 4),
    query_dims=(4, 4),
    value_dims=(4, 4),
    position_dims=(2, 2),
    feedforward_dims=(16, 24),
    kernel_sizes=(5, 3),
    positions_dim=8,
    dropout_start=0.0,
    dropout_end=0.0,
    regularise=False,  # shortens compilation; see test_regularisers_act_on_gradients_alone
)
ONE_STACK = replace(TINY, **{name: (getattr(TINY, name)[1],) for name in (*PER_STACK, "unmasked_dims")})


@pytest.mark.slow  # tests/goldens/test_icefall_zipformer.py compares outputs and gradients
class TestZipformer(EncoderSuite):
    """One stack at half the frame rate. tests/goldens/test_icefall_zipformer.py has several, with several layers."""

    settings = replace(ONE_STACK, num_layers=(1,), taps=("embed", "stack_0"))
    num_features = TINY.num_mels

    def test_evaluation_draws_nothing_and_training_does(self, made: Made) -> None:
        zeros = np.zeros(self.shapes(made).frames.values.shape, np.float32)
        losses = {
            float(made.gradients(made.params, self.frames(), zeros, jax.random.key(seed), np.int32(0))[0])
            for seed in range(3)
        }
        assert len(losses) == 3
        made.forward(made.params, self.frames())  # without random streams; a draw would raise an error

    def test_taps_are_inner_frames_at_the_rate_of_the_embedding(self, made: Made) -> None:
        shapes = {name: tap.values.shape for name, tap in self.shapes(made).taps.items()}
        assert shapes == {"embed": (4, 20, 16), "stack_0": (4, 20, 16)}
        numbers = np.arange(self.bigger_bucket)
        lengths = made.encoder.tap_lengths(numbers)
        assert lengths.keys() == shapes.keys()
        for of_tap in lengths.values():
            np.testing.assert_array_equal(-(-of_tap // 2), made.encoder.output_length(numbers))
            np.testing.assert_array_equal(of_tap[list(self.lengths)], [20, 12, 0, 16])

    def test_training_without_anything_random_is_evaluation(self, made: Made) -> None:
        encoder, rngs = replace(self.settings, skip=False).build(dtype=jnp.float32), {"dropout": jax.random.key(0)}
        train = fast_jit(lambda p, f: encoder.apply({"params": p}, f, step=jnp.int32(0), rngs=rngs).frames)
        expected = made.forward(made.params, self.frames())
        assert_within(max_abs(train(made.params, self.frames()).values, expected.values), 1e-5)


@pytest.mark.slow
class TestCausalZipformer(EncoderSuite):
    """One stack whose attention and convolutions are computed in chunks, which training draws."""

    settings = replace(ONE_STACK, num_layers=(1,), causal=True, contexts=(Context(4, 8), Context(8), Context()))
    num_features = TINY.num_mels


@cache
def regularised(*, remat: Remat) -> tuple[Any, Any]:
    """Returns parameters, and a function of the two random streams: loss and gradients with regularisers and skips."""
    encoder = replace(ONE_STACK, regularise=True, remat=remat).build(dtype=jnp.float32)
    values = np.random.default_rng(0).normal(size=(2, 32, 16)).astype(np.float32)
    frames = jax.device_put(Frames(values, np.array([32, 20])))

    def loss(params: Any, dropout: Any, regularise: Any) -> Any:
        rngs = {"dropout": dropout, "regularise": regularise}
        return jnp.sum(encoder.apply(params, frames, step=jnp.int32(0), rngs=rngs).frames.values ** 2)

    return drawn(encoder, frames), fast_jit(jax.value_and_grad(loss))


@pytest.mark.slow
def test_regularisers_act_on_gradients_alone() -> None:
    params, run = regularised(remat="none")
    keys = jax.random.split(jax.random.key(0), 3)
    loss, gradients = jax.device_get(run(params, keys[0], keys[1]))
    other_loss, other_gradients = jax.device_get(run(params, keys[0], keys[2]))
    assert loss == other_loss
    differing = 0
    for path, leaf in flatten(gradients).items():
        assert np.isfinite(leaf).all(), path
        differing += bool((leaf != flatten(other_gradients)[path]).any())
    assert differing > 20


@pytest.mark.slow
@pytest.mark.parametrize("remat", ["elementwise", "products", "layers"])
def test_remat_gives_the_same_gradients(remat: Remat) -> None:
    keys = jax.random.split(jax.random.key(0))
    (params, run), (_, run_again) = regularised(remat="none"), regularised(remat=remat)
    plain, again = (flatten(function(params, *keys)[1]) for function in (run, run_again))
    # Gradients of attention weights are 1e-5 of the largest one: sums of larger terms, with their rounding.
    rounding = 1e-9 * max(float(jnp.abs(leaf).max()) for leaf in plain.values())
    for path, leaf in plain.items():
        assert_within(max_abs(again[path], leaf), 1e-4 * float(jnp.abs(leaf).max()) + rounding, what=path)


def drawn(encoder: Encoder, frames: Frames) -> Any:
    shapes = jax.eval_shape(partial(encoder.init, step=None), jax.random.key(0), frames)
    rng = np.random.default_rng(0)
    return jax.device_put(jax.tree.map(lambda leaf: rng.normal(0, 0.2, leaf.shape).astype(np.float32), shapes))


def by_hand(settings: Zipformer) -> int:
    """Parameters of an encoder, counted from its widths alone."""

    def linear(inputs: int, outputs: int) -> int:
        return inputs * outputs + outputs

    (first, second, third), bins = settings.embed_channels, ((settings.num_mels - 1) // 2 - 1) // 2
    convolutions = linear(9, first) + linear(9 * first, second) + linear(9 * second, third)
    convnext = linear(49, third) + linear(third, 3 * third) + linear(3 * third, third)
    total = convolutions + convnext + linear(bins * third, settings.dims[0]) + settings.dims[0] + 1
    columns = (*(getattr(settings, name) for name in PER_STACK),)
    for sizes in (dict(zip(PER_STACK, values, strict=True)) for values in zip(*columns, strict=True)):
        width, heads, hidden, inner = (
            sizes["dims"],
            sizes["num_heads"],
            sizes["feedforward_dims"],
            sizes["dims"] * 3 // 4,
        )
        per_head = 2 * sizes["query_dims"] + sizes["position_dims"]
        layer = linear(width, heads * per_head) + settings.positions_dim * heads * sizes["position_dims"]
        layer += sum(linear(width, part) + linear(part, width) for part in (hidden * 3 // 4, hidden, hidden * 5 // 4))
        layer += linear(width, 3 * inner) + linear(inner, width)
        layer += 2 * (linear(width, heads * sizes["value_dims"]) + linear(heads * sizes["value_dims"], width))
        layer += 2 * (linear(width, 2 * width) + linear(sizes["kernel_sizes"], width) + linear(width, width))
        total += sizes["num_layers"] * (layer + width + 1 + 2 * width)  # and a norm and two bypasses
        factor = sizes["downsampling"]
        total += factor + width if factor > 1 else 0
    return total + settings.output_downsampling


def test_parameters_are_those_counted_by_hand() -> None:
    encoder, frames = TINY.build(dtype=jnp.float32), Frames(np.zeros((1, 20, 16), np.float32), np.array([20]))
    shapes = jax.eval_shape(partial(encoder.init, step=None), jax.random.key(0), frames)
    assert num_elements(shapes["params"]) == by_hand(TINY)


@pytest.mark.parametrize(("size", "published"), [("small", 22118279), ("medium", 64250603), ("large", 147010094)])
def test_published_sizes(size: str, published: int) -> None:
    """icefall's RESULTS.md (CR-CTC) counts a CTC head of 500 labels and an unused scale per layer."""
    settings = getattr(Zipformer, size)()
    unused = sum(width * layers for width, layers in zip(settings.dims, settings.num_layers, strict=True))
    assert by_hand(settings) + 500 * (max(settings.dims) + 1) + unused == published


@pytest.mark.parametrize(("size", "published"), [("small", 23285615), ("medium", 65549011), ("large", 148439574)])
def test_published_sizes_with_a_transducer(size: str, published: int) -> None:
    """Those of icefall's RESULTS.md, which count an unused scale per layer."""
    experiment = load_config(str(Path(__file__).parents[2] / "configs" / "zipformer_transducer.py"))
    settings, vocab_size = getattr(Zipformer, size)(), experiment.data.tokenizer.vocab_size
    head = experiment.model.heads["transducer"].build(vocab_size=vocab_size, blank_id=0, dtype=jnp.float32)
    frames = Frames(np.zeros((1, 3, max(settings.dims)), np.float32), np.array([3], np.int32))
    rows = np.zeros((1, 2), np.int32)
    batch = Batch(None, frames.values, frames.lengths, rows, rows[:, 0], np.ones(1, np.float32), rows[:, 0])
    shapes = jax.eval_shape(partial(head.init, step=None), jax.random.key(0), Encoded(frames), batch)
    unused = sum(width * layers for width, layers in zip(settings.dims, settings.num_layers, strict=True))
    assert by_hand(settings) + num_elements(shapes["params"]) + unused == published


def test_variants_by_the_rust_trainers_names() -> None:
    names = {"xs": Zipformer.xs(), "s": Zipformer.small(), "sm": Zipformer(), "m": Zipformer()}
    names |= {"ml": Zipformer.large(), "l": Zipformer.large()}
    assert {name: Zipformer.variant(name) for name in names} == names
    assert Zipformer.variant("xs", causal=True).causal
    with pytest.raises(ValueError, match=r"'xl'.*xs, s, sm, m, ml, l"):
        Zipformer.variant("xl")


def test_the_program_does_not_grow_with_depth() -> None:
    def size(num_layers: int) -> int:
        encoder = replace(ONE_STACK, num_layers=(num_layers,)).build(dtype=jnp.float32)
        frames = Frames(np.zeros((1, 20, 16), np.float32), np.array([20]))
        program = jax.jit(partial(encoder.init_with_output, step=None)).lower(jax.random.key(0), frames)
        return len(program.as_text().splitlines())

    assert size(7) == size(5)  # with two or three layers, some functions are equal by chance and are written once


@pytest.mark.slow
def test_a_chunk_is_encoded_without_what_follows() -> None:
    settings = replace(TINY, causal=True, contexts=(Context(4, 8),))
    encoder = settings.build(dtype=jnp.float32)
    values = np.random.default_rng(0).normal(size=(1, 64, 16)).astype(np.float32)
    lengths = jax.device_put(np.array([64]))
    params = drawn(encoder, Frames(values, lengths))
    forward = fast_jit(lambda values: encoder.apply(params, Frames(values, lengths), step=None).frames.values)
    later = np.arange(64)[None, :, None] >= 40
    changed = np.asarray(forward(np.asarray(values) + np.float32(later))) - np.asarray(forward(values))
    # Frame 40 enters frame 16 of the embedding at the earliest, and 13 through its seven taps: chunk 3, output 6.
    assert not changed[:, :6].any()
    assert changed[:, 6:].any()


@pytest.mark.parametrize(
    "changes",
    [
        {"dims": (12,)},
        {"kernel_sizes": (4, 3)},
        {"unmasked_dims": (99, 3)},
        {"dropout_end": 1.0},
        {"num_layers": (0, 1)},
        {"contexts": (Context(4),)},
        {"causal": True, "contexts": (Context(4), Context(3))},
        {"taps": ("stack_7",)},
        {"contexts": ()},
        {"causal": True, "contexts": (Context(4, 6),)},
        {"causal": True, "contexts": (Context(4, 0),)},
        {"positions_dim": 7},
        {"positions_dim": 0},
        {"feedforward_dims": (1, 8)},
        {"batches_per_update": 0.0},
    ],
)
def test_settings_that_cannot_be(changes: dict[str, Any]) -> None:
    assert_refused(TINY, **changes)


def test_frames_of_another_width() -> None:
    frames = Frames(np.zeros((1, 20, 80), np.float32), np.array([20]))
    with pytest.raises(ValueError, match=r"80 .*num_mels.* 16"):
        jax.eval_shape(partial(TINY.build(dtype=jnp.float32).init, step=None), jax.random.key(0), frames)


def test_batches_that_are_too_short_for_the_embedding() -> None:
    encoder = TINY.build(dtype=jnp.float32)
    frames = Frames(np.zeros((1, 8, 16), np.float32), np.array([8]))
    with pytest.raises(ValueError, match=r"9 .* 8"):
        jax.eval_shape(partial(encoder.init, step=None), jax.random.key(0), frames)
