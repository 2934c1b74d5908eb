"""Weights of a file, by our names or by those of a system that we know."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.pytrees import Tree, flatten
from asr_jax.models.base import Model
from asr_jax.pretrained import huggingface
from asr_jax.pretrained.base import Format, NamedWeights, Paths, Symbols, listed
from asr_jax.pretrained.nemo_files import load_nemo, save_nemo
from asr_jax.pretrained.torch_files import SUFFIXES as TORCH_SUFFIXES
from asr_jax.pretrained.torch_files import load_torch, state_dict
from asr_jax.pretrained.torch_writer import save_torch
from asr_jax.text.tokenizers import HF_CONFIG
from asr_jax.text.vocabularies import read_vocabulary

SUFFIXES = (".safetensors", ".nemo", *TORCH_SUFFIXES)
OURS = ("params/", "batch_stats/")
SYMBOLS = "symbols"
"""What our files say of themselves: the tokenizer's symbols, None for the blank, as JSON."""


FORMATS: tuple[Format, ...] = listed("FORMATS")


def save_weights(weights: Tree, symbols: Symbols, out: Path) -> None:
    """Writes a .safetensors file of weights by our names, with the symbols that their labels stand for."""
    out.parent.mkdir(parents=True, exist_ok=True)
    arrays = {path: np.asarray(value, order="C") for path, value in flatten(weights).items()}
    write_whole(out, save(arrays, metadata={SYMBOLS: json.dumps(symbols)}))


def exported(weights: Tree, model: Model, names: str) -> dict[str, np.ndarray]:
    """A model's weights, `{"params": …, "batch_stats": …}`, by the names of another system.

    Raises: UserError where that has no such model, or no name for one of its weights.
    """
    known = _format(model, names)
    return known.export(weights, model.encoder, **known.heads(model))


def _format(model: Model, names: str) -> Format:
    known = {each.names: each for each in FORMATS if isinstance(model.encoder, each.encoder)}
    if names not in known:
        raise UserError(
            f"no weights of {type(model.encoder).__name__} by the names of {names}: "
            + (f"expected one of {', '.join(known)}" if known else "no other system has such a model")
        )
    return known[names]


def save_huggingface(weights: Tree, model: Model, symbols: Symbols, out: Path) -> None:
    """Writes a folder that transformers reads: weights, settings and tokenizer.

    Raises: UserError where that has no such model, front-end, head or labels.
    """
    known = _format(model, "huggingface")
    if known.folder is None:
        raise UserError(
            f"no folder of {type(model.encoder).__name__} is written; expected --out NAME.safetensors, for its weights"
        )
    files = known.folder(model, symbols)
    huggingface.save_folder(out, files=files, weights=exported(weights, model, "huggingface"))


def save_exported(weights: NamedWeights, names: str, symbols: Symbols, out: Path, *, like: Path | None) -> None:
    """Writes weights by another system's `names` as that system reads them: `.pt` as its programs lay them out,
    `.nemo` as a copy of the file `like`, or `.safetensors` with the symbols that labels stand for.

    Raises: UserError where a .nemo file is to be written and there is none to copy.
    """
    if out.suffix == ".safetensors":
        return save_weights(weights, symbols, out)
    if out.suffix == ".nemo" and (names != "nemo" or like is None):
        raise UserError(f"{out} has settings and a tokenizer, too: expected --names nemo and --like ORIGINAL.nemo")
    out.parent.mkdir(parents=True, exist_ok=True)
    if like is not None and out.suffix == ".nemo":
        return save_nemo(weights, out, like=like)
    laid_out = {
        "icefall": {"model": weights},
        "fairseq": {"model": weights},
        "deeplearningexamples": dict.fromkeys(("state_dict", "ema_state_dict"), weights),
    }
    return save_torch(laid_out.get(names, weights), out)


def is_weights(path: Path) -> bool:
    """Whether it is a file that holds weights, by its name, or a folder as Hugging Face's libraries write them."""
    return path.suffix in SUFFIXES or (path / HF_CONFIG).is_file()


def load_weights(path: Path) -> tuple[dict[str, np.ndarray], Symbols | None]:
    """Weights of a file or a folder by its names, and its symbols, where it says them.

    Raises: UserError where it cannot be read.
    """
    if path.suffix == ".nemo":
        nemo = load_nemo(path)
        return nemo.weights, _tokenizer_symbols(path) or nemo.symbols
    if path.suffix in TORCH_SUFFIXES:
        return state_dict(load_torch(path)), None
    if path.is_dir():
        files = huggingface.weight_files(path)
        weights = {name: array for file in files for name, array in load_weights(file)[0].items()}
        return weights, _tokenizer_symbols(path)
    try:
        with safe_open(path, framework="numpy") as file:
            about: dict[str, Any] = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no dict)
            return weights, json.loads(about[SYMBOLS]) if SYMBOLS in about else None
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; expected a whole .safetensors file") from error


def _tokenizer_symbols(path: Path) -> Symbols | None:
    """Of the tokenizer that lies with the weights; None where there is none that can be read."""
    try:
        return read_vocabulary(path, normaliser="none", blank_id=None).symbols
    except UserError:
        return None


def imported(weights: NamedWeights, model: Model) -> Paths:
    """All weights of a file by our paths.

    Raises: UserError where the names are nobody's that is known for this model.
    """
    if weights and all(name.startswith(OURS) for name in weights):
        return dict(weights), []
    for known in FORMATS:
        if isinstance(model.encoder, known.encoder) and known.claims(weights):
            return known.find(weights, model.encoder, **known.heads(model))
    names = ", ".join(sorted(weights)[:3]) or "nothing"
    raise UserError(
        f"weights named {names} … for {type(model.encoder).__name__}: expected our own names ({OURS[0]}encoder/…), or "
        + ", or ".join(known.of for known in FORMATS)
    )
