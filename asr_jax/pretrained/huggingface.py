"""Folders of Hugging Face's transformers: settings, weights in one or more files, and vocabulary."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.nn.activations import ActivationName
from asr_jax.text.vocabularies import BOUNDARY

CONFIG, WEIGHTS = "config.json", "model.safetensors"
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
"""Files with the front-end's settings: of transformers 4, and of transformers 5, which also stores others there."""
SPAN_MASKS = {"time_mask": "time", "channel_mask": "feature"}
"""Axes of the masks in names of settings, such as mask_time_prob, by our fields."""
SPANS = {"probability": "prob", "length": "length", "min_spans": "min_masks"}
"""Parts of those names, by our fields."""
ACTIVATIONS: dict[str, ActivationName] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu", "selu": "selu", "tanh": "tanh", "linear": "identity",
}  # fmt: skip
"""Activations by transformers' names."""
PAD, UNKNOWN, BEGIN, END = "<pad>", "<unk>", "<s>", "</s>"


def read_json(file: Path) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
        UserError: If the file cannot be read or does not contain an object.
    """
    try:
        found = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: {error}; expected a file that transformers wrote") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} does not contain a JSON object; expected settings that transformers wrote")
    return found


def model_type(folder: Path) -> str:
    """Returns `model_type` of the folder's config.json; empty if there is none."""
    return str(read_json(folder / CONFIG).get("model_type", "")) if (folder / CONFIG).is_file() else ""


def activation(name: ActivationName) -> str:
    """Returns transformers' name of an activation.

    Raises:
        UserError: If transformers does not have it.
    """
    theirs_of = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())} | {"silu": "swish"}
    if name not in theirs_of:
        raise UserError(f"activation is {name}: expected one of {', '.join(theirs_of)}")
    return theirs_of[name]


def front_end_settings(folder: Path) -> dict[str, Any]:
    """Returns the settings of the folder's feature extractor; empty if there are none."""
    if (folder / PREPROCESSOR).is_file():
        return read_json(folder / PREPROCESSOR)
    if (folder / PROCESSOR).is_file():
        return read_json(folder / PROCESSOR).get("feature_extractor", {})
    return {}


def weight_files(folder: Path) -> list[Path]:
    """Returns the files that contain the weights: a single file, or all files that an index lists.

    Raises:
        UserError: If there are no weights, or if a file that the index lists is missing.
    """
    for name in (WEIGHTS, "pytorch_model.bin"):
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            named = read_json(index).get("weight_map")
            files = sorted({folder / str(part) for part in named.values()}) if isinstance(named, dict) else []
            if lacking := [part.name for part in files if not part.is_file()]:
                raise UserError(f"{folder} has no {', '.join(lacking)}, which {index.name} lists: download them too")
            if files:
                return files
    if files := sorted(folder.glob("*.safetensors")):
        return files
    raise UserError(f"{folder} has {CONFIG} and no weights: expected {WEIGHTS} or pytorch_model.bin")


def save_folder(out: Path, *, files: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> None:
    """Writes a folder of weights and JSON files.

    Args:
        out: Folder to write; it is created if it is missing.
        files: Content of each JSON file, by file name.
        weights: Arrays by their names.
    """
    out.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
    arrays = {name: np.ascontiguousarray(array) for name, array in weights.items()}
    # transformers 4 refuses files without the format. save_file would create a file that only its owner can read.
    write_whole(out / WEIGHTS, save(arrays, metadata={"format": "pt"}))


def label_files(symbols: Sequence[str | None], *, processor: str) -> dict[str, Any]:
    """Returns vocab.json and tokenizer_config.json of a `Wav2Vec2CTCTokenizer`, keyed by file name.

    The blank becomes the padding token, and a space the word delimiter.

    Args:
        symbols: Text of each label; None for the blank.
        processor: Class of the processor that contains the tokenizer.

    Raises:
        UserError: If a label is not a single character, which the tokenizer requires.
    """
    named = {PAD if symbol is None else BOUNDARY if symbol == " " else symbol: i for i, symbol in enumerate(symbols)}
    special = {"pad_token": PAD, "unk_token": UNKNOWN, "bos_token": BEGIN, "eos_token": END}
    others = [name for name in named if len(name) != 1 and name not in special.values()]
    if others or len(named) != len(symbols):
        raise UserError(
            f"labels such as {', '.join(map(repr, others[:3])) or BOUNDARY}: expected characters, because the "
            "tokenizer of transformers has no others; use --out NAME.safetensors to write the weights alone"
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
    """Returns the settings of labels in a config.json."""
    ids = {symbol: number for number, symbol in enumerate(symbols)}
    return {
        "vocab_size": len(symbols),
        "pad_token_id": ids[None],
        "bos_token_id": ids.get(BEGIN),
        "eos_token_id": ids.get(END),
    }
