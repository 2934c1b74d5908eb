"""Reading and writing of weight files, under this package's names or under those of other systems."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.pytrees import Tree, flatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.pretrained import funasr_files, huggingface
from asr_jax.pretrained.base import Format, NamedWeights, Paths, Symbols, heads_of, listed
from asr_jax.pretrained.nemo_files import load_nemo, save_nemo
from asr_jax.pretrained.torch_files import SUFFIXES as TORCH_SUFFIXES
from asr_jax.pretrained.torch_files import load_torch, state_dict
from asr_jax.pretrained.torch_writer import save_torch
from asr_jax.text.tokenizers import HF_CONFIG, Tokenizer
from asr_jax.text.vocabularies import read_vocabulary

SUFFIXES = (".safetensors", ".nemo", *TORCH_SUFFIXES)
OURS = ("params/", "batch_stats/")
SYMBOLS = "symbols"
"""Metadata key of `.safetensors` files of this package: the tokenizer's symbols as a JSON list, null for the blank."""

FORMATS: tuple[Format, ...] = listed("FORMATS")


def save_weights(weights: Tree, symbols: Symbols, out: Path) -> None:
    """Writes weights to a `.safetensors` file, with the symbols of their labels as metadata.

    Args:
        weights: Tree of arrays; each is stored under its path.
        symbols: Text of each label; None for the blank.
    """
    out.parent.mkdir(parents=True, exist_ok=True)
    _save_safetensors(flatten(weights), out, **{SYMBOLS: json.dumps(symbols)})


def _save_safetensors(weights: NamedWeights, out: Path, **about: str) -> None:
    """Writes a `.safetensors` file with the metadata `about`."""
    arrays = {name: np.asarray(value, order="C") for name, value in weights.items()}
    # transformers reads only files that state PyTorch's format.
    write_whole(out, save(arrays, metadata={**about, "format": "pt"}))


def exported(weights: Tree, model: Model, names: str) -> dict[str, np.ndarray]:
    """Returns the weights of a model under the names of another system.

    Args:
        weights: `{"params": …, "batch_stats": …}`.
        names: Identifier of the system, such as `nemo`.

    Raises:
        UserError: If the system has no such model, or no name for one of the weights.
    """
    known = format_of(model, names)
    for name, head in model.heads.items():
        if isinstance(head, CTC) and head.blank_weight and names != "fairseq":
            raise UserError(
                f"heads.{name}.blank_weight is {head.blank_weight:g}, expected 0: {known.of} has no such setting; use "
                "--to fairseq, and set blank_weight and blank_mode there"
            )
    known.check(model)
    return known.export(weights, model.encoder, heads_of(model))


def format_of(model: Model, names: str) -> Format:
    """Returns the format of a model's weights in another system.

    Raises:
        UserError: If the system does not have the model.
    """
    known = {each.names: each for each in FORMATS if isinstance(model.encoder, each.encoder)}
    if names not in known:
        raise UserError(
            f"{type(model.encoder).__name__} has no weight names of the system {names}: "
            + (f"expected one of {', '.join(known)}" if known else "no other system has this model")
        )
    return known[names]


def save_folder(weights: Tree, model: Model, tokenizer: Tokenizer, names: str, out: Path) -> None:
    """Writes a folder with weights, settings and tokenizer that another system reads.

    Args:
        weights: `{"params": …, "batch_stats": …}`.
        names: Identifier of the system, such as `huggingface` or `funasr`.

    Raises:
        UserError: If the system has no such folders, or does not have the model, its front-end or its labels.
    """
    known = format_of(model, names)
    if known.folder is None:
        raise UserError(
            f"folders of {known.of} cannot be written: expected --out NAME.safetensors or NAME.pt, which contains the "
            "weights alone"
        )
    files, named = known.folder(model, tokenizer), exported(weights, model, names)
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        write_whole(out / name, content)
    if known.folder_weights.endswith(".pt"):
        return save_torch(named, out / known.folder_weights)
    return _save_safetensors(named, out / known.folder_weights)


def save_exported(
    weights: NamedWeights, model: Model, names: str, symbols: Symbols, out: Path, *, like: Path | None
) -> None:
    """Writes weights in a file format that another system reads.

    Args:
        names: Identifier of the system, such as `nemo`.
        symbols: Text of each label; None for the blank.
        out: File to write. `.safetensors`: weights and symbols. `.nemo`: a copy of `like` with other weights. Any other
            suffix: a file as torch.save writes it, with the system's checkpoint layout, and with settings and
            dictionary if the system stores them.

    Raises:
        UserError: If `out` is a `.nemo` file and `like` is None, if `names` is not `nemo`, or if the system does not
            have the model.
    """
    if out.suffix == ".safetensors":
        return save_weights(weights, symbols, out)
    if out.suffix == ".nemo" and (names != "nemo" or like is None):
        raise UserError(
            f"{out}: a .nemo file also contains settings and a tokenizer; expected --to nemo and --like ORIGINAL.nemo"
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    if like is not None and out.suffix == ".nemo":
        return save_nemo(weights, out, like=like)
    return save_torch(format_of(model, names).checkpoint(weights, model, symbols), out)


def is_weights(path: Path) -> bool:
    """Returns whether the path has a suffix of weight files or is a folder of Hugging Face or FunASR."""
    return path.suffix in SUFFIXES or (path / HF_CONFIG).is_file() or funasr_files.is_folder(path)


def load_weights(path: Path) -> tuple[dict[str, np.ndarray], Symbols | None]:
    """Returns the weights of a file or folder under their stored names, and its symbols if it contains them.

    Raises:
        UserError: If the path cannot be read.
    """
    if path.suffix == ".nemo":
        nemo = load_nemo(path)
        return nemo.weights, _tokenizer_symbols(path) or nemo.symbols
    if path.suffix in TORCH_SUFFIXES:
        return state_dict(load_torch(path)), None
    if funasr_files.is_folder(path):
        return load_weights(funasr_files.weights_file(path))
    if path.is_dir():
        files = huggingface.weight_files(path)
        weights = {name: array for file in files for name, array in load_weights(file)[0].items()}
        return weights, _tokenizer_symbols(path)
    try:
        with safe_open(path, framework="numpy") as file:
            about: dict[str, Any] = file.metadata() or {}
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (file is not a dict)
            return weights, json.loads(about[SYMBOLS]) if SYMBOLS in about else None
    except (OSError, SafetensorError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}; expected a complete .safetensors file") from error


def _tokenizer_symbols(path: Path) -> Symbols | None:
    """Returns the symbols of the tokenizer that is stored with the weights; None if it cannot be read."""
    try:
        return read_vocabulary(path, normaliser="none", blank_id=None).symbols
    except UserError:
        return None


def imported(weights: NamedWeights, model: Model) -> Paths:
    """Returns the weights of a file by parameter path, and the names of weights that the model does not have.

    Raises:
        UserError: If the names match no format of this model.
    """
    if weights and all(name.startswith(OURS) for name in weights):
        return dict(weights), []
    for known in FORMATS:
        if isinstance(model.encoder, known.encoder) and known.claims(weights):
            return known.find(weights, model.encoder, heads_of(model))
    names = ", ".join(sorted(weights)[:3]) or "nothing"
    raise UserError(
        f"the names {names} … match no weight format of {type(model.encoder).__name__}: expected parameter paths of "
        f"this package ({OURS[0]}encoder/…), or names of {', '.join(known.of for known in FORMATS)}"
    )
