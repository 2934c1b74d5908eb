"""Published models as runs: a folder with experiment, tokenizer and one checkpoint, without training."""

import hashlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from asr_jax.audio.features import FrontEnd
from asr_jax.checkpoints.store import save_weights_alone
from asr_jax.config import Experiment, Init, Training, load_experiment, save_experiment, to_json
from asr_jax.core.environment import CACHES
from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.paths import quoted, state_of
from asr_jax.core.pytrees import flatten, num_elements, unflatten
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT, PLAN, RESULTS, TOKENIZER
from asr_jax.core.text_files import read_text
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.index import scale_of
from asr_jax.data.batching.limits import bucket_of
from asr_jax.inference.model import make_model, programs_of, variable_shapes
from asr_jax.inference.shared_folders import shared_weights
from asr_jax.inference.trained import IMPORTED, tokenizer_files
from asr_jax.observe.tables import quantity
from asr_jax.optim.ema import EMA
from asr_jax.pretrained.formats import imported, load_weights
from asr_jax.pretrained.published import (
    BESIDE,
    NOTHING,
    NotGiven,
    Published,
    SuppliedParts,
    is_published,
    read_published,
)
from asr_jax.text.tokenizers import TokenizerSettings, load_tokenizer

LONGEST_S = 30.0
"""Longest training utterance in seconds that an imported model is assumed to have, because its files do not contain it.
Windows have this length (`inference.long_audio`)."""
ONLY_TRAINED_WITH = r"params/encoder/mask"
"""Path of the vector of masked frames, which some published models lack because only training uses it."""
VERSION = 3
"""Version of the folders of imported models. With another version, models in the cache are imported again."""


def import_model(source: Path, out: Path, *, given: SuppliedParts = NOTHING) -> list[str]:
    """Imports a published model: writes a run with one checkpoint and no training state.

    Args:
        out: Folder to write. It must not exist or must be empty.

    Raises:
        UserError: If the model cannot be read, or the folder exists and is not empty.
    """
    refuse_existing(out)
    published = _read_shared(source) if shared_weights(source) else read_published(source, given)
    experiment = _experiment(source, out, published)
    variables = _variables(source, experiment, published)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{out.name}.", dir=out.parent) as temporary:
        folder = Path(temporary) / out.name
        folder.mkdir()  # with the user's permissions, which the temporary folder lacks
        published.tokenizer.save(folder / TOKENIZER)
        save_experiment(experiment, folder / EXPERIMENT)
        if shared_weights(source):
            shutil.copy(source / PLAN, folder / PLAN)
        else:
            plan = {"of_features": False, "buckets": [asdict(_bucket(experiment))]}
            write_whole(folder / PLAN, json.dumps(plan, indent=2) + "\n")
        updates = _updates(source)
        meta = {"experiment": to_json(experiment), "tokenizer": tokenizer_files(folder), "source": str(source)}
        save_weights_alone(folder / CHECKPOINTS, updates, variables, meta)
        folder.replace(out)
    return _lines(source, out, published, variables)


def refuse_existing(out: Path) -> None:
    """Checks that a folder does not exist, or is empty.

    Raises:
        UserError: If it contains something.
    """
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UserError(f"{out} already exists: choose another --out, or delete it")


def imported_run(source: Path) -> Path:
    """Returns the folder of a published model in the user's cache, and imports the model if it is not there.

    Raises:
        UserError: If the model cannot be imported.
    """
    source = source.resolve()
    files = source.iterdir() if source.is_dir() else [source, *(source.with_name(name) for name in BESIDE)]
    stats = [(path.name, state_of(path)) for path in sorted(files) if path.is_file()]
    place, state = (hashlib.sha256(repr(key).encode()).hexdigest()[:12] for key in (source, (VERSION, stats)))
    cache = Path(CACHES) / IMPORTED
    folder = cache / f"{place}-{state}" / (re.sub(r"[^\w.-]", "_", source.stem) or "model")
    if folder.is_dir():
        return folder
    for former in cache.glob(f"{place}-*"):  # the files have changed
        shutil.rmtree(former, ignore_errors=True)
    try:
        import_model(source, folder)
    except NotGiven as error:
        raise UserError(f"{error}\nThis is a flag of python -m asr_jax.import {quoted(source)} --out RUN") from error
    except OSError:
        if not folder.is_dir():  # otherwise another process was faster
            raise
    return folder


def run_and_checkpoint(path: Path, updates: int | None = None) -> tuple[Path, int | None]:
    """Returns the folder of a run and the checkpoint that a path names; None: the best one.

    Args:
        path: `RUN`, `RUN/checkpoints/N`, or a published model or shared folder, which is imported into the cache.
        updates: Number of the checkpoint, which is given in addition to `RUN`.

    Raises:
        UserError: If the path is a checkpoint and `updates` is given as well, or if a model cannot be imported.
    """
    if shared_weights(path) or (not (path / EXPERIMENT).is_file() and is_published(path)):
        return imported_run(path), updates
    if path.parent.name != CHECKPOINTS or not path.name.isdecimal():
        return path, updates
    if updates is not None:
        raise UserError(f"{path} is a checkpoint: remove --checkpoint {updates}, or pass the folder of the run")
    return path.parent.parent, int(path.name)


