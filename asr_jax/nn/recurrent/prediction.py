"""Prediction networks of transducers: functions of the labels before a position."""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from flax import linen as nn
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from asr_jax.core.settings import PositiveInt, settings
from asr_jax.core.shapes import DimSize
from asr_jax.nn.embedding import Embedding
from asr_jax.nn.linear import uniform
from asr_jax.nn.recurrent.lstm import LSTM, LSTMSettings, LSTMState
from asr_jax.nn.recurrent.state_passing import PASSED
from asr_jax.nn.schedules import Step
from asr_jax.nn.stochastic import Regulariser

BALANCED: dict[str, Any] = {"min_positive": 0.0, "max_positive": 1.0, "min_abs": 0.5, "max_abs": 1.0, "chance": 0.05}


class Prediction(nn.Module):
    """Base class of prediction networks. Position 0 is before the first label."""

    settings: Any
    vocab_size: int
    blank_id: int
    dtype: DTypeLike

    def __call__(self, labels: Int[Array, "B U"], lengths: Int[Array, " B"], *, step: Step) -> Float[Array, "B S D"]:
        """Returns the output at all S = U + 1 label positions."""
        raise NotImplementedError

    def start(self, num_rows: DimSize) -> Any:
        """Returns the output and the state before the first label: a tree of arrays whose first axis has the rows."""
        raise NotImplementedError

    def advance(self, before: Any, labels: Int[Array, " B"]) -> Any:
        """Returns the output and the state after one more label.

        Args:
            before: Output and state before the label. The output is under the key `output`.
        """
        raise NotImplementedError


@settings
class PredictionSettings:
    """Base class of settings of prediction networks."""

    dim: PositiveInt = 512
    """Width."""

    @property
    def start_labels(self) -> int:
        """Number of labels before the first one that count in the length of a hypothesis, as in CAIMAN-ASR."""
        return 1

    def build(self, *, vocab_size: int, blank_id: int, dtype: DTypeLike) -> Prediction:
        """Returns the module."""
        raise NotImplementedError


@settings
class LSTMPrediction(LSTMSettings, PredictionSettings):
    """Settings of a prediction network of LSTM layers, after an embedding of the labels without the blank.

    The input at position 0 is a vector of zeros.
    """

    dropout = 0.3
    num_layers: PositiveInt = 2
    """Number of layers."""

    def build(self, *, vocab_size: int, blank_id: int, dtype: DTypeLike) -> "LSTMPredictionModule":
        return LSTMPredictionModule(self, vocab_size, blank_id, dtype)


class LSTMPredictionModule(Prediction):
    settings: LSTMPrediction

    def setup(self) -> None:
        settings = self.settings
        self.embedding = Embedding(self.vocab_size - 1, settings.dim, self.dtype)
        self.lstm = LSTM(settings.dim, settings.num_layers, settings, self.dtype)

    def __call__(self, labels: Int[Array, "B U"], lengths: Int[Array, " B"], *, step: Step) -> Float[Array, "B S D"]:
        first = jnp.zeros((labels.shape[0], 1, self.settings.dim), self.dtype)
        if step is not None and self.is_mutable_collection(PASSED):
            # The last label and the state before it continue a sequence of labels. Labels are stored plus 1; 0: none.
            before = self.get_variable(PASSED, "label", jnp.zeros(len(labels), jnp.int32))
            first = jnp.where(before[:, None, None] > 0, self._embedded(jnp.maximum(before - 1, 0)[:, None]), first)
            last = jnp.take_along_axis(labels, jnp.maximum(lengths - 1, 0)[:, None], axis=1)[:, 0]
            self.put_variable(PASSED, "label", jnp.where(lengths > 0, last + 1, before).astype(jnp.int32))
        embedded = jnp.concatenate([first, self._embedded(labels)], axis=1)
        return self.lstm(embedded, lengths + 1, step=step, passed_after=lengths)[0]

    def start(self, num_rows: DimSize) -> Any:
        shape = (self.settings.num_layers, num_rows, self.settings.dim)
        zeros = LSTMState(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype))
        return self._after(jnp.zeros((num_rows, 1, self.settings.dim), self.dtype), zeros)

    def advance(self, before: Any, labels: Int[Array, " B"]) -> Any:
        state = LSTMState(*(before[name].swapaxes(0, 1) for name in LSTMState._fields))
        return self._after(self._embedded(labels[:, None]), state)

    def _after(self, embedded: Float[Array, "B 1 D"], state: LSTMState) -> Any:
        output, states = self.lstm(embedded, None, state, step=None)
        assert states
        return {"output": output[:, 0]} | {
            name: values[:, :, 0].swapaxes(0, 1) for name, values in states._asdict().items()
        }

    def _embedded(self, labels: Int[Array, "B U"]) -> Float[Array, "B U D"]:
        return self.embedding(labels - (labels > self.blank_id))


