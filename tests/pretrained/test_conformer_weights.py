"""Initialisation of runs with weights, settings and tokenizers of Conformers from NeMo and Hugging Face."""

import io
import json
import shutil
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
from safetensors.numpy import load_file

from asr_jax.audio.presets import nemo as nemo_preset
from asr_jax.config import Experiment, Init
from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.encoder import Context
from asr_jax.models.zipformer import Zipformer
from asr_jax.pretrained.base import Format
from asr_jax.pretrained.conformer import HUGGINGFACE, NEMO
from asr_jax.pretrained.encoders import encoder_of, front_end_of
from asr_jax.pretrained.formats import exported, imported, load_weights, save_exported
from asr_jax.pretrained.nemo_files import load_nemo, save_nemo
from asr_jax.pretrained.torch_files import load_torch
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.tokenizers import TokenizerSettings, given_tokenizer
from asr_jax.training.initial_weights import read_initial_weights

GOLDENS = Path(__file__).parent.parent / "goldens"
PARAKEET = GOLDENS / "parakeet" / "biased"
HEADS = {"heads_ctc": CTC()}
KERNEL, BIAS = "params/heads_ctc/output/kernel", "params/heads_ctc/output/bias"
TINY = Conformer(num_mels=16, dim=8, num_layers=2, num_heads=2, kernel_size=3, subsampling_channels=3)
SETTINGS = {
    "conformer": TINY,
    "fast": replace(TINY, subsampling="dw_striding", subsampling_factor=8, use_bias=False, convolution_bias=False),
    "tied": replace(TINY, tied_biases=True, norm="layer", subsampling_channels=None),
    "abs_pos": replace(TINY, positions="abs_pos", norm="batch_padded"),
    "published": Conformer.fast("medium", num_layers=2),
    "streaming": replace(TINY, causal=True, norm="layer", contexts=(Context(2, 4),)),
}


@cache
def shapes_of(settings: Conformer) -> dict[str, Any]:
    encoder, frames = settings.build(dtype=jnp.float32), Frames(jnp.zeros((1, 80, settings.num_mels)), jnp.array([80]))
    return jax.eval_shape(lambda: encoder.init(jax.random.key(0), frames, step=None))


def drawn(settings: Conformer, vocab_size: int, *, seed: int = 0) -> dict[str, Any]:
    """Random variables of a model with a CTC head."""
    shapes = {name: {"encoder": tree} for name, tree in shapes_of(settings).items()}
    output = {"kernel": np.zeros((settings.dim, vocab_size)), "bias": np.zeros(vocab_size)}
    shapes["params"]["heads_ctc"] = {"output": output}
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), {"batch_stats": {}} | shapes)


@pytest.mark.parametrize("known", [NEMO, HUGGINGFACE], ids=lambda known: known.names)
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_all_parameters_have_a_name_there_and_come_back(settings: Conformer, known: Format) -> None:
    variables = drawn(settings, 5)
    theirs = known.export(variables, settings, HEADS)
    found, left = known.find(theirs, settings, HEADS)
    assert left == []
    expected = flatten(variables)
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)
    other = known.find(theirs, settings)[1]
    head = "decoder.decoder_layers.0" if known is NEMO else "ctc_head"
    assert other == [f"{head}.bias", f"{head}.weight"]


def test_names_without_weights_are_ignored_and_all_others_are_returned() -> None:
    theirs = NEMO.export(drawn(TINY, 5), TINY, HEADS)
    theirs |= dict.fromkeys(
        ("preprocessor.featurizer.fb", "preprocessor.featurizer.window", "joint.enc.weight",
         "encoder.layers.0.conv.batch_norm.num_batches_tracked"), np.zeros(1),
    )  # fmt: skip
    assert NEMO.find(theirs, TINY, HEADS)[1] == ["joint.enc.weight"]


def test_the_ctc_head_of_a_hybrid() -> None:
    theirs = NEMO.export(drawn(TINY, 5), TINY, HEADS)
    hybrid = {name.replace("decoder.decoder_layers", "ctc_decoder.decoder_layers"): a for name, a in theirs.items()}
    assert NEMO.find(hybrid, TINY, HEADS)[0].keys() == NEMO.find(theirs, TINY, HEADS)[0].keys()


