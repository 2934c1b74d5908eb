"""A recogniser that compiles in a second: one strided linear layer with a CTC head."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.encoder import Encoder, EncoderSettings
from asr_jax.nn.normalization import BatchNorm
from asr_jax.nn.stochastic import Dropout


@dataclass(frozen=True)
class Toy(EncoderSettings):
    """Settings of the toy encoder."""

    dim: int = 16
    """Width."""
    dropout: float = 0.0
    """Dropout of the layer's output."""
    norm: bool = False
    """Batch normalisation before the layer."""
    poison: tuple[tuple[str, int], ...] = ()
    """Pairs of kind (loss, gradient or statistics) and number of frames. In training, an utterance with as many feature
    frames makes values of this kind NaN."""

    def build(self, *, dtype):
        return ToyEncoder(self, dtype)


class ToyEncoder(Encoder):
    settings: Toy
    dtype: object

    @nn.compact
    def __call__(self, frames: Frames, *, step):
        batch, time, bins = frames.values.shape
        pairs = frames.values[:, : time // 2 * 2].reshape(batch, time // 2, 2 * bins) / 10
        if self.settings.norm:
            lengths = self.output_length(frames.lengths)
            pairs = BatchNorm(name="norm")(pairs, lengths, use_running=step is None)
        hidden = nn.tanh(nn.Dense(self.settings.dim, dtype=self.dtype, name="hidden")(pairs))
        hidden = Dropout(self.settings.dropout)(hidden, step=step)
        for kind, num_frames in self.settings.poison:
            hit = jnp.any(frames.lengths == num_frames) & (step is not None)
            if kind == "loss":
                hidden = jnp.where(hit, jnp.nan, hidden)
            elif kind == "gradient":  # the gradient of a root at zero; the value does not change
                hidden += jnp.sqrt(jnp.where(hit, 0 * hidden, 1)) - jnp.where(hit, 0, 1)
            else:
                poisoned = self.variable("batch_stats", "poisoned", jnp.zeros, ())
                if step is not None:
                    poisoned.value = jnp.where(hit, jnp.nan, 0.0)
        return Encoded(Frames(hidden, self.output_length(frames.lengths)))

    def output_length(self, num_frames):
        return num_frames // 2


def toy_model(**changes):
    return Model(encoder=Toy(**changes), heads={"ctc": CTC(dropout=0.0)}, augment=())


def toy_batch(rows=4, seconds=0.4, labels=3, seed=0, vocab_size=6):
    rng = np.random.default_rng(seed)
    num_samples = int(seconds * 16000)
    batch = Batch(
        audio=rng.integers(-9000, 9000, (rows, num_samples)).astype(np.int16),
        features=None,
        lengths=rng.integers(num_samples // 2, num_samples + 1, rows).astype(np.int32),
        tokens=rng.integers(0, vocab_size - 1, (rows, labels)).astype(np.int32),
        token_lengths=rng.integers(1, labels + 1, rows).astype(np.int32),
        weights=np.ones(rows, np.float32),
        utterances=np.arange(rows, dtype=np.int32),
    )
    return jax.device_put(batch)


def joined(*batches):
    """Returns one batch with the rows of several batches of equal shape."""
    return jax.device_put(jax.tree.map(lambda *rows: np.concatenate(rows), *batches))


def as_features(batch, model):
    frames = jax.jit(model.front_end)(batch.audio, batch.lengths)
    return batch.replace(audio=None, features=frames.values, lengths=frames.lengths)
