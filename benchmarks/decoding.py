"""Speed of reading audio by format: `python -m benchmarks.decoding --data MANIFEST [--threads N …] [--json OUT]`.

The first minutes of the manifest's audio are written in each format, and read as the loader reads them: int16 samples
at 16 kHz. A speed is seconds of audio per second. With one thread, it is per second of processor time, which other
processes of the machine disturb least; with more, per second of the clock.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import soundfile
import soxr
from jaxtyping import Int16

from asr_jax.core.files import write_whole
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.reading import read_utterances

RATE_HZ = 16000


class Format(NamedTuple):
    """A format of audio files."""

    name: str
    container: str
    subtype: str
    rate_hz: int = RATE_HZ


FORMATS = (
    Format("WAV", "WAV", "PCM_16"),
    Format("WAV, 48 kHz", "WAV", "PCM_16", 48000),
    Format("FLAC", "FLAC", "PCM_16"),
    Format("FLAC, 48 kHz", "FLAC", "PCM_16", 48000),
    Format("Ogg Vorbis", "OGG", "VORBIS"),
    Format("Ogg Opus", "OGG", "OPUS"),
    Format("MP3", "MP3", "MPEG_LAYER_III"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="MANIFEST", help="manifest of 16 kHz audio")
    parser.add_argument("--minutes", type=float, default=10.0, help="minutes of audio in each format: %(default)s")
    parser.add_argument(
        "--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1], help="numbers of threads: %(default)s"
    )
    parser.add_argument("--repeats", type=int, default=5, help="repetitions, whose median counts: %(default)s")
    parser.add_argument("--json", type=Path, help="file for the figures")
    given = parser.parse_args()
    audio = first_minutes(given.data, given.minutes)
    seconds = sum(map(len, audio)) / RATE_HZ
    figures: dict[str, Any] = {"cores": os.cpu_count(), "minutes": round(seconds / 60, 1), "formats": []}
    for each in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            paths = written(audio, each, Path(folder))
            size = sum(path.stat().st_size for path in paths)
            speeds = {str(num): speed(paths, seconds, num, given.repeats) for num in sorted(set(given.threads))}
        row = {"format": each.name, "kbit_per_s": round(size * 8 / seconds / 1000, 1), "speeds": speeds}
        print(f"{each.name}: {row['kbit_per_s']} kbit/s; real times by threads: {speeds}", flush=True)
        figures["formats"].append(row)
    if given.json:
        write_whole(given.json, json.dumps(figures, indent=1) + "\n")


def first_minutes(manifest: Path, minutes: float) -> list[Int16[np.ndarray, " S"]]:
    """Returns the audio of the first utterances of a manifest."""
    found, total = [], 0
    for utterance in read_utterances([manifest]):
        if total >= minutes * 60 * RATE_HZ:
            break
        found.append(Location.parse(utterance.location).audio(rate_hz=RATE_HZ))
        total += len(found[-1])
    return found


def written(audio: Sequence[Int16[np.ndarray, " S"]], of: Format, folder: Path) -> list[Path]:
    paths = [folder / f"{number}.{of.container.lower()}" for number in range(len(audio))]
    for path, samples in zip(paths, audio, strict=True):
        resampled = samples if of.rate_hz == RATE_HZ else soxr.resample(samples, RATE_HZ, of.rate_hz)
        soundfile.write(path, resampled, of.rate_hz, format=of.container, subtype=of.subtype)
    return paths


def speed(paths: Sequence[Path], seconds: float, threads: int, repeats: int) -> float:
    """Returns the median speed of reading all files once, in seconds of audio per second."""
    clock = time.process_time if threads == 1 else time.perf_counter
    found = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            began = clock()
            lengths = list(pool.map(lambda path: len(Location(str(path)).audio(rate_hz=RATE_HZ)), paths))
            found.append(seconds / (clock() - began))
            assert abs(sum(lengths) / RATE_HZ / seconds - 1) < 0.02, "audio is missing"
    return round(median(found))


if __name__ == "__main__":
    main()