@settings
class StatelessPrediction(PredictionSettings):
    """Settings of a prediction network that depends on the last few labels only.

    Source: Ghodsi et al. 2020, "RNN-transducer with stateless prediction network"; icefall's decoder.py at commit
    36e0420c.
    """

    context: PositiveInt = 2
    """Number of labels that an output depends on."""
    regularise: bool = True
    """Whether icefall's balancers act on the embeddings and the outputs in training."""

    def problems(self) -> Iterator[str]:
        if self.dim % 4 and self.context > 1:
            yield f"dim is {self.dim}: expected a multiple of 4, the width of a group of channels, or context 1"

    @property
    def start_labels(self) -> int:
        """Number of labels before the first one that count in the length of a hypothesis, as in icefall."""
        return self.context

    def build(self, *, vocab_size: int, blank_id: int, dtype: DTypeLike) -> "StatelessPredictionModule":
        return StatelessPredictionModule(self, vocab_size, blank_id, dtype)


class StatelessPredictionModule(Prediction):
    """An embedding, a convolution over `context` labels in groups of 4 channels, and ReLU.

    The label before the first one is the blank, and those before it are vectors of zeros.
    """

    settings: StatelessPrediction

    def setup(self) -> None:
        settings = self.settings
        self.embedding = Embedding(self.vocab_size, settings.dim, self.dtype)
        if settings.context > 1:
            self.conv = nn.Conv(
                settings.dim,
                (settings.context,),
                feature_group_count=settings.dim // 4,
                use_bias=False,
                padding="VALID",
                dtype=self.dtype,
                kernel_init=uniform((4 * settings.context) ** -0.5),  # as torch.nn.Conv1d
            )

    def __call__(self, labels: Int[Array, "B U"], lengths: Int[Array, " B"], *, step: Step) -> Float[Array, "B S D"]:
        regularise = Regulariser.of(self, step=step, use=self.settings.regularise)
        labels = jnp.pad(labels, ((0, 0), (1, 0)), constant_values=self.blank_id)
        embedded = regularise.balance(self.embedding(labels), **BALANCED)
        before = self.settings.context - 1
        if not before:
            return embedded
        return regularise.balance(self._convolved(jnp.pad(embedded, ((0, 0), (before, 0), (0, 0)))), **BALANCED)

    def start(self, num_rows: DimSize) -> Any:
        labels = jnp.full((num_rows, self.settings.context), -1, jnp.int32).at[:, -1].set(self.blank_id)
        return self._after(labels)

    def advance(self, before: Any, labels: Int[Array, " B"]) -> Any:
        return self._after(jnp.concatenate([before["labels"][:, 1:], labels[:, None].astype(jnp.int32)], axis=1))

    def _after(self, labels: Int[Array, "B C"]) -> Any:
        embedded = self.embedding(jnp.maximum(labels, 0)) * (labels >= 0)[..., None].astype(self.dtype)
        return {"output": self._convolved(embedded)[:, 0], "labels": labels}

    def _convolved(self, embedded: Float[Array, "B T D"]) -> Float[Array, "B S D"]:
        return nn.relu(self.conv(embedded)) if self.settings.context > 1 else embedded
