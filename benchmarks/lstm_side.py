"""Times `torch.nn.LSTM` for `benchmarks/lstm.py`: `.venv-reference/bin/python benchmarks/lstm_side.py THREADS`.

Each line of standard input is {"rows", "frames", "input", "dim", "layers", "pass"} as JSON, where `pass` is forward or
step. The answer is a line with the seconds of one call.
"""

import functools
import json
import sys
import time
from typing import Any

import torch


@functools.cache
def made(rows: int, frames: int, inputs: int, dim: int, layers: int) -> tuple[torch.nn.LSTM, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(rows, frames, inputs, requires_grad=True)
    return torch.nn.LSTM(inputs, dim, layers, batch_first=True), x


def seconds(given: dict[str, Any]) -> float:
    module, x = made(given["rows"], given["frames"], given["input"], given["dim"], given["layers"])
    started = time.perf_counter()
    if given["pass"] == "forward":
        with torch.no_grad():
            module(x)
    else:
        module.zero_grad()
        x.grad = None
        module(x)[0].sum().backward()
    return time.perf_counter() - started


def main() -> None:
    torch.set_num_threads(int(sys.argv[1]))
    for line in sys.stdin:
        print(json.dumps(seconds(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
