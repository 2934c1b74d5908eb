"""Trained runs with random weights, and their results for whole recordings and for streams."""

from dataclasses import replace
from functools import partial

import jax
import numpy as np
from recordings import RATE

from asr_jax.core.batch import Batch
from asr_jax.core.meshes import data_mesh
from asr_jax.data.batching.limits import BatchLimits
from asr_jax.inference.endpoints import Endpoints
from asr_jax.inference.streaming import Streamer, StreamProgram
from asr_jax.inference.trained import Trained
from asr_jax.search.ctc import CTCDecoding
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.text.characters import CharacterTokenizer
from tests.support import assert_close
from tests.toy_config import experiment

TOKENIZER = CharacterTokenizer(symbols=(" ", *"abcdefg", None), normaliser="none")
NEVER = Endpoints(silence_s=0.0, pause_s=0.0, longest_s=0.0)
LONGEST = 6 * RATE
DECODINGS = {
    "ctc": CTCDecoding(),
    "ctc beam": CTCDecoding(kind="beam"),
    "rnnt": TransducerDecoding(max_symbols=3),
    "rnnt beam": TransducerDecoding(kind="beam", max_symbols=1),
    "tdt": TransducerDecoding(max_symbols=3),
}


def sound(seconds, seed):
    rng, num = np.random.default_rng(seed), round(seconds * RATE)
    pitch = np.repeat(rng.uniform(100, 4000, num // 1600 + 1), 1600)[:num]
    return (6000 * np.sin(np.cumsum(2 * np.pi * pitch / RATE)) + rng.normal(0, 20, num)).astype(np.int16)


def batch_of(samples):
    audio = np.zeros((1, LONGEST), np.int16)
    audio[0, : len(samples)] = samples
    empty = np.zeros((1, 0), np.int32)
    return Batch(
        audio,
        None,
        np.int32([len(samples)]),
        empty,
        np.zeros(1, np.int32),
        np.ones(1, np.float32),
        np.zeros(1, np.int32),
    )


def trained_of(model, folder):
    """A run with random weights with which many labels are found."""
    module = model.build(vocab_size=TOKENIZER.vocab_size, blank_id=TOKENIZER.blank_id, precision="f32")
    streams = dict.fromkeys(("params", "dropout"), jax.random.key(0))
    labels = {"tokens": np.zeros((1, 2), np.int32), "token_lengths": np.int32([2])}
    shapes = jax.eval_shape(partial(module.init, step=None), streams, batch_of(sound(1, 0)).replace(**labels))
    rng, num_features = np.random.default_rng(1), model.front_end.num_features
    params = jax.tree.map(
        lambda leaf: np.float32(rng.normal(0, 0.2 if leaf.shape[:1] == (num_features,) else 0.6, leaf.shape)),
        shapes["params"],
    )
    for head in model.heads:
        params[f"heads_{head}"]["output"]["kernel"] *= 3
        params[f"heads_{head}"]["output"]["bias"] = (
            np.float32(np.arange(len(params[f"heads_{head}"]["output"]["bias"])) == 8) * 2
        )
    variables, output = {"params": params}, params["heads_ctc"]["output"]
    emit = jax.jit(partial(module.apply, head="ctc", method="emit"))

    def log_probs():
        found = jax.device_get(emit(variables, batch_of(sound(5.9, 0)))["ctc"])
        return found.values[0, : found.lengths[0]]

    # Labels of CTC change with the frames, and all of them are equally likely on average.
    output["kernel"] *= max(1.0, 1.0 / np.median(log_probs().std(axis=0)))
    output["bias"] -= log_probs().mean(axis=0) - np.float32(1.0) * np.isin(np.arange(9), [0, 8])
    return Trained(
        experiment=replace(experiment(), model=model), model=module, tokenizer=TOKENIZER, variables=variables,
        longest_s=LONGEST / RATE, limits=BatchLimits(seconds=6.0), folder=folder, updates=0, weights="live",
        mesh=data_mesh(1),
    )  # fmt: skip


def whole(trained, name, recordings):
    """Transcripts of whole recordings."""
    search = trained.decoder(DECODINGS[name], head=name.split()[0]).search
    found = jax.jit(search)
    batches = (found(trained.variables, batch_of(samples))[0] for samples in recordings)
    return [search.transcript(search.sequences(each, [0])[0]) for each in batches]


def streamer_of(trained, name, *, num_rows=1, endpoints=NEVER):
    decoder = trained.decoder(DECODINGS[name], head=name.split()[0])
    return Streamer(StreamProgram(trained, decoder, num_rows=num_rows), endpoints=endpoints)


def pieces(samples, seed):
    rng, at = np.random.default_rng(seed), 0
    while at < len(samples):
        size = int(rng.choice([1, 77, 320, 5000, 30_000]))
        yield samples[at : at + size]
        at += size


def recognised(streamer, parts):
    """All results of one stream."""
    stream, results = streamer.begin(), []
    for part in parts:
        streamer.feed(stream, part)
        results += streamer.run()
    streamer.end(stream)
    return [*results, *streamer.run()]


def recognised_together(streamer, recordings, *, num_rows):
    """The results of each recording in one batch: they begin at other times, and some wait; free rows are used again.

    The streamer must be new.
    """
    rng, waiting, left, results = np.random.default_rng(0), list(recordings), {}, []
    while waiting or left:
        while waiting and len(left) < num_rows:
            left[streamer.begin()] = waiting.pop(0)
        for stream in list(left):
            size = int(rng.choice([0, 77, 1000, 9000]))
            streamer.feed(stream, left[stream][:size])
            left[stream] = left[stream][size:]
            if not len(left[stream]):
                streamer.end(stream)
                del left[stream]
        results += streamer.run()
    return [[each for each in results if each.stream == stream] for stream in range(len(recordings))]


def assert_same(found, expected):
    assert (found.text, found.tokens) == (expected.text, expected.tokens)
    for name in ("start_s", "end_s", "confidence"):
        assert_close(*([getattr(word, name) for word in each.words] for each in (found, expected)), atol=1e-4)
    assert_close(found.score, expected.score, atol=1e-3)
