"""Writes a `.nemo` archive and a checkpoint of DeepLearningExamples for tests/pretrained/test_quartznet.py.

Both contain one tiny QuartzNet with random weights. Names and shapes are those of NeMo and DeepLearningExamples, which
need not be installed, since PyTorch writes the files. Runs in .venv-reference.

.venv-reference/bin/python scripts/goldens/nemo_quartznet.py --out tests/pretrained/files
"""

import argparse
import io
import tarfile
from pathlib import Path

import torch
import yaml

BLOCKS = [  # the input has 4 mel bins
    {"filters": 8, "repeat": 1, "kernel": [3], "stride": [2], "separable": True, "residual": False},
    {"filters": 8, "repeat": 3, "kernel": [5], "stride": [1], "separable": True, "residual": True},
    {"filters": 6, "repeat": 1, "kernel": [1], "stride": [1], "residual": False},
]
LABELS = [" ", "a", "b", "c"]
CONFIG = {
    "preprocessor": {"features": 4, "window_size": 0.02},
    "encoder": {
        "_target_": "nemo.collections.asr.modules.ConvASREncoder",
        "feat_in": 4,
        "activation": "relu",
        "conv_mask": True,
        "jasper": [{**block, "dilation": [1], "dropout": 0.1} for block in BLOCKS],
    },
    "decoder": {"feat_in": 6, "num_classes": 4, "vocabulary": LABELS},
}


def weights() -> dict[str, torch.Tensor]:
    """Random weights with NeMo's names, in its order."""
    drawn = torch.Generator().manual_seed(0)
    found, width = {}, 4

    def norm(name: str, channels: int) -> None:
        for part in ("weight", "bias", "running_mean"):
            found[f"{name}.{part}"] = torch.randn(channels, generator=drawn)
        found[f"{name}.running_var"] = torch.rand(channels, generator=drawn) + 0.5
        found[f"{name}.num_batches_tracked"] = torch.tensor(7)

    def conv(name: str, *shape: int) -> None:
        found[f"{name}.conv.weight"] = torch.randn(shape, generator=drawn)

    for number, block in enumerate(BLOCKS):
        place, filters, first = 0, block["filters"], width
        for _ in range(block["repeat"]):
            if block.get("separable"):
                conv(f"encoder.encoder.{number}.mconv.{place}", width, 1, block["kernel"][0])
                conv(f"encoder.encoder.{number}.mconv.{place + 1}", filters, width, 1)
            else:
                conv(f"encoder.encoder.{number}.mconv.{place}", filters, width, block["kernel"][0])
            place += 2 if block.get("separable") else 1
            norm(f"encoder.encoder.{number}.mconv.{place}", filters)
            place, width = place + 3, filters
        if block["residual"]:
            conv(f"encoder.encoder.{number}.res.0.0", filters, first, 1)
            norm(f"encoder.encoder.{number}.res.0.1", filters)
    found["decoder.decoder_layers.0.weight"] = torch.randn(len(LABELS) + 1, width, 1, generator=drawn)
    found["decoder.decoder_layers.0.bias"] = torch.randn(len(LABELS) + 1, generator=drawn)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    named = weights()
    featurizer = {"preprocessor.featurizer.window": torch.ones(320), "preprocessor.featurizer.fb": torch.ones(1, 4, 9)}
    checkpoint, config = io.BytesIO(), yaml.safe_dump(CONFIG).encode()
    torch.save(featurizer | named, checkpoint)
    with tarfile.open(out / "quartznet.nemo", "w:gz") as archive:
        for name, content in (("model_config.yaml", config), ("model_weights.ckpt", checkpoint.getvalue())):
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    nvidia = {
        name.replace("encoder.encoder", "encoder.layers")
        .replace("decoder.decoder_layers", "decoder.layers")
        .replace(".conv.weight", ".weight"): value
        for name, value in named.items()
    }
    live = {name: value + 1 for name, value in nvidia.items()}
    torch.save({"epoch": 3, "state_dict": live, "ema_state_dict": nvidia, "best_wer": 0.5}, out / "quartznet.pt")


if __name__ == "__main__":
    main()
