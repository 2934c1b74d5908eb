"""Writes outputs of PositiveLoss's Paraformer-v2 for tests/goldens/test_paraformer_rust.py.

Runs in .venv-reference.

    git clone https://github.com/PositiveLoss/paraformer-v2-enhanced FOLDER
    git -C FOLDER checkout 18b1ae9
    .venv-reference/bin/python scripts/goldens/paraformer_rust.py --peer FOLDER --out tests/goldens/paraformer_rust

plain.safetensors and enhanced.safetensors are the two models in evaluation mode, computed in float64, with random
weights and statistics of norms. They contain these as param/NAME, and for utterance i: features_i and labels_i, all
outputs of the model for the features alone as out_i/NAME, and as loss_i/NAME the losses of the model with the labels,
with the frames of the Viterbi path. There are no gradients.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional

LENGTHS = (53, 38, 47)
"""Frames of each utterance."""
SIZES = {
    "input_dim": 11, "vocab_size": 6, "encoder_dim": 8, "decoder_dim": 8, "encoder_layers": 4, "decoder_layers": 2,
    "encoder_ff_dim": 12, "decoder_ff_dim": 10, "attention_heads": 2, "conv_kernel_size": 5,
}  # fmt: skip


def draw(model: torch.nn.Module, features: torch.Tensor) -> None:
    """Draws weights and statistics, float32 numbers in float64.

    The biases of the CTC layers are such that each label has the mean logit 0 over the frames of the features.
    """
    for name, value in model.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 2.0)
        elif value.ndim > 1:
            value.normal_(std=1.5 / value[0].numel() ** 0.5)
        elif value.is_floating_point():
            value.normal_(std=0.2).add_(1.0 if name.endswith("weight") else 0.0)
        if value.is_floating_point():
            value.copy_(value.float())
    projections = [module for name, module in model.named_modules() if name.endswith("ctc_projection")]
    *frames, _ = model.encoder(features, torch.tensor([features.shape[1]]))  # of the inner and the last layer
    for projection, values in zip(projections, frames, strict=True):
        projection.bias.sub_(projection(values)[0].mean(dim=0)).copy_(projection.bias.float())


def outputs(model: torch.nn.Module, features: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Returns the outputs for one utterance, and the losses with its labels."""
    lengths, num_labels = torch.tensor([features.shape[1]]), torch.tensor([labels.shape[1]])
    found = model(features, lengths)
    arrays = {f"out/{name}": value for name, value in found.items()}
    arrays["out/encoder"] = model.encoder(features, lengths)[-2]
    given = (features, lengths, labels, num_labels, "viterbi", "python")
    arrays |= {f"loss/{name}": value for name, value in model.loss(*given).items()}
    of_labels = model(*given)
    first = of_labels.get("initial_decoder_logits", of_labels["decoder_logits"])
    arrays["loss/first_ce_loss"] = functional.cross_entropy(first[0, : labels.shape[1]], labels[0])
    return arrays


def save_case(path: Path, model: torch.nn.Module, *, seed: int) -> None:
    """Writes one case."""
    torch.manual_seed(seed)
    model = model.eval().double()
    arrays = dict[str, torch.Tensor]()
    with torch.no_grad():
        utterances = [torch.randn(1, length, SIZES["input_dim"]).double() for length in LENGTHS]
        draw(model, utterances[0])
        arrays |= {f"param/{name}": value for name, value in model.state_dict().items()}
        for number, features in enumerate(utterances):
            labels = torch.randint(0, SIZES["vocab_size"], (1, 3 + number))
            found = outputs(model, features, labels)
            path_labels = found["out/alignments"][0].unique()
            if len(path_labels) < 3:
                raise SystemExit(
                    f"{path.name} seed {seed}: the path of utterance {number} has only the labels {path_labels}"
                )
            arrays |= {name.replace("/", f"_{number}/", 1): value[None] if not value.ndim else value[0]
                       for name, value in found.items()}  # fmt: skip
            arrays |= {f"features_{number}": features[0], f"labels_{number}": labels[0]}
    stored = {
        name: (value.float() if value.is_floating_point() else value).contiguous() for name, value in arrays.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(stored, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="checkout of PositiveLoss/paraformer-v2-enhanced")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    sys.path.insert(0, str(given.peer / "src"))
    from paraformer_v2 import BetterParaformerV2, BetterParaformerV2Config, ParaformerV2, ParaformerV2Config

    plain, enhanced = ParaformerV2(ParaformerV2Config(**SIZES)), BetterParaformerV2(BetterParaformerV2Config(**SIZES))
    save_case(given.out / "plain.safetensors", plain, seed=1)
    save_case(given.out / "enhanced.safetensors", enhanced, seed=2)
    commit = subprocess.check_output(["git", "-C", given.peer, "rev-parse", "--short", "HEAD"], text=True).strip()
    peer = f"PositiveLoss/paraformer-v2-enhanced at commit {commit}, torch {torch.__version__}"
    (given.out / "about.json").write_text(json.dumps({"peer": peer, "sizes": SIZES}, indent=1) + "\n")


if __name__ == "__main__":
    main()
