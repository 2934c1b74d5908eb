"""Benchmarks: `python -m asr_jax.benchmark train --config FILE …`, or another of the names below instead of `train`.

inference: latency of a batch by rows and seconds, and throughput of a whole set. train: duration of updates by
accumulation and number of devices, on synthetic data or the data of a config. data: speed of reading, and memory.
kernels: implementations of single operations. `NAME --help` describes a benchmark and its options. The folder
benchmarks/ of the repository has others.
"""

from collections.abc import Sequence

from asr_jax.cli.benchmark import data, inference, kernels, train
from asr_jax.core.errors import UserError, nearest

COMMANDS = {"inference": inference.main, "train": train.main, "data": data.main, "kernels": kernels.main}


def main(arguments: Sequence[str]) -> None:
    name, *rest = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(__doc__)
    elif name in COMMANDS:
        COMMANDS[name](rest)
    else:
        raise UserError(f"unknown benchmark {name}: expected {', '.join(COMMANDS)}{nearest(name, COMMANDS)}")
