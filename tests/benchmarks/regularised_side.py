"""Writes gradients of icefall's Zipformer with all its regularisers: `python regularised_side.py SIZES OUT.npz`.

SIZES is JSON with fields of our `Zipformer`. Runs in .venv-reference. Every regulariser is applied, with the limits of
batch 5000. Dropout and skipping are off.
"""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from model_side import MODELS

ROWS, FRAMES, BATCHES = 2, 120, 5000.0
OFF = (
    "attention_skip_rate", "conv_skip_rate", "ff2_skip_rate", "ff3_skip_rate", "const_attention_rate", "skip_rate",
    "layerdrop_rate", "pos_emb_skip_rate", "dropout_p", "p",
)  # fmt: skip


def replace(module: nn.Module, name: str, value: Any) -> None:
    """Replaces an attribute that may be a schedule, which is a module."""
    module._modules.pop(name, None)
    object.__setattr__(module, name, value)


def main() -> None:
    torch.manual_seed(0)
    model = MODELS["icefall"][0](json.loads(sys.argv[1]), 8)
    for name in ("zipformer", "scaling"):
        importlib.import_module(name).random = SimpleNamespace(random=lambda: 0.01)
    model.encoder.get_feature_masks = lambda _: [1.0] * len(model.encoder.encoder_dim)
    for module in list(model.modules()):
        if hasattr(module, "batch_count"):
            module.batch_count = BATCHES
        for name in OFF:
            if hasattr(module, name):
                replace(module, name, 0.0)
        if hasattr(module, "grad_scale"):  # Balancer and Whiten
            replace(module, "prob", 1.0)
            module.min_prob = module.max_prob = 1.0
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * parameter.std().nan_to_num(0.0) * torch.randn_like(parameter)
    features, lengths = torch.randn(ROWS, FRAMES, 80), torch.full((ROWS,), FRAMES)
    x, lengths = model.embed(features, lengths)
    y, _ = model.encoder(x.permute(1, 0, 2), lengths, model.pad_mask(lengths))
    y = y.permute(1, 0, 2)
    weights = torch.randn_like(y)
    (y * weights).sum().backward()
    found = {"features": features, "weights": weights, "output": y.detach()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not name.startswith("output."):
            name = name.replace("embed.", "encoder_embed.", 1) if name.startswith("embed.") else name
            found |= {f"param/{name}": parameter.detach(), f"grad/{name}": parameter.grad}
    np.savez(sys.argv[2], **{name: value.numpy() for name, value in found.items()})


if __name__ == "__main__":
    main()
