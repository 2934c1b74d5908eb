"""Models as files for other programs: weights of a run under the names of a system, and folders to share."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr_jax.config import Experiment, from_json, load_experiment, save_experiment, to_json
from asr_jax.core.pytrees import Tree
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT, PLAN, TOKENIZER
from asr_jax.models.base import Model
from asr_jax.pretrained.formats import SUFFIXES, exported, save_exported, save_folder, save_weights
from asr_jax.pretrained.hub import Upload
from asr_jax.text.tokenizers import Tokenizer, load_tokenizer

OURS = "ours"
FOLDERS = ("huggingface", "funasr")
"""Systems whose models are folders."""
WEIGHTS = ("model.safetensors", "model.pt")
"""Names of the weights in a shared folder."""
NOT_TORCH = (OURS, "nemo", "keras")
"""Systems whose weights are a .safetensors file in a shared folder; those of the others are a .pt file."""


def write_model(
    weights: Tree, model: Model, tokenizer: Tokenizer, *, names: str, out: Path, like: Path | None = None
) -> None:
    """Writes the weights of a model for another system or for `--init-from`.

    Args:
        weights: `{"params": …, "batch_stats": …}`.
        names: Identifier of the system; `ours` for this package.
        out: File of weights; for the systems of `FOLDERS` also a folder.
        like: `.nemo` file from which everything except the weights is copied.

    Raises:
        UserError: If the system does not have the model, or the format of the file.
    """
    if names == OURS:
        save_weights(weights, tokenizer.symbols, out)
    elif out.suffix in SUFFIXES:
        save_exported(exported(weights, model, names), model, names, tokenizer.symbols, out, like=like)
    else:
        save_folder(weights, model, tokenizer, names, out)


def write_shared(run: Path, weights: Tree, out: Path, *, names: str = OURS) -> None:
    """Writes a folder that contains all parts of a recogniser.

    The folder has experiment.json without places of this machine, plan.json, the tokenizer and the weights. All
    commands read it as they read a run. For the systems of `FOLDERS`, it is a folder of that system instead.

    Args:
        weights: Variables of the model, `{"params": …, "batch_stats": …}`.
        names: Identifier of the system whose names the weights have.

    Raises:
        UserError: If the system does not have the model.
    """
    experiment, tokenizer = load_experiment(run / EXPERIMENT), load_tokenizer(run / TOKENIZER)
    if names in FOLDERS:
        return write_model(weights, experiment.model, tokenizer, names=names, out=out)
    out.mkdir(parents=True)
    save_experiment(without_places(experiment), out / EXPERIMENT)
    shutil.copy(run / PLAN, out / PLAN)
    shutil.copytree(run / TOKENIZER, out / TOKENIZER)
    file = out / WEIGHTS[names not in NOT_TORCH]
    return write_model(weights, experiment.model, tokenizer, names=names, out=file)


def shared_weights(folder: Path) -> Path | None:
    """Returns the weights of a folder of `write_shared`; None if the folder is not one, such as that of a run."""
    if not (folder / EXPERIMENT).is_file() or (folder / CHECKPOINTS).exists():
        return None
    return next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)


def without_places(experiment: Experiment) -> Experiment:
    """Returns the settings with the file names of manifests and other inputs, without folders and addresses."""
    plain: Experiment = from_json(_without_places(to_json(replace(experiment, upload=Upload()))))
    return plain


def _without_places(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: each if name == "class" else _without_places(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_without_places(each) for each in value]
    return (
        os.path.basename(value.partition("?")[0].rstrip("/")) if isinstance(value, str) and _is_place(value) else value
    )


def _is_place(text: str) -> bool:
    return os.path.isabs(text) or text.startswith("~") or "://" in text or ("/" in text and os.path.exists(text))
