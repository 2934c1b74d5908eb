"""Weights, settings and folders of W2V-BERT in Hugging Face's format."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from asr_jax.audio.presets import nemo, w2v_bert
from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.nn.wav2vec.span_masks import SpanMask
from asr_jax.pretrained.encoders import describes_itself, encoder_of, front_end_of
from asr_jax.pretrained.formats import load_weights, save_folder
from asr_jax.pretrained.w2v_bert import HUGGINGFACE, w2v_bert_of
from asr_jax.text.characters import CharacterTokenizer

TINY = W2VBert(dim=8, num_layers=2, num_heads=2, feedforward_dim=10, kernel_size=3, left_distance=3, right_distance=1)
SYMBOLS = (None, "<s>", "</s>", "<unk>", " ", "a", "b", "'")
TOKENIZER, HEADS = CharacterTokenizer(SYMBOLS, "none"), {"heads_ctc": CTC()}
SETTINGS = {
    "relative_key": TINY,
    "relative": replace(TINY, positions="relative"),
    "rotary": replace(TINY, positions="rotary", activation="gelu", rotary_base=100),
    "none": replace(TINY, positions="none", time_mask=SpanMask(0.0, 10, 2, same_count=False, draws_last_start=True)),
    "adapters": replace(
        TINY, num_adapters=2, adapter_dim=6, adapter_activation="gelu_tanh", intermediate=True, mask_padding=False,
        adapter_kernel_size=4, adapter_stride=3, masks=False, layer_drop=0.2, norm_eps=1e-4,
    ),
}  # fmt: skip


@cache
def shapes_of(settings: W2VBert) -> Any:
    encoder, frames = settings.build(dtype=jnp.float32), Frames(jnp.zeros((1, 8, 160)), jnp.array([8]))
    return jax.eval_shape(lambda: encoder.init(jax.random.key(0), frames, step=None))["params"]


def drawn(settings: W2VBert) -> dict[str, Any]:
    """Random variables of a model with a CTC head."""
    width, num = settings.adapter_dim or settings.dim, len(SYMBOLS)
    output = {"kernel": np.zeros((width, num)), "bias": np.zeros(num)}
    rng = np.random.default_rng(0)
    shapes = {"params": {"encoder": shapes_of(settings), "heads_ctc": {"output": output}}}
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)


def model_of(settings: W2VBert, **changes: Any) -> Model:
    return Model(**{"encoder": settings, "front_end": w2v_bert(), "augment": (), **changes})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_folder(drawn(TINY), model_of(TINY), TOKENIZER, "huggingface", tmp_path / "w2v-bert-2.0")
    return tmp_path / "w2v-bert-2.0"


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_a_folder_has_all_and_gives_it_back(settings: W2VBert, tmp_path: Path) -> None:
    variables = drawn(settings)
    save_folder(variables, model_of(settings), TOKENIZER, "huggingface", tmp_path / "out")
    weights, symbols = load_weights(tmp_path / "out")
    assert symbols == SYMBOLS
    assert encoder_of(tmp_path / "out") == settings
    assert front_end_of(tmp_path / "out") == w2v_bert()
    found, left = HUGGINGFACE.find(weights, settings, HEADS)
    assert left == []
    expected = flatten(variables)
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)


def test_a_model_without_a_head_has_names_without_its_prefix() -> None:
    params = {"params": {"encoder": drawn(TINY)["params"]["encoder"]}}
    bare, whole = HUGGINGFACE.export(params, TINY), HUGGINGFACE.export(drawn(TINY), TINY, HEADS)
    assert {f"wav2vec2_bert.{name}" for name in bare} | {"lm_head.weight", "lm_head.bias"} == whole.keys()
    found, left = HUGGINGFACE.find(bare, TINY, HEADS)
    assert left == []
    assert found.keys() == flatten(params).keys()
    assert HUGGINGFACE.find(whole, TINY)[1] == ["lm_head.bias", "lm_head.weight"]


def test_names_without_weights_are_ignored_and_all_others_are_returned() -> None:
    weights = HUGGINGFACE.export(drawn(TINY), TINY, HEADS)
    more = {
        f"wav2vec2_bert.{name}": np.zeros(1) for name in ("encoder.embed_positions.inv_freq", "encoder.other.weight")
    }
    assert HUGGINGFACE.find({**weights, **more}, TINY, HEADS)[1] == ["wav2vec2_bert.encoder.other.weight"]
    assert HUGGINGFACE.find(weights, replace(TINY, time_mask=SpanMask(0.0)), HEADS)[1] == []  # the mask vector


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "wav2vec2-conformer"}, "model_type is wav2vec2-conformer, expected wav2vec2-bert"),
        ({"hidden_act": "mish"}, "hidden_act is mish, expected silu or swish or gelu"),
        ({"position_embeddings_type": "alibi"}, "position_embeddings_type is alibi"),
        ({"num_experts": 8}, "has unknown settings: num_experts; expected those of transformers'"),
        ({"num_attention_heads": 3}, r"config.json: dim is 8: expected a multiple of num_heads, 3"),
        ({"layerdrop": None}, "config.json: "),
    ],
)
def test_settings_of_other_models_are_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    with pytest.raises(UserError, match=message):
        w2v_bert_of(folder)


def test_what_changes_nothing_is_passed_over_and_what_is_missing_is_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    more = {
        "_name_or_path": "x",
        "torch_dtype": "float32",
        "tdnn_dim": [512],
        "codevector_dim": 768,
        "vocab_size": None,
    }
    (folder / "config.json").write_text(json.dumps(config | more))
    assert encoder_of(folder, remat="layers") == replace(TINY, remat="layers")
    (folder / "config.json").write_text(json.dumps({"model_type": "wav2vec2-bert", "hidden_size": 8}))
    with pytest.raises(UserError, match="has no activation_dropout, adapter_act"):
        encoder_of(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="expected a file that transformers wrote"):
        encoder_of(folder)


@pytest.mark.parametrize("name", ["preprocessor_config.json", "processor_config.json"])
def test_folders_with_another_front_end(folder: Path, name: str) -> None:
    extractor: dict[str, Any] = {"feature_extractor_type": "SeamlessM4TFeatureExtractor", "num_mel_bins": 40}
    (folder / "preprocessor_config.json").unlink()
    (folder / name).write_text(json.dumps(extractor if name.startswith("pre") else {"feature_extractor": extractor}))
    with pytest.raises(UserError, match=r"feature_extractor\.num_mel_bins is 40, expected 80"):
        front_end_of(folder)


def test_weights_in_several_files(folder: Path) -> None:
    whole = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, parts = sorted(whole), [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    placed = {name: parts[number % 2] for number, name in enumerate(names)}
    for part in parts:
        save_file({name: whole[name] for name in names if placed[name] == part}, folder / part)
    save_file({"other": np.zeros(1)}, folder / "adapter.eng.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    found, _ = load_weights(folder)
    assert found.keys() == whole.keys()
    for name, array in whole.items():
        np.testing.assert_array_equal(found[name], array)
    (folder / parts[1]).unlink()
    with pytest.raises(UserError, match=f"has no {parts[1]}, which model.safetensors.index.json lists"):
        load_weights(folder)


def test_files_of_weights_say_nothing_of_their_model(folder: Path, tmp_path: Path) -> None:
    assert describes_itself(str(folder))
    assert not any(map(describes_itself, ("", str(tmp_path), str(folder / "model.safetensors"))))


@pytest.mark.parametrize(
    ("model", "symbols", "message"),
    [
        (model_of(TINY), (*SYMBOLS, "▁the"), "labels such as '▁the': expected characters"),
        (model_of(TINY), (*SYMBOLS, "|"), "expected characters"),
        (model_of(TINY, front_end=nemo(num_mels=160)), SYMBOLS, "not the preset w2v_bert"),
        (model_of(TINY, heads={"a": CTC(), "b": CTC()}, primary="a"), SYMBOLS, "the heads a, b: expected one CTC head"),
        (model_of(replace(TINY, activation="hardtanh")), SYMBOLS, "activation is hardtanh: expected one of"),
        (Model(Conformer.tiny()), SYMBOLS, r"folders of Hugging Face \(Parakeet\) cannot be written"),
    ],
)
def test_folders_that_transformers_could_not_read(
    model: Model, symbols: tuple[Any, ...], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        save_folder({}, model, CharacterTokenizer(symbols, "none"), "huggingface", tmp_path / "out")
    assert not (tmp_path / "out").exists()
