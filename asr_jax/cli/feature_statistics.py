"""Mean and deviation of each mel bin: `python -m asr_jax.feature_statistics --config FILE --data IN … --out O.json`.

Computes the statistics of the output of the front-end of FILE, before its normalisation, over the data. Configs read
the file with `NormaliseByDataSet.of_json("O.json")`, such as in `front_end=rnnt(NormaliseByDataSet.of_json("O.json",
share=Ramp((0.0,), (1.0,), begin_updates=N, ramp_updates=5000)))`. The experiment of a run contains the values, so the
run does not need the file.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import arg

from asr_jax.cli.command_line import load_config
from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.core.options import parse
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import NonNegativeFloat, NonNegativeInt, command_options


@command_options
class StatisticsOptions:
    """Command-line options of `asr_jax.feature_statistics`."""

    config: Annotated[UserPath, arg(metavar="FILE")] = ""
    """Config whose front-end is used."""
    preset: Annotated[str, arg(metavar="NAME")] = ""
    """Name of a front-end in asr_jax.audio.presets, instead of --config."""
    data: Annotated[tuple[UserPath, ...], arg(metavar="IN …")]
    """Manifests, folders or patterns of any supported format."""
    out: Path
    """JSON file to write."""
    max_hours: NonNegativeFloat = 0.0
    """Approximate hours of audio to use, evenly spaced in the data; 0: all."""
    workers: NonNegativeInt = 0
    """Number of processes that read audio; 0: threads."""
    allow_pipes: bool = False
    """Run commands in the place of files, as `ffmpeg -i a.m4a -f wav - |` in Kaldi's wav.scp."""


def main(arguments: Sequence[str]) -> None:
    options = parse(StatisticsOptions, arguments, prog="python -m asr_jax.feature_statistics", about=__doc__)
    if bool(options.config) == bool(options.preset):
        raise UserError(f"--config {options.config!r}, --preset {options.preset!r}: expected exactly one of the two")
    if not options.out.absolute().parent.is_dir():
        raise UserError(f"--out {options.out}: the folder {options.out.parent} does not exist; create it first")

    from asr_jax.audio.presets import preset
    from asr_jax.cli.recognition_options import print_differing
    from asr_jax.core.devices import say_devices
    from asr_jax.core.files import write_whole
    from asr_jax.data.loading.statistics import bin_statistics

    front_end = load_config(options.config).model.front_end if options.config else preset(options.preset)
    say_devices()
    found, num_frames, rejected = bin_statistics(
        options.data, front_end, max_hours=options.max_hours, workers=options.workers, allow_pipes=options.allow_pipes
    )
    unreadable = [entry for entry in rejected if entry.stage != "used"]
    for entry in unreadable:
        print(f"rejected {entry.location}: {entry.reason}", file=sys.stderr)
    print_differing([entry for entry in rejected if entry.stage == "used"])
    write_whole(
        options.out, json.dumps({"mean": found.mean, "deviation": found.deviation, "frames": num_frames}) + "\n"
    )
    print(
        f"{options.out}: {len(found.mean)} bins of {num_frames:,} frames; {counted(len(unreadable), 'utterance')} "
        "could not be read"
    )
