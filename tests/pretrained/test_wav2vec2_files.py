"""Settings and weights of wav2vec 2.0 in published checkpoints and folders, and folders that this package writes."""

import json
import pickle
import sys
import types
import zipfile
from dataclasses import replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import GOLDENS

from asr_jax.audio.presets import wav2vec2
from asr_jax.core.batch import Batch
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.heads.contrastive import Contrastive
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.wav2vec2 import Hourglass, Wav2Vec2
from asr_jax.nn.wav2vec.quantizer import Quantizer
from asr_jax.nn.wav2vec.waveform_convs import WaveformConv
from asr_jax.pretrained.encoders import ctc_of, encoder_of, front_end_of
from asr_jax.pretrained.formats import exported, imported, load_weights, save_exported, save_folder
from asr_jax.pretrained.torch_writer import save_torch
from asr_jax.pretrained.wav2vec2_fairseq import conv_layers, settings_of_checkpoint
from asr_jax.pretrained.wav2vec2_huggingface import settings_of_folder
from asr_jax.text.characters import CharacterTokenizer

SMALL = Wav2Vec2(
    extractor=(WaveformConv(8, 5, 3), WaveformConv(8, 3, 2)), dim=16, num_layers=2, num_heads=2, feedforward_dim=24,
    position_kernel=6, position_groups=2, taps=("features",),
)  # fmt: skip
LETTERS = (None, "<s>", "</s>", "<unk>", " ", "e", "t")
TOKENIZER = CharacterTokenizer(LETTERS, "none")
CHECKPOINTS = [
    pytest.param(path, id=f"{path.parent.name}-{path.stem}")
    for family in ("fairseq_w2v2", "dle_w2v2")
    for path in sorted((GOLDENS / family).glob("*.pt"))
]


def weights_of(model: Model) -> dict[str, Any]:
    """Random parameters."""
    rng = np.random.default_rng(0)
    shapes = shapes_of(model.encoder, tuple(model.heads.items()))
    return {"params": jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)}


@cache
def shapes_of(encoder: Wav2Vec2, heads: tuple[Any, ...]) -> Any:
    model = model_of(encoder, heads=dict(heads))
    made = model.build(vocab_size=len(LETTERS), blank_id=0, precision="f32")
    rows = jnp.zeros(2, jnp.int32)
    batch = Batch(
        audio=None, features=jnp.zeros((2, 1200, 1)), lengths=rows + 1200, tokens=rows[:, None] + 1,
        token_lengths=rows + 1, weights=jnp.ones(2), utterances=rows,
    )  # fmt: skip
    streams = {name: jax.random.key(0) for name in ("params", "mask", "dropout")}
    return jax.eval_shape(lambda: made.init(streams, batch, step=None))["params"]


def model_of(encoder: Wav2Vec2 = SMALL, **changes: Any) -> Model:
    heads = {"ctc": CTC(dropout=0.05)}
    return Model(**{"encoder": encoder, "heads": heads, "front_end": wav2vec2(), "augment": (), **changes})


PRETRAINING = model_of(
    heads={"pretrain": Contrastive(quantizer=Quantizer(2, 6), codes_dim=8, dim=10, num_negatives=5, penalty=0.0)}
)


def settings_in(path):
    """Returns the settings of the model in a file or folder."""
    return settings_of_folder(path) if path.is_dir() else settings_of_checkpoint(path)


@pytest.mark.parametrize(
    "model", [model_of(replace(SMALL, activation="relu")), PRETRAINING], ids=["ctc with relu", "pretraining"]
)
def test_a_folder_there_and_back(model: Model, tmp_path: Path) -> None:
    """Weights, sizes, masks, rates and heads are kept."""
    weights = weights_of(model)
    save_folder(weights, model, TOKENIZER, "huggingface", tmp_path)
    found, left = imported(load_weights(tmp_path)[0], model)
    assert left == []
    again = flatten(unflatten(found)["params"])
    assert all(np.array_equal(again[path], value) for path, value in flatten(weights["params"]).items())
    stored = settings_in(tmp_path)
    masks = {
        name: replace(getattr(SMALL, name), same_count=False, draws_last_start=True)
        for name in ("time_mask", "channel_mask")
    }
    assert stored.encoder == replace(SMALL, activation=model.encoder.activation, extractor_gradient=1.0, **masks)
    assert front_end_of(tmp_path) == model.front_end
    if "pretrain" in model.heads:
        assert stored.contrastive == model.heads["pretrain"]
    else:
        assert load_weights(tmp_path)[1] == LETTERS


