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
    path: Path,
    samples: np.ndarray,
    codec: str,
    rate_hz: int,
    *,
    quality: int | None = None,
    late_s: float = 0.0,
    gap_s: tuple[float, float] = (0.0, 0.0),
    video_s: float = 0.0,
    frame_ms: float = 0.0,
    **options: str,
) -> Path:
    """Writes audio with PyAV, in the container of the ending of the path.

    Args:
        samples: int16 samples, [S] or [S, C].
        quality: Quality of a variable bit rate.
        late_s: Seconds by which the times of all packets are later.
        gap_s: Begin and end of a time in seconds whose packets are not written.
        video_s: Duration of a track of video in seconds.
        frame_ms: Duration of a packet of Opus in milliseconds. 0: the encoder's.
        options: Options of the muxer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    values = (samples.reshape(len(samples), -1).T / 32768).astype(np.float32)
    layout = "mono" if len(values) == 1 else "stereo"
    with av.open(path, "w", options=options) as container:
        video = _video(container, video_s) if video_s else None
        of_codec = {"frame_duration": f"{frame_ms:g}"} if frame_ms else {}
        stream = container.add_stream(codec, rate=rate_hz, layout=layout, options=of_codec)
        if codec.startswith("wma"):
            stream.bit_rate = 64000  # it has no default
        if quality is not None:
            stream.codec_context.flags |= av.codec.context.Flags.qscale
            stream.codec_context.global_quality = quality * FF_QP2LAMBDA
        frames = list[av.AudioFrame | None]()
        for first in range(0, len(samples), 1024):
            frame = av.AudioFrame.from_ndarray(values[:, first : first + 1024].copy(), format="fltp", layout=layout)
            frame.rate, frame.pts, frame.time_base = rate_hz, first, Fraction(1, rate_hz)
            frames.append(frame)
        for packet in (packet for frame in [*frames, None] for packet in stream.encode(frame)):
            if gap_s[0] < float(packet.pts * packet.time_base) < gap_s[1]:
                continue
            packet.pts += round(late_s / packet.time_base)
            packet.dts += round(late_s / packet.time_base)
            container.mux(packet)
        container.mux(video or [])
    return path


def _video(container: Any, duration_s: float) -> list[av.Packet]:
    stream = container.add_stream("libvpx" if "webm" in container.format.name else "mpeg4", rate=5)
    stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
    packets = []
    for number in range(round(5 * duration_s)):
        frame = av.VideoFrame(32, 32, "yuv420p")
        frame.pts, frame.time_base = number, Fraction(1, 5)
        packets += stream.encode(frame)
    return packets + stream.encode(None)


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
