"""NeMo's `.nemo` files: archives of settings, weights and tokenizer, read without NeMo and without PyTorch."""

import io
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from asr_jax.core.errors import UserError
from asr_jax.core.text_files import TextError, text_of
from asr_jax.pretrained.keymap import renamed
from asr_jax.pretrained.torch_files import load_torch, state_dict
from asr_jax.pretrained.torch_writer import save_torch

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
VERSIONS = ((r"^ctc_(?=decoder\.)", ""), (r"^joint\.joint_net\.\d+", "joint.joint_net"), (r"\.conv(?=\.weight$)", ""))
"""Parts of names that differ: CTC decoders of hybrid models, joint networks without dropout, and convolutions that mask
padding."""


class Nemo(NamedTuple):
    """Content of a `.nemo` file."""

    config: dict[str, Any]
    """Settings of the model."""
    weights: dict[str, np.ndarray]
    """Weights by NeMo's names."""
    symbols: tuple[str | None, ...] | None
    """Text of each label of the CTC decoder, with None for the blank at the end; None if the settings list no
    vocabulary."""


def load_nemo(path: Path) -> Nemo:
    """Returns the settings, weights and symbols of a `.nemo` file.

    Raises:
        UserError: If the file is not a `.nemo` file or is truncated.
    """
    config = nemo_config(path)
    weights = state_dict(load_torch(path, io.BytesIO(_member(path, WEIGHTS))))
    vocabulary = section(config, "decoder").get("vocabulary")
    symbols = (*map(str, vocabulary), None) if isinstance(vocabulary, list) and vocabulary else None
    return Nemo(config, weights, symbols)


def nemo_config(path: Path) -> dict[str, Any]:
    """Returns the model's settings in a `.nemo` file.

    Raises:
        UserError: If the file is not a `.nemo` file or is truncated.
    """
    try:
        config = yaml.safe_load(text_of(_member(path, CONFIG)))
    except (TextError, yaml.YAMLError) as error:
        raise UserError(f"{path}: {CONFIG} cannot be read ({error}): expected YAML that NeMo wrote") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: {CONFIG} does not contain a mapping: expected a file that NeMo's save_to wrote")
    return config


def encoder_class(path: Path) -> str:
    """Returns the class of the encoder in a `.nemo` file.

    The result is empty for a path with another suffix, and `nothing` if the file has no encoder section.

    Raises:
        UserError: If a `.nemo` file cannot be read.
    """
    if path.suffix != ".nemo":
        return ""
    encoder = section(nemo_config(path), "encoder")
    return target(encoder) if encoder else "nothing"


def section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Returns a section of a configuration; empty if there is none."""
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def target(config: Mapping[str, Any]) -> str:
    """Returns the class of the module that a section describes; empty if the section does not name it."""
    return str(config.get("_target_", "")).rpartition(".")[2]


def save_nemo(weights: Mapping[str, np.ndarray], path: Path, *, like: Path) -> None:
    """Writes a copy of a `.nemo` file with other weights.

    Arrays that `weights` lack keep their values; these are the front-end's window and the batch counters.

    Args:
        weights: New weights by NeMo's names; names and shapes must exist in `like`.
        like: File to copy.

    Raises:
        UserError: If `like` is not a `.nemo` file, or contains another model or vocabulary.
    """
    before = load_nemo(like).weights
    theirs = {renamed(name, VERSIONS): name for name in before}
    weights = {theirs.get(renamed(name, VERSIONS), name): array for name, array in weights.items()}
    wrong = [
        f"{name} has shape {list(array.shape)}, in the file "
        + (str(list(before[name].shape)) if name in before else "none")
        for name, array in weights.items()
        if name not in before or before[name].shape != array.shape
    ]
    if wrong:
        raise UserError(
            f"{like} contains another model or vocabulary: {'; '.join(wrong[:3])}; expected the file that the run was "
            "initialised with"
        )
    with tempfile.TemporaryDirectory() as folder, tarfile.open(like) as archive, tarfile.open(path, "w") as out:
        save_torch({**before, **weights}, Path(folder) / WEIGHTS)
        for member in archive:
            if Path(member.name).name == WEIGHTS:
                out.add(Path(folder) / WEIGHTS, member.name)
            else:
                out.addfile(member, archive.extractfile(member) if member.isfile() else None)


def _member(path: Path, name: str) -> bytes:
    """Returns the content of the archive's file with a name, in any of its folders."""
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if Path(member.name).name == name and (file := archive.extractfile(member)):
                    return file.read()
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({error}): expected a complete .nemo file") from error
    raise UserError(f"{path} contains no {name}: expected a file that NeMo's save_to wrote")
