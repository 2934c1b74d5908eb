"""Log-probabilities of recordings in files, for decoders outside of this package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from safetensors.numpy import save_file

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.text_files import json_line, json_text
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference.decoder import Emitted
from asr_jax.text.tokenizers import Tokenizer

LABELS, INDEX = "labels.json", "index.jsonl"


def check_ids(path: Path, sets: Mapping[str, Utterances]) -> None:
    """Checks that ids are different between sets if they become names of tensors in one file.

    Raises:
        UserError: If two sets have the same id and `path` is a .safetensors file.
    """
    if path.suffix != ".safetensors":
        return
    set_of: dict[str, str] = {}
    for manifest, utterances in sets.items():
        for utterance_id in utterances.ids():
            first = set_of.setdefault(utterance_id, manifest)
            if first != manifest:
                raise UserError(
                    f"--log-probs {path}: {first} and {manifest} both have a recording {utterance_id}, so two tensors "
                    "would have the same name; expected different ids, a folder instead of a .safetensors file, or "
                    "one call per set"
                )


class LogProbs:
    """Writes natural log-probabilities [frames, labels] of recordings in float32.

    A path that ends in .safetensors is one file with one tensor per recording, named by its id, and with the labels in
    its metadata. Its whole content is in memory until `close`. Any other path is a folder with `0.npy`, `1.npy`, …,
    `index.jsonl` (set, id, location, file, frames, text) and `labels.json` (symbols, blank_id, frame_s).

    Args:
        frame_s: Duration of a frame in seconds.
    """

    def __init__(self, path: Path, tokenizer: Tokenizer, *, frame_s: float) -> None:
        self._path, self._set, self._index = path, "", list[dict[str, Any]]()
        self._tensors: dict[str, np.ndarray] | None = {} if path.suffix == ".safetensors" else None
        self._labels = {"symbols": tokenizer.symbols, "blank_id": tokenizer.blank_id, "frame_s": frame_s}
        if self._tensors is None:
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)

    def begin(self, manifest: str) -> None:
        """Starts a set: recordings that follow belong to it. `check_ids` must have accepted the ids of all sets."""
        self._set = manifest

    def take(self, emitted: Emitted, data: PlannedData) -> None:
        """Adds the recordings of a batch."""
        assert emitted.log_probs is not None, "the decoder does not compute log-probabilities"
        values, lengths = jax.device_get((emitted.log_probs.values, emitted.log_probs.lengths))
        weights, rows = jax.device_get((emitted.weights, emitted.utterances))
        for row in np.flatnonzero(weights > 0).tolist():
            self.add(data.index.utterances[int(rows[row])], np.array(values[row, : lengths[row]], np.float32))

    def add(self, utterance: Utterance, own: Float[np.ndarray, "T V"]) -> None:
        """Adds a recording."""
        if self._tensors is not None:
            self._tensors[utterance.id] = own
            return
        file = f"{len(self._index)}.npy"
        np.save(self._path / file, own)
        about = {"set": self._set, "id": utterance.id, "location": utterance.location, "file": file, "frames": len(own)}
        self._index.append(about | {"text": utterance.text})

    def close(self) -> None:
        """Writes the labels and the index."""
        if self._tensors is not None:
            save_file(self._tensors, self._path, metadata={"labels": json_text(self._labels)})
            return
        write_whole(self._path / LABELS, json_line(self._labels))
        lines = (json_line(about) for about in self._index)
        write_whole(self._path / INDEX, "".join(lines))
