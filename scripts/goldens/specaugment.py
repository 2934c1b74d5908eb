"""Measures how much lhotse's SpecAugment masks, for tests/goldens/test_mask_statistics.py.

Runs in .venv-reference.

.venv-reference/bin/python scripts/goldens/specaugment.py --out tests/goldens/statistics
"""

import argparse
import json
import random
from pathlib import Path

import torch
from lhotse import __version__
from lhotse.dataset.signal_transforms import SpecAugment

DRAWS, ROWS, FRAMES, BINS = 400, 4, 670, 80


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    random.seed(0)
    torch.manual_seed(0)
    args = {
        "time_warp_factor": 0, "num_feature_masks": 2, "features_mask_size": 27, "num_frame_masks": 10,
        "frames_mask_size": 100, "max_frames_mask_fraction": 0.15, "p": 0.9,
    }  # fmt: skip
    transform = SpecAugment(**args)
    # Masked values become the mean, which differs from all values.
    values = torch.where(torch.rand(ROWS, FRAMES, BINS) < 0.5, 1.0, 3.0)
    masked = torch.stack([transform(values) for _ in range(DRAWS)]) != values
    shares = masked.float().mean(dim=(1, 2, 3))
    stats = {
        "args": args,
        "mean_zero_fraction": shares.mean().item(),
        "std_batch_zero_fraction": shares.std(unbiased=False).item(),
    }
    for name, axis in (("time", 3), ("freq", 2)):
        whole = masked.all(dim=axis).float().mean(dim=2)
        stats |= {f"mean_fully_masked_{name}_fraction": whole.mean().item(), f"max_{name}": whole.max().item()}
    about = {"peer": f"lhotse {__version__}", "shape_BFT": [ROWS, BINS, FRAMES], "draws": DRAWS}
    out.mkdir(parents=True, exist_ok=True)
    (out / "specaugment_statistics.json").write_text(json.dumps(about | {"stats": {"icefall": stats}}, indent=1) + "\n")


if __name__ == "__main__":
    main()