# Content of a .nemo file, with settings and weights of tests/goldens/test_nemo_conformer.py.
TOKENIZER = SentencePieceTokenizer.train(
    ["the cat sat on the mat", "a hat on that cat", "he ate the oats"],
    vocab_size=16,
    pieces="unigram",
    character_coverage=1.0,
    normaliser="lower.v1",
)
CASE = json.loads((GOLDENS / "nemo_conformer" / "dw_striding_no_bias.json").read_text())["config"]
CONFIG: dict[str, Any] = {
    "preprocessor": {
        "_target_": "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor", "sample_rate": 16000,
        "normalize": "per_feature", "window_size": 0.025, "window_stride": 0.01, "window": "hann", "features": 16,
        "n_fft": 512, "dither": 1e-5, "pad_to": 0,
    },
    "encoder": {
        "_target_": "nemo.collections.asr.modules.ConformerEncoder", "feat_out": -1, "att_context_size": [-1, -1],
        "self_attention_model": "rel_pos", "dropout_emb": 0.0, "dropout_att": 0.1, "pos_emb_max_len": 5000, **CASE,
    },
    "decoder": {"vocabulary": [*TOKENIZER.symbols[:-1]]},
}  # fmt: skip


@pytest.fixture
def nemo(tmp_path: Path) -> Path:
    weights = (GOLDENS / "nemo_conformer" / "model_weights.ckpt").read_bytes()
    return written(
        tmp_path / "model.nemo", CONFIG, {"abc_tokenizer.model": TOKENIZER.model, "model_weights.ckpt": weights}
    )


def written(path: Path, config: Any, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in {"model_config.yaml": yaml.safe_dump(config).encode(), **files}.items():
            member = tarfile.TarInfo(f"./{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_settings_of_a_nemo_file(nemo: Path) -> None:
    assert encoder_of(nemo) == Conformer(
        num_mels=16, dim=16, num_layers=2, num_heads=2, feedforward_dim=32, kernel_size=9, subsampling="dw_striding",
        subsampling_factor=8, subsampling_channels=6, use_bias=False, convolution_bias=False,
    )  # fmt: skip
    assert encoder_of(str(nemo), remat="layers", taps=("layer_0",)).remat == "layers"
    assert front_end_of(nemo).num_features == 16


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("encoder", {"att_context_style": "local"}, "att_context_style is local, expected regular or chunked_limited"),
        ("encoder", {"causal_downsampling": True}, "conv_context_size is None, expected causal"),
        ("encoder", {"conv_context_size": "causal"}, "conv_context_size is causal, expected None"),
        ("encoder", {"subsampling": "vggnet"}, "subsampling is vggnet, expected striding or dw_striding"),
        ("encoder", {"n_heads": 3}, "multiple of num_heads"),
        ("encoder", {"att_context_size": [70, 13]}, r"att_context_size is \[70, 13\] and att_context_style is regular"),
        ("encoder", {"att_context_size": [[70, 0], [70, -1]]}, r"att_context_size is \[\[70, 0\], \[70, -1\]\]"),
    ],
)
def test_nemo_files_of_other_models(tmp_path: Path, part: str, changes: dict[str, Any], message: str) -> None:
    path = written(tmp_path / "model.nemo", {**CONFIG, part: {**CONFIG[part], **changes}}, {})
    with pytest.raises(UserError, match=message):
        encoder_of(path)


STREAMS = {"causal_downsampling": True, "conv_context_size": "causal", "conv_norm_type": "layer_norm"}


@pytest.mark.parametrize(
    ("style", "sizes", "contexts"),
    [
        ("chunked_limited", [[70, 13], [70, 0], [-1, 6], [-1, -1]], [(14, 70), (1, 70), (7, None), (None, None)]),
        ("chunked_limited", [140, 27], [(28, 140)]),
        ("regular", [70, 0], [(1, 70)]),
        ("regular", None, [(None, None)]),
    ],
)
def test_streaming_settings_of_a_nemo_file(tmp_path: Path, style: str, sizes: Any, contexts: list[Any]) -> None:
    changes = {**STREAMS, "att_context_style": style, "att_context_size": sizes, "att_context_probs": None}
    path = written(tmp_path / "model.nemo", {**CONFIG, "encoder": {**CONFIG["encoder"], **changes}}, {})
    found = encoder_of(path)
    assert isinstance(found, Conformer)
    assert found.contexts == tuple(Context(*pair) for pair in contexts)
    assert (found.causal, found.norm) == (True, "layer")


