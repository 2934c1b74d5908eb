"""Published models without training: settings, tokenizer and weights, complete checkpoints, and what has to be given.

The models are those of tests/goldens/published, which the systems' own code wrote.
tests/goldens/test_published_models.py compares what they recognise.
"""

import io
import json
import re
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from safetensors.numpy import save_file

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.presets import nemo, wav2vec2, wav2vec2_normalised
from asr_jax.cli.command_line import load_config
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import unflatten
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.models.base import Model
from asr_jax.models.encoder import Context
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.recurrent.prediction import LSTMPrediction, StatelessPrediction
from asr_jax.pretrained.formats import exported, load_weights, save_exported, save_folder
from asr_jax.pretrained.huggingface import label_files
from asr_jax.pretrained.nemo_files import load_nemo
from asr_jax.pretrained.published import Published, SuppliedParts, is_published, read_published
from asr_jax.pretrained.torch_files import load_torch
from asr_jax.pretrained.torch_writer import save_torch
from asr_jax.pretrained.wav2vec2_checkpoints import NEVER, in_fairseq_order
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.text.characters import CharacterTokenizer

CASES = Path(__file__).parents[1] / "goldens" / "published"


def source_of(name: str) -> Path:
    return CASES / name / json.loads((CASES / f"{name}.json").read_text())["model"]


@pytest.mark.parametrize(
    ("name", "encoder", "front_end", "kind", "normaliser"),
    [
        ("hf_wav2vec2", "Wav2Vec2", wav2vec2(normalise=True), "characters", "upper.v1"),
        ("hf_wav2vec2_special", "Wav2Vec2", wav2vec2(normalise=True), "characters", "lower.v1"),
        ("fairseq", "Wav2Vec2", wav2vec2_normalised(), "characters", "upper.v1"),
        ("fairseq_former", "Wav2Vec2", wav2vec2(), "characters", "upper.v1"),
        ("nvidia_hourglass", "Wav2Vec2", wav2vec2(), "characters", "upper.v1"),
        ("hf_parakeet", "Conformer", nemo(num_mels=40), "sentencepiece", "lower.v1"),
        ("nemo_hybrid", "Conformer", replace(nemo(num_mels=40), then=()), "sentencepiece", "lower.v1"),
        ("nemo_squeezeformer", "Squeezeformer", nemo(num_mels=40), "sentencepiece", "lower.v1"),
        ("nemo_quartznet", "QuartzNet", replace(nemo(num_mels=64), window_ms=20.0), "characters", "lower.v1"),
        ("icefall", "Zipformer", KaldiFbank(num_mels=40), "sentencepiece", "lower.v1"),
        ("nemo_rnnt", "Conformer", nemo(num_mels=40), "sentencepiece", "lower.v1"),
    ],
)
def test_a_file_states_its_model(name: str, encoder: str, front_end: Any, kind: str, normaliser: str) -> None:
    source = source_of(name)
    assert is_published(source)
    found = read_published(source)
    assert (type(found.model.encoder).__name__, found.model.front_end) == (encoder, front_end)
    assert (found.tokenizer.kind, found.tokenizer.normaliser) == (kind, normaliser)
    assert not found.model.augment
    assert not getattr(found.model.encoder, "taps", ())
    assert found.weights["params/heads_ctc/output/bias"].shape == (found.tokenizer.vocab_size,)
    assert read_published(source, SuppliedParts(normaliser="none")).tokenizer.normaliser == "none"


def test_labels_have_the_texts_that_the_system_writes() -> None:
    """fairseq removes </s> from its texts, NVIDIA does not; transformers may write letters in lower case."""
    assert read_published(source_of("fairseq")).tokenizer.symbols[:5] == (None, "<pad>", "", "<unk>", " ")
    assert read_published(source_of("nvidia")).tokenizer.symbols[:5] == (None, "<pad>", "</s>", "<unk>", " ")
    special = read_published(source_of("hf_wav2vec2_special")).tokenizer
    assert special.symbols[:3] == ("'", "a", "b")
    assert special.symbols[-5:] == (" ", "[unk]", None, "<s>", "</s>")


