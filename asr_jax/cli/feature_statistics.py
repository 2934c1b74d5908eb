"""Mean and deviation of each mel bin: `python -m asr_jax.feature_statistics --config FILE --data IN … --out O.json`.

What the front-end of FILE gives of the data before it normalises. `NormaliseByDataSet.of_json("O.json")` reads them
back, such as in `front_end=rnnt(NormaliseByDataSet.of_json("O.json", begin_share=0.0, begin_updates=N,
ramp_updates=5000))`; the values become part of the run's experiment, and the file is not needed any more.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from asr_jax.cli.command_line import load_config
from asr_jax.core.errors import UserError


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m asr_jax.feature_statistics", description=__doc__)
    of = parser.add_mutually_exclusive_group(required=True)
    of.add_argument("--config", help="whose front-end is used")
    of.add_argument("--preset", help="a front-end by name: see asr_jax.audio.presets")
    parser.add_argument("--data", nargs="+", required=True, metavar="IN", help="any data that is read")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    parser.add_argument(
        "--max-hours", type=float, default=0.0, help="about so much of the data, spread over it; 0: all"
    )
    parser.add_argument("--workers", type=int, default=0, help="processes that read audio; 0: threads")
    options = parser.parse_args(arguments)
    if not 0 <= options.max_hours < float("inf") or options.workers < 0:
        raise UserError(f"--max-hours {options.max_hours:g}, --workers {options.workers}: expected 0 or more")
    if not options.out.absolute().parent.is_dir():
        raise UserError(f"--out {options.out}: there is no folder {options.out.parent}; make it first")

    from asr_jax.audio.presets import preset
    from asr_jax.core.files import write_whole
    from asr_jax.data.loading.statistics import bin_statistics

    front_end = load_config(options.config).model.front_end if options.config else preset(options.preset)
    found, num_frames, skipped = bin_statistics(
        options.data, front_end, max_hours=options.max_hours, workers=options.workers
    )
    for entry in skipped:
        print(f"skipped {entry['location']}: {entry['reason']}", file=sys.stderr)
    write_whole(
        options.out, json.dumps({"mean": found.mean, "deviation": found.deviation, "frames": num_frames}) + "\n"
    )
    print(f"{options.out}: {len(found.mean)} bins of {num_frames:,} frames; {len(skipped)} records could not be read")