def test_streaming_models_are_no_parakeets() -> None:
    model = Model(encoder=replace(TINY, causal=True), front_end=nemo_preset(num_mels=16), heads={"ctc": CTC()})
    assert exported(drawn(TINY, 5), model, "nemo")
    with pytest.raises(UserError, match="expected --to nemo"):
        exported(drawn(TINY, 5), model, "huggingface")


def test_nemo_files_of_other_features(tmp_path: Path) -> None:
    published = {"window_size": 0.025, "window_stride": 0.01, "features": 16, "n_fft": 512, "pad_to": 0}
    assert front_end_of(nemo_with(tmp_path, published)) == nemo_preset(num_mels=16)
    quartznet = {"window_size": 0.02, "features": 64, "n_fft": 512, "pad_to": 16, "stft_conv": False}
    assert front_end_of(nemo_with(tmp_path, quartznet)) == replace(nemo_preset(num_mels=64), window_ms=20.0)
    assert front_end_of(nemo_with(tmp_path, {**published, "normalize": "NA", "window": "hamming"})) == replace(
        nemo_preset(num_mels=16), then=(), window="hamming"
    )
    for wrong, message in (
        ({"mag_power": 1.0}, r"preprocessor\.mag_power is 1.0, expected 2.0"),
        ({"_target_": "nemo.AudioToMFCCPreprocessor"}, r"preprocessor\._target_ is AudioToMFCCPreprocessor, expected"),
    ):
        with pytest.raises(UserError, match=message):
            front_end_of(nemo_with(tmp_path, {**published, **wrong}))


def nemo_with(folder: Path, preprocessor: dict[str, Any]) -> Path:
    return written(folder / "model.nemo", {**CONFIG, "preprocessor": preprocessor}, {})


def test_the_tokenizer_in_a_nemo_file(nemo: Path, tmp_path: Path) -> None:
    tokenizer = given_tokenizer(TokenizerSettings(path=str(nemo)))
    assert tokenizer == TOKENIZER
    assert tokenizer.symbols[-1] is None
    assert load_weights(nemo)[1] == TOKENIZER.symbols
    letters = {"decoder": {"vocabulary": [" ", "a", "b"]}}
    listed = given_tokenizer(TokenizerSettings(path=str(written(tmp_path / "letters.nemo", letters, {}))))
    assert listed.symbols == (" ", "a", "b", None)
    with pytest.raises(UserError, match=r"no SentencePiece model, and its decoder\.vocabulary does not list"):
        given_tokenizer(TokenizerSettings(path=str(written(tmp_path / "none.nemo", CONFIG, {}))))


