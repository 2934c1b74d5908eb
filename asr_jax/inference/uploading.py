"""Upload of a checkpoint: its files in a temporary folder, one commit, and a record of it in the run's folder."""

import json
import tempfile
from pathlib import Path
from typing import Any

import jax

from asr_jax.core.files import held, write_whole
from asr_jax.core.run_folder import UPLOAD, UPLOAD_LOCK
from asr_jax.core.text_files import read_text
from asr_jax.inference.model_card import results_of, write_card
from asr_jax.inference.shared_folders import write_shared
from asr_jax.inference.trained import load_trained
from asr_jax.pretrained.hub import Upload, send


def upload_checkpoint(run: Path, updates: int | None, upload: Upload) -> dict[str, Any]:
    """Uploads the averaged parameters of a checkpoint with tokenizer, settings and model card, and records it.

    Args:
        updates: Number of updates of the checkpoint. None: the best one by validation.

    Returns:
        The record in RUN/upload.json: `to`, `revision`, `format`, `update`, and `commit` and `url` of the commit.

    Raises:
        UserError: If there is no such checkpoint, if the format does not have its model, or if another process uploads.
        RunError: If the hub refuses the upload or cannot be reached.
    """
    with held(run / UPLOAD_LOCK, f"{run} is being uploaded"), tempfile.TemporaryDirectory() as temporary:
        trained, folder = load_trained(run, updates=updates), Path(temporary) / "model"
        results = results_of(run, trained.updates)
        write_shared(run, jax.device_get(trained.variables), folder, names=upload.format)
        write_card(folder, run, results, upload)
        done = send(folder, upload, message=f"checkpoint after {trained.updates} updates")
        record = _of(upload) | {"update": trained.updates} | done
        write_whole(run / UPLOAD, json.dumps(record, indent=2) + "\n")
    return record


def uploaded(run: Path, upload: Upload) -> dict[str, Any]:
    """Returns the record of the last complete upload to the same place in the same format; empty if there is none."""
    try:
        record: dict[str, Any] = json.loads(read_text(run / UPLOAD))
    except (OSError, ValueError):
        return {}
    return record if _of(upload).items() <= record.items() else {}


def _of(upload: Upload) -> dict[str, Any]:
    return {name: getattr(upload, name) for name in ("to", "revision", "format")}
