"""Published models: settings, tokenizer and weights from files of other systems, by one function for all formats."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import preset
from asr_jax.core.errors import UserError
from asr_jax.core.paths import quoted
from asr_jax.core.run_folder import EXPERIMENT
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.encoder import Context, StreamingEncoder
from asr_jax.pretrained.base import Description, made
from asr_jax.pretrained.encoders import DESCRIPTIONS, description_of
from asr_jax.pretrained.formats import imported, is_weights, load_weights
from asr_jax.pretrained.huggingface import has_settings_alone
from asr_jax.pretrained.torch_files import SUFFIXES as TORCH_SUFFIXES
from asr_jax.text.characters import CharacterTokenizer, NoTokenizer
from asr_jax.text.tokenizers import Tokenizer, TokenizerSettings, given_tokenizer, train_tokenizer
from asr_jax.text.vocabularies import normaliser_of

BESIDE = ("dict.ltr.txt", "bpe.model", "tokenizer.model", "tokens.txt")
"""Files with a tokenizer that are read if they are in the folder of a file without one."""
AS_OURS = "params/"


@dataclass(frozen=True)
class SuppliedParts:
    """Parts of a model that its file does not contain, or that replace those of the file."""

    tokenizer: str = ""
    """Path of a tokenizer, as in `TokenizerSettings.path`. Empty: that of the model or of the folder."""
    normaliser: str = ""
    """Normaliser of texts. Empty: the one that fits the case of the vocabulary's letters."""
    front_end: str = ""
    """Name of a front-end in `audio.presets`. Empty: that of the model."""
    model: Model | None = None
    """Settings of the model. None: those of the file."""
    context: Context | None = None
    """Context of attention. None: those of the model."""
    labels: TokenizerSettings | None = None
    """Settings of a tokenizer with a path or an alphabet, which is used if the model has none."""


NOTHING = SuppliedParts()


class NotGiven(UserError):
    """A part of a model that its file does not contain and that was not given."""


@dataclass(frozen=True)
class Published:
    """A published model."""

    model: Model
    """Front-end, encoder and heads."""
    tokenizer: Tokenizer
    weights: dict[str, np.ndarray]
    """Weights by parameter path (`params/…`, `batch_stats/…`)."""
    remarks: tuple[str, ...]
    """Messages about weights that are not used and about assumptions."""


def is_published(path: Path) -> bool:
    """Returns whether a path is a file or folder of a published model: one that `read_published` reads or refuses."""
    return (path.exists() and is_weights(path)) or bool(_torch_files(path))


def read_published(path: Path, given: SuppliedParts = NOTHING) -> Published:
    """Reads a published model.

    Args:
        given: Parts that the file does not contain.

    Raises:
        UserError: If the path is not such a model, if this package does not have it, or if a part is unknown. The
            message has the flag of `python -m asr_jax.import` that gives the part.
    """
    if not path.exists():
        raise UserError(
            f"{path} does not exist: expected the path of a .nemo file, a Hugging Face folder or weights. Names of "
            "Hugging Face are not downloaded: hf download NAME --local-dir FOLDER. URLs of files are"
        )
    if has_settings_alone(path):
        raise UserError(
            f"{path} has settings of a model and no weights: expected a folder with weights. To train with these "
            f"settings: python -m asr_jax.train --config FILE --init-from {quoted(path)}, with a config that "
            "fine-tunes such a model (configs/wav2vec2_finetune.py)"
        )
    if not is_weights(path):
        if files := _torch_files(path):
            raise UserError(f"{path} is a folder with weights: expected the path of the file, such as {files[0]}")
        raise UserError(
            f"{path} is not a published model: expected a .nemo file, a Hugging Face folder, or weights "
            f"(.safetensors {' '.join(TORCH_SUFFIXES)})"
        )
    described = None if given.model else _description_of(path)
    model = settings_of(path, described, front_end=given.front_end) if described else given.model
    assert model is not None
    if given.model and given.front_end:
        model = replace(given.model, front_end=preset(given.front_end))
    if given.context:
        if not isinstance(model.encoder, StreamingEncoder):
            raise UserError(
                f"{path}: attention of {type(model.encoder).__name__} has no chunks: expected a model that streams, "
                "or no --chunk-frames"
            )
        model = replace(model, encoder=made(path, model.encoder.with_context, given.context))
    weights, symbols = load_weights(path)
    found, left = imported(weights, model)
    others = [each.others for each in ((described,) if described else DESCRIPTIONS) if each.others]
    if wrong := [name for name in left if not any(re.fullmatch(other, _bare(name)) for other in others)]:
        raise UserError(
            f"{path} has {len(wrong)} weights that {type(model.encoder).__name__} with these settings does not have: "
            f"{', '.join(wrong[:3])}{' …' * (len(wrong) > 3)}; expected only weights of this model"
        )
    kinds = ", ".join(dict.fromkeys(_bare(name).partition(".")[0] for name in left))
    remarks = [f"{len(left)} weights of other heads are not used: {kinds}"] if left else []
    if not model.heads:
        remarks.append("the model has no head that recognises texts: extract_features and --init-from take it")
    if not model.recognises:
        return Published(model, NoTokenizer(), found, tuple(remarks))
    tokenizer, of = _tokenizer(path, described, given, symbols)
    _check_labels(path, tokenizer, of, found, model)
    return Published(model, tokenizer, found, tuple(remarks))


