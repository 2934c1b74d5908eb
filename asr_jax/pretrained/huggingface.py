"""Folders as Hugging Face's transformers writes and reads them: settings, weights in one file or more, vocabulary."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.text.vocabularies import BOUNDARY

CONFIG, WEIGHTS = "config.json", "model.safetensors"
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
"""Settings of the front-end as transformers 4 writes them, and as 5 does, among others."""
PAD, UNKNOWN, BEGIN, END = "<pad>", "<unk>", "<s>", "</s>"


def read_json(file: Path) -> dict[str, Any]:
    """Raises: UserError where it is missing or no object."""
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: {error}; expected a file that transformers wrote") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} is no object: expected settings that transformers wrote")
    return found


def model_type(folder: Path) -> str:
    """What a folder says that it holds; empty where it says nothing."""
    return str(read_json(folder / CONFIG).get("model_type", "")) if (folder / CONFIG).is_file() else ""


def front_end_settings(folder: Path) -> dict[str, Any]:
    """Of its feature extractor; empty where the folder says nothing of it."""
    if (folder / PREPROCESSOR).is_file():
        return read_json(folder / PREPROCESSOR)
    if (folder / PROCESSOR).is_file():
        return read_json(folder / PROCESSOR).get("feature_extractor", {})
    return {}


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights: one, or all that an index names.

    Raises: UserError where there are none, or one that the index names is missing.
    """
    for name in (WEIGHTS, "pytorch_model.bin"):
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            named = read_json(index).get("weight_map")
            files = sorted({folder / str(part) for part in named.values()}) if isinstance(named, dict) else []
            if lacking := [part.name for part in files if not part.is_file()]:
                raise UserError(f"{folder} has no {', '.join(lacking)}, which {index.name} names: fetch them too")
            if files:
                return files
    if files := sorted(folder.glob("*.safetensors")):
        return files
    raise UserError(f"{folder} has a {CONFIG} and no {WEIGHTS}: expected weights there")


def save_folder(out: Path, *, files: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> None:
    """Writes weights, and JSON files by name."""
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
    arrays = {name: np.ascontiguousarray(array) for name, array in weights.items()}
    # Without the format transformers 4 refuses it; save_file would let nobody else read it.
    write_whole(out / WEIGHTS, save(arrays, metadata={"format": "pt"}))


def label_files(symbols: Sequence[str | None], *, processor: str) -> dict[str, Any]:
    """The vocabulary and the settings of `Wav2Vec2CTCTokenizer`; `processor`: the class that has it. The blank is its
    padding, and a space its word delimiter.

    Raises: UserError where labels are no characters: that tokenizer has no others.
    """
    named = {PAD if symbol is None else BOUNDARY if symbol == " " else symbol: i for i, symbol in enumerate(symbols)}
    special = {"pad_token": PAD, "unk_token": UNKNOWN, "bos_token": BEGIN, "eos_token": END}
    others = [name for name in named if len(name) != 1 and name not in special.values()]
    if others or len(named) != len(symbols):
        raise UserError(
            f"labels such as {', '.join(map(repr, others[:3])) or BOUNDARY}: expected characters, which transformers "
            "has a tokenizer for; --out NAME.safetensors writes the weights alone"
        )
    settings = {
        "tokenizer_class": "Wav2Vec2CTCTokenizer",
        "processor_class": processor,
        "do_lower_case": False,
        "word_delimiter_token": BOUNDARY,
        "replace_word_delimiter_char": " ",
        **{role: name if name in named else None for role, name in special.items()},
    }
    return {"vocab.json": named, "tokenizer_config.json": settings}


def label_ids(symbols: Sequence[str | None]) -> dict[str, int | None]:
    """What a config.json says of labels."""
    ids = {symbol: number for number, symbol in enumerate(symbols)}
    return {
        "vocab_size": len(symbols),
        "pad_token_id": ids[None],
        "bos_token_id": ids.get(BEGIN),
        "eos_token_id": ids.get(END),
    }
