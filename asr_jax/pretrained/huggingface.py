"""Folders of Hugging Face's transformers: settings, weights in one or more files, and vocabulary."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr_jax.core.batch import OUTPUT
from asr_jax.core.errors import UserError
from asr_jax.core.text_files import json_text, read_text
from asr_jax.heads.base import HeadSettings
from asr_jax.models.base import Model
from asr_jax.nn.activations import ActivationName
from asr_jax.text.vocabularies import BOUNDARY, SPECIAL_LABEL

CONFIG, WEIGHTS = "config.json", "model.safetensors"
PREPROCESSOR, PROCESSOR = "preprocessor_config.json", "processor_config.json"
"""Files with the front-end's settings: of transformers 4, and of transformers 5, which also stores others there."""
OF_OTHER_HEADS = r"(lm_head|projector|classifier|tdnn|objective)\..*|feature_extractor\.(weight|bias)|layer_weights"
"""Names of weights of heads for other tasks than recognition."""
SPAN_MASKS = {"time_mask": "time", "channel_mask": "feature"}
"""Axes of the masks in names of settings, such as mask_time_prob, by our fields."""
SPANS = {"probability": "prob", "length": "length", "min_spans": "min_masks"}
"""Parts of those names, by our fields."""
ACTIVATIONS: dict[str, ActivationName] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "selu": "selu",
    "tanh": "tanh",
    "linear": "identity",
}
"""Activations by transformers' names."""
WITHOUT_EFFECT = (
    r"_.*|model_type|architectures|(torch_)?dtype|transformers_version|return_dict|output_(attentions|hidden_states)"
    r"|vocab_size|(pad|bos|eos|sep)_token_id|id2label|label2id|problem_type|initializer_range"
    r"|final_dropout|ctc_.*|use_weighted_layer_sum|classifier_.*|tdnn_.*|xvector_.*"
)
"""Settings of all models without effect on the encoder's output."""
BEGIN, END = "<s>", "</s>"
PAD_AND_UNKNOWN = (("<pad>", "<unk>"), ("[PAD]", "[UNK]"), ("[pad]", "[unk]"))
"""Names of the padding token, which is the blank, and of the unknown token in published vocabularies."""


def read_json(file: Path) -> dict[str, Any]:
    """Returns the object in a JSON file.

    Raises:
        UserError: If the file cannot be read or does not contain an object.
    """
    try:
        found = json.loads(read_text(file))
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


def architecture(folder: Path) -> str:
    """Returns the class of the model in the folder's config.json, such as `Wav2Vec2ForCTC`; empty if it has none."""
    return str((read_json(folder / CONFIG).get("architectures") or [""])[0])


def recognises(folder: Path) -> bool:
    """Returns whether the folder's model has a CTC head: by its class, or in old files without one by a vocabulary."""
    found = architecture(folder)
    return found.endswith("ForCTC") if found else (folder / "vocab.json").is_file()


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


def has_settings_alone(path: Path) -> bool:
    """Returns whether a path is a folder's config.json, or a folder with this file and no weights."""
    if path.name == CONFIG or not (path / CONFIG).is_file():
        return path.name == CONFIG
    weights = (*path.glob("*.safetensors*"), *path.glob("*.bin*"))
    return not weights


def as_json(files: Mapping[str, Any]) -> dict[str, str | bytes]:
    """Returns the contents of JSON files, keyed by file name."""
    return {name: json_text(content, indent=2) + "\n" for name, content in files.items()}


def check_names(
    file: Path, config: Mapping[str, Any], needed: Collection[str], *, known: Collection[str], without_effect: str
) -> None:
    """Checks the names of the settings in a config.json.

    Args:
        needed: Names that must exist.
        known: Other names that are read.
        without_effect: Regular expression for names of settings without effect on the encoder's output, such as those
            of labels, losses, other heads and initialisation.

    Raises:
        UserError: If a name is missing or unknown.
    """
    kind = config.get("model_type") or "supported"
    if missing := sorted({*needed} - config.keys()):
        raise UserError(f"{file} has no {', '.join(missing)}: expected settings of a {kind} model")
    others = config.keys() - {*needed, *known}
    if unknown := sorted(name for name in others if not re.fullmatch(f"{WITHOUT_EFFECT}|{without_effect}", name)):
        raise UserError(
            f"{file} has unknown settings: {', '.join(unknown)}; expected those of transformers' {kind} (remove "
            "settings without effect from the file)"
        )


