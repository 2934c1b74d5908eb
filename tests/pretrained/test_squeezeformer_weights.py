"""The tables of NeMo's and the authors' names cover all weights of Squeezeformer, for all kinds of settings."""

import io
import re
import tarfile
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import yaml

from asr_jax.audio.presets import preset
from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.pretrained.base import Format
from asr_jax.pretrained.encoders import encoder_of
from asr_jax.pretrained.formats import exported, imported
from asr_jax.pretrained.squeezeformer_keras import KERAS
from asr_jax.pretrained.squeezeformer_nemo import NEMO
from asr_jax.pretrained.squeezeformer_rust import FORMATS as OF_RUST

SMALL = Squeezeformer(num_mels=24, dim=8, num_layers=3, num_heads=2, kernel_size=5, subsampling_channels=3)
FORMS = {
    "paper": SMALL,
    "full": replace(SMALL, subsampling="striding", subsampling_channels=None),
    "without_reduction": replace(SMALL, reduce_time=False),
    "reduced_from_the_start": replace(SMALL, reduce_at=0, recover_at=0),
}
NEMO_FORMS = {
    **FORMS,
    "absolute": replace(SMALL, positions="abs_pos"),
    "tied_biases": replace(SMALL, tied_biases=True),
    "layer_norm": replace(SMALL, norm="layer"),
    "no_scales": replace(SMALL, adaptive_scale=False),
    "factor_8": replace(SMALL, subsampling_factor=8),
}
CONFIG = {
    "preprocessor": {"features": 80},
    "encoder": {
        "_target_": "nemo.collections.asr.modules.SqueezeformerEncoder",
        "feat_in": 80,
        "feat_out": -1,
        "n_layers": 20,
        "d_model": 324,
        "adaptive_scale": True,
        "time_reduce_idx": 9,
        "time_recovery_idx": None,
        "subsampling": "dw_striding",
        "subsampling_factor": 4,
        "subsampling_conv_channels": -1,
        "ff_expansion_factor": 4,
        "self_attention_model": "rel_pos",
        "n_heads": 4,
        "att_context_size": [-1, -1],
        "xscaling": True,
        "untie_biases": True,
        "pos_emb_max_len": 5000,
        "conv_kernel_size": 31,
        "conv_norm_type": "batch_norm",
        "dropout": 0.1,
        "dropout_emb": 0.0,
        "dropout_att": 0.1,
    },
}


HEADS = {"heads_ctc": CTC()}


@cache
def shapes_of(settings: Squeezeformer) -> Any:
    encoder = settings.build(dtype=jnp.float32)
    frames = Frames(jnp.zeros((1, 20, settings.num_mels)), jnp.array([20]))
    return jax.eval_shape(lambda: encoder.init(jax.random.key(0), frames, step=None))


def variables_of(settings: Squeezeformer) -> Any:
    """Random variables of a recogniser with a CTC head of 5 labels."""
    rng = np.random.default_rng(0)
    variables = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes_of(settings))
    head = {"output": {"kernel": rng.normal(size=(settings.dim, 5)), "bias": rng.normal(size=5)}}
    tree = {name: {"encoder": group} for name, group in variables.items()}
    tree["params"]["heads_ctc"] = jax.tree.map(np.float32, head)
    return tree


def assert_same(found: dict[str, np.ndarray], variables: Any) -> None:
    expected = flatten(variables)
    assert found.keys() == expected.keys()
    for path, array in found.items():
        np.testing.assert_array_equal(array, expected[path], err_msg=path)


@pytest.mark.parametrize("settings", NEMO_FORMS.values(), ids=NEMO_FORMS)
def test_nemos_names_cover_all_and_come_back(settings: Squeezeformer) -> None:
    variables = variables_of(settings)
    theirs = NEMO.export(variables, settings, HEADS)
    theirs["encoder.layers.0.conv.batch_norm.num_batches_tracked"] = np.ones(())
    theirs["preprocessor.featurizer.window"] = np.ones(400)
    found, left = NEMO.find(theirs, settings, HEADS)
    assert left == []
    assert_same(found, variables)


@pytest.mark.parametrize("settings", FORMS.values(), ids=FORMS)
def test_the_authors_names_cover_all_and_come_back(settings: Squeezeformer) -> None:
    variables = variables_of(settings)
    theirs = KERAS.export(variables, settings, HEADS)
    theirs = {name.replace("conformer_encoder", "enc"): array for name, array in theirs.items()}
    found, left = KERAS.find(theirs, settings, HEADS)
    assert left == []
    assert_same(found, variables)


