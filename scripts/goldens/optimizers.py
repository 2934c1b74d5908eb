"""Writes trajectories of other systems' optimizers for tests/goldens/test_optim_trajectories.py.

Runs in .venv-reference.

    .venv-reference/bin/python scripts/goldens/optimizers.py --out tests/goldens/trajectories \\
        --icefall egs/librispeech/ASR/zipformer/optim.py --nvidia QuartzNet/common/optimizers.py \\
        --fairseq fairseq/optim/adam.py

The three files are those of the other systems, at the commits passed to --commits; no code of them is stored. The
layout is that of the shared goldens: NAME.json contains the settings; NAME.safetensors contains CASE/g{tensor}_{step}
(gradients), w{tensor}_{step} (weights before the step, and after the last one) and, for NovoGrad, m and v after each
step.
"""

import argparse
import ast
import contextlib
import json
import logging
import math
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch.optim import Optimizer

LONG = 110
"""Number of steps of a case in which ScaledAdam sets its gradient norm limit after steps 10, 20, 40 and 100."""


def definitions(path: Path, *names: str) -> dict[str, Any]:
    """Executes some classes and functions of a file without its imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kept = [node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in names]
    scope: dict[str, Any] = {
        "torch": torch, "math": math, "logging": logging, "contextlib": contextlib, "defaultdict": defaultdict,
        "Optimizer": Optimizer, "Tensor": torch.Tensor, "List": list, "Dict": dict, "Tuple": tuple, "Union": Any,
        "Optional": Any,
    }  # fmt: skip
    # Annotations such as Union[int, float] are not evaluated.
    source = "from __future__ import annotations\n" + "\n".join(map(ast.unparse, kept))
    exec(compile(source, str(path), "exec"), scope)
    return scope


def run(
    optimizer_of: Any, shapes: list[tuple[int, ...]], *, steps: int, seed: int, before: Any = None
) -> dict[str, Any]:
    """Weights before every step and after the last one, with random gradients of different sizes, one of them zero."""
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    optimizer, kept = optimizer_of(tensors), {}
    for step in range(steps):
        for i, tensor in enumerate(tensors):
            noise = torch.randn(tensor.shape, generator=generator)
            size = math.exp(1.5 * torch.randn((), generator=generator).item())
            tensor.grad = torch.zeros_like(tensor) if (step, i) == (0, 1) else size * (noise + 0.3 * tensor.detach())
            # Copies, since optimizers change weights and gradients in place.
            kept[f"w{i}_{step}"], kept[f"g{i}_{step}"] = tensor.detach().clone(), tensor.grad.clone()
        if before:
            before(step)
        optimizer.step()
        for i, tensor in enumerate(tensors):
            kept[f"w{i}_{step + 1}"] = tensor.detach().clone()
            for name, key in (("m", "exp_avg"), ("v", "exp_avg_sq")):
                if key in optimizer.state[tensor]:
                    kept[f"{name}{i}_{step + 1}"] = optimizer.state[tensor][key].clone()
    return {name: value.numpy() for name, value in kept.items()}


def write(out: Path, name: str, cases: dict[str, dict[str, Any]], info: dict[str, Any]) -> None:
    arrays = {f"{case}/{key}": value for case, found in cases.items() for key, value in found.items()}
    save_file(arrays, out / f"{name}.safetensors")
    (out / f"{name}.json").write_text(json.dumps(info, indent=1) + "\n")


def novograd(path: Path, out: Path, commit: str) -> None:
    cls = definitions(path, "Novograd")["Novograd"]
    cases = {
        "quartznet": ("lr .05 betas (.95,0) eps 1e-8 wd 1e-3", {"betas": (0.95, 0), "weight_decay": 1e-3, "lr": 0.05}),
        "avg": ("lr .02 betas (.8,.5) wd .01 grad_averaging",
                {"betas": (0.8, 0.5), "weight_decay": 0.01, "grad_averaging": True, "lr": 0.02}),
        "amsgrad": ("lr .02 betas (.95,.98) eps 1e-6 amsgrad",
                    {"betas": (0.95, 0.98), "eps": 1e-6, "amsgrad": True, "lr": 0.02}),
    }  # fmt: skip
    found = {
        name: run(lambda p, kw=kw: cls(p, **kw), [(4, 3), (5,), (2, 3, 4)], steps=12, seed=i)
        for i, (name, (_, kw)) in enumerate(cases.items())
    }
    info = {"peer": f"NVIDIA/DeepLearningExamples@{commit} QuartzNet/common/optimizers.py Novograd",
            "cases": {name: words for name, (words, _) in cases.items()}}  # fmt: skip
    write(out, "novograd", found, info)


def fairseq_adam(path: Path, out: Path, commit: str) -> None:
    cls = definitions(path, "Adam")["Adam"]
    cases = {
        "decay": ("lr 5e-3 betas .9,.98 eps 1e-6 wd .01",
                  {"betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.01, "lr": 5e-3}),
        "large_eps": ("lr 1e-2 betas .9,.999 eps 1e-2", {"betas": (0.9, 0.999), "eps": 1e-2, "lr": 1e-2}),
    }  # fmt: skip
    found = {
        name: run(lambda p, kw=kw: cls(p, **kw), [(7, 5), (5,)], steps=12, seed=10 + i)
        for i, (name, (_, kw)) in enumerate(cases.items())
    }
    # Its tensors are named after the weights, w0 and w1, so the gradients are gw0 and gw1.
    found = {
        name: {f"gw{key[1:]}" if key[0] == "g" else key: value for key, value in arrays.items()}
        for name, arrays in found.items()
    }
    info = {"peer": f"facebookresearch/fairseq@{commit} fairseq/optim/adam.py Adam",
            "cases": {name: words for name, (words, _) in cases.items()}}  # fmt: skip
    write(out, "adam_steps", found, info)


def scaled_adam(path: Path, out: Path, commit: str) -> None:
    scope = definitions(
        path, "BatchedOptimizer", "basic_step", "scaling_step", "momentum_step", "ScaledAdam", "largest_index",
        "LRScheduler", "Eden",
    )  # fmt: skip
    cases = {
        "plain": ("lr .03", {"lr": 0.03}),
        "clip": ("lr .045 clipping_scale 2 period 4",
                 {"lr": 0.045, "clipping_scale": 2.0, "clipping_update_period": 4}),
        "clip_long": ("lr .045 clipping_scale 1.2 period 100",
                      {"lr": 0.045, "clipping_scale": 1.2, "clipping_update_period": 100}),
        "limits": ("lr .1 param_max_rms .5 param_min_rms .3 scalar_max 1 betas .8 .95",
                   {"lr": 0.1, "param_max_rms": 0.5, "param_min_rms": 0.3, "scalar_max": 1.0, "betas": (0.8, 0.95)}),
    }  # fmt: skip
    every, found = 6, {}
    for i, (name, (_, kw)) in enumerate(cases.items()):
        rates: list[float] = []
        schedulers: list[Any] = []

        def built(tensors: Any, kw: Any = kw, schedulers: list[Any] = schedulers) -> Any:
            named = [(f"w{n}", tensor) for n, tensor in enumerate(tensors)]
            optimizer = scope["ScaledAdam"](named, **kw)
            schedulers.append(scope["Eden"](optimizer, lr_batches=50, lr_epochs=4, warmup_batches=8, warmup_start=0.5))
            return optimizer

        def before(step: int, rates: list[float] = rates, schedulers: list[Any] = schedulers) -> None:
            if step:
                schedulers[0].step_batch()
            if step % every == 0:
                schedulers[0].step_epoch(step // every)
            rates.append(schedulers[0].get_last_lr()[0])

        long = kw.get("clipping_update_period") == 100
        shapes = [(4, 3), (), (5,)] if long else [(4, 3), (4, 3), (5,), (1,), (), (2, 3, 2)]
        found[name] = run(built, shapes, steps=LONG if long else 18, seed=20 + i, before=before)
        found[name]["lr_used"] = np.array(rates, np.float64)
    info = {
        "peer": f"k2-fsa/icefall@{commit} zipformer/optim.py ScaledAdam+Eden",
        "cases": {name: words for name, (words, _) in cases.items()},
        "eden": "lr_batches 50 lr_epochs 4 warmup_batches 8 warmup_start .5; step_epoch(st//6) at st%6==0; optimizer "
        "step uses lr_used[st], then step_batch()",
        "note": "w3 has shape (1,), w4 is 0-dim: treated as scalars. size_update_period 4.",
    }
    write(out, "scaled_adam", found, info)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    for name in ("icefall", "nvidia", "fairseq"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--commits", nargs=3, default=("?", "?", "?"), help="of icefall, NVIDIA and fairseq")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    scaled_adam(given.icefall, given.out, given.commits[0])
    novograd(given.nvidia, given.out, given.commits[1])
    fairseq_adam(given.fairseq, given.out, given.commits[2])


if __name__ == "__main__":
    main()