def only_head(model: Model, kinds: tuple[type[HeadSettings], ...]) -> HeadSettings:
    """Returns the only head of a model.

    Raises:
        UserError: If it has others, or if the head is of another kind or reads a tap.
    """
    head = next(iter(model.heads.values()), None)
    if len(model.heads) != 1 or not isinstance(head, kinds) or getattr(head, "tap", OUTPUT) != OUTPUT:
        names = " or one ".join(kind.__name__ for kind in kinds)
        raise UserError(
            f"the model has the heads {', '.join(model.heads)}: expected one {names} head on the encoder's output, as "
            "in transformers"
        )
    return head


def span_masks(settings: Any) -> dict[str, Any]:
    """Returns the settings of an encoder's masks by transformers' names."""
    return {
        f"mask_{axis}_{theirs}": getattr(getattr(settings, name), ours)
        for name, axis in SPAN_MASKS.items()
        for ours, theirs in SPANS.items()
    }


def label_files(symbols: Sequence[str | None], *, processor: str) -> dict[str, Any]:
    """Returns vocab.json and tokenizer_config.json of a `Wav2Vec2CTCTokenizer`, keyed by file name.

    The blank becomes the padding token, and a space the word delimiter.

    Args:
        symbols: Text of each label; None for the blank.
        processor: Class of the processor that contains the tokenizer.

    Raises:
        UserError: If a label is neither a single character, which the tokenizer requires, nor special, as `[UNK]`, or
            if the label `|` is not the space.
    """
    named, (pad, unknown) = _names(symbols)
    ids = {name: number for number, name in enumerate(named)}
    special = {"pad_token": pad, "unk_token": unknown, "bos_token": BEGIN, "eos_token": END}
    others = [name for name in named if len(name) != 1 and not re.fullmatch(SPECIAL_LABEL, name)]
    if others or BOUNDARY in symbols or len(ids) != len(named):
        raise UserError(
            f"labels such as {', '.join(map(repr, others[:3])) or BOUNDARY}: expected characters, with {BOUNDARY} for "
            "the space alone, because the tokenizer of transformers has no others; use --out NAME.safetensors to write "
            "the weights alone"
        )
    settings = {
        "tokenizer_class": "Wav2Vec2CTCTokenizer",
        "processor_class": processor,
        "do_lower_case": False,
        "word_delimiter_token": BOUNDARY,
        "replace_word_delimiter_char": " ",
        **{role: name if name in ids else None for role, name in special.items()},
    }
    return {"vocab.json": ids, "tokenizer_config.json": settings}


def _names(symbols: Sequence[str | None]) -> tuple[list[str], tuple[str, str]]:
    """Returns transformers' names of the labels, and those of the padding token and the unknown token."""
    special = next((names for names in PAD_AND_UNKNOWN if names[1] in symbols), PAD_AND_UNKNOWN[0])
    # fairseq's </s> has no text. Its blank is <s>, and the blank of transformers <pad>: the two names are exchanged.
    given = {None: special[0], " ": BOUNDARY, "": END, special[0]: BEGIN}
    return [given.get(symbol, str(symbol)) for symbol in symbols], special


def label_ids(symbols: Sequence[str | None]) -> dict[str, int | None]:
    """Returns the settings of labels in a config.json."""
    named, (pad, _) = _names(symbols)
    ids = {name: number for number, name in enumerate(named)}
    return {
        "vocab_size": len(symbols),
        "pad_token_id": ids[pad],
        "bos_token_id": ids.get(BEGIN),
        "eos_token_id": ids.get(END),
    }
