"""One exported program of front-ends, encoders and heads computes batches of any number of rows and any length."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from support import assert_within, fast_jit, max_abs
from test_conformer import FAST
from test_conformer import TINY as CONFORMER
from test_quartznet_model import OTHERS as BLOCKS
from test_sanm import TINY as SANM
from test_squeezeformer import TINY as SQUEEZEFORMER
from test_w2v_bert import FULL as W2V_BERT
from test_wav2vec2 import TINY as WAV2VEC2
from test_zipformer import ONE_STACK
from test_zipformer import TINY as ZIPFORMER

from asr_jax.audio.presets import PRESETS, funasr, preset, rnnt
from asr_jax.audio.stages import NormaliseByDataSet
from asr_jax.core.batch import Batch, Frames
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.heads.ctc import CTC
from asr_jax.heads.paraformer import Paraformer
from asr_jax.heads.paraformer_v2 import ParaformerV2
from asr_jax.heads.transducer import Transducer
from asr_jax.models.base import Model
from asr_jax.models.encoder import Context
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.models.wav2vec2 import Hourglass
from asr_jax.nn.decoders.parallel_decoder import SANMDecoder, TransformerDecoder
from asr_jax.nn.decoders.sanm import positions_from_one
from asr_jax.nn.positions import compact_positions, relative_sinusoids
from asr_jax.nn.recurrent.prediction import LSTMPrediction, PredictionSettings, StatelessPrediction

slow = pytest.mark.slow
LSTM = LSTMEncoder(num_mels=16, dim=8, layers_before=1, layers_after=1)
HOURGLASS = replace(WAV2VEC2, num_layers=2, hourglass=Hourglass(0, 1, 3, 1, "linear"))
ENCODERS: dict[str, Any] = {
    "Zipformer": replace(ZIPFORMER, taps=("embed", "stack_1")),
    "Zipformer, one stack": replace(ONE_STACK, num_layers=(1,), causal=True, contexts=(Context(4, 4),)),
    "Zipformer, downsampling 4": replace(ZIPFORMER, downsampling=(1, 4), output_downsampling=1),
    "Zipformer, chunks": replace(ZIPFORMER, causal=True, contexts=(Context(4, 4),)),
    "Zipformer, causal": replace(ZIPFORMER, causal=True),
    "Zipformer, padding": replace(ZIPFORMER, mask_padding=False),
    "Conformer": CONFORMER,
    "Conformer, blocks of queries": replace(CONFORMER, attention="xla", attention_dropout=0.0),
    "Conformer, abs_pos": replace(CONFORMER, positions="abs_pos"),
    "Conformer, none": replace(CONFORMER, positions="none"),
    "FastConformer": FAST,
    "Squeezeformer": SQUEEZEFORMER,
    "Squeezeformer, nemo": replace(SQUEEZEFORMER, variant="nemo", num_layers=2, taps=()),
    "Squeezeformer, rust": replace(SQUEEZEFORMER, variant="rust", positions="abs_pos"),
    "Squeezeformer, padding": replace(SQUEEZEFORMER, mask_padding=False),
    "QuartzNet": BLOCKS,
    "wav2vec 2.0": HOURGLASS,
    "wav2vec 2.0, naive": replace(HOURGLASS, hourglass=Hourglass(1, 1, 2, 0, "naive"), rotary=True),
    "wav2vec 2.0, features": replace(WAV2VEC2, extractor=(), num_features=6, fused_attention=True),
    "W2V-BERT": W2V_BERT,
    "W2V-BERT, relative": replace(W2V_BERT, positions="relative", num_adapters=0, adapter_dim=None, intermediate=False),
    "W2V-BERT, rotary": replace(W2V_BERT, positions="rotary", num_adapters=2),
    "SANM": SANM,
    "LSTM": LSTM,
}


def assert_exported(
    function: Callable[..., Any], arguments: Callable[..., Sequence[Any]], sizes: Sequence[tuple[int, int]], least: int
) -> None:
    """A program with symbolic numbers of rows and frames gives what `function` gives for each size.

    Args:
        function: Function that returns a tree of arrays.
        arguments: Returns the arguments for a number of rows and of frames; `jax.ShapeDtypeStruct` for symbolic ones.
        sizes: Numbers of rows and of frames.
        least: Lower bound of the number of frames.
    """

    def leaves(*given: Any) -> tuple[Any, ...]:
        return tuple(jax.tree.leaves(function(*given)))

    symbols = export.symbolic_shape("b, t", constraints=[f"t >= {least}"])
    program = export.deserialize(export.export(jax.jit(leaves))(*arguments(*symbols)).serialize())
    for rows, frames in sizes:
        given = arguments(rows, frames)
        found, expected = fast_jit(program.call)(*given), fast_jit(leaves)(*given)
        for one, other in zip(found, expected, strict=True):
            assert one.shape == other.shape
            assert np.isfinite(other).all()
            assert_within(max_abs(one, other), 1e-5, scale=max(np.abs(other).max(initial=0), 1.0), what="program")


def rows_of(width: int | None, dtype: Any = jnp.float32) -> Callable[..., Any]:
    """Returns a function to arrays [rows frames width] (without the last axis if None) and lengths."""
    rng = np.random.default_rng(0)

    def arguments(rows: Any, frames: Any) -> tuple[Any, Any]:
        shape = (rows, frames) if width is None else (rows, frames, width)
        if export.is_symbolic_dim(rows):
            return jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct((rows,), jnp.int32)
        lengths = np.linspace(frames, 0.6 * frames, rows).astype(np.int32)
        return (rng.normal(size=shape) * (1000 if width is None else 1)).astype(dtype), lengths

    return arguments


def drawn(init: Callable[..., Any], *given: Any) -> Any:
    """Returns random variables; deviations and variances are around 1."""
    rng, shapes = (
        np.random.default_rng(0),
        flatten(jax.eval_shape(lambda *given: init(jax.random.key(0), *given), *given)),
    )
    return unflatten({
        path: np.asarray(
            rng.uniform(0.5, 1.5, leaf.shape) if path.endswith(("scale", "gain", "variance"))
            else rng.normal(0, 0.15, leaf.shape),
            leaf.dtype,
        )
        for path, leaf in shapes.items()
    })  # fmt: skip


@pytest.mark.parametrize(
    ("positions", "width", "limit"),
    [(compact_positions, 48, 2e-5), (relative_sinusoids, 256, 5e-6), (positions_from_one, 256, 5e-6)],
)
def test_positions(positions: Callable[..., Any], width: int, limit: float) -> None:
    """Encodings of 3,000 frames, for which a product of position and rate has an error of 1e-4 in float32."""
    (size,) = export.symbolic_shape("t", constraints=["t >= 1"])
    shape = jax.ShapeDtypeStruct((size,), jnp.float32)
    program = export.export(jax.jit(lambda x: positions(x.shape[0], width)))(shape)
    for num_frames in (1, 3000):
        found = program.call(jnp.zeros(num_frames))
        assert_within(max_abs(found, positions(num_frames, width)), limit, what=f"positions of {num_frames} frames")


def statistics(width: int) -> NormaliseByDataSet:
    return NormaliseByDataSet(mean=(0.5,) * width, deviation=(2.0,) * width)


FRONT_ENDS = {name: make() for name, make in PRESETS.items()} | {
    "rnnt, data": rnnt(statistics(80)),
    "funasr, data": funasr(statistics(560)),
}


@slow  # the model below has one
@pytest.mark.parametrize("name", FRONT_ENDS)
def test_front_ends(name: str) -> None:
    front_end = FRONT_ENDS[name]
    least = next(number for number in range(1, 1000) if front_end.output_length(number))
    dtype = jnp.float32 if name == "icefall" else jnp.int16
    assert_exported(front_end, rows_of(None, dtype), [(1, 4000), (3, 5703)], least)


@slow  # tests/exporting has quick ones
@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(name: str) -> None:
    settings = ENCODERS[name]
    encoder = settings.build(dtype=jnp.float32)
    least = next(number for number in itertools.count(1) if encoder.output_length(number))
    width = settings.num_features if name.startswith("wav2vec") else settings.num_mels

    def encode(variables: Any, values: Any, lengths: Any) -> Any:
        encoded = encoder.apply(variables, Frames(values, lengths), step=None)
        return encoded.frames, encoded.taps

    def init(key: Any, values: Any, lengths: Any) -> Any:
        return encoder.init(key, Frames(values, lengths), step=None)

    arguments = rows_of(width)
    variables = drawn(init, *arguments(1, 80))
    assert_exported(encode, lambda *sizes: (variables, *arguments(*sizes)), [(1, 60), (3, 127)], least)


def recogniser(settings: Model) -> tuple[Any, Any]:
    """Returns a model with 6 labels, and random variables."""
    model = settings.build(vocab_size=6, blank_id=5, precision="f32")

    def init(key: Any, audio: Any, lengths: Any) -> Any:
        return model.init(key, batch_of(audio, lengths), step=None)

    return model, drawn(init, *rows_of(None, jnp.int16)(1, 8000))


def batch_of(audio: Any, lengths: Any) -> Batch:
    rows = audio.shape[0]
    none = jnp.zeros(rows, jnp.int32)
    return Batch(audio, None, lengths, jnp.zeros((rows, 1), jnp.int32), none, jnp.ones(rows), none)


SANM_DECODER = SANMDecoder(num_layers=2, num_attention_layers=1, num_heads=2, feedforward_dim=12, kernel_size=3)
MELS_16 = replace(preset("icefall"), num_mels=16)
MODELS = {
    "LSTM": Model(LSTM, front_end=MELS_16),
    "Zipformer": Model(
        replace(ZIPFORMER, taps=("stack_0",)), {"ctc": CTC(), "inner": CTC(tap="stack_0")}, MELS_16, primary="ctc"
    ),
    "SAN-M with Paraformer": Model(SANM, {"paraformer": Paraformer(decoder=SANM_DECODER)}, MELS_16),
    "Conformer with Paraformer-v2": Model(
        CONFORMER,
        {
            "ctc": CTC(),
            "paraformer": ParaformerV2(decoder=TransformerDecoder(num_layers=1, num_heads=2), queries="normed"),
        },
        MELS_16,
        primary="paraformer",
    ),
    "Squeezeformer": Model(SQUEEZEFORMER, front_end=replace(preset("squeezeformer"), num_mels=16)),
    "wav2vec 2.0": Model(WAV2VEC2, front_end=preset("wav2vec2_normalised"), augment=()),
    "W2V-BERT": Model(replace(W2V_BERT, num_mels=160), front_end=preset("w2v_bert")),
    "QuartzNet": Model(replace(BLOCKS, num_mels=64), front_end=preset("quartznet")),
}


@pytest.mark.parametrize(
    "name",
    [name if name == "LSTM" else pytest.param(name, marks=slow) for name in MODELS],
)
def test_log_probabilities_of_audio(name: str) -> None:
    model, variables = recogniser(MODELS[name])
    arguments = rows_of(None, jnp.int16)

    def emit(variables: Any, audio: Any, lengths: Any) -> Any:
        return model.apply(variables, batch_of(audio, lengths), method="emit")

    least = model.fewest_inputs()
    assert min(model._lengths(model.front_end.output_length(least - 1)).values()) == 0
    sizes = [(1, least), (3, 9003)]
    assert_exported(emit, lambda *sizes: (variables, *arguments(*sizes)), sizes, least)


@slow
@pytest.mark.parametrize(
    "prediction",
    [StatelessPrediction(8, regularise=False), LSTMPrediction(8, num_layers=2)],
)
def test_parts_of_a_transducer(prediction: PredictionSettings) -> None:
    """The start and a step of the prediction network, and the joint network with as many frames as positions."""
    settings = Transducer(prediction=prediction, joint_dim=12, durations=(0, 1, 2))
    model, variables = recogniser(Model(LSTM, {"transducer": settings}, MELS_16))
    head = model.heads["transducer"]

    def parts(params: Any, labels: Any, frames: Any) -> Any:
        own = {"params": params}
        start = head.apply(own, labels.shape[0], method="begin")
        after = head.apply(own, start, labels, method="advance")
        projected = head.apply(own, frames, method=lambda head, frames: head.of_frames(frames))
        return start, after, head.apply(own, projected, after["projected"][:, None], method="logits")

    arguments = rows_of(8)

    def given(rows: Any, frames: Any) -> Any:
        values, lengths = arguments(rows, frames)
        return variables["params"]["heads_transducer"], lengths if export.is_symbolic_dim(rows) else lengths % 5, values

    assert_exported(parts, given, [(1, 7), (3, 4)], 1)