def test_other_heads_are_named() -> None:
    assert read_published(source_of("nemo_hybrid")).remarks == (
        "2 weights of other heads are not used: decoder, joint",
    )
    assert read_published(source_of("icefall")).remarks == ("1 weights of other heads are not used: joiner",)
    assert not read_published(source_of("fairseq")).remarks


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "nemo_tdt",
            Transducer(
                prediction=LSTMPrediction(12, num_layers=2, dropout=0.2), joint_dim=20, dropout=0.2,
                durations=(0, 1, 2, 3, 4), sigma=0.05, omega=0.1,
            ),
        ),
        ("nemo_rnnt", Transducer(prediction=LSTMPrediction(12, num_layers=2, dropout=0.0), joint_dim=20, dropout=0.0)),
        (
            "hf_parakeet_tdt",
            Transducer(
                prediction=LSTMPrediction(16, num_layers=2, dropout=0.0), joint_dim=16, dropout=0.0,
                durations=(0, 1, 2, 3, 4),
            ),
        ),
        (
            "icefall_transducer",
            Transducer(
                prediction=StatelessPrediction(16, 2), joint_dim=20, activation="tanh", dropout=0.0, pruning=Pruning(),
                decoding=TransducerDecoding(max_symbols=1),
            ),
        ),
    ],
)  # fmt: skip
def test_settings_and_weights_of_transducers(name: str, expected: Transducer, tmp_path: Path) -> None:
    """All weights of the file are used, and written again under the same names."""
    source = source_of(name)
    found = read_published(source)
    assert found.model.recognising == "transducer"
    assert found.model.heads["transducer"] == expected
    assert not found.remarks
    theirs, _ = load_weights(source)
    names = {"hf": "huggingface", "nemo": "nemo", "icefall": "icefall"}[name.partition("_")[0]]
    again = exported(unflatten(found.weights), found.model, names)
    unused = [key for key in theirs if key not in again]
    assert all(re.search(r"num_batches_tracked|featurizer|bypass_scale|pos_enc\.pe", key) for key in unused), unused
    assert again.keys() <= theirs.keys()
    for key, array in again.items():
        np.testing.assert_array_equal(array, theirs[key], err_msg=key)
    if names == "nemo":
        save_exported(again, found.model, names, found.tokenizer.symbols, tmp_path / "x.nemo", like=source)
        written = load_weights(tmp_path / "x.nemo")[0]
        assert written.keys() == theirs.keys()
        for key, array in written.items():
            np.testing.assert_array_equal(array, theirs[key], err_msg=key)


def test_the_embedding_of_a_blank_that_is_not_zero_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tdt"
    shutil.copytree(source_of("hf_parakeet_tdt"), folder)
    weights = load_weights(folder)[0]
    weights["decoder.embedding.weight"][-1, 0] = 0.1
    save_file(weights, folder / "model.safetensors")
    with pytest.raises(UserError, match="the embedding of the blank is not a vector of zeros"):
        read_published(folder)


def test_an_exported_checkpoint_of_icefall_states_its_sizes() -> None:
    """The settings of the training are in a file beside it, which is not read."""
    expected = Zipformer(
        num_mels=40, embed_channels=(4, 6, 8), downsampling=(1, 2), dims=(16, 24), num_layers=(1, 1), num_heads=(1, 2),
        unmasked_dims=(16, 24), query_dims=(32, 32), position_dims=(4, 4), value_dims=(12, 12),
        feedforward_dims=(24, 32), kernel_sizes=(7, 5), positions_dim=16,
    )  # fmt: skip
    assert read_published(source_of("icefall")).model.encoder == expected
    training = read_published(source_of("icefall_training")).model.encoder
    heads = {"query_dims": (8, 8), "position_dims": (2, 2), "value_dims": (6, 6)}
    assert training == replace(expected, **heads, unmasked_dims=(12, 16), causal=True)


