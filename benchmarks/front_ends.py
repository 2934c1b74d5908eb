"""Benchmark of front-ends: `python -m benchmarks.front_ends [--seconds 12 --rows 16] [--peers] [--json OUT]`.

Measures each compiled preset on a batch of noise, in seconds of audio per second, and SpecAugment alone. With
`--peers`, measures the front-ends of other systems in the same run and with the same number of threads, in the
environment of scripts/setup_reference.sh. Absolute figures depend on the machine and its load; compare ratios.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import check_writable
from asr_jax.core.options import parse

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / ".venv-reference/bin/python"
SIDE = ROOT / "benchmarks/frontend_side.py"


@dataclass(frozen=True, kw_only=True)
class FrontEndOptions:
    """Options of `benchmarks.front_ends`."""

    seconds: float = 12.0
    """Length of each row in seconds."""
    rows: int = 16
    """Number of rows of the batch."""
    repeats: int = 7
    """Number of measurements; the fastest one is reported."""
    peers: bool = False
    """Also measure the front-ends of other systems."""
    json: Path | None = None
    """File to write the figures to, in JSON."""


def main(arguments: Sequence[str]) -> None:
    options = parse(FrontEndOptions, arguments, prog="python -m benchmarks.front_ends", about=__doc__)
    if not options.seconds > 0.1 or min(options.rows, options.repeats) < 1:
        raise UserError(
            f"--seconds {options.seconds:g}, --rows {options.rows}, --repeats {options.repeats}: expected --seconds "
            "above 0.1, and at least 1 for the others"
        )
    if options.peers and not REFERENCE.exists():
        raise UserError(f"--peers needs {REFERENCE.parent.parent}: run scripts/setup_reference.sh")
    if options.json:
        check_writable(options.json)

    from asr_jax.core.devices import devices
    from asr_jax.observe.tables import print_table

    device = devices()[0].device_kind
    audio_s = options.seconds * options.rows
    times = ours(options.rows, options.seconds, options.repeats)
    if options.peers:
        times |= theirs(options.rows, options.seconds, options.repeats)
        again = ours(options.rows, options.seconds, options.repeats)  # the load may have been higher before
        times |= {name: min(seconds, times[name]) for name, seconds in again.items()}
    base = times["icefall"]
    rows = [
        {"front-end": name, "× real time": round(audio_s / seconds), "ms": round(1000 * seconds, 2),
         "× the time of icefall": round(seconds / base, 2)}
        for name, seconds in times.items()
    ]  # fmt: skip
    print_table(rows, title=f"{options.rows} rows of {options.seconds:g} s on {device}, {os.cpu_count()} threads")
    if options.json:
        figures = {"device": device, "threads": os.cpu_count(), "rows": options.rows, "seconds": options.seconds}
        options.json.write_text(json.dumps(figures | {"times_s": times}, indent=1) + "\n")


def ours(num_rows: int, seconds: float, repeats: int) -> dict[str, float]:
    """Measures every preset and SpecAugment.

    Args:
        num_rows: Number of rows of the batch.
        seconds: Length of each row in seconds.
        repeats: Number of measurements; the fastest one is returned.

    Returns:
        Seconds per batch, keyed by the name of the preset.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from asr_jax.audio.presets import PRESETS
    from asr_jax.audio.specaugment import SpecAugment

    rng = np.random.default_rng(0)
    size = int(seconds * 16000)
    audio = jnp.asarray(rng.normal(0, 3000, (num_rows, size)).astype(np.int16))
    lengths = jnp.full(num_rows, size, jnp.int32)
    found = {name: _best(jax.jit(make()), (audio, lengths), repeats) for name, make in PRESETS.items()}
    frames = jax.jit(PRESETS["icefall"]())(audio, lengths)
    augment = SpecAugment()
    call = jax.jit(lambda v, n, key: augment(v, n, key, step=jnp.int32(0), front_end=PRESETS["icefall"](), sounds={}))
    given = (frames.values, frames.lengths, jax.random.key(0))
    return found | {"SpecAugment alone": _best(call, given, repeats)}


def _best(call: Callable[..., Any], given: Sequence[Any], repeats: int) -> float:
    import jax

    jax.block_until_ready(call(*given))
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(call(*given))
        times.append(time.perf_counter() - begun)
    return min(times)


def theirs(num_rows: int, seconds: float, repeats: int) -> dict[str, float]:
    """Measures the front-ends of other systems.

    Args:
        num_rows: Number of rows of the batch.
        seconds: Length of each row in seconds.
        repeats: Number of measurements; the fastest one is returned.

    Returns:
        Seconds per batch, keyed by the name of the front-end.

    Raises:
        RunError: If the program in the reference environment fails.
    """
    settings = {"rows": num_rows, "seconds": seconds, "repeats": repeats, "threads": os.cpu_count() or 1}
    done = subprocess.run(
        [str(REFERENCE), str(SIDE), json.dumps(settings)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RunError(f"{SIDE} failed: {done.stderr.strip().splitlines()[-1:]}; is .venv-reference up to date?")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    from asr_jax.cli.command_line import run_command

    run_command(main)
