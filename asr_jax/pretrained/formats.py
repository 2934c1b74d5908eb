"""Weights of a file, by our names or by those of a system that we know."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import Tree, flatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.pretrained import icefall
from asr_jax.pretrained.torch_files import SUFFIXES as TORCH_SUFFIXES
from asr_jax.pretrained.torch_files import load_torch, state_dict

SUFFIXES = (".safetensors", *TORCH_SUFFIXES)
OURS = ("params/", "batch_stats/")
ICEFALL = ("encoder.encoders.", "encoder_embed.")
SYMBOLS = "symbols"
"""What our files say of themselves: the tokenizer's symbols, None for the blank, as JSON."""

Symbols = Sequence[str | None]


def save_weights(weights: Tree, symbols: Symbols, out: Path) -> None:
    """Writes a .safetensors file of weights by our names, with the symbols that their labels stand for."""
    out.parent.mkdir(parents=True, exist_ok=True)
    arrays = {path: np.asarray(value, order="C") for path, value in flatten(weights).items()}
    save_file(arrays, out, metadata={SYMBOLS: json.dumps(symbols)})


def load_weights(path: Path) -> tuple[dict[str, np.ndarray], Symbols | None]:
    """Weights of a .safetensors file or one of PyTorch's by its names, and its symbols, where it says them.

    Raises: UserError where it cannot be read.
    """
    if path.suffix in TORCH_SUFFIXES:
        return state_dict(load_torch(path)), None
    try:
        with safe_open(path, framework="numpy") as file:
            about: dict[str, Any] = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
            return weights, json.loads(about[SYMBOLS]) if SYMBOLS in about else None
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; expected a whole .safetensors file") from error


def imported(weights: Mapping[str, np.ndarray], model: Model) -> tuple[dict[str, np.ndarray], list[str]]:
    """All weights of a file by our paths, `params/…` and `batch_stats/…`, as far as they are the model's, and the names
    there of those that are not.

    Raises: UserError where the names are nobody's that is known for this model.
    """
    if weights and all(name.startswith(OURS) for name in weights):
        return dict(weights), []
    if isinstance(model.encoder, Zipformer) and any(name.startswith(ICEFALL) for name in weights):
        heads = [f"heads_{name}" for name, head in model.heads.items() if isinstance(head, CTC)]
        params, left = icefall.find(weights, model.encoder, ctc_head=heads[0] if heads else None)
        return {f"params/{path}": array for path, array in params.items()}, left
    names = ", ".join(sorted(weights)[:3]) or "nothing"
    raise UserError(
        f"weights named {names} …: expected our own names ({OURS[0]}encoder/…), or icefall's of a Zipformer"
    )