def test_a_folder_of_a_model_without_masking_has_no_augmentation_and_the_mask_vector(tmp_path: Path) -> None:
    """transformers has no mask vector, and no name for it, if both rates are 0."""
    model = model_of(replace(SMALL, time_mask=replace(SMALL.time_mask, probability=0.0)))
    save_folder(weights_of(model), model, TOKENIZER, "huggingface", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["apply_spec_augment"], config["mask_time_prob"]) == (False, 0.05)
    assert "wav2vec2.masked_spec_embed" in load_weights(tmp_path)[0]
    assert encoder_of(tmp_path).time_mask.probability == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": replace(SMALL, hourglass=Hourglass(1, 1, 2, 0))}, "the encoder has an hourglass"),
        ({"encoder": replace(SMALL, rotary=True)}, "the encoder has rotary positions"),
        ({"encoder": replace(SMALL, quantized_input=True)}, "the encoder has quantised input"),
        ({"encoder": replace(SMALL, activation="hardtanh")}, "activation is hardtanh: expected one of"),
        ({"heads": {"ctc": CTC(blank_weight=2.0)}}, "heads.ctc.blank_weight is 2, expected 0: Hugging Face"),
        ({"heads": {"ctc": CTC(), "other": CTC()}, "primary": "ctc"}, "expected one CTC or one Contrastive head"),
        ({"heads": {"pretrain": Contrastive(across_negatives=2, penalty=0.0)}}, "pre-training has across_negatives"),
        ({"front_end": replace(wav2vec2(), dither=0.1)}, "not the preset wav2vec2: transformers supports no other"),
    ],
)
def test_what_transformers_has_not(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        save_folder({"params": {}}, model_of(**changes), TOKENIZER, "huggingface", tmp_path)
    assert not list(tmp_path.iterdir())


QUANTIZED = Quantizer(groups=2, entries=4, depth=2)
NVIDIAS = replace(SMALL, hourglass=Hourglass(1, 1, 2, 1, "linear"), extractor_norm="layer", extractor_bias=True)
IN_FAIRSEQ = {
    "an hourglass": (NVIDIAS, PRETRAINING.heads["pretrain"]),
    "quantised input": (
        replace(SMALL, quantized_input=True, input_quantizer=QUANTIZED, input_codes_dim=6),
        Contrastive(quantizer=QUANTIZED, codes_dim=8, dim=8),
    ),
    "one quantiser": (
        replace(SMALL, quantized_input=True, input_quantizer=QUANTIZED, input_codes_dim=8),
        Contrastive(quantizer=QUANTIZED, codes_dim=8, dim=8, same_quantizer=True),
    ),
}


@pytest.mark.parametrize(("encoder", "head"), IN_FAIRSEQ.values(), ids=IN_FAIRSEQ)
def test_fairseqs_names_there_and_back(encoder: Wav2Vec2, head: Contrastive, tmp_path: Path) -> None:
    """The file has the layout of fairseq, which stores a quantiser of input and targets under both names."""
    model = replace(PRETRAINING, encoder=replace(encoder, taps=("features", "extractor")), heads={"pretrain": head})
    weights = weights_of(model)
    file = tmp_path / "checkpoint.pt"
    names = "deeplearningexamples" if encoder.hourglass else "fairseq"
    save_exported(exported(weights, model, names), model, names, LETTERS, file, like=None)
    stored = load_weights(file)[0]
    assert ("input_quantizer.vars" in stored) == ("project_inp.weight" in stored) == encoder.quantized_input
    found, left = imported(stored, model)
    assert left == []
    again = flatten(unflatten(found)["params"])
    assert again.keys() == flatten(weights["params"]).keys()
    assert all(np.array_equal(again[path], value) for path, value in flatten(weights["params"]).items())


@pytest.mark.parametrize("path", CHECKPOINTS)
def test_checkpoints_say_what_they_are_of(path: Path) -> None:
    """The file alone is sufficient, and all of its weights are found."""
    stored = settings_in(path)
    assert encoder_of(path) == stored.encoder
    model = model_of(stored.encoder, heads={"pretrain": stored.contrastive}, front_end=front_end_of(path))
    found, left = imported(load_weights(path)[0], model)
    assert left == []
    expected = flatten(weights_of(model)["params"])
    assert {name.removeprefix("params/"): array.shape for name, array in found.items()} == {
        name: array.shape for name, array in expected.items()
    }


def test_a_fine_tuned_checkpoint_has_its_pre_trained_settings_within(tmp_path: Path) -> None:
    """Settings of fine-tuning take precedence."""
    inner = {"conv_feature_layers": "[(8, 5, 3)] + [(8, 3, 2)] * 1", "encoder_embed_dim": 16, "encoder_layers": 2}
    inner |= {"encoder_attention_heads": 2, "encoder_ffn_embed_dim": 24, "conv_pos": 6, "conv_pos_groups": 2}
    inner |= {"activation_fn": "gelu_accurate", "quantize_input": True, "latent_vars": 8, "final_dim": 6}
    outer = {"_name": "wav2vec_ctc", "w2v_args": {"model": inner | {"dropout": 0.3}}, "dropout": 0.0, "mask_prob": 0.2}
    outer |= {"no_mask_overlap": True, "mask_min_space": 3, "mask_dropout": 0.1, "no_mask_channel_overlap": True}
    outer |= {"require_same_masks": False, "blank_weight": 2.5, "blank_mode": "set", "final_dropout": 0.2}
    settings = tmp_path / "settings.pt"
    with zipfile.ZipFile(settings, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"cfg": {"model": outer, "task": {"normalize": True}}}))
    stored = settings_in(settings)
    assert (stored.encoder.dropout, stored.encoder.time_mask.probability, stored.encoder.dim) == (0.0, 0.2, 16)
    masks = [stored.encoder.time_mask, stored.encoder.channel_mask]
    assert [(mask.min_space, mask.dropout, mask.same_count) for mask in masks] == [(3, 0.1, False), (1, 0.0, True)]
    assert (stored.encoder.activation, stored.encoder.quantized_input) == ("gelu_tanh", True)
    assert (stored.encoder.input_quantizer.entries, stored.encoder.input_codes_dim) == (8, 16)
    assert ctc_of(settings) == CTC(dropout=0.2, blank_weight=2.5, blank_mode="set")
    assert front_end_of(settings) == wav2vec2(normalise=True, eps=1e-5)

    weights = exported(weights_of(model_of(stored.encoder)), model_of(stored.encoder), "fairseq")
    named = {f"w2v_encoder.{'' if name.startswith('proj.') else 'w2v_model.'}{name}": v for name, v in weights.items()}
    save_torch({"model": named}, tmp_path / "weights.pt")
    found, left = imported(load_weights(tmp_path / "weights.pt")[0], model_of(stored.encoder))
    assert left == []
    assert "params/heads_ctc/output/kernel" in found


