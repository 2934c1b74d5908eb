"""Copies a data set at other speeds: `python scripts/perturb_speed.py --data IN … --out DIR --speeds 0.9 1.1`.

Writes FLAC files and DIR/manifest.jsonl, which contains the originals (at their paths) and the copies, whose ids end in
`-speed0.9`. A speed of 1.1 is faster and shorter. Training can perturb speeds online instead, without files
(--data.speeds 0.9 1.0 1.1). Existing copies are reused, so an interrupted command can be repeated.
"""

import hashlib
import re
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from asr_jax.audio.errors import AudioError
from asr_jax.audio.io import probe, write_flac
from asr_jax.cli.command_line import run_command
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.options import parse
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.measuring import state_of
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.data.manifests.utterances import Utterance


@dataclass(frozen=True, kw_only=True)
class SpeedOptions:
    """Options of `scripts/perturb_speed.py`."""

    data: Annotated[tuple[str, ...], arg(metavar="IN …")]
    """Manifests, folders or patterns of any supported format."""
    out: Path
    """Folder to write to."""
    speeds: tuple[float, ...] = (0.9, 1.1)
    """Speeds of the copies."""
    rate_hz: int = 16000
    """Sampling rate of the copies in Hz."""
    processes: int = 2
    """Number of processes."""


def main(arguments: Sequence[str]) -> None:
    given = parse(SpeedOptions, arguments, prog="python scripts/perturb_speed.py", about=__doc__)
    if not all(0.1 < speed < 10 and speed != 1 for speed in given.speeds) or len({*given.speeds}) < len(given.speeds):
        raise UserError(f"--speeds {given.speeds}: expected distinct speeds between 0.1 and 10, without 1")
    if min(given.processes, given.rate_hz) < 1:
        raise UserError(f"--processes {given.processes}, --rate-hz {given.rate_hz}: expected at least 1")
    utterances = read_utterances(given.data)
    again = next((utterance.id for utterance in utterances if re.search(r"-speed[\d.]+$", utterance.id)), None)
    if again:
        raise UserError(f"{again} is already a copy at another speed: expected --data with originals only")
    originals = [utterances[place] for place in range(len(utterances))]
    found: list[Utterance] = list(originals)
    num_rejected = 0
    with ProcessPoolExecutor(given.processes) as pool:
        for speed in given.speeds:
            copy = partial(copied, out=given.out, speed=speed, rate_hz=given.rate_hz)
            for result in pool.map(copy, originals, chunksize=16):
                if isinstance(result, Utterance):
                    found.append(result)
                else:
                    num_rejected += 1
                    print(f"rejected {result}", file=sys.stderr)
    write_manifest(given.out / "manifest.jsonl", found)
    print(f"{given.out / 'manifest.jsonl'}: {len(originals)} utterances and {len(found) - len(originals)} copies")
    if num_rejected:
        raise RunError(f"{num_rejected} copies could not be made; the reasons are above")


def copied(utterance: Utterance, *, out: Path, speed: float, rate_hz: int) -> Utterance | str:
    """Copies an utterance at another speed.

    The name of the file is a digest of the location and state of the original, the speed and the rate.

    Args:
        utterance: The original.
        out: Folder to write to.
        speed: Speed of the copy.
        rate_hz: Sampling rate of the copy in Hz.

    Returns:
        The utterance of the copy, or the reason if the original cannot be read.
    """
    place = Location.parse(utterance.location).path
    made_of = f"{utterance.location} {state_of(place)} {speed:g} {rate_hz}"
    name = hashlib.sha256(made_of.encode()).hexdigest()[:20]
    path = out / f"speed{speed:g}" / name[:2] / f"{name}.flac"
    try:
        if not path.exists():
            samples = Location.parse(utterance.location).audio(rate_hz=rate_hz, speed=speed)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial_path = path.with_suffix(".partial")
            write_flac(partial_path, samples, rate_hz)
            partial_path.replace(path)
        duration_s = probe(path).duration_s
    except AudioError as error:
        return str(error)
    return replace(utterance, id=f"{utterance.id}-speed{speed:g}", location=str(path), duration_s=duration_s)


if __name__ == "__main__":
    run_command(main)