def test_contexts_of_attention_are_those_of_the_training_or_given(tmp_path: Path) -> None:
    stored = load_torch(source_of("icefall_training"))
    save_torch({**stored, "chunk_size": "16,32,-1", "left_context_frames": "40,-1"}, tmp_path / "model.pt")
    shutil.copy(CASES / "icefall_training" / "bpe.model", tmp_path)
    encoder = read_published(tmp_path / "model.pt").model.encoder
    assert isinstance(encoder, Zipformer)
    chunks = (Context(16, 32), Context(16), Context(32, 32), Context(32), Context(), Context())
    assert encoder.contexts == chunks  # 40 frames are rounded down to whole chunks, as in icefall
    given = SuppliedParts(context=Context(16, 64))
    assert read_published(tmp_path / "model.pt", given).model.encoder == encoder.with_context(Context(16, 64))
    with pytest.raises(UserError, match=r"contexts\[0\].chunk_frames is 16: expected None without causal"):
        read_published(source_of("icefall"), given)
    with pytest.raises(UserError, match="attention of Wav2Vec2 has no chunks"):
        read_published(
            source_of("fairseq_former"), replace(given, tokenizer=str(CASES / "fairseq_former/dict.ltr.txt"))
        )


def test_heads_of_other_widths_need_settings(tmp_path: Path) -> None:
    stored = load_torch(source_of("icefall_training"))
    save_torch({"model": stored["model"]}, tmp_path / "exported.pt")
    shutil.copy(CASES / "icefall_training" / "bpe.model", tmp_path)
    with pytest.raises(UserError, match=r"stack 0 does not have heads of the published widths(.|\n)*--config FILE"):
        read_published(tmp_path / "exported.pt")
    model = read_published(source_of("icefall_training")).model
    given = read_published(tmp_path / "exported.pt", SuppliedParts(model=model))
    assert given.model == model


def written(found: Published, names: str, out: Path) -> Path:
    variables = unflatten(found.weights)
    if names == "huggingface":
        save_folder(variables, found.model, found.tokenizer, "huggingface", out)
    else:
        weights = exported(variables, found.model, names)
        save_exported(weights, found.model, names, found.tokenizer.symbols, out, like=None)
    return out


@pytest.mark.parametrize(
    ("name", "names", "file"),
    [
        ("fairseq", "fairseq", "x.pt"),
        ("nvidia", "deeplearningexamples", "x.pt"),
        ("nvidia_hourglass", "deeplearningexamples", "x.pt"),
        ("hf_wav2vec2_special", "huggingface", "x"),
        ("hf_w2v_bert", "huggingface", "x"),
    ],
)
def test_what_is_written_is_the_same_model(tmp_path: Path, name: str, names: str, file: str) -> None:
    """The written file alone is sufficient, for the systems' own loaders too (goldens/test_published_models.py)."""
    before = read_published(source_of(name))
    after = read_published(written(before, names, tmp_path / file))
    symbols = tuple(symbol and symbol.replace("[unk]", "[UNK]") for symbol in before.tokenizer.symbols)
    assert after.tokenizer.symbols in (before.tokenizer.symbols, symbols)
    assert after.model.front_end == before.model.front_end
    assert without_rates(after.model) == without_rates(before.model)
    assert after.weights.keys() == before.weights.keys()
    for path, array in before.weights.items():
        np.testing.assert_array_equal(after.weights[path], array)


def without_rates(model: Model) -> dict[str, Any]:
    """Settings that change the output in evaluation."""
    training = ("mask", "drop", "gradient", "remat")
    return {name: value for name, value in vars(model.encoder).items() if not any(part in name for part in training)}


def test_rows_of_a_head_in_the_order_of_a_dictionary() -> None:
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    weights = {"proj.weight": rows, "proj.bias": np.arange(4, dtype=np.float32), "mask_emb": np.zeros(2)}
    found, dictionary = in_fairseq_order(weights, ["a", " ", "<s>", None])
    assert dictionary == ["<s>", "<pad>", "</s>", "<unk>", "a", "|"]
    np.testing.assert_array_equal(found["proj.weight"], [rows[3], rows[2], [0] * 3, [0] * 3, rows[0], rows[1]])
    np.testing.assert_array_equal(found["proj.bias"], [3, 2, NEVER, NEVER, 0, 1])
    assert found["mask_emb"] is weights["mask_emb"]
    for labels, message in (
        (["<s>", "<pad>", None, "a"], "the labels <s> and <pad> exist beside the blank"),
        (["|", " ", None, "a"], r"there is a label '\|', which is the space"),
        (["a b", "c", "d", None], "contain white space"),
    ):
        with pytest.raises(UserError, match=message):
            in_fairseq_order(weights, labels)