def _read_shared(folder: Path) -> Published:
    """Reads the model, tokenizer and weights of a folder of `shared_folders.write_shared`."""
    model, tokenizer = load_experiment(folder / EXPERIMENT).model, load_tokenizer(folder / TOKENIZER)
    file = shared_weights(folder)
    assert file, "not a shared folder"
    weights, left = imported(load_weights(file)[0], model)
    if left:
        raise UserError(f"{file} has weights that the model of {EXPERIMENT} does not have: {', '.join(left[:3])}")
    return Published(model, tokenizer, weights, ())


def _updates(source: Path) -> int:
    """Returns the number of updates of an uploaded checkpoint; 0 for other models."""
    if not shared_weights(source) or not (source / RESULTS).is_file():
        return 0
    return int(json.loads(read_text(source / RESULTS))["updates"])


def _experiment(source: Path, out: Path, published: Published) -> Experiment:
    if shared_weights(source):
        experiment = load_experiment(source / EXPERIMENT)
        return replace(experiment, name=out.name, init=Init(os.path.abspath(source)), run_dir="")
    tokenizer = TokenizerSettings(kind=published.tokenizer.kind, normaliser=published.tokenizer.normaliser)  # type: ignore[arg-type]
    return Experiment(
        name=out.name,
        model=published.model,
        data=Data(train=(), tokenizer=tokenizer),
        init=Init(os.path.abspath(source)),
        training=Training(ema=EMA(0.0)),
    )


def _bucket(experiment: Experiment) -> Bucket:
    """Returns the batch shape that stands for those of training."""
    scale, batching = scale_of(experiment.model.front_end, of_features=False), experiment.data.batching
    seconds = batching.budget if batching.unit == "padded-seconds" else Batching.budget
    return bucket_of(round(LONGEST_S * scale.per_s), int(seconds / LONGEST_S), scale)


def _variables(source: Path, experiment: Experiment, published: Published) -> dict[str, Any]:
    """Returns the variables of the model, in its structure."""
    model, weights = make_model(experiment, published.tokenizer), published.weights
    shapes = flatten(variable_shapes(model, programs_of(experiment, published.tokenizer)))
    for path in shapes.keys() - weights.keys():
        if re.fullmatch(ONLY_TRAINED_WITH, path):  # as fairseq draws it
            weights[path] = np.random.default_rng(0).uniform(size=shapes[path].shape).astype(np.float32)
    wrong = [
        f"{path} is {weights[path].shape if path in weights else 'missing'}, expected {shape.shape}"
        for path, shape in shapes.items()
        if path not in weights or weights[path].shape != shape.shape
    ]
    if wrong or weights.keys() - shapes.keys():
        more = sorted(weights.keys() - shapes.keys())
        raise UserError(
            f"{source} does not fit its settings: {'; '.join([*wrong[:3], *more[:3]])} ({len(wrong) + len(more)} in "
            "all); expected the weights of this model, or other settings (--config FILE.py)"
        )
    made: dict[str, Any] = unflatten({path: weights[path].astype(shape.dtype) for path, shape in shapes.items()})
    return {"params": made["params"], "batch_stats": made.get("batch_stats", {})}


def _lines(source: Path, out: Path, published: Published, variables: dict[str, Any]) -> list[str]:
    use = "transcribe RUN AUDIO …" if published.model.recognises else "extract_features RUN --layer …"
    model, tokenizer = published.model, published.tokenizer
    labels = (
        f"{tokenizer.vocab_size} labels ({tokenizer.kind}, blank {tokenizer.blank_id}), normaliser "
        f"{tokenizer.normaliser}"
    )
    return [
        f"{type(model.encoder).__name__} of {source}: {quantity(num_elements(variables['params']))} parameters, "
        f"heads {', '.join(model.heads) or 'none'}",
        f"  front-end: {_described(model.front_end)}",
        *([f"  {labels}"] if tokenizer.has_labels else []),
        *(f"  {remark}" for remark in published.remarks),
        f"{out} is a run: python -m asr_jax.{use.replace('RUN', quoted(out))}",
    ]


def _described(front_end: FrontEnd) -> str:
    """Returns the settings of a front-end that differ from the defaults of its class."""
    usual = type(front_end)()
    changed = {name: value for name, value in vars(front_end).items() if value != getattr(usual, name)}
    return ", ".join([type(front_end).__name__, *(f"{name} {value}" for name, value in changed.items())])
