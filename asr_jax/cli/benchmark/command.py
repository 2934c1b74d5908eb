"""Where the time goes: `python -m asr_jax.benchmark steps --config FILE …`, or another name in the place of `steps`.

inference: latency of recognising a batch, by rows and seconds, and the rate of a whole set. train: updates by
accumulation and number of devices, on synthetic data or a config's own. Both print published figures beside ours.
steps: milliseconds of each part of a training step, by bucket. model: a config's model on one batch, beside this
machine's own speed and the PyTorch original's. data: how fast and how well data are read, planned and
held. frontend: audio-seconds per second of every front-end. `--help` after one of them tells more.
"""

from collections.abc import Sequence

from asr_jax.cli.benchmark import data, frontend, inference, model, steps, train
from asr_jax.cli.command_line import run_command
from asr_jax.core.errors import UserError, nearest

COMMANDS = {
    "inference": inference.main, "train": train.main, "steps": steps.main, "model": model.main, "data": data.main,
    "frontend": frontend.main,
}  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__)
    elif name in COMMANDS:
        COMMANDS[name](rest)
    else:
        raise UserError(f"benchmark {name}: expected {', '.join(COMMANDS)}{nearest(name, COMMANDS)}")


if __name__ == "__main__":
    run_command(main)