def test_special_labels_of_a_folder() -> None:
    files = label_files([" ", "a", "[UNK]", None], processor="P")
    assert files["vocab.json"] == {"|": 0, "a": 1, "[UNK]": 2, "[PAD]": 3}
    settings = files["tokenizer_config.json"]
    assert (settings["pad_token"], settings["unk_token"], settings["bos_token"]) == ("[PAD]", "[UNK]", None)
    fairseq = label_files([None, "<pad>", "", "<unk>", " ", "a"], processor="P")
    assert fairseq["vocab.json"] == {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, "a": 5}
    with pytest.raises(UserError, match="labels such as 'the': expected characters"):
        label_files([None, "the"], processor="P")


def test_a_tokenizer_is_asked_for_and_checked(tmp_path: Path) -> None:
    shutil.copy(source_of("fairseq_former"), tmp_path / "alone.pt")
    with pytest.raises(UserError, match=r"alone\.pt contains no tokenizer: expected --tokenizer PATH"):
        read_published(tmp_path / "alone.pt")
    given = SuppliedParts(tokenizer=str(CASES / "fairseq_former" / "dict.ltr.txt"))
    assert (
        read_published(tmp_path / "alone.pt", given).tokenizer == read_published(source_of("fairseq_former")).tokenizer
    )
    CharacterTokenizer(("a", None), "none").save(tmp_path / "other")
    with pytest.raises(UserError, match=r"other has 2 labels with the blank, and the head of .* has 32"):
        read_published(tmp_path / "alone.pt", SuppliedParts(tokenizer=str(tmp_path / "other")))


def test_a_front_end_is_asked_for(tmp_path: Path) -> None:
    stored = load_torch(source_of("nvidia"))
    args = {name: value for name, value in stored["args"].items() if name != "normalize"}
    plain = {name: value for name, value in args.items() if isinstance(value, str | bool | int | float | None)}
    save_torch({**stored, "args": plain, "train_state": {"step": 1}}, tmp_path / "model.pt")
    with pytest.raises(UserError, match="whether samples are normalised: --front-end wav2vec2 or wav2vec2_normalised"):
        read_published(tmp_path / "model.pt")
    found = read_published(tmp_path / "model.pt", SuppliedParts(front_end="wav2vec2_normalised"))
    assert found.model.front_end == wav2vec2_normalised()
    shutil.copytree(CASES / "hf_wav2vec2", tmp_path / "hf_wav2vec2")
    (tmp_path / "hf_wav2vec2" / "processor_config.json").unlink()
    with pytest.raises(UserError, match="whether samples are normalised"):
        read_published(tmp_path / "hf_wav2vec2")


def test_another_front_end_is_refused(tmp_path: Path) -> None:
    shutil.copytree(CASES / "hf_parakeet", tmp_path / "parakeet")
    file = tmp_path / "parakeet" / "processor_config.json"
    settings = json.loads(file.read_text())
    settings["feature_extractor"]["hop_length"] = 80
    file.write_text(json.dumps(settings))
    with pytest.raises(UserError, match=r"feature_extractor\.hop_length is 80, expected 160"):
        read_published(tmp_path / "parakeet")


def test_settings_are_asked_for(tmp_path: Path) -> None:
    config = load_config(str(CASES / "quartznet" / "config.py"))
    given = read_published(source_of("quartznet"), SuppliedParts(model=config.model, labels=config.data.tokenizer))
    assert given.tokenizer.symbols == (*" abcdefghijklmnopqrstuvwxyz'", None)
    assert given.tokenizer.normaliser == "english_letters.v1"
    with pytest.raises(UserError, match=r"weights and no settings of a model: expected --config FILE\.py"):
        read_published(source_of("quartznet"))
    save_torch({"other": np.zeros(3)}, tmp_path / "x.pt")
    with pytest.raises(UserError, match="match no weight format of Zipformer"):
        read_published(tmp_path / "x.pt", SuppliedParts(model=read_published(source_of("icefall")).model))


