"""Streaming recognisers as files of sherpa-onnx's kinds `zipformer2_ctc` and streaming `transducer`.

sherpa-onnx keeps the state of a Zipformer between windows: for each layer six arrays, whose sizes it computes from the
metadata of the file. The files have the metadata of one layer, whose first array has the size of the whole state of any
encoder. The other arrays are not used.

Source: k2-fsa/sherpa-onnx, sherpa-onnx/csrc/online-zipformer2-transducer-model.cc and online-zipformer2-ctc-model.cc,
version 2.0.1.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.audio.stages import Stack
from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.exporting.parts import File, Part, Parts, symbols
from asr_jax.exporting.sherpa import ICEFALL, KALDIS, Kind, bins_of, of_bins, other_front_end, stateless, symbols_of
from asr_jax.exporting.windows import initial_state, joined, packed, streamed, unpacked
from asr_jax.heads.transducer import TransducerHead
from asr_jax.text.tokenizers import Tokenizer

UNUSED = {
    "cached_nonlin_attn": (1, "batch", 1, 3),
    "cached_val1": (1, "batch", 1),
    "cached_val2": (1, "batch", 1),
    "cached_conv1": ("batch", 4, 1),
    "cached_conv2": ("batch", 4, 1),
    "embed_states": ("batch", 128, 3, 19),
}
"""Shapes of the arrays that sherpa-onnx keeps and that the files return unchanged."""


def streaming_kind_of(parts: Parts, tokenizer: Tokenizer) -> Kind:
    """Returns a streaming recogniser in the form of one of sherpa-onnx's kinds.

    Raises:
        UserError: If the model cannot stream, or no kind has its head or front-end.
    """
    front_end = parts.model.front_end
    initial_state(parts, 1)  # raises if the head cannot stream
    if bins_of(front_end) != ICEFALL:
        raise other_front_end(front_end, "streams", f"{KALDIS}. Use --to onnx")
    if any(isinstance(stage, Stack) and stage.ends == "copies" and stage.num > 2 for stage in front_end.then):
        raise UserError(
            'streams of sherpa-onnx begin with their first frame, and the front-end has Stack(ends="copies"), which '
            'puts copies of this frame before it: expected ends="zeros" or ends="dropped". Use --to onnx'
        )
    about = {"model_type": "zipformer2"} | metadata(parts)
    if isinstance(parts.model.heads[parts.head], TransducerHead):
        networks, tokens, of_decoder = stateless(parts, tokenizer)
        files = [container(parts, "encoder", "encoder_out"), *networks]
        return Kind("transducer", files, tokens, {"encoder": about, "decoder": of_decoder}, streams=True)
    tokens = symbols_of(tokenizer, range(tokenizer.vocab_size))
    return Kind("zipformer2_ctc", [container(parts, "model", "log_probs")], tokens, {"model": about}, streams=True)


def metadata(parts: Parts) -> dict[str, Any]:
    """Returns the metadata by which sherpa-onnx computes windows and the sizes of the state."""
    size, shift, _ = frames_of_window(parts)
    return {
        **dict.fromkeys(("num_encoder_layers", "left_context_len", "num_heads", "value_head_dims"), 1),
        "query_head_dims": packed_size(parts),
        "encoder_dims": 4,
        "cnn_module_kernels": 3,
        "T": size,
        "decode_chunk_len": shift,
    }


def packed_size(parts: Parts) -> int:
    """Returns the number of values of the state, with the frames that precede the next window."""
    leaves = jax.tree.leaves(initial_state(parts, 1))
    return sum(math.prod(leaf.shape[1:]) for leaf in leaves) + frames_of_window(parts)[2] * ICEFALL.num_mels


def frames_of_window(parts: Parts) -> tuple[int, int, int]:
    """Returns the mel frames of a window, the distance of two windows, and the number of frames before a stream."""
    window, num, every = parts.model.encoder.stream_window, 1, 1
    for stage in parts.model.front_end.then:
        if isinstance(stage, Stack):
            num, every = num + (stage.num - 1) * every, every * stage.every
    return (window.size - 1) * every + num, window.shift * every, window.before * every


def container(parts: Parts, name: str, output: str) -> Part:
    """Returns the part that encodes one window with sherpa-onnx's arrays of the state."""
    like, (size, shift, num_before) = initial_state(parts, 1), frames_of_window(parts)
    window = parts.model.encoder.stream_window
    (rows,) = symbols("batch")
    width = packed_size(parts)

    def function(x: Any, cached_key: Any, processed_lens: Any, **unused: Any) -> Any:
        frames, state = x, cached_key[0]
        if num_before:  # windows begin before the stream, and sherpa-onnx begins with its first frame
            state, kept = jnp.split(state, [width - num_before * ICEFALL.num_mels], axis=1)
            frames = jnp.concatenate([kept.reshape(x.shape[0], num_before, ICEFALL.num_mels), x], axis=1)
        found = Frames(frames[:, :size], jnp.full(x.shape[0], size, jnp.int32))
        for stage in parts.model.front_end.then:
            found = stage(found, step=None)
        # Stages append frames, which the next window has.
        found = Frames(found.values[:, : window.size], jnp.full(x.shape[0], window.size, jnp.int32))
        after, outputs = streamed(parts, unpacked(like, state), found)
        key = packed(after)
        if num_before:
            kept = frames[:, shift : shift + num_before].reshape(x.shape[0], num_before * ICEFALL.num_mels)
            key = jnp.concatenate([key, kept], axis=1)
        return outputs.values, key[None], *(unused[each] for each in UNUSED), processed_lens + size

    inputs: dict[str, tuple[Any, ...]] = {"x": (rows, size, ICEFALL.num_mels), "cached_key": (1, rows, width)}
    inputs |= {key: tuple(rows if each == "batch" else each for each in shape) for key, shape in UNUSED.items()}
    shapes = {key: jax.ShapeDtypeStruct(shape, jnp.float32) for key, shape in inputs.items()}
    shapes["processed_lens"] = jax.ShapeDtypeStruct((rows,), jnp.int32)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(like)), "sherpa-onnx begins with a state of zeros"
    names = ("cached_key", *UNUSED, "processed_lens")

    def check(file: File) -> Any:
        """Computes the windows of two streams that are complete, as sherpa-onnx does."""
        recordings = parts.recordings
        features = of_bins(parts, "x", "lengths").example
        num_windows = np.maximum((features["lengths"] - size) // shift + 1, 0)
        sizes = {key: [len(recordings) if each is rows else each for each in shapes[key].shape] for key in names}
        state = {key: np.zeros(sizes[key], shapes[key].dtype) for key in names}
        found: list[list[np.ndarray]] = [[] for _ in recordings]
        for place in range(num_windows.max()):
            first = place * shift
            values, *after = map(np.asarray, file(x=features["x"][:, first : first + size], **state))
            state = dict(zip(names, after, strict=True))
            for outputs, row, number in zip(found, values, num_windows, strict=True):
                outputs.append(row[: len(row) * (place < number)])
        windows, lengths = joined(found)
        whole, _ = parts.outputs(recordings)
        return [whole[:, : windows.shape[1]], lengths], [windows, lengths]

    return Part(name, function, shapes, (output, *(f"new_{each}" for each in names)), check=check)