def settings_of(path: Path, described: Description, *, front_end: str = "") -> Model:
    """Returns the settings of a published model, without augmentations.

    Args:
        front_end: Name of a front-end in `audio.presets`. Empty: that of the model.

    Raises:
        UserError: If a setting is not supported, or the front-end is unknown.
    """
    if not front_end and (unknown := described.unknown(path)):
        raise NotGiven(f"{path} does not contain {unknown}")
    heads, encoder = described.heads(path), described.encoder(path)
    changes: dict[str, Any] = {}
    if getattr(encoder, "taps", ()) and all(isinstance(head, CTC) for head in heads.values()):
        changes["taps"] = ()  # those of pre-training
    if not getattr(encoder, "mask_padding", True):
        changes["mask_padding"] = True  # recordings are computed in batches, and alone by the other system
    chosen: FrontEnd = preset(front_end) if front_end else described.front_end(path)
    recognising = [name for name, head in heads.items() if head.recognises]
    primary = recognising[0] if len(recognising) > 1 else ""
    encoder = made(path, replace, encoder, **changes)
    return made(path, Model, encoder, heads=heads, front_end=chosen, augment=(), primary=primary)


def _description_of(path: Path) -> Description:
    try:
        return description_of(path)
    except UserError as error:
        if path.suffix in (".safetensors", *TORCH_SUFFIXES):
            raise NotGiven(
                f"{path} contains weights and no settings of a model: expected --config FILE.py with its encoder and "
                "front-end, such as configs/quartznet_librispeech.py"
            ) from error
        raise


def _torch_files(path: Path) -> list[Path]:
    """Returns the weights of PyTorch in a folder; those in the folder of a run are exported ones and do not count."""
    if not path.is_dir() or (path / EXPERIMENT).is_file():
        return []
    return sorted(each for each in path.iterdir() if each.suffix in TORCH_SUFFIXES)


def _bare(name: str) -> str:
    """Returns a name without the prefixes of fine-tuned models."""
    return re.sub(r"^(module\.)?(w2v_encoder\.|wav2vec2\.|wav2vec2_bert\.)?(w2v_model\.)?", "", name)


def _tokenizer(
    path: Path, described: Description | None, given: SuppliedParts, symbols: Sequence[str | None] | None
) -> tuple[Tokenizer, str]:
    """Returns the tokenizer of a model, and its source for messages."""
    is_whole = path.suffix == ".nemo" or path.is_dir()
    beside = next((path.parent / name for name in BESIDE if not is_whole and (path.parent / name).is_file()), None)
    inside = described.tokenizer(path, None) if described and not given.tokenizer else None
    if inside:
        return _with_normaliser(inside, given.normaliser), str(path)
    if source := given.tokenizer or (str(path) if is_whole else ""):
        return _read(Path(source), described, path, given.normaliser), source
    if symbols and all(symbol is None or len(symbol) <= 1 for symbol in symbols):
        return _with_normaliser(CharacterTokenizer(tuple(symbols), "none"), given.normaliser), str(path)
    if given.labels and (given.labels.path or given.labels.alphabet):
        of_config = replace(given.labels, normaliser=given.normaliser or given.labels.normaliser)
        return given_tokenizer(of_config) if of_config.path else train_tokenizer(of_config, ()), "the config"
    if beside:
        return _read(beside, described, path, given.normaliser), str(beside)
    raise NotGiven(
        f"{path} contains no tokenizer: expected --tokenizer PATH with the one that the model was trained with "
        "(fairseq's dict.ltr.txt, icefall's bpe.model or tokens.txt, a SentencePiece .model, a vocab.json), or such a "
        f"file beside it ({', '.join(BESIDE)})"
    )


def _read(source: Path, described: Description | None, path: Path, normaliser: str) -> Tokenizer:
    """Reads a tokenizer.

    Args:
        normaliser: Normaliser of texts. Empty: the tokenizer's own, or the one that fits its letters.
    """
    tokenizer = given_tokenizer(TokenizerSettings(path=str(source), normaliser="none"))
    if tokenizer.normaliser != "none":  # the folder of a tokenizer of this package, which has its own
        return replace(tokenizer, normaliser=normaliser or tokenizer.normaliser)
    return _with_normaliser((described and described.tokenizer(path, tokenizer)) or tokenizer, normaliser)


def _with_normaliser(tokenizer: Tokenizer, normaliser: str) -> Tokenizer:
    return replace(tokenizer, normaliser=normaliser or normaliser_of(tokenizer.symbols))


def _check_labels(path: Path, tokenizer: Tokenizer, of: str, weights: Mapping[str, np.ndarray], model: Model) -> None:
    """Checks that the tokenizer has as many labels as the head."""
    axis = model.heads[model.recognising].label_axis("output/bias")
    bias = weights.get(f"{AS_OURS}heads_{model.recognising}/output/bias")
    if axis and bias is not None and bias.shape != (tokenizer.vocab_size + axis.more,):
        raise UserError(
            f"{of} has {tokenizer.vocab_size} labels with the blank, and the head of {path} has "
            f"{bias.shape[0] - axis.more}: expected the tokenizer that the model was trained with (--tokenizer PATH)"
        )