def test_weights_that_the_model_lacks_are_refused(tmp_path: Path) -> None:
    shutil.copytree(CASES / "icefall", tmp_path / "icefall")
    stored = load_torch(tmp_path / "icefall" / "model.pt")
    more = {"model": stored["model"] | {"encoder.extra.weight": np.zeros(3)}}
    save_torch(more, tmp_path / "icefall" / "model.pt")
    with pytest.raises(UserError, match=r"has 1 weights that Zipformer .* does not have: encoder\.extra\.weight"):
        read_published(tmp_path / "icefall" / "model.pt")


def nemo_file(path: Path, **changes: Any) -> Path:
    """A copy of the hybrid model's file with other settings."""
    like = source_of("nemo_hybrid")
    config = {**load_nemo(like).config, **changes}
    config = yaml.safe_dump({name: value for name, value in config.items() if value is not None}).encode()
    with tarfile.open(like) as archive, tarfile.open(path, "w") as out:
        for member in archive:
            content = config if member.name.endswith(".yaml") else archive.extractfile(member).read()  # type: ignore[union-attr]
            member.size = len(content)
            out.addfile(member, io.BytesIO(content))
    return path


def test_models_that_there_are_none_of_yet(tmp_path: Path) -> None:
    (tmp_path / "paraformer").mkdir()
    for name in ("config.yaml", "configuration.json", "model.pt"):
        (tmp_path / "paraformer" / name).write_text("{}")
    assert is_published(tmp_path / "paraformer")
    with pytest.raises(UserError, match=r"model is None, expected Paraformer or BiCifParaformer or Parafo"):
        read_published(tmp_path / "paraformer")
    with pytest.raises(UserError, match=r"joint\.jointnet\.activation is empty, expected relu or tanh"):
        read_published(nemo_file(tmp_path / "transducer.nemo", aux_ctc=None))
    several = {"joint": {**load_nemo(source_of("nemo_rnnt")).config["joint"], "num_extra_outputs": 2}}
    with pytest.raises(UserError, match=r"joint\.num_extra_outputs is 2, expected 0(.|\n)*no multi-blank transducers"):
        read_published(nemo_file(tmp_path / "several.nemo", aux_ctc=None, **several))
    shutil.copytree(CASES / "hf_parakeet_tdt", tmp_path / "tdt")
    config = json.loads((tmp_path / "tdt" / "config.json").read_text())
    (tmp_path / "tdt" / "config.json").write_text(json.dumps({**config, "durations": [0, 2, 4]}))
    with pytest.raises(UserError, match=r"durations is \(0, 2, 4\), expected \(0, 1, 2\)"):
        read_published(tmp_path / "tdt")
    shutil.copytree(CASES / "icefall", tmp_path / "icefall")
    weights = load_torch(tmp_path / "icefall" / "model.pt")["model"]
    alone = {name: array for name, array in weights.items() if not name.startswith("ctc_output")}
    save_torch({"model": alone}, tmp_path / "icefall" / "model.pt")
    with pytest.raises(UserError, match=r"texts come from a head that this package does not have"):
        read_published(tmp_path / "icefall" / "model.pt")
    with pytest.raises(UserError, match=r"does not exist: expected the path of a \.nemo file, a Hugging Face folder"):
        read_published(tmp_path / "nothing")


def test_an_encoder_alone_and_a_pre_trained_model(tmp_path: Path) -> None:
    shutil.copytree(CASES / "hf_w2v_bert", tmp_path / "bert")
    config = json.loads((tmp_path / "bert" / "config.json").read_text())
    (tmp_path / "bert" / "config.json").write_text(json.dumps({**config, "architectures": ["Wav2Vec2BertModel"]}))
    found = read_published(tmp_path / "bert")
    assert not found.model.heads
    assert not found.tokenizer.has_labels
    assert found.remarks[0] == "2 weights of other heads are not used: lm_head"