def test_the_rust_trainers_names_cover_all_and_come_back() -> None:
    settings, (rust,) = replace(SMALL, variant="rust", num_mels=80), OF_RUST
    variables = variables_of(settings)
    theirs = {f"model.{name}": array for name, array in rust.export(variables, settings, HEADS).items()}
    theirs["model.encoder.blocks.0.layers.2.conv.batch_norm.num_batches_tracked"] = np.ones(())
    found, left = imported(theirs, Model(settings, front_end=preset("rust_squeezeformer")))
    assert left == []
    assert_same(found, variables)
    shapes = {name.removeprefix("model."): array.shape for name, array in theirs.items()}
    for name, shape in (  # as PyTorch has them: the last number of the projection is channels · bins of 80 / 4
        ("encoder.subsampling.conv2_dw.weight", (3, 1, 3, 3)),
        ("encoder.input_projection.weight", (8, 60)),
        ("encoder.time_reduce.0.depthwise.weight", (8, 1, 3)),
        ("encoder.time_recover.2.proj.bias", (8,)),
        ("encoder.blocks.2.layers.0.attn.attn.pos_bias_u", (2, 4)),
        ("encoder.blocks.1.layers.2.conv.pointwise_in.weight", (16, 8, 1)),
        ("encoder.blocks.1.layers.2.ff.linear1.weight", (32, 8)),
        ("classifier.weight", (5, 8)),
    ):
        assert shapes[name] == shape, name


def test_names_that_keras_counts_differently() -> None:
    """For a second model in a process, the numbers of unnamed layers continue, and paths may begin with the model's."""
    variables = variables_of(SMALL)
    theirs = {
        "model/" * ("/" in name)
        + re.sub(r"/dense(_(\d+))?/", lambda match: f"/dense_{int(match[2] or 0) + 10}/", name): array
        for name, array in KERAS.export(variables, SMALL, HEADS).items()
        if not name.startswith("conformer_logits")
    }
    found, left = KERAS.find(theirs, SMALL)
    assert left == []
    del variables["params"]["heads_ctc"]
    assert_same(found, variables)


@pytest.mark.parametrize("known", [NEMO, KERAS], ids=lambda known: known.names)
def test_a_model_takes_them_by_their_names(known: Format) -> None:
    settings = replace(SMALL, num_mels=80)
    variables, model = variables_of(settings), Model(settings, front_end=preset("nemo"))
    theirs = known.export(variables, settings, HEADS)
    theirs["something.else"] = np.zeros(3)
    found, left = imported(theirs, model)
    assert left == ["something.else"]
    assert_same(found, variables)
    with pytest.raises(
        UserError, match=r"something\.else.*authors' Keras code \(Squeezeformer\).*NeMo \(Squeezeformer\)"
    ):
        imported({"something.else": np.zeros(3)}, model)


def test_nemo_has_no_gate() -> None:
    settings = replace(SMALL, gated_convolution=True)
    with pytest.raises(UserError, match=r"gated_convolution is True.*NeMo"):
        exported({}, Model(replace(settings, num_mels=80), front_end=preset("nemo")), "nemo")


def test_scales_that_are_not_learned_are_passed_over_only_where_they_are_not() -> None:
    settings = replace(SMALL, adaptive_scale=False)
    theirs = NEMO.export(variables_of(SMALL), SMALL, HEADS)
    theirs = {name: array for name, array in theirs.items() if name.startswith("encoder.")}
    assert len(NEMO.find(theirs, settings)[1]) == 0
    theirs["encoder.layers.0.odd_scale.scale"] = np.ones(8)
    assert NEMO.find(theirs, SMALL)[1] == ["encoder.layers.0.odd_scale.scale"]


def written(folder: Path, config: Any) -> Path:
    """Writes a `.nemo` file of settings alone."""
    text = yaml.safe_dump(config).encode()
    with tarfile.open(folder / "model.nemo", "w") as archive:
        member = tarfile.TarInfo("./model_config.yaml")
        member.size = len(text)
        archive.addfile(member, io.BytesIO(text))
    return folder / "model.nemo"


def test_a_nemo_file_has_its_sizes(tmp_path: Path) -> None:
    path = written(tmp_path, CONFIG)
    settings = encoder_of(path, dropout=0.2)
    assert settings == Squeezeformer.m(
        variant="nemo", reduce_at=9, dropout=0.2, attention_dropout=0.1, feedforward_dim=4 * 324
    )
    assert settings.reduced == (9, 19)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subsampling": "vggnet"}, "subsampling is vggnet, expected striding or dw_striding"),
        ({"att_context_size": [64, 64]}, r"att_context_size is \[64, 64\]"),
        ({"feat_out": 17}, "feat_out is 17"),
    ],
)
def test_models_that_are_not_here(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        encoder_of(written(tmp_path, {**CONFIG, "encoder": {**CONFIG["encoder"], **changes}}))


def test_a_number_of_bins_that_is_a_reference_is_the_preprocessors(tmp_path: Path) -> None:
    config = {**CONFIG, "encoder": {**CONFIG["encoder"], "feat_in": "${model.preprocessor.features}"}}
    assert encoder_of(written(tmp_path, config)).num_mels == 80  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="expected a number"):
        encoder_of(written(tmp_path, {**config, "preprocessor": None}))
