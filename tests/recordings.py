"""Helpers of data tests: write audio of random samples, read utterances, and compare their signals."""

import json
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile

from asr_jax.cli.convert import main as convert
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.reading import Utterances, read_utterances
from asr_jax.data.manifests.utterances import Utterance

RATE = 16000
FF_QP2LAMBDA = 118


def noise(seed: int, num: int = 3000) -> np.ndarray:
    return np.random.default_rng(seed).integers(-20000, 20000, num).astype(np.int16)


def write(path: Path, samples: np.ndarray, rate_hz: int = RATE, **options: Any) -> Path:
    """Writes audio with soundfile, in the format of the ending of the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate_hz, **options)
    return path


def write_av(
    path: Path, samples: np.ndarray, codec: str, rate_hz: int, *, quality: int | None = None, **options: str
) -> Path:
    """Writes audio with PyAV, in the container of the ending of the path.

    `quality` is that of a variable bit rate; `options` are those of the muxer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    values = (samples / 32768).astype(np.float32)[None]
    with av.open(path, "w", options=options) as container:
        stream = container.add_stream(codec, rate=rate_hz, layout="mono")
        if quality is not None:
            stream.codec_context.flags |= av.codec.context.Flags.qscale
            stream.codec_context.global_quality = quality * FF_QP2LAMBDA
        for first in range(0, len(samples), 1024):
            frame = av.AudioFrame.from_ndarray(values[:, first : first + 1024].copy(), format="fltp", layout="mono")
            frame.rate, frame.pts, frame.time_base = rate_hz, first, Fraction(1, rate_hz)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def jsonl(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def read(folder: Path, *paths: Path, **options: Any) -> Utterances:
    """Reads utterances with a cache in the folder."""
    return read_utterances(paths, cache=str(folder / ".cache"), **options)


def signal(utterance: Utterance) -> np.ndarray:
    """Samples or features of an utterance, as in a batch."""
    location = Location.parse(utterance.location)
    return location.features() if utterance.num_frames else location.audio(rate_hz=RATE)


def check_signals(utterances: Utterances, expected: Sequence[np.ndarray]) -> None:
    for utterance, samples in zip(utterances, expected, strict=True):
        np.testing.assert_array_equal(signal(utterance), samples, err_msg=utterance.location)


def check_conversion(folder: Path, *paths: Path) -> None:
    """Checks that conversion to JSONL keeps the utterances: ids, texts, labels, durations, samples."""
    before = read(folder, *paths)
    out = folder / "converted" / "out.jsonl"
    convert([*map(str, paths), str(out)])
    after = read(folder, out)
    assert [replace(utterance, location="") for utterance in after] == [
        replace(utterance, location="") for utterance in before
    ]
    check_signals(after, [signal(utterance) for utterance in before])
