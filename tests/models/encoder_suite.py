"""Tests of all encoders: the test of a new encoder inherits `EncoderSuite` and sets tiny `settings`."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.errors import InvalidRngError
from support import assert_within, fast_jit, max_abs, relative

from asr_jax.core.batch import Encoded, Frames, length_mask
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.models.encoder import Encoder, EncoderSettings, MaskingEncoder


@dataclass(frozen=True)
class Made:
    """An encoder with parameters and compiled functions, which is created once per class."""

    encoder: Encoder
    params: Any
    stats: Any
    """Other variables of the encoder: running statistics."""
    encode: Any
    """Function of parameters and frames that returns the output in evaluation. `encode.eval_shape` traces each shape
    once for all tests."""
    gradients: Callable[..., Any]
    traces: list[Any]
    """One element for each trace of the loss."""

    def forward(self, params: Any, frames: Frames) -> Frames:
        encoded: Encoded = self.encode(params, frames)
        return encoded.frames


class EncoderSuite:
    """Each encoder compiles four programs: evaluation in two buckets and in bfloat16, and gradients. Settings with one
    layer per stack keep them small, because XLA removes loops that run once."""

    settings: EncoderSettings
    """Tiny settings with taps and with all random parts of training except dropout."""
    num_features = 80
    bucket, bigger_bucket = 48, 63  # an even length, which the first row fills, and an odd length
    lengths = (48, 31, 7, 40)
    """Lengths of the rows of a batch in `bucket`: full, odd, perhaps too short, and another."""
    settled_step = 10**6
    """Step at which all schedules have ended."""
    gradient_factors: ClassVar[dict[str, float]] = {}
    """Factors of the gradients of some parts in the encoder, by the first names of their paths."""

    @pytest.fixture
    def made(self) -> Made:
        return make(type(self))

    def frames(self, *, bucket: int | None = None, tail: float = 0.0, seed: int = 0) -> Frames:
        """Random frames of `lengths`, with noise of standard deviation `tail` in the padding."""
        rng, lengths = np.random.default_rng(seed), np.asarray(self.lengths, np.int32)
        values = rng.normal(size=(len(lengths), self.bucket, self.num_features))
        values = np.pad(values, ((0, 0), (0, (bucket or self.bucket) - self.bucket), (0, 0)))
        noise = rng.normal(size=values.shape) * tail
        valid = np.arange(values.shape[1]) < lengths[:, None]
        return Frames(*jax.device_put((np.float32(np.where(valid[:, :, None], values, noise)), lengths)))

    def shapes(self, made: Made, bucket: int | None = None) -> Encoded:
        """Shapes of all outputs of evaluation."""
        return made.encode.eval_shape(made.params, self.frames(bucket=bucket))

    def valid(self, frames: Frames, row: int) -> np.ndarray:
        return np.asarray(frames.values)[row, : int(frames.lengths[row])]

    def test_padding_does_not_matter(self, made: Made) -> None:
        """Outputs are equal with padding of zeros and of noise, in a bigger bucket, and with other utterances."""
        plain = made.forward(made.params, self.frames())
        noisy = made.forward(made.params, self.frames(tail=5.0))
        bigger = made.forward(made.params, self.frames(bucket=self.bigger_bucket, tail=5.0))
        for row in range(len(self.lengths)):
            assert_within(max_abs(self.valid(noisy, row), self.valid(plain, row)), 1e-5)
            assert_within(max_abs(self.valid(bigger, row), self.valid(plain, row)), 1e-5)
        values, others = (np.array(self.frames(seed=seed).values) for seed in (0, 1))
        others[1] = values[1]
        beside = made.forward(made.params, Frames(others, np.asarray(self.lengths, np.int32)))
        assert_within(max_abs(self.valid(beside, 1), self.valid(plain, 1)), 1e-5)
        assert max_abs(self.valid(beside, 0), self.valid(plain, 0)) > 1e-3

    def test_output_length_is_true(self, made: Made) -> None:
        numbers = np.arange(self.bigger_bucket)
        lengths = [made.encoder.output_length(int(number)) for number in numbers]
        assert all(type(length) is int and length >= 0 for length in lengths)
        np.testing.assert_array_equal(made.encoder.output_length(numbers), lengths)
        np.testing.assert_array_equal(fast_jit(made.encoder.output_length)(numbers), lengths)
        out = made.forward(made.params, self.frames())
        np.testing.assert_array_equal(out.lengths, [lengths[number] for number in self.lengths])
        for number in (self.bucket, self.bigger_bucket):
            assert self.shapes(made, number).frames.values.shape[1] == made.encoder.output_length(number)

    def test_taps_are_as_long_as_tap_lengths(self, made: Made) -> None:
        for number in (self.bucket, self.bigger_bucket):
            taps = self.shapes(made, number).taps
            assert all(tap.lengths.shape == (len(self.lengths),) for tap in taps.values())
            shapes = {name: tap.values.shape[1] for name, tap in taps.items()}
            assert shapes == made.encoder.tap_lengths(number)

    def test_rows_that_are_too_short_are_finite(self, made: Made) -> None:
        assert np.isfinite(made.forward(made.params, self.frames()).values).all()

    def gradients(self, made: Made, step: int, moved: Any = None, **options: Any) -> Any:
        """Returns a mean squared error and its gradients. `moved` has other values of some parameters, by path."""
        targets = np.random.default_rng(1).normal(size=self.shapes(made).frames.values.shape).astype(np.float32)
        params = unflatten({path: np.float32(leaf) for path, leaf in (flatten(made.params) | (moved or {})).items()})
        given = params, self.frames(**options), targets, jax.random.key(0), np.int32(step)
        return jax.device_get(made.gradients(*given))

    def test_every_parameter_has_a_finite_gradient_that_is_not_zero(self, made: Made) -> None:
        for step in (0, self.settled_step):
            loss, gradients = self.gradients(made, step)
            flat = flatten(gradients)
            assert np.isfinite(loss)
            assert [path for path, leaf in flat.items() if not np.isfinite(leaf).all()] == []
        # At step 0 whole parts may be skipped.
        assert [path for path, leaf in flat.items() if not leaf.any()] == []

    def test_the_loss_changes_as_the_gradient_predicts(self, made: Made) -> None:
        """A small step of each part along its gradient changes the loss by the size of the step times the squared norm
        of the gradient, to 3 % (activations have kinks), beyond the rounding of the loss."""
        params, (loss, gradients) = flatten(made.params), self.gradients(made, self.settled_step)
        differences, rounding = {}, 2e-6 * loss
        for part in sorted({path.split("/")[0] for path in params}):
            own = {path: leaf for path, leaf in flatten(gradients).items() if path.split("/")[0] == part}
            slope = sum(np.sum(np.square(leaf, dtype=np.float64)) for leaf in own.values())
            slope /= self.gradient_factors.get(part, 1.0)
            size = min(1e-3 * loss / slope, 0.02 / max(np.abs(leaf).max() for leaf in own.values()))
            losses = []
            for step in (size, -size):
                moved = {path: params[path] + step * leaf for path, leaf in own.items()}
                losses.append(float(self.gradients(made, self.settled_step, moved)[0]))
            assert size * slope > 2 * rounding, f"the change by {part} is lost in the loss's rounding"
            difference = abs((losses[0] - losses[1]) / 2 - size * slope) - rounding
            differences[part] = max(difference / (size * slope), 0.0)
        worst = max(differences, key=differences.__getitem__)
        assert_within(differences[worst], 0.03, what=f"change of the loss, worst ({worst})")

    def test_another_step_or_other_values_compile_nothing(self, made: Made) -> None:
        for step, seed in ((0, 0), (self.settled_step, 1)):
            self.gradients(made, step, seed=seed, tail=5.0 * seed)
        assert len(made.traces) == 1

    def test_padding_changes_no_gradient(self, made: Made) -> None:
        plain, noisy = (flatten(self.gradients(made, self.settled_step, tail=tail)[1]) for tail in (0.0, 5.0))
        assert_within(max(relative(noisy[path], plain[path]) for path in plain), 1e-3)

    def test_bfloat16_is_near_float32(self, made: Made) -> None:
        encoder = self.settings.build(dtype=jnp.bfloat16)
        forward = fast_jit(lambda params, frames: encoder.apply({"params": params, **made.stats}, frames, step=None))
        half = forward(made.params, self.frames()).frames
        full = made.forward(made.params, self.frames())
        assert half.values.dtype == jnp.bfloat16
        for row in range(len(self.lengths)):
            difference = self.valid(half, row).astype(np.float32) - self.valid(full, row)
            root_mean_square = np.sqrt(np.sum(difference**2) / max(difference.size, 1))
            assert_within(root_mean_square, 0.05, scale=np.std(full.values), what="bfloat16")


@cache
def make(suite: type[EncoderSuite]) -> Made:
    encoder, frames = suite.settings.build(dtype=jnp.float32), suite().frames()
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), frames, step=None))
    rng = np.random.default_rng(0)
    params = {  # scales of norms are around 1
        path: rng.normal(path.endswith(("scale", "gain")), 0.2, leaf.shape).astype(np.float32)
        for path, leaf in flatten(shapes.pop("params")).items()
    }
    stats = jax.tree.map(lambda leaf: jnp.asarray(rng.uniform(0.5, 1.5, leaf.shape), jnp.float32), shapes)

    def encode(params: Any, frames: Frames) -> Encoded:
        return encoder.apply({"params": params, **stats}, frames, step=None)

    traces = list[Any]()

    def loss(params: Any, frames: Frames, targets: Any, key: Any, step: Any) -> Any:
        traces.append(step)
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

    return Made(encoder, unflatten(params), stats, fast_jit(encode), fast_jit(jax.value_and_grad(loss)), traces)


def asks_for_dropout(settings: EncoderSettings, variables: Any, *, step: int | None) -> bool:
    """Whether an encoder requests the random stream of dropout. `variables` has the shapes of its variables."""
    encoder, frames = settings.build(dtype=jnp.float32), Frames(jnp.zeros((1, 20, 16)), jnp.array([20]))
    step = step if step is None else jnp.int32(step)
    try:
        jax.eval_shape(lambda given: encoder.apply(given, frames, step=step, mutable=["batch_stats"]), variables)
    except InvalidRngError as error:
        return "dropout" in str(error)
    return False


def assert_refused(settings: Any, **changes: Any) -> None:
    """Invalid changes of settings raise an error with a changed name, or with a value of more than two characters."""
    words = {*changes, *map(str, changes.values())}
    with pytest.raises(ValueError, match="|".join(re.escape(each) for each in words if len(each) > 2)):
        replace(settings, **changes)
