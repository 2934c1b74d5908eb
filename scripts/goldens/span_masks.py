"""Writes statistics of fairseq's span masks without overlap and with dropout for tests/goldens/test_span_masks.py.

Runs in .venv-reference, with the sources that `scripts/setup_reference.sh --peers` downloads to .peers:

    .venv-reference/bin/python scripts/goldens/span_masks.py --peer .peers/fairseq \\
        --out tests/goldens/statistics/span_masks.json

At this commit, fairseq calls `randint` of a NumPy generator that has only `integers`, and uses `np.int`, so that masks
without overlap fail. A generator with both and the former name of the type replace them.
"""

import argparse
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import torch

COMMIT = "3d262bb25690e4eb2e7d3c1309b1e9c406ca4b99"
DRAWS = 3000
WHOLE = {"mask_type": "static", "mask_other": 0.0, "min_masks": 2, "no_overlap": True, "min_space": 1,
         "require_same_masks": False, "mask_dropout": 0.0}  # fmt: skip
CASES: dict[str, tuple[list[int], dict[str, Any]]] = {
    "apart": ([90, 75, 31], {"mask_prob": 0.65, "mask_length": 10}),
    "apart, same count": ([90, 80, 85], {"mask_prob": 0.65, "mask_length": 10, "require_same_masks": True}),
    "apart, crowded": ([64, 40], {"mask_prob": 0.9, "mask_length": 6, "min_space": 4}),
    "apart, normal": (
        [70, 50], {"mask_prob": 0.5, "mask_length": 5, "min_space": 3, "mask_type": "normal", "mask_other": 2.0}
    ),
    "apart, uniform": ([70, 50], {"mask_prob": 0.4, "mask_length": 4, "mask_type": "uniform", "mask_other": 2}),
    "apart, poisson": ([70, 50], {"mask_prob": 0.5, "mask_length": 4, "min_space": 2, "mask_type": "poisson"}),
    "apart, dropout": (
        [90, 80], {"mask_prob": 0.65, "mask_length": 10, "mask_dropout": 0.25, "require_same_masks": True}
    ),
    "dropout": ([90, 60], {"mask_prob": 0.65, "mask_length": 10, "no_overlap": False, "mask_dropout": 0.3}),
}  # fmt: skip


class Generator(np.random.RandomState):
    """Legacy generator, which has `randint`, `random`, `choice`, `normal` and `poisson`."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="sources of fairseq")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    compute = load_peer(options.peer)
    stats = {name: statistics(compute, lengths, WHOLE | settings) for name, (lengths, settings) in CASES.items()}
    info = {"peer": f"facebookresearch/fairseq@{COMMIT} compute_mask_indices", "draws": DRAWS, "stats": stats}
    options.out.write_text(json.dumps(info, indent=1) + "\n")


def load_peer(folder: Path) -> Any:
    """Imports fairseq's function, with stubs for modules that it does not use."""
    for name in ("fairseq", "fairseq.file_io", "fairseq.utils"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["fairseq.file_io"].PathManager = None  # type: ignore[attr-defined]
    sys.modules["fairseq"].utils = sys.modules["fairseq.utils"]  # type: ignore[attr-defined]
    np.int = int  # type: ignore[attr-defined]
    seeds = iter(range(1 << 31))
    np.random.default_rng = lambda seed=None: Generator(next(seeds))
    spec = importlib.util.spec_from_file_location("data_utils", folder / "fairseq" / "data" / "data_utils.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.compute_mask_indices


def statistics(compute: Any, lengths: list[int], settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings, and statistics of many draws: counts, runs of masked frames, and shares of each position."""
    size = max(lengths)
    padding = torch.arange(size)[None] >= torch.tensor(lengths)[:, None]
    masks = np.stack([compute((len(lengths), size), padding, **settings) for _ in range(DRAWS)])
    counts = masks.sum(axis=2)
    runs = (np.diff(np.pad(masks, ((0, 0), (0, 0), (1, 0))).astype(int), axis=2) == 1).sum(axis=2)
    return {
        "settings": settings, "lengths": lengths, "count_mean": counts.mean(axis=0).tolist(),
        "count_std": counts.std(axis=0).tolist(), "runs_mean": runs.mean(axis=0).tolist(),
        "runs_std": runs.std(axis=0).tolist(), "position_share": masks[:, 0].mean(axis=0).round(5).tolist(),
    }  # fmt: skip


if __name__ == "__main__":
    main()
