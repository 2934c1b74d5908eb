"""Benchmarks: `python -m asr_jax.benchmark steps --config FILE …`, or another of the names below instead of `steps`.

inference: latency of a batch by rows and seconds, and throughput of a whole set. train: duration of updates by
accumulation and number of devices, on synthetic data or the data of a config. Both also print published figures of
other systems. steps: milliseconds of each part of a training step, by bucket. model: the model of a config on one
batch, compared with the speed of the machine and with the original in PyTorch. data: speed of reading and planning,
padding, and memory. frontend: throughput of every front-end. kernels: implementations of single operations.
`NAME --help` describes a benchmark and its options.
"""

from collections.abc import Sequence

from asr_jax.cli.benchmark import data, frontend, inference, kernels, model, steps, train
from asr_jax.cli.command_line import run_command
from asr_jax.core.errors import UserError, nearest

COMMANDS = {
    "inference": inference.main, "train": train.main, "steps": steps.main, "model": model.main, "data": data.main,
    "frontend": frontend.main, "kernels": kernels.main,
}  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__)
    elif name in COMMANDS:
        COMMANDS[name](rest)
    else:
        raise UserError(f"unknown benchmark {name}: expected {', '.join(COMMANDS)}{nearest(name, COMMANDS)}")


if __name__ == "__main__":
    run_command(main)
