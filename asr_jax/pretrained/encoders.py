"""Settings of encoders that other systems' files were made with, read from those files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.models.base import EncoderSettings
from asr_jax.pretrained import quartznet, squeezeformer
from asr_jax.pretrained.conformer import conformer_of
from asr_jax.pretrained.nemo_files import nemo_config


def encoder_of(path: str | Path, **changes: Any) -> EncoderSettings:
    """The encoder of a `.nemo` file (Conformer, FastConformer, Squeezeformer, QuartzNet, Jasper, Citrinet) or of the
    folder of a Parakeet of Hugging Face, with `changes` of its fields.

    Raises: UserError where it is another model, or has what there is none of here.
    """
    if Path(path).suffix != ".nemo":
        return conformer_of(path, **changes)
    config = nemo_config(Path(path))
    said = config.get("encoder")
    target = str(said.get("_target_", "")).rpartition(".")[2] if isinstance(said, Mapping) else "nothing"
    known = {
        "ConformerEncoder": lambda: conformer_of(path, **changes),
        "SqueezeformerEncoder": lambda: squeezeformer.nemo_settings(config, **changes),
        "ConvASREncoder": lambda: quartznet.settings_of_nemo(config, **changes),
    }
    if target not in known:
        raise UserError(f"{path}: its encoder is {target}, expected one of {', '.join(known)}")
    return known[target]()
