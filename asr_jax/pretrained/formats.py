"""Weights of a file, by our names or by those of a system that we know."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from asr_jax.core.batch import OUTPUT
from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.pytrees import Tree, flatten
from asr_jax.heads.contrastive import Contrastive
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import EncoderSettings, Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.quartznet import QuartzNet
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.models.zipformer import Zipformer
from asr_jax.pretrained import (
    conformer,
    huggingface,
    icefall,
    quartznet,
    squeezeformer_keras,
    squeezeformer_nemo,
    w2v_bert,
    w2v_bert_settings,
    wav2vec2,
    wav2vec2_huggingface,
)
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

Symbols = Sequence[str | None]
Weights = Mapping[str, np.ndarray]
Paths = tuple[dict[str, np.ndarray], list[str]]
"""Weights by our paths, `params/…` and `batch_stats/…`, as far as they are the model's, and the names there of those
that are not."""


class Format(NamedTuple):
    """Weights of an encoder, and of a CTC head on it, by the names of another system."""

    names: str
    """Whose, in a word."""
    of: str
    """Whose, and of what model."""
    encoder: type[EncoderSettings]
    claims: Callable[[Weights], bool]
    """Whether the names are such."""
    find: Callable[..., Paths]
    """`find(weights, encoder's settings, **heads)`."""
    export: Callable[..., dict[str, np.ndarray]]
    """`export(variables, encoder's settings, **heads)`: the other way, or an error where a weight has no name."""
    folder: Callable[[Model, Symbols], dict[str, Any]] | None = None
    """What lies beside the weights in a folder of Hugging Face's: JSON files by name; None where none is written."""
    heads: Callable[[Model], dict[str, Any]] = lambda model: {"ctc_head": ctc_head(model)}
    """The heads that have names there."""


def ctc_head(model: Model) -> str | None:
    """Path of the parameters of the model's first CTC head on the encoder's output."""
    of_output = (name for name, head in model.heads.items() if isinstance(head, CTC) and head.tap == OUTPUT)
    return next((f"heads_{name}" for name in of_output), None)


def wav2vec2_heads(model: Model) -> dict[str, Any]:
    """Its CTC head, and path and settings of its head of pre-training; None where there is none."""
    contrastive = ((f"heads_{name}", head) for name, head in model.heads.items() if isinstance(head, Contrastive))
    return {"ctc_head": ctc_head(model), "contrastive": next(contrastive, None)}


FORMATS = (
    Format("icefall", "icefall's of a Zipformer", Zipformer, icefall.claims, icefall.find, icefall.export),
    Format("nemo", "NeMo's of a Conformer", Conformer, conformer.claims_nemo, conformer.find, conformer.export_nemo),
    Format(
        "huggingface", "Hugging Face's of a Conformer", Conformer, conformer.claims_huggingface, conformer.find,
        conformer.export_huggingface,
    ),
    Format("nemo", "NeMo's of a QuartzNet", QuartzNet, quartznet.claims_nemo, quartznet.find, quartznet.export_nemo),
    Format(
        "deeplearningexamples", "NVIDIA's (DeepLearningExamples') of a QuartzNet", QuartzNet, quartznet.claims,
        quartznet.find, quartznet.export_nvidia,
    ),
    Format(
        "nemo", "NeMo's of a Squeezeformer", Squeezeformer, squeezeformer_nemo.claims, squeezeformer_nemo.find,
        squeezeformer_nemo.export,
    ),
    Format(
        "keras", "the paper's authors' (Keras) of a Squeezeformer", Squeezeformer, squeezeformer_keras.claims,
        squeezeformer_keras.find, squeezeformer_keras.export,
    ),
    Format(
        "huggingface", "Hugging Face's of a W2V-BERT", W2VBert, w2v_bert.claims, w2v_bert.find, w2v_bert.export,
        w2v_bert_settings.folder_files,
    ),
    Format(
        "huggingface", "Hugging Face's of a wav2vec 2.0", Wav2Vec2, wav2vec2.claims_huggingface, wav2vec2.find,
        wav2vec2.export_huggingface, wav2vec2_huggingface.folder_files, wav2vec2_heads,
    ),
    Format(
        "fairseq", "fairseq's or NVIDIA's of a wav2vec 2.0", Wav2Vec2, wav2vec2.claims_fairseq, wav2vec2.find,
        wav2vec2.export_fairseq, heads=wav2vec2_heads,
    ),
)  # fmt: skip


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


def save_exported(weights: Weights, names: str, symbols: Symbols, out: Path, *, like: Path | None) -> None:
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


def imported(weights: Weights, model: Model) -> Paths:
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
