"""Parts of recognisers as functions of arrays: each becomes a program or an ONNX file of its own."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int16

from asr_jax.audio.features import FULL_SCALE
from asr_jax.core.batch import Batch, Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree
from asr_jax.heads.ctc import CTCHead
from asr_jax.heads.paraformer import ParaformerHead
from asr_jax.heads.paraformer_v2 import ParaformerV2Head
from asr_jax.heads.transducer import TransducerHead
from asr_jax.models.base import Recogniser
from asr_jax.nn.recurrent.prediction import LSTMPrediction

Arrays = Mapping[str, np.ndarray]
File = Callable[..., Sequence[Any]]
"""A written file as a function: it takes the inputs as keyword arguments, and returns the outputs."""
WeightType = Literal["f32", "f16", "int8"]
"""Type of the weights in an ONNX file. f16: rounded to float16, and computed in float32. int8: the weights of products
of matrices are quantised by onnxruntime, which also quantises their inputs when the model runs."""


@dataclass(frozen=True)
class Part:
    """A function of arrays with names, and arrays to try it with."""

    name: str
    """Name of its file: model, encoder, decoder or joiner."""
    function: Callable[..., Any]
    """Function of keyword arguments that returns an array or a tuple of arrays."""
    inputs: Mapping[str, jax.ShapeDtypeStruct]
    """Shape and dtype of each input. Sizes that vary are symbolic dimensions of `jax.export`."""
    outputs: tuple[str, ...]
    """Names of the outputs."""
    example: Arrays = field(default_factory=dict)
    """Inputs to try the part with."""
    check: Callable[[File], tuple[Sequence[np.ndarray], Sequence[Any]]] | None = None
    """Function of a file that returns the run's own outputs of the recording, and those of the file. None: a file is
    compared with the function."""

    def tried(self, file: File) -> tuple[Sequence[np.ndarray], Sequence[Any]]:
        """Returns the outputs that are expected of a file, and those that it computes."""
        return self.check(file) if self.check else (self.computed(), file(**self.example))

    def computed(self, inputs: Arrays | None = None) -> list[np.ndarray]:
        """Returns the outputs for the inputs of the example or for others, as JAX computes them in float32."""
        with jax.default_matmul_precision("highest"):
            found = jax.jit(self.function)(**(self.example if inputs is None else inputs))
        return [np.asarray(each) for each in (found if isinstance(found, tuple) else (found,))]


@dataclass(frozen=True)
class Parts:
    """A recogniser with one head, as a function of samples."""

    model: Recogniser
    variables: Tree
    head: str
    recording: Int16[np.ndarray, " S"]
    """Recording at the rate of the front-end, for the examples."""

    @property
    def recordings(self) -> list[np.ndarray]:
        """The recording, and its first two thirds: the rows of examples."""
        return [self.recording, self.recording[: max(2 * len(self.recording) // 3, self.model.fewest_inputs())]]

    def __iter__(self) -> Any:
        """Yields the parts: one of a CTC head or of Paraformer; encoder, decoder and joiner of a transducer."""
        yield from self.of(Features.of_samples(self))

    def of(self, features: "Features") -> list[Part]:
        """Returns the parts whose first one computes features from its inputs."""
        head = self.model.heads[self.head]
        if isinstance(head, TransducerHead):
            return [self.encoder(features), *self.networks()]
        if isinstance(head, CTCHead):
            return [self._whole(features, ("log_probs", "log_probs_lengths"))]
        if isinstance(head, ParaformerHead | ParaformerV2Head):
            return [self._whole(features, ("log_probs", "num_labels"))]
        known = [name for name, each in self.model.heads.items() if isinstance(each, CTCHead | TransducerHead)]
        raise UserError(
            f"head {self.head} ({type(head).__name__.removesuffix('Head')}) is searched label by label with a cache, "
            f"which has no form to export: expected a head of CTC, a transducer or Paraformer"
            + (f", --head {known[0]}" if known else "")
        )

    def _whole(self, features: "Features", outputs: tuple[str, ...], *, name: str = "model") -> Part:
        def function(**inputs: Any) -> Any:
            frames = features.frames(**inputs)
            return self._emitted(_batch(frames.lengths, features=frames.values))

        def check(file: File) -> Any:
            return self.outputs(features.recordings), file(**features.example)

        return Part(name, function, features.inputs, outputs, features.example, check)

    def encoder(self, features: "Features") -> Part:
        """Returns the part with the encoder and the projection of its frames for the joint network."""
        return self._whole(features, ("encoder_out", "encoder_out_lengths"), name="encoder")

    def _emitted(self, batch: Batch) -> tuple[Any, Any]:
        """Returns log-probabilities, or the projected frames of a transducer, and their number in each row."""
        head = self.head

        def projected(module: Recogniser, batch: Batch) -> Any:
            own: Any = module.heads[head]
            frames = module.encode(batch, step=None).at(own.tap)
            return own.of_frames(frames.values), frames.lengths

        if isinstance(self.model.heads[head], TransducerHead):
            return self.model.apply(self.variables, batch, method=projected)
        found: Any = self.model.apply(self.variables, batch, head=head, method="emit")
        return found[head].values, found[head].lengths

    def outputs(self, recordings: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the run's own outputs of recordings, as recognition computes them from samples.

        Returns:
            Log-probabilities of CTC or of Paraformer, or projected frames of a transducer, `[B T V]`, and their number
            in each row, `[B]`.
        """
        lengths, size = np.asarray([*map(len, recordings)], np.int32), max(map(len, recordings))
        audio = np.stack([np.pad(each, (0, size - len(each))) for each in recordings])
        with jax.default_matmul_precision("highest"):
            return [*map(np.asarray, jax.jit(self._emitted)(_batch(lengths, audio=audio)))]

    def networks(self) -> list[Part]:
        """Returns the prediction network and the joint network of a transducer."""
        return [self._decoder(), self._joiner()]

    def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the head."""

        def function(module: Recogniser, *arguments: Any) -> Any:
            return getattr(module.heads[self.head], method)(*arguments)

        return self.model.apply(self.variables, *arguments, method=function)

    def _decoder(self) -> Part:
        head = self.model.heads[self.head]
        assert isinstance(head, TransducerHead)
        prediction, blank_id = head.settings.prediction, head.blank_id
        (rows,) = symbols("batch")
        if not isinstance(prediction, LSTMPrediction):
            size = prediction.context  # type: ignore[attr-defined]

            def of_labels(labels: Any) -> Any:
                # The network drops the first of the labels before the last one, which may be any.
                before = jnp.concatenate([labels[:, :1], labels[:, :-1]], axis=1)
                return self.call("advance", {"labels": before}, labels[:, -1])["projected"]

            labels = jax.ShapeDtypeStruct((rows, size), jnp.int32)
            start = np.full((2, size), -1, np.int32)
            start[:, -1] = blank_id
            start[1] = next(n for n in range(head.vocab_size) if n != blank_id)
            return Part("decoder", of_labels, {"labels": labels}, ("decoder_out",), {"labels": start})
        first = jax.tree.map(np.asarray, self.call("begin", 1))

        def of_label(label: Any, hidden: Any, cell: Any) -> Any:
            after = self.call("advance", {"hidden": hidden, "cell": cell}, label)
            return tuple(
                jnp.where((label == blank_id).reshape(-1, *(1,) * (first[name].ndim - 1)), first[name], after[name])
                for name in ("projected", "hidden", "cell")
            )

        sizes = {name: jax.ShapeDtypeStruct((rows, *first[name].shape[1:]), jnp.float32) for name in ("hidden", "cell")}
        zeros = {name: np.zeros((2, *first[name].shape[1:]), np.float32) for name in sizes}
        label = next(n for n in range(head.vocab_size) if n != blank_id)
        return Part(
            "decoder",
            of_label,
            {"label": jax.ShapeDtypeStruct((rows,), jnp.int32), **sizes},
            ("decoder_out", "next_hidden", "next_cell"),
            {"label": np.asarray([blank_id, label], np.int32), **zeros},
        )

    def _joiner(self) -> Part:
        head = self.model.heads[self.head]
        assert isinstance(head, TransducerHead)
        (rows,) = symbols("batch")
        width = head.settings.joint_dim

        def logits(encoder_out: Any, decoder_out: Any) -> Any:
            return self.call("logits", encoder_out[:, None], decoder_out[:, None])[:, 0]

        names, numbers = ("encoder_out", "decoder_out"), np.random.default_rng(0)
        return Part(
            "joiner",
            logits,
            {name: jax.ShapeDtypeStruct((rows, width), jnp.float32) for name in names},
            ("logits",),
            {name: numbers.normal(size=(3, width)).astype(np.float32) for name in names},
        )


@dataclass(frozen=True)
class Features:
    """The inputs of a first part, and the features that are computed from them."""

    frames: Callable[..., Frames]
    inputs: Mapping[str, jax.ShapeDtypeStruct]
    example: Arrays
    recordings: Sequence[np.ndarray]
    """Samples of full scale 32768 in each row of the example."""

    @classmethod
    def of_samples(cls, parts: Parts) -> "Features":
        """Returns samples of full scale 1 and their numbers as inputs: `audio` [B S] and `audio_lengths` [B]."""

        @jax.jit
        def front_end(audio: Any, audio_lengths: Any) -> Frames:
            return parts.model.front_end(audio * FULL_SCALE, audio_lengths)

        rows, samples = symbols("batch, samples", least=parts.model.fewest_inputs())
        samples_of = (parts.recording / np.float32(FULL_SCALE)).astype(np.float32)
        recordings = parts.recordings
        return cls(
            front_end,
            {
                "audio": jax.ShapeDtypeStruct((rows, samples), jnp.float32),
                "audio_lengths": jax.ShapeDtypeStruct((rows,), jnp.int32),
            },
            {
                "audio": np.stack([samples_of, samples_of]),
                "audio_lengths": np.asarray([*map(len, recordings)], np.int32),
            },
            recordings,
        )


def symbols(names: str, *, least: int = 1) -> tuple[Any, ...]:
    """Returns symbolic dimensions. The last one is at least `least`."""
    last = names.rpartition(",")[2].strip()
    return tuple(jax.export.symbolic_shape(names, constraints=[f"{last} >= {least}"] if least > 1 else ()))


def _batch(lengths: Any, *, audio: Any = None, features: Any = None) -> Batch:
    """Returns a batch without labels."""
    rows = lengths.shape[0]
    return Batch(
        audio=audio,
        features=features,
        lengths=lengths,
        tokens=jnp.zeros((rows, 0), jnp.int32),
        token_lengths=jnp.zeros(rows, jnp.int32),
        weights=jnp.ones(rows, jnp.float32),
        utterances=jnp.full(rows, -1, jnp.int32),
    )
