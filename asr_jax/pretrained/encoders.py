"""Settings of encoders and front-ends, read from model files of other systems."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from asr_jax.audio.features import FrontEnd
from asr_jax.core.errors import UserError
from asr_jax.heads.ctc import CTC
from asr_jax.models.encoder import EncoderSettings
from asr_jax.pretrained import huggingface
from asr_jax.pretrained.base import Description, listed, made
from asr_jax.pretrained.nemo_files import encoder_class
from asr_jax.pretrained.torch_files import SUFFIXES as TORCH_SUFFIXES

DESCRIPTIONS: tuple[Description, ...] = listed("DESCRIPTIONS")


def describes_itself(path: str) -> bool:
    """Returns whether a file or folder may contain settings that `encoder_of` and `front_end_of` read."""
    return path.endswith((".nemo", ".pt")) or (bool(path) and (folder_of(path) / huggingface.CONFIG).is_file())


def folder_of(path: str | Path) -> Path:
    """Returns the folder of a Hugging Face config.json; any other path is returned unchanged."""
    return Path(path).parent if Path(path).name == huggingface.CONFIG else Path(path)


CONFIGS = {
    "Wav2Vec2": ("a wav2vec 2.0", "configs/wav2vec2_finetune.py"),
    "W2VBert": ("a W2V-BERT 2.0", "configs/w2v_bert_finetune.py"),
    "Conformer": ("a Conformer", "configs/fastconformer_finetune.py"),
}
"""Name of the model with an article, and the config that fine-tunes it, by the class of the encoder's settings."""


def check_fits_config(encoder: EncoderSettings, path: str, *, config: str) -> None:
    """Checks that a config is made for the model of a file or folder.

    Raises:
        UserError: If another config is made for the model. The message has its path.
    """
    name, fitting = CONFIGS.get(type(encoder).__name__, ("", config))
    if fitting != config:
        raise UserError(f"{path} holds {name}: use {fitting}")


def encoder_of(path: str | Path, **changes: Any) -> EncoderSettings:
    """Returns the encoder settings of another system's model, with `changes` of their fields.

    Supported are `.nemo` files (Conformer, FastConformer, Squeezeformer, QuartzNet, Jasper, Citrinet), Hugging Face
    folders and their config.json (Parakeet, W2V-BERT, wav2vec 2.0), and `.pt` files of fairseq and NVIDIA (wav2vec
    2.0), of icefall (Zipformer) and of CAIMAN-ASR (LSTM), and FunASR's folders (SAN-M).

    Raises:
        UserError: If the model is a different one, or if a setting is not supported.
    """
    path = folder_of(path)
    return made(path, replace, description_of(path).encoder(path), **changes)


def front_end_of(path: str | Path) -> FrontEnd:
    """Returns the front-end that a model of `encoder_of` was trained with.

    This is the preset `nemo` or `funasr` with the model's settings, `icefall`, `w2v_bert` or `wav2vec2`.

    Raises:
        UserError: If the model's front-end is a different one.
    """
    path = folder_of(path)
    return description_of(path).front_end(path)


def ctc_of(path: str | Path) -> CTC:
    """Returns the settings of the CTC head of a model of `encoder_of`: of fairseq, its dropout and weight of the blank.

    Raises:
        UserError: If the settings cannot be read.
    """
    path = folder_of(path)
    return description_of(path).ctc(path)


def description_of(path: Path) -> Description:
    """Returns the description that matches a file or folder.

    Raises:
        UserError: If none matches.
    """
    for each in DESCRIPTIONS:
        if each.is_of(path):
            return each
    names = ", ".join(each.name for each in DESCRIPTIONS)
    if path.suffix == ".nemo":
        raise UserError(f"{path}: the encoder is {encoder_class(path)}, expected one of {names}")
    if path.suffix in TORCH_SUFFIXES and path.is_file():
        raise UserError(f"{path} contains no settings of a model: expected those of {names}")
    if not (path / huggingface.CONFIG).is_file():
        raise UserError(f"{path}: expected a .nemo file or a Hugging Face folder with {huggingface.CONFIG}")
    found = huggingface.model_type(path)
    raise UserError(f"{path / huggingface.CONFIG}: model_type is {found!r}; expected one of {names}")
