"""What every encoder must do: a new encoder's test inherits `EncoderSuite` and sets a tiny `settings`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support import max_abs, relative

from asr_jax.core.batch import Encoded, Frames, length_mask
from asr_jax.core.pytrees import flatten
from asr_jax.models.base import Encoder, EncoderSettings, MaskingEncoder

# Compile time is most of these tests' time, and what is compiled runs a few times only.
fast_jit = partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


@dataclass(frozen=True)
class Made:
    """An encoder with parameters and its compiled functions, made once per class."""

    encoder: Encoder
    params: Any
    stats: Any
    """Its other variables: running statistics."""
    encode: Any
    """Of parameters and frames: what evaluation gives; `encode.eval_shape` traces each shape once for all tests."""
    gradients: Callable[..., Any]

    def forward(self, params: Any, frames: Frames) -> Frames:
        encoded: Encoded = self.encode(params, frames)
        return encoded.frames


class EncoderSuite:
    settings: EncoderSettings
    """Tiny, with taps, and with whatever training does at random (but no dropout, for the over-fitting)."""
    num_features = 80
    bucket, bigger_bucket = 48, 63  # an even one, which the first row fills, and an odd one
    lengths = (48, 31, 7, 40)
    """Of the rows of a batch in `bucket`: a full one, an odd one, one that may be too short, another."""
    settled_step = 10**6
    """When all schedules have ended."""
    updates_to_over_fit = 80

    @pytest.fixture
    def made(self) -> Made:
        return make(type(self))

    def frames(self, *, bucket: int | None = None, tail: float = 0.0, seed: int = 0) -> Frames:
        """Frames of `lengths`; beyond them noise of a deviation of `tail`."""
        rng, lengths = np.random.default_rng(seed), np.asarray(self.lengths)
        values = rng.normal(size=(len(lengths), self.bucket, self.num_features))
        values = np.pad(values, ((0, 0), (0, (bucket or self.bucket) - self.bucket), (0, 0)))
        noise = rng.normal(size=values.shape) * tail
        valid = np.arange(values.shape[1]) < lengths[:, None]
        return Frames(jnp.float32(np.where(valid[:, :, None], values, noise)), jnp.asarray(lengths, jnp.int32))

    def output_shape(self, made: Made, frames: Frames) -> tuple[int, ...]:
        return made.encode.eval_shape(made.params, frames).frames.values.shape

    def valid(self, frames: Frames, row: int) -> np.ndarray:
        return np.asarray(frames.values)[row, : int(frames.lengths[row])]

    def test_padding_does_not_matter(self, made: Made) -> None:
        """The same utterance in a batch with zeros, with noise, in a bigger bucket, and beside other utterances."""
        plain = made.forward(made.params, self.frames())
        noisy = made.forward(made.params, self.frames(tail=5.0))
        bigger = made.forward(made.params, self.frames(bucket=self.bigger_bucket, tail=5.0))
        for row in range(len(self.lengths)):
            assert max_abs(self.valid(noisy, row), self.valid(plain, row)) < 1e-5
            assert max_abs(self.valid(bigger, row), self.valid(plain, row)) < 1e-5
        values, others = (np.array(self.frames(seed=seed).values) for seed in (0, 1))
        others[1] = values[1]
        beside = made.forward(made.params, Frames(others, np.asarray(self.lengths, np.int32)))
        assert max_abs(self.valid(beside, 1), self.valid(plain, 1)) < 1e-5
        assert max_abs(self.valid(beside, 0), self.valid(plain, 0)) > 1e-3

    def test_output_length_is_true(self, made: Made) -> None:
        numbers = np.arange(self.bigger_bucket)
        lengths = [made.encoder.output_length(int(number)) for number in numbers]
        assert all(type(length) is int and length >= 0 for length in lengths)
        np.testing.assert_array_equal(made.encoder.output_length(numbers), lengths)
        np.testing.assert_array_equal(made.encoder.output_length(jnp.asarray(numbers)), lengths)
        out = made.forward(made.params, self.frames())
        np.testing.assert_array_equal(out.lengths, [lengths[number] for number in self.lengths])
        for number in (self.bucket, self.bigger_bucket):
            assert self.output_shape(made, self.whole(number))[1] == made.encoder.output_length(number)

    def whole(self, number: int) -> Frames:
        """A row of as many frames."""
        return Frames(np.zeros((1, number, self.num_features), np.float32), np.array([number], np.int32))

    def test_taps_are_as_long_as_said(self, made: Made) -> None:
        for number in (self.bucket, self.bigger_bucket):
            taps = made.encode.eval_shape(made.params, self.whole(number)).taps
            assert all(tap.lengths.shape == (1,) for tap in taps.values())
            shapes = {name: tap.values.shape[1] for name, tap in taps.items()}
            assert shapes == made.encoder.tap_lengths(number)

    def test_rows_that_are_too_short_are_finite(self, made: Made) -> None:
        assert np.isfinite(made.forward(made.params, self.frames()).values).all()

    def gradients(self, made: Made, step: int, **options: Any) -> Any:
        frames = self.frames(**options)
        targets = jnp.float32(np.random.default_rng(1).normal(size=self.output_shape(made, frames)))
        return jax.device_get(made.gradients(made.params, frames, targets, jax.random.key(0), jnp.int32(step)))

    def test_every_parameter_has_a_finite_gradient_that_is_not_zero(self, made: Made) -> None:
        for step in (0, self.settled_step):
            loss, gradients = self.gradients(made, step)
            flat = flatten(gradients)
            assert np.isfinite(loss)
            assert [path for path, leaf in flat.items() if not np.isfinite(leaf).all()] == []
        # At step 0 whole parts may be skipped.
        assert [path for path, leaf in flat.items() if not leaf.any()] == []

    def test_padding_changes_no_gradient(self, made: Made) -> None:
        plain, noisy = (flatten(self.gradients(made, self.settled_step, tail=tail)[1]) for tail in (0.0, 5.0))
        assert max(relative(noisy[path], plain[path]) for path in plain) < 1e-3

    def test_bfloat16_is_near_float32(self, made: Made) -> None:
        encoder = self.settings.build(dtype=jnp.bfloat16)
        forward = fast_jit(lambda params, frames: encoder.apply({"params": params, **made.stats}, frames, step=None))
        half = forward(made.params, self.frames()).frames
        full = made.forward(made.params, self.frames())
        assert half.values.dtype == jnp.bfloat16
        for row in range(len(self.lengths)):
            difference = self.valid(half, row).astype(np.float32) - self.valid(full, row)
            assert np.sqrt(np.sum(difference**2) / max(difference.size, 1)) < 0.05 * np.std(full.values)

    def test_one_compilation_per_bucket(self, made: Made) -> None:
        self.gradients(made, 1)
        compiled = made.gradients._cache_size()
        self.gradients(made, 2, seed=3, tail=1.0)
        assert made.gradients._cache_size() == compiled

    def test_over_fits(self, made: Made) -> None:
        """Random targets for a batch are learned: the layers together can move the output anywhere."""
        frames = self.frames()
        targets = 0.3 * jnp.float32(np.random.default_rng(1).normal(size=self.output_shape(made, frames)))
        optimizer = optax.adam(1e-2)
        params, state, losses = made.params, jax.jit(optimizer.init)(made.params), []
        update = jax.jit(lambda g, s, p: (lambda u: (optax.apply_updates(p, u[0]), u[1]))(optimizer.update(g, s, p)))
        for number in range(self.updates_to_over_fit):
            key, step = jax.random.key(number), jnp.int32(self.settled_step)
            loss, gradients = made.gradients(params, frames, targets, key, step)
            params, state = update(gradients, state, params)
            losses.append(float(loss))
        assert np.mean(losses[-5:]) < 0.25 * losses[0]


@cache
def make(suite: type[EncoderSuite]) -> Made:
    encoder, frames = suite.settings.build(dtype=jnp.float32), suite().frames()
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), frames, step=None))
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(0, 0.2, leaf.shape), jnp.float32), shapes.pop("params"))
    stats = jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape), jnp.float32), shapes)

    def encode(params: Any, frames: Frames) -> Encoded:
        return encoder.apply({"params": params, **stats}, frames, step=None)

    def loss(params: Any, frames: Frames, targets: Any, key: Any, step: Any) -> Any:
        rngs = {name: jax.random.fold_in(key, number) for number, name in enumerate(("dropout", "regularise", "mask"))}
        hiding = {}
        if isinstance(encoder, MaskingEncoder):
            size = frames.values.shape[1]
            hiding["mask"] = encoder.draw_mask(rngs["mask"], frames.lengths, size, sub_batches=1)
        encoded, _ = encoder.apply(
            {"params": params, **stats}, frames, step=step, rngs=rngs, mutable=list(stats), **hiding
        )
        out = encoded.frames
        valid = length_mask(out.lengths, out.values.shape[1])[:, :, None]
        return jnp.sum(jnp.where(valid, out.values - targets, 0.0) ** 2) / valid.sum()

    return Made(encoder, params, stats, fast_jit(encode), fast_jit(jax.value_and_grad(loss)))
