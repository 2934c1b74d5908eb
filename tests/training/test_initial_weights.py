"""Initial weights from files of this package and of other systems: matching, mismatches and messages."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from asr_jax.audio.presets import wav2vec2
from asr_jax.cli.command_line import load_config
from asr_jax.config import Experiment, Init
from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.contrastive import Contrastive
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.models.base import Model
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.recurrent.prediction import LSTMPrediction, StatelessPrediction
from asr_jax.nn.wav2vec.quantizer import Quantizer
from asr_jax.nn.wav2vec.waveform_convs import WaveformConv
from asr_jax.pretrained.formats import exported, save_exported, save_folder, save_weights
from asr_jax.pretrained.icefall import ICEFALL
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.training.initial_weights import read_initial_weights

SETTINGS = Zipformer(
    downsampling=(2,), dims=(8,), num_layers=(2,), unmasked_dims=(8,), num_heads=(2,), query_dims=(2,),
    value_dims=(2,), position_dims=(2,), feedforward_dims=(8,), kernel_sizes=(3,),
)  # fmt: skip
KERNEL, BIAS = "params/heads_ctc/output/kernel", "params/heads_ctc/output/bias"
OURS, THEIRS = (CharacterTokenizer.train([], alphabet=letters, normaliser="lower.v1") for letters in ("abcd", "xcab"))


def drawn(seed: int, vocab_size: int) -> dict:
    """Random weights of the encoder and the head."""
    frames = Frames(jnp.zeros((1, 20, SETTINGS.num_mels)), jnp.array([20]))
    encoder = SETTINGS.build(dtype=jnp.float32)
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), frames, step=None))["params"]
    rng = np.random.default_rng(seed)
    params = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
    output = {"kernel": (8, vocab_size), "bias": (vocab_size,)}
    head = {name: rng.normal(size=shape).astype(np.float32) for name, shape in output.items()}
    return {"params": {"encoder": params, "heads_ctc": {"output": head}}, "batch_stats": {}}


RANDOM, GIVEN = drawn(0, len(OURS.symbols)), drawn(1, len(THEIRS.symbols))


def icefall(**changes: np.ndarray | None) -> dict[str, np.ndarray]:
    params = GIVEN["params"]
    weights = ICEFALL.export({"params": params}, SETTINGS, {"heads_ctc": CTC()})
    weights["encoder.encoders.0.encoder.layers.1.bypass_scale"] = np.zeros(8, np.float32)
    weights |= changes
    return {name: np.array(array, order="C") for name, array in weights.items() if array is not None}


def begun(path, **init):
    experiment = Experiment(
        name="x", model=Model(encoder=SETTINGS), data=Data(train=("none",)), init=Init(str(path), **init)
    )
    given = read_initial_weights(experiment, OURS, jax.eval_shape(lambda: RANDOM))
    return flatten(given.fill(RANDOM)), given.account


def check_rows(weights):
    """Checks that common labels have the rows of the file and that the others are random."""
    for number, symbol in enumerate(OURS.symbols):
        source, row = (GIVEN, THEIRS.symbols.index(symbol)) if symbol in THEIRS.symbols else (RANDOM, number)
        head = source["params"]["heads_ctc"]["output"]
        np.testing.assert_array_equal(weights[KERNEL][:, number], head["kernel"][:, row])
        assert weights[BIAS][number] == head["bias"][row]


def test_a_peers_file_with_its_tokenizer(tmp_path):
    path = tmp_path / "icefall.safetensors"
    save_file(icefall(), path)
    THEIRS.save(tmp_path / "tokenizer")
    weights, account = begun(path, tokenizer=str(tmp_path / "tokenizer"))
    for name, leaf in flatten({"params": {"encoder": GIVEN["params"]["encoder"]}}).items():
        np.testing.assert_array_equal(weights[name], leaf, err_msg=name)
    check_rows(weights)
    assert account.missing == account.unused == [*account.mismatched] == []
    assert account.kept_rows[KERNEL] == "4 of 5 labels are in both vocabularies and keep their rows"
    assert not account.remark


@pytest.mark.parametrize("stateless", [False, True])
def test_a_transducer_keeps_the_rows_of_shared_labels(tmp_path, stateless):
    """Those of the prediction network's embedding, of the joint network's output, and of the simple loss."""
    prediction = StatelessPrediction(8) if stateless else LSTMPrediction(6, num_layers=1)
    head = Transducer(
        prediction=prediction, joint_dim=8, durations=() if stateless else (0, 1, 2),
        pruning=Pruning() if stateless else None,
    )  # fmt: skip

    def variables(seed, symbols):
        made = head.build(vocab_size=len(symbols), blank_id=symbols.index(None), dtype=jnp.float32)
        rows, frames = jnp.zeros((1, 2), jnp.int32), Frames(jnp.zeros((1, 3, 8)), jnp.array([3]))
        batch = Batch(None, frames.values, frames.lengths, rows, rows[:, 0], jnp.ones(1), rows[:, 0])
        shapes = jax.eval_shape(lambda: made.init(jax.random.key(0), Encoded(frames), batch, step=None))["params"]
        rng = np.random.default_rng(seed)
        drawn = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)
        return {"params": {"heads_labels": drawn}, "batch_stats": {}}

    ours, theirs = OURS.symbols, THEIRS.symbols
    random, given = variables(0, ours), variables(1, theirs)
    save_weights(given, theirs, tmp_path / "w.safetensors")
    experiment = Experiment(
        name="x", model=Model(encoder=SETTINGS, heads={"labels": head}), data=Data(train=("none",)),
        init=Init(str(tmp_path / "w.safetensors")),
    )  # fmt: skip
    found = read_initial_weights(experiment, OURS, jax.eval_shape(lambda: random))
    flat, first, other = (flatten(tree) for tree in (found.fill(random), random, given))
    assert not found.account.mismatched
    output = "params/heads_labels/output/kernel"
    kept = [output, output.replace("kernel", "bias"), "params/heads_labels/prediction/embedding/embedding"]
    kept += [
        f"params/heads_labels/simple_{name}/{leaf}" for name in ("frames", "labels") for leaf in ("kernel", "bias")
    ]
    assert found.account.kept_rows.keys() == {name for name in kept if name in flat}
    without = [[symbol for symbol in symbols if symbol or stateless] for symbols in (ours, theirs)]
    for name in found.account.kept_rows:
        axis, (here, there) = (0, without) if "embedding" in name else (-1, (ours, theirs))
        values, of_random, of_given = (np.moveaxis(tree[name], axis, 0) for tree in (flat, first, other))
        for number, symbol in enumerate(here):
            expected = of_given[there.index(symbol)] if symbol in there else of_random[number]
            np.testing.assert_array_equal(values[number], expected)
    if not stateless:  # the durations are behind the labels
        np.testing.assert_array_equal(flat[output][:, len(ours) :], other[output][:, len(theirs) :])
    whole = "params/heads_labels/of_frames/kernel"
    np.testing.assert_array_equal(flat[whole], other[whole])


def test_letters_in_the_other_case_alone_are_the_same(tmp_path):
    path, capitals = tmp_path / "icefall.safetensors", CharacterTokenizer.train([], alphabet="XAbB", normaliser="none")
    save_file(icefall(), path)
    capitals.save(tmp_path / "tokenizer")
    weights, account = begun(path, tokenizer=str(tmp_path / "tokenizer"))
    given = GIVEN["params"]["heads_ctc"]["output"]["kernel"]
    for ours, theirs in (("a", "A"), ("b", "b")):
        row = capitals.symbols.index(theirs)
        np.testing.assert_array_equal(weights[KERNEL][:, OURS.symbols.index(ours)], given[:, row])
    assert account.kept_rows[KERNEL] == f"3 of {len(OURS.symbols)} labels are in both vocabularies and keep their rows"


def test_a_tokenizer_that_is_not_the_files_is_refused(tmp_path):
    path = tmp_path / "icefall.safetensors"
    save_file(icefall(), path)
    CharacterTokenizer.train([], alphabet="abcdefg", normaliser="lower.v1").save(tmp_path / "tokenizer")
    with pytest.raises(UserError, match=r"tokenizer .*8 .*heads .*5 "):
        begun(path, tokenizer=str(tmp_path / "tokenizer"))
    with pytest.raises(ValueError, match="path is empty"):
        Init(tokenizer="somewhere")


def test_a_peers_file_without_its_tokenizer_is_loaded_unchanged_and_reported(tmp_path):
    path = tmp_path / "icefall.safetensors"
    save_file(icefall(), path)
    weights, account = begun(path)
    np.testing.assert_array_equal(weights[KERNEL], GIVEN["params"]["heads_ctc"]["output"]["kernel"])
    assert "--init.tokenizer" in account.lines()[-1]


def test_weights_that_are_missing_unknown_or_of_another_shape_are_reported_and_can_be_left(tmp_path):
    path = tmp_path / "icefall.safetensors"
    norm, bias = "encoder.encoders.0.encoder.layers.1.norm.bias", "encoder_embed.conv.0.bias"
    joiner = np.zeros(5, np.float32)
    save_file(icefall(**{norm: None, bias: np.zeros(3, np.float32), "joiner.output_linear.bias": joiner}), path)
    with pytest.raises(UserError) as raised:
        begun(path)
    message = str(raised.value)
    assert "1 missing: params/encoder/stack_0/layers/norm/bias" in message
    assert "1 of another shape: params/encoder/embed/conv_0/bias ((3,) in the weights, (8,) in the model)" in message
    assert "1 unused: joiner.output_linear.bias" in message
    assert "--init.strict False" in message
    weights, account = begun(path, strict=False)
    assert account.unused == ["joiner.output_linear.bias"]
    for name, leaf in flatten({"params": {"encoder": GIVEN["params"]["encoder"]}}).items():
        left = name in (account.missing[0], *account.mismatched)
        np.testing.assert_array_equal(weights[name], flatten(RANDOM)[name] if left else leaf, err_msg=name)


def test_our_own_file_says_what_its_labels_are(tmp_path):
    path = tmp_path / "ours.safetensors"
    save_weights(GIVEN, THEIRS.symbols, path)
    weights, account = begun(path)
    check_rows(weights)
    assert account.kept_rows.keys() == {KERNEL, BIAS}
    assert not account.remark


def test_files_that_are_none(tmp_path):
    path = tmp_path / "w.safetensors"
    with pytest.raises(UserError, match="cannot be read"):
        begun(path)
    path.write_bytes(b"no such thing")
    with pytest.raises(UserError, match=r"\.safetensors"):
        begun(path)
    with pytest.raises(UserError, match=r"bf16, count, empty .*Zipformer"):
        begun(Path(__file__).parent.parent / "pretrained" / "files" / "archive.pt")
    save_file({"a.weight": np.zeros(1, np.float32)}, path)
    with pytest.raises(UserError, match=r"a\.weight .*Zipformer"):
        begun(path)


WAV2VEC2 = Wav2Vec2(
    extractor=(WaveformConv(8, 5, 3), WaveformConv(8, 3, 2)), dim=16, num_layers=2, num_heads=2, feedforward_dim=24,
    position_kernel=6, position_groups=2,
)  # fmt: skip
PRETRAINING = {"pretrain": Contrastive(quantizer=Quantizer(2, 6), codes_dim=8, dim=10, num_negatives=5, penalty=0.0)}
LETTERS = CharacterTokenizer.train([], alphabet="abcd", normaliser="english_letters.v1")


def wav2vec2_weights(encoder, heads, front_end):
    model = Model(encoder=encoder, heads=heads, front_end=front_end, augment=())
    made = model.build(vocab_size=len(LETTERS.symbols), blank_id=0, precision="f32")
    rows = jnp.zeros(2, jnp.int32)
    batch = Batch(
        audio=None, features=jnp.zeros((2, 1200, 1)), lengths=rows + 1200, tokens=rows[:, None] + 1,
        token_lengths=rows + 1, weights=jnp.ones(2), utterances=rows,
    )  # fmt: skip
    streams = {name: jax.random.key(0) for name in ("params", "mask", "dropout")}
    shapes = jax.eval_shape(lambda: made.init(streams, batch, step=None))
    rng = np.random.default_rng(0)
    return model, jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), {**shapes})


@pytest.mark.parametrize("of", ["folder", "fairseq", "fine_tuned"])
def test_what_pre_training_leaves_over_is_no_mistake_in_the_recipe_of_fine_tuning(of, tmp_path):
    """A Hugging Face folder and a fairseq file of pre-trained models, and a folder of a fine-tuned model that was
    published without the embedding of masked frames."""
    heads = {"ctc": CTC()} if of == "fine_tuned" else PRETRAINING
    model, weights = wav2vec2_weights(replace(WAV2VEC2, taps=("features", "extractor")), heads, wav2vec2())
    if of == "fairseq":
        path = tmp_path / "pretrained.safetensors"
        save_exported(exported(weights, model, "fairseq"), model, "fairseq", LETTERS.symbols, path, like=None)
    else:
        path = tmp_path
        save_folder(weights, model, LETTERS, "huggingface", path)
    if of == "fine_tuned":
        (file,) = tmp_path.glob("*.safetensors")
        kept = {name: array for name, array in load_file(file).items() if not name.endswith("masked_spec_embed")}
        save_file(kept, file, metadata={"format": "pt"})
    recipe = load_config("configs/wav2vec2_finetune.py", init_from=str(path) if path.is_dir() else "")
    encoder = replace(WAV2VEC2, time_mask=recipe.model.encoder.time_mask)
    fine_tuned, random = wav2vec2_weights(encoder, recipe.model.heads, recipe.model.front_end)
    experiment = replace(recipe, model=fine_tuned, init=replace(recipe.init, path=str(path)))
    given = read_initial_weights(experiment, LETTERS, jax.eval_shape(lambda: random)).account
    encoders = [name for name in flatten(random) if name.startswith("params/encoder/")]
    mask = ["params/encoder/mask"] if of == "fine_tuned" else []
    head = [] if of == "fine_tuned" else [BIAS, KERNEL]
    assert sorted(given.missing) == sorted(mask + head)
    assert set(encoders) - set(mask) <= set(given.loaded)
    assert bool(given.unused) == (of != "fine_tuned")

    rejected = "encoder/mask;" if of == "fine_tuned" else "heads_ctc/output/bias"
    with pytest.raises(UserError, match=rf"not params/{rejected}"):
        read_initial_weights(replace(experiment, init=Init(str(path))), LETTERS, jax.eval_shape(lambda: random))
