"""Trains an original in PyTorch on given batches; `python -m benchmarks.learning` runs it in .venv-reference.

    .venv-reference/bin/python benchmarks/learning_side.py GIVEN RESULT.json

GIVEN has the initial weights (weights.safetensors), the training batches and the evaluation batches (*.npz), and
settings.json. Writes the loss of each update, per label for icefall and per utterance for NVIDIA's QuartzNet, and the
greedy labels of each evaluation utterance. Models, optimizers and schedules are the originals' modules in .peers
(scripts/setup_reference.sh --peers).
"""

import importlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from model_side import MODELS, icefall_function
from safetensors.torch import load_file
from torch import Tensor, nn

Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Trained = tuple[nn.Module, Loss, Callable[[int], float], torch.optim.Optimizer]
"""Model, loss, a function that prepares an update and returns its learning rate, and optimizer."""


def icefall(settings: dict[str, Any], weights: dict[str, Tensor]) -> Trained:
    """Zipformer, CTC loss, ScaledAdam and Eden, as in zipformer/train.py."""
    model = MODELS["icefall"][0](settings["sizes"], settings["vocabulary"])
    names = {name: name.replace("encoder_embed.", "embed.").replace("ctc_output.", "output.") for name in weights}
    missing, unexpected = model.load_state_dict({names[name]: w for name, w in weights.items()}, strict=False)
    assert not unexpected, unexpected
    assert all(name.endswith("bypass_scale") for name in missing), missing  # the recipe never uses these
    optim = importlib.import_module("optim")
    schedule = settings["schedule"]
    grouped = icefall_function("get_parameter_groups_with_lrs", nn=nn, List=list, defaultdict=defaultdict)
    groups = grouped(model, lr=schedule["peak_lr"], include_names=True)
    optimizer = optim.ScaledAdam(groups, lr=schedule["peak_lr"], clipping_scale=2.0)
    counts = ("decay_updates", "decay_epochs", "warmup_updates", "warmup_start")
    scheduler = optim.Eden(optimizer, *(schedule[name] for name in counts))

    def loss(log_probs: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor:
        blank = settings["vocabulary"] - 1
        summed = nn.functional.ctc_loss(
            log_probs.permute(1, 0, 2), tokens, lengths, token_lengths, blank, reduction="sum"
        )
        # The recipe uses the sum. Here both systems divide by the labels of the batch, so that batches weigh the same.
        return summed / token_lengths.sum()

    def before(update: int) -> float:
        for module in model.modules():
            if hasattr(module, "batch_count"):
                module.batch_count = update * settings["batch_count_per_update"]
        scheduler.step_epoch(int(update // settings["updates_per_epoch"]))
        scheduler.step_batch(update)
        return float(scheduler.get_last_lr()[0])

    return model, loss, before, optimizer


def quartznet(settings: dict[str, Any], weights: dict[str, Tensor]) -> Trained:
    """QuartzNet, its CTC loss, NovoGrad and lr_policy, as in QuartzNet/train.py."""
    model = MODELS["quartznet"][0](settings["sizes"], settings["vocabulary"])
    model.model.load_state_dict(weights)
    optimizers = importlib.import_module("common.optimizers")
    criterion = importlib.import_module("quartznet.model").CTCLossNM(n_classes=settings["vocabulary"])
    schedule, given = settings["schedule"], settings["optimizer"]
    optimizer = optimizers.Novograd(
        model.parameters(), lr=schedule["peak_lr"], betas=(given["b1"], given["b2"]), weight_decay=given["weight_decay"]
    )

    def loss(log_probs: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor) -> Tensor:
        return criterion(log_probs, tokens, lengths, token_lengths)

    def before(update: int) -> float:
        optimizers.lr_policy(
            update, None, schedule["peak_lr"], optimizer, steps_per_epoch=1, num_epochs=len(settings["rates"]),
            warmup_epochs=schedule["warmup_updates"], hold_epochs=schedule["hold_updates"], policy="legacy",
            min_lr=schedule["min_lr"],
        )  # fmt: skip
        return float(optimizer.param_groups[0]["lr"])

    return model, loss, before, optimizer


def batch_of(path: Path, *, is_padded: bool) -> dict[str, Tensor]:
    """Reads a batch. Without `is_padded`, it has neither padding rows nor frames after the longest utterance."""
    with np.load(path) as arrays:
        batch = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    if is_padded:
        return batch
    rows = batch["weights"] > 0
    batch["features"] = batch["features"][:, : int(batch["lengths"].max())]
    return {name: array[rows] for name, array in batch.items()}


def main() -> None:
    given, result = map(Path, sys.argv[1:])
    settings = json.loads((given / "settings.json").read_text())
    torch.manual_seed(settings["seed"])
    prepare = {"icefall": icefall, "quartznet": quartznet}[settings["peer"]]
    model, loss_of, before, optimizer = prepare(settings, load_file(given / "weights.safetensors"))
    model.train()
    losses: list[float] = []
    is_icefall = settings["peer"] == "icefall"
    for update, rate in enumerate(settings["rates"]):
        batch = batch_of(given / f"train_{update:05}.npz", is_padded=not is_icefall)
        theirs = before(update)
        assert abs(theirs - rate) <= 1e-4 * rate, f"update {update}: learning rate {theirs}, expected {rate}"
        log_probs, lengths = model(batch["features"], batch["lengths"])
        log_probs = log_probs.log_softmax(-1)
        rows = batch["weights"] > 0
        loss = loss_of(log_probs[rows], lengths[rows], batch["tokens"][rows], batch["token_lengths"][rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if update % 100 == 99:
            print(f"{settings['peer']}: update {update + 1}, loss {sum(losses[-100:]) / 100:.3f}", flush=True)
    model.eval()
    hypotheses: dict[int, list[int]] = {}
    for path in sorted(given.glob("validation_*.npz")):
        batch = batch_of(path, is_padded=not is_icefall)
        with torch.no_grad():
            log_probs, lengths = model(batch["features"], batch["lengths"])
        for row, best, length in zip(batch["utterances"].tolist(), log_probs.argmax(-1), lengths.tolist(), strict=True):
            labels = torch.unique_consecutive(best[:length]).tolist()
            hypotheses[row] = [label for label in labels if label != settings["vocabulary"] - 1]
    result.write_text(json.dumps({"losses": losses, "hypotheses": hypotheses}))


if __name__ == "__main__":
    main()
