"""Settings of encoders and front-ends that other systems' files were made with, read from those files."""

from pathlib import Path
from typing import Any

from asr_jax.audio.features import FrontEnd
from asr_jax.core.errors import UserError
from asr_jax.models.base import EncoderSettings
from asr_jax.pretrained import huggingface
from asr_jax.pretrained.base import Description, listed
from asr_jax.pretrained.nemo_files import nemo_encoder

DESCRIPTIONS: tuple[Description, ...] = listed("DESCRIPTIONS")


def describes_itself(path: str) -> bool:
    """Whether a file or folder of weights says what model it is of, as `encoder_of` and `front_end_of` read it."""
    return path.endswith((".nemo", ".pt")) or (bool(path) and (Path(path) / huggingface.CONFIG).is_file())


def encoder_of(path: str | Path, **changes: Any) -> EncoderSettings:
    """The encoder of a `.nemo` file (Conformer, FastConformer, Squeezeformer, QuartzNet, Jasper, Citrinet), of the
    folder of a Parakeet, a W2V-BERT or a wav2vec 2.0 of Hugging Face, or of a wav2vec 2.0 of fairseq or NVIDIA (.pt),
    with `changes` of its fields.

    Raises: UserError where it is another model, or has what there is none of here.
    """
    return _description(Path(path)).encoder(Path(path), **changes)


def front_end_of(path: str | Path) -> FrontEnd:
    """The front-end that such a model was trained with: the preset `nemo` with its number of mel bins, `w2v_bert` or
    `wav2vec2`.

    Raises: UserError where the file's is another.
    """
    return _description(Path(path)).front_end(Path(path))


def _description(path: Path) -> Description:
    """Raises: UserError where the path says nothing that is known."""
    for each in DESCRIPTIONS:
        if each.is_of(path):
            return each
    names = ", ".join(each.name for each in DESCRIPTIONS)
    if path.suffix == ".nemo":
        raise UserError(f"{path}: its encoder is {nemo_encoder(path)}, expected one of {names}")
    if not (path / huggingface.CONFIG).is_file():
        raise UserError(f"{path}: expected a .nemo file or a folder of Hugging Face's, with {huggingface.CONFIG}")
    said = huggingface.model_type(path)
    raise UserError(f"{path / huggingface.CONFIG}: model_type is {said!r}; expected one of {names}")
