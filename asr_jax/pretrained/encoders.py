"""Settings of encoders and front-ends that other systems' files were made with, read from those files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import nemo, wav2vec2
from asr_jax.core.errors import UserError
from asr_jax.models.base import EncoderSettings
from asr_jax.pretrained import huggingface, quartznet, squeezeformer_nemo, w2v_bert_settings, wav2vec2_huggingface
from asr_jax.pretrained.conformer import config_of, conformer_of
from asr_jax.pretrained.nemo_files import check_settings, nemo_config
from asr_jax.pretrained.wav2vec2_fairseq import FAIRSEQ_EPS, Settings, settings_of_checkpoint


def describes_itself(path: str) -> bool:
    """Whether a file or folder of weights says what model it is of, as `encoder_of` and `front_end_of` read it."""
    return path.endswith((".nemo", ".pt")) or (bool(path) and (Path(path) / huggingface.CONFIG).is_file())


def encoder_of(path: str | Path, **changes: Any) -> EncoderSettings:
    """The encoder of a `.nemo` file (Conformer, FastConformer, Squeezeformer, QuartzNet, Jasper, Citrinet), of the
    folder of a Parakeet, a W2V-BERT or a wav2vec 2.0 of Hugging Face, or of a wav2vec 2.0 of fairseq or NVIDIA (.pt),
    with `changes` of its fields.

    Raises: UserError where it is another model, or has what there is none of here.
    """
    if Path(path).suffix != ".nemo":
        if huggingface.model_type(Path(path)) == w2v_bert_settings.MODEL_TYPE:
            return w2v_bert_settings.w2v_bert_of(path, **changes)
        if is_wav2vec2(Path(path)):
            return replace(wav2vec2_settings(Path(path)).encoder, **changes)
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


def is_wav2vec2(path: Path) -> bool:
    """Whether it is a checkpoint of fairseq or NVIDIA, or a folder that says that it is one of a wav2vec 2.0."""
    return path.suffix == ".pt" or huggingface.model_type(path) == wav2vec2_huggingface.MODEL_TYPE


def wav2vec2_settings(path: Path) -> Settings:
    """What such a file or folder says of its model.

    Raises: UserError where it is none, or says what is not there here.
    """
    return wav2vec2_huggingface.settings_of_folder(path) if path.is_dir() else settings_of_checkpoint(path)


def front_end_of(path: str | Path) -> FrontEnd:
    """The front-end that such a model was trained with: the preset `nemo` with its number of mel bins, `w2v_bert` or
    `wav2vec2`: the last normalises where the file says so, or says nothing and has its norms first.

    Raises: UserError where the file's is another.
    """
    if huggingface.model_type(Path(path)) == w2v_bert_settings.MODEL_TYPE:
        return w2v_bert_settings.front_end_of(Path(path))
    if is_wav2vec2(Path(path)):
        found = wav2vec2_settings(Path(path))
        normalises = found.normalise if found.normalise is not None else found.encoder.norm_first
        return wav2vec2(normalise=normalises, eps=1e-7 if Path(path).is_dir() else FAIRSEQ_EPS)
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
