"""Encoder settings that are read from files of other systems."""

import io
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from asr_jax.core.errors import UserError
from asr_jax.models.conformer import Conformer
from asr_jax.models.quartznet import QuartzNet
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.pretrained.encoders import check_fits_config, encoder_of

BLOCK = {"filters": 8, "repeat": 2, "kernel": [5], "stride": [1], "dilation": [1], "dropout": 0.0, "residual": True}
ENCODERS: dict[str, tuple[type, dict[str, Any], dict[str, Any]]] = {
    "ConformerEncoder": (Conformer, {"feat_in": 80, "n_layers": 2, "d_model": 16, "n_heads": 2}, {"num_layers": 2}),
    "SqueezeformerEncoder": (
        Squeezeformer, {"feat_in": 80, "n_layers": 4, "d_model": 16, "n_heads": 2}, {"num_layers": 4},
    ),
    "ConvASREncoder": (
        QuartzNet, {"feat_in": 64, "activation": "relu", "conv_mask": True, "jasper": [BLOCK]}, {"num_mels": 64},
    ),
}  # fmt: skip


def nemo_file(path: Path, encoder: dict[str, Any]) -> Path:
    content = yaml.safe_dump({"encoder": encoder, "preprocessor": {"features": 80}}).encode()
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo("./model_config.yaml")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return path


@pytest.mark.parametrize("target", ENCODERS)
def test_each_encoder_is_known_by_its_class(tmp_path: Path, target: str) -> None:
    cls, config, expected = ENCODERS[target]
    path = nemo_file(tmp_path / "m.nemo", {"_target_": f"nemo.collections.asr.modules.{target}", **config})
    settings = encoder_of(path)
    assert type(settings) is cls
    assert {name: getattr(settings, name) for name in expected} == expected


def test_the_config_for_the_model_is_named() -> None:
    with pytest.raises(UserError, match=r"w2v/ holds a wav2vec 2\.0: use configs/wav2vec2_finetune\.py"):
        check_fits_config(Wav2Vec2(), "w2v/", config="configs/fastconformer_finetune.py")
    with pytest.raises(UserError, match=r"m\.nemo holds a Conformer: use configs/fastconformer_finetune\.py"):
        check_fits_config(Conformer(), "m.nemo", config="configs/w2v_bert_finetune.py")
    check_fits_config(Conformer(), "m.nemo", config="configs/fastconformer_finetune.py")


def test_another_encoder_is_named(tmp_path: Path) -> None:
    path = nemo_file(tmp_path / "m.nemo", {"_target_": "nemo.collections.asr.modules.RNNTEncoder"})
    with pytest.raises(UserError, match=r"the encoder is RNNTEncoder, expected one of .*ConformerEncoder"):
        encoder_of(path)
    with pytest.raises(UserError, match=r"expected a \.nemo file or a Hugging Face folder with config\.json"):
        encoder_of(tmp_path / "nothing")