def test_expressions_of_convolutions_are_not_run() -> None:
    assert conv_layers("[(512,10,5)]+[(512,3,2)]*2", "file")[1:] == (WaveformConv(512, 3, 2),) * 2
    for wrong in ("__import__('os').getcwd()", "[(512, 10)]", "[(1, 2, 3)"):
        with pytest.raises(UserError, match="expected lists of"):
            conv_layers(wrong, "file")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "mish"}, "hidden_act is mish, expected silu or"),
        ({"add_adapter": True}, "add_adapter is True"),
        ({"hidden_size": None}, "config.json has no hidden_size"),
        ({"new_thing": 3}, "unknown settings: new_thing"),
        ({"num_attention_heads": 5}, "dim is 16: expected a multiple of num_heads, 5"),
    ],
)
def test_folders_with_what_there_is_none_of_here(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save_folder(weights_of(model_of()), model_of(), TOKENIZER, "huggingface", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps({name: v for name, v in config.items() if v is not None}))
    with pytest.raises(UserError, match=message):
        settings_in(tmp_path)


def test_settings_that_omegaconf_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of fairseq's files contain pickled OmegaConf nodes, with an enumeration. The test creates classes of these
    names, which do not exist when the file is read."""
    names = types.ModuleType("nodes")
    monkeypatch.setitem(sys.modules, "nodes", names)
    for name in ("DictConfig", "ListConfig", "AnyNode"):
        setattr(names, name, type(name, (), {"__module__": "nodes"}))
    names.Choice = Enum("Choice", {"static": "static"}, module="nodes")  # type: ignore[attr-defined]

    def node(value: Any) -> Any:
        content = {name: node(inner) for name, inner in value.items()} if isinstance(value, dict) else value
        content = [node(each) for each in value] if isinstance(value, list) else content
        made = getattr(names, {dict: "DictConfig", list: "ListConfig"}.get(type(value), "AnyNode"))()
        vars(made).update({"_content" if isinstance(value, dict | list) else "_val": content, "_metadata": None})
        return made

    inner = {"conv_feature_layers": "[(8, 5, 3)] * 2", "encoder_embed_dim": 16, "encoder_attention_heads": 2}
    inner |= {"conv_pos_groups": 2, "mask_selection": names.Choice.static, "latent_temp": [2.0, 0.25, 0.99]}
    outer = {
        "model": {"_name": "wav2vec_ctc", "w2v_args": {"model": inner}, "dropout": 0.0},
        "task": {"normalize": True},
    }
    file = tmp_path / "settings.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"cfg": node(outer)}))
    monkeypatch.delitem(sys.modules, "nodes")
    stored = settings_in(file)
    assert (stored.encoder.dim, stored.encoder.dropout, len(stored.encoder.extractor)) == (16, 0.0, 2)
    assert stored.encoder.time_mask.selection == "static"
    assert stored.contrastive is not None
    assert stored.contrastive.quantizer.end_temperature == 0.25
    assert stored.normalise


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hourglass_transformer": "[2,(8,4),2,(3,2)]"}, r"is '\[2,.*expected \[before, \(middle, factor\), after\]"),
        ({"hourglass_transformer": "x"}, r"is 'x', expected \[before"),
        ({"encoder_layerdrop": 2.0}, "layer_drop is 2.0: expected at least 0"),
    ],
)
def test_settings_that_are_wrong_are_named_with_their_file(wrong: dict[str, Any], message: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"args": {"encoder_embed_dim": 768, **wrong}}))
    with pytest.raises(UserError, match=rf"settings\.pt: .*{message}"):
        settings_in(file)


def test_settings_of_published_folders(tmp_path: Path) -> None:
    """Names that facebook/wav2vec2-base-960h has in addition to today's, and a name that does not exist."""
    save_folder(weights_of(model_of()), model_of(), TOKENIZER, "huggingface", tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    published = {"hidden_dropout_prob": 0.1, "gradient_checkpointing": False, "feat_extract_dropout": 0.0}
    file.write_text(json.dumps(config | published))
    assert settings_in(tmp_path).encoder.dropout == config["hidden_dropout"]
    early = {name: value for name, value in config.items() if name not in ("layerdrop", "feat_quantizer_dropout")}
    file.write_text(json.dumps(early))
    assert settings_in(tmp_path).encoder.layer_drop == 0.1  # the default of transformers
    file.write_text(json.dumps(config | {"hidden_drop": 0.1}))
    with pytest.raises(UserError, match="unknown settings: hidden_drop;"):
        settings_in(tmp_path)