def begun(path: Path, settings: Conformer, tokenizer: Any) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Returns the initial weights of a run, the account of them, and the random weights that they replace."""
    random = drawn(settings, tokenizer.vocab_size)
    experiment = Experiment(
        name="x", model=Model(encoder=settings, front_end=front_end_of(path)), data=Data(train=("none",)),
        init=Init(str(path)),
    )  # fmt: skip
    given = read_initial_weights(experiment, tokenizer, jax.eval_shape(lambda: random))
    return flatten(given.fill(random)), given.account, flatten(random)


def test_a_run_begins_with_a_nemo_file_and_its_tokenizer(nemo: Path) -> None:
    tokenizer = given_tokenizer(TokenizerSettings(path=str(nemo)))
    weights, account, random = begun(nemo, encoder_of(nemo), tokenizer)
    assert set(account.loaded) == random.keys()
    assert not account.remark
    expected = load_file(GOLDENS / "nemo_conformer" / "dw_striding_no_bias.safetensors")
    kernel = expected["state/layers.1.feed_forward1.linear1.weight"].T
    np.testing.assert_array_equal(weights["params/encoder/layers/feed_forward_1/in/kernel"][1], kernel)
    variance = expected["state/layers.0.conv.batch_norm.running_var"]
    np.testing.assert_array_equal(weights["batch_stats/encoder/layers/convolution/norm/variance"][0], variance)
    assert (weights[KERNEL] != random[KERNEL]).all()


@pytest.mark.parametrize("has_its_tokenizer", [True, False])
def test_a_folder_of_hugging_face_with_another_vocabulary(tmp_path: Path, has_its_tokenizer: bool) -> None:
    folder = tmp_path / "parakeet"
    shutil.copytree(PARAKEET, folder)
    if not has_its_tokenizer:
        (folder / "tokenizer.json").unlink()
    theirs = given_tokenizer(TokenizerSettings(path=str(PARAKEET)))
    ours = CharacterTokenizer.train([], alphabet="tzah", normaliser="lower.v1")
    settings, symbols = encoder_of(folder), load_weights(folder)[1]
    if not has_its_tokenizer:
        assert symbols is None
        with pytest.raises(UserError, match=r"of another shape: params/heads_ctc/output/bias(.|\n)*--init.tokenizer"):
            begun(folder, settings, ours)
        return
    assert symbols == theirs.symbols
    weights, account, random = begun(folder, settings, ours)
    given = load_file(folder / "model.safetensors")
    assert account.kept_rows[KERNEL] == "4 of 5 labels are in both vocabularies and keep their rows"
    assert account.missing == account.unused == [*account.mismatched] == []
    for number, symbol in enumerate(ours.symbols):
        row = theirs.symbols.index(symbol) if symbol in theirs.symbols else None
        kernel = random[KERNEL][:, number] if row is None else given["ctc_head.weight"][row, :, 0]
        np.testing.assert_array_equal(weights[KERNEL][:, number], kernel)
        assert weights[BIAS][number] == (random[BIAS][number] if row is None else given["ctc_head.bias"][row])
    mean = given["encoder.layers.1.conv.norm.running_mean"]
    np.testing.assert_array_equal(weights["batch_stats/encoder/layers/convolution/norm/mean"][1], mean)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"expected a \.nemo file or a Hugging Face folder"):
        encoder_of(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "hubert"}))
    with pytest.raises(UserError, match=r"model_type is 'hubert'; expected one of .*parakeet_ctc.*wav2vec2-bert"):
        encoder_of(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"encoder_config": {"model_type": "parakeet_encoder"}}))
    with pytest.raises(UserError, match="has no attention_bias, attention_dropout"):
        encoder_of(tmp_path)
    with pytest.raises(UserError, match=r"no weights: expected model\.safetensors or pytorch_model\.bin"):
        load_weights(tmp_path)


def test_weights_of_a_conformer_are_no_zipformers() -> None:
    weights = {"encoder.pre_encode.out.bias": np.zeros(96)}
    assert imported(weights, MODEL)[0].keys() == {"params/encoder/embed/bias"}
    with pytest.raises(UserError, match="no weight format of Zipformer: expected parameter paths of this package"):
        imported(weights, replace(MODEL, encoder=Zipformer.tiny()))


MODEL = Model(encoder=replace(TINY, num_mels=80))


def test_a_nemo_file_with_other_weights(nemo: Path, tmp_path: Path) -> None:
    before, out = load_nemo(nemo), tmp_path / "tuned.nemo"
    changed = {name: array + 1 for name, array in before.weights.items() if name.startswith("encoder.layers")}
    changed = {name: array for name, array in changed.items() if array.dtype == np.float32}
    save_nemo(changed, out, like=nemo)
    found = load_nemo(out)
    assert found.config == before.config
    assert found.weights.keys() == before.weights.keys()
    for name, array in found.weights.items():
        np.testing.assert_array_equal(array, changed.get(name, before.weights[name]), err_msg=name)
    with tarfile.open(nemo) as one, tarfile.open(out) as other:
        assert other.getnames() == one.getnames()
    with pytest.raises(
        UserError, match=r"another model or vocabulary: encoder\.new has shape \[2\], in the file none; expected"
    ):
        save_nemo({"encoder.new": np.zeros(2)}, tmp_path / "x.nemo", like=nemo)


def test_where_weights_by_nemos_names_go(nemo: Path, tmp_path: Path) -> None:
    weights = {name: array for name, array in load_nemo(nemo).weights.items() if name.startswith("encoder.layers")}
    for name in ("w.safetensors", "w.pt", "w.nemo"):
        save_exported(weights, MODEL, "nemo", ["a", None], tmp_path / name, like=nemo)
        found, _ = load_weights(tmp_path / name)
        for key, array in weights.items():
            np.testing.assert_array_equal(found[key], array, err_msg=key)
    with pytest.raises(UserError, match=r"expected --to nemo and --like ORIGINAL\.nemo"):
        save_exported(weights, MODEL, "nemo", ["a", None], tmp_path / "x.nemo", like=None)
    save_exported(
        weights, replace(MODEL, encoder=Zipformer.tiny()), "icefall", ["a", None], tmp_path / "icefall.pt", like=None
    )
    assert load_torch(tmp_path / "icefall.pt")["model"].keys() == weights.keys()
