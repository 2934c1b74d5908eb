"""Writes small files of torch.save in both of its formats for tests/pretrained/test_torch_files.py.

Runs in .venv-reference.

.venv-reference/bin/python scripts/goldens/torch_files.py --out tests/pretrained/files
"""

import argparse
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path

import torch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    base = torch.arange(24, dtype=torch.float32)
    weights = OrderedDict(
        {
            "module.whole": base.reshape(4, 6),
            "module.transposed": base.reshape(4, 6).t(),
            "module.part": base[5:9],
            "module.bf16": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
            "module.f16": torch.tensor([0.25], dtype=torch.float16),
            "module.count": torch.tensor(7),
            "module.flags": torch.tensor([True, False]),
            "module.empty": torch.zeros(0, 3),
            "module.parameter": torch.nn.Parameter(torch.full((2,), 3.0)),
        }
    )
    saved = {"model": weights, "args": Namespace(lr=0.1, layers=[1, 2]), "device": torch.device("cpu"), "epoch": 3}
    torch.save(saved, out / "archive.pt")
    torch.save(saved, out / "legacy.pt", _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    main()
