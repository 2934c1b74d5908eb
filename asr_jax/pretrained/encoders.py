"""Settings of encoders and front-ends that other systems' files were made with, read from those files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import nemo
from asr_jax.core.errors import UserError
from asr_jax.models.base import EncoderSettings
from asr_jax.pretrained import huggingface, quartznet, squeezeformer_nemo, w2v_bert_settings
from asr_jax.pretrained.conformer import config_of, conformer_of
from asr_jax.pretrained.nemo_files import check_settings, nemo_config


def describes_itself(path: str) -> bool:
    """Whether a file or folder of weights says what model it is of, as `encoder_of` and `front_end_of` read it."""
    return path.endswith(".nemo") or (bool(path) and (Path(path) / huggingface.CONFIG).is_file())


def encoder_of(path: str | Path, **changes: Any) -> EncoderSettings:
    """The encoder of a `.nemo` file (Conformer, FastConformer, Squeezeformer, QuartzNet, Jasper, Citrinet) or of the
    folder of a Parakeet or a W2V-BERT of Hugging Face, with `changes` of its fields.

    Raises: UserError where it is another model, or has what there is none of here.
    """
    if Path(path).suffix != ".nemo":
        if huggingface.model_type(Path(path)) == w2v_bert_settings.MODEL_TYPE:
            return w2v_bert_settings.w2v_bert_of(path, **changes)
        return conformer_of(path, **changes)
    config = nemo_config(Path(path))
    said = config.get("encoder")
    target = str(said.get("_target_", "")).rpartition(".")[2] if isinstance(said, Mapping) else "nothing"
    known = {
        "ConformerEncoder": lambda: conformer_of(path, **changes),
        "SqueezeformerEncoder": lambda: squeezeformer_nemo.settings_of_nemo(config, **changes),
        "ConvASREncoder": lambda: quartznet.settings_of_nemo(config, **changes),
    }
    if target not in known:
        raise UserError(f"{path}: its encoder is {target}, expected one of {', '.join(known)}")
    return known[target]()


def front_end_of(path: str | Path) -> FrontEnd:
    """The front-end that such a model was trained with: the preset `nemo` with its number of mel bins, or `w2v_bert`.

    Raises: UserError where the file's is another.
    """
    if huggingface.model_type(Path(path)) == w2v_bert_settings.MODEL_TYPE:
        return w2v_bert_settings.front_end_of(Path(path))
    config, names = config_of(Path(path))
    if names == "huggingface":
        return nemo(num_mels=config["encoder_config"]["num_mel_bins"])
    said = config.get("preprocessor", {})
    expected = {
        "sample_rate": 16000, "normalize": "per_feature", "window_size": 0.025, "window_stride": 0.01, "window": "hann",
        "n_fft": 512, "frame_splicing": 1, "log": True,
    }  # fmt: skip
    check_settings(path, "preprocessor", said, expected)
    return nemo(num_mels=said.get("features", 80))
