"""NVIDIA's names of QuartzNet's weights and settings: runs are initialised with files of NeMo and DeepLearningExamples
(scripts/goldens/nemo_quartznet.py), and every kind of block has names."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.audio.presets import quartznet
from asr_jax.config import Experiment, Init
from asr_jax.core.batch import Batch
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten, unflatten
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.quartznet import QuartzNet
from asr_jax.nn.quartznet.block import ConvBlock
from asr_jax.pretrained.base import Format
from asr_jax.pretrained.encoders import encoder_of
from asr_jax.pretrained.formats import imported, load_weights
from asr_jax.pretrained.quartznet import NEMO, NVIDIA, settings_of
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.training.initial_weights import read_initial_weights

FILES = Path(__file__).parent / "files"
FILE, CHECKPOINT = FILES / "quartznet.nemo", FILES / "quartznet.pt"
HEADS = {"heads_ctc": CTC()}
MANY = QuartzNet(
    num_mels=8,
    blocks=(
        ConvBlock(8, 3, separable=False, residual="none", squeeze=2),
        ConvBlock(8, 5, repeat=4, stride=2, stride_last=True, groups=2, heads=4, squeeze=4),
        ConvBlock(8, 3, repeat=2, stride=2, residual="none"),
        ConvBlock(12, 3, repeat=3, residual="dense", copies=3, separable=False, groups=4),
        ConvBlock(16, 3, repeat=2, residual="max"),
    ),
)


def model_of(settings: QuartzNet) -> Model:
    heads = {"ctc": CTC(dropout=0.0, weight_by="utterances")}
    return Model(settings, heads, quartznet(num_mels=settings.num_mels), augment=())


@cache
def shapes_of(settings: QuartzNet, vocab_size: int) -> Any:
    model = model_of(settings)
    recogniser = model.build(vocab_size=vocab_size, blank_id=vocab_size - 1, precision="f32")
    of_rows = {"lengths": 20, "token_lengths": 0, "weights": 1.0, "utterances": 0}
    rows = {name: jnp.asarray([value]) for name, value in of_rows.items()}
    features = jnp.zeros((1, 20, model.front_end.num_features))
    batch = Batch(audio=None, features=features, tokens=jnp.zeros((1, 1), jnp.int32), **rows)
    return jax.eval_shape(lambda: recogniser.init(jax.random.key(0), batch, step=None))


def test_a_nemo_file_alone_has_the_sizes() -> None:
    settings = encoder_of(FILE)
    assert settings == QuartzNet(
        num_mels=4,
        blocks=(
            ConvBlock(8, 3, stride=2, residual="none", dropout=0.1),
            ConvBlock(8, 5, repeat=3, dropout=0.1),
            ConvBlock(6, 1, separable=False, residual="none", dropout=0.1),
        ),
    )
    assert encoder_of(FILE, dropout=0.0).every_block()[0].dropout == 0.0


def begun(path: Path) -> tuple[dict[str, Any], Any]:
    """Returns the initial weights of a run with another vocabulary, and the account of them."""
    ours = CharacterTokenizer.train([], alphabet="bax ", normaliser="lower.v1")
    model = model_of(encoder_of(FILE))
    shapes = shapes_of(model.encoder, len(ours.symbols))
    random = jax.tree.map(lambda leaf: np.full(leaf.shape, 9, np.float32), shapes)
    experiment = Experiment(name="x", model=model, data=Data(train=("none",)), init=Init(str(path)))
    given = read_initial_weights(experiment, ours, shapes)
    return flatten(given.fill(random)), given.account


def test_a_run_begins_with_a_nemo_file() -> None:
    weights, account = begun(FILE)
    theirs = load_weights(FILE)[0]
    assert account.missing == account.unused == [*account.mismatched] == []
    head = weights["params/heads_ctc/output/kernel"]
    for ours, label in ((0, 2), (1, 1), (3, 0), (4, 4)):  # b, a, the space, the blank
        np.testing.assert_array_equal(head[:, ours], theirs["decoder.decoder_layers.0.weight"][label, :, 0])
    assert (head[:, 2] == 9).all()
    for path, array in {
        "params/encoder/block_1/first/depthwise/kernel": theirs["encoder.encoder.1.mconv.0.conv.weight"][:, 0].T,
        "params/encoder/block_1/layers/pointwise/kernel": np.stack(
            [theirs[f"encoder.encoder.1.mconv.{place}.conv.weight"][:, :, 0].T for place in (6, 11)]
        ),
        "params/encoder/block_2/first/conv/kernel": theirs["encoder.encoder.2.mconv.0.conv.weight"].transpose(2, 1, 0),
        "batch_stats/encoder/block_1/residual_0/norm/variance": theirs["encoder.encoder.1.res.0.1.running_var"],
        "batch_stats/encoder/block_2/first/norm/mean": theirs["encoder.encoder.2.mconv.1.running_mean"],
    }.items():
        np.testing.assert_array_equal(weights[path], array, err_msg=path)


def test_a_checkpoint_of_nvidias_recipe_gives_the_averaged_weights() -> None:
    """NVIDIA's results are those of the averaged weights; the file contains the live weights, too."""
    model = model_of(encoder_of(FILE))
    (of_nemo, left), (of_nvidia, also_left) = (imported(load_weights(path)[0], model) for path in (FILE, CHECKPOINT))
    assert left == also_left == []
    assert of_nemo.keys() == of_nvidia.keys()
    for path, array in of_nemo.items():
        np.testing.assert_array_equal(of_nvidia[path], array, err_msg=path)


@pytest.mark.parametrize("known", [NEMO, NVIDIA], ids=lambda known: known.names)
@pytest.mark.parametrize("changes", [{}, {"norm": "group", "norm_groups": 4}, {"mask_padding": False}])
def test_all_weights_have_a_name_there_and_come_back(known: Format, changes: dict) -> None:
    settings = replace(MANY, **changes)
    rng = np.random.default_rng(0)
    variables = shapes_of(settings, vocab_size=5)
    variables = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), variables)
    theirs = known.export(variables, settings, HEADS)
    assert any(".conv.weight" in name for name in theirs) == (known is NEMO and settings.mask_padding)
    found, left = known.find(theirs, settings, HEADS)
    assert left == []
    expected = flatten(variables)
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(found[path], array, err_msg=path)
    assert known.export(unflatten(found), settings, HEADS).keys() == theirs.keys()


def test_names_without_weights_are_ignored_and_all_others_are_returned() -> None:
    settings = encoder_of(FILE)
    theirs = load_weights(FILE)[0]
    assert {"preprocessor.featurizer.fb", "encoder.encoder.0.mconv.2.num_batches_tracked"} <= theirs.keys()
    more = {**theirs, "encoder.encoder.9.mconv.0.conv.weight": np.zeros((1, 1, 1)), "joint.bias": np.zeros(1)}
    assert NEMO.find(more, settings, HEADS)[1] == ["encoder.encoder.9.mconv.0.conv.weight", "joint.bias"]
    decoder = ["decoder.decoder_layers.0.bias", "decoder.decoder_layers.0.weight"]
    assert NEMO.find(theirs, settings)[1] == decoder


BLOCK = {"filters": 8, "repeat": 2, "kernel": [4], "stride": [1], "dilation": [1], "dropout": 0.0, "residual": True}
ENCODER = {"activation": "relu", "feat_in": 8}


def test_settings_of_citrinet_and_of_nvidias_recipe() -> None:
    first = BLOCK | {"separable": True, "se": True, "se_context_size": 64, "stride": [2], "stride_last": True}
    second = BLOCK | {"kernel_size_factor": 2.5, "future_context": 3, "groups": 4, "heads": 2, "separable": True}
    jasper = [first | {"residual_mode": "stride_add"}, second, BLOCK | {"future_context": 9, "residual_dense": True}]
    settings = settings_of({"jasper": jasper, **ENCODER, "activation": "swish", "normalization_mode": "group"}, FILE)
    assert settings.blocks == (
        ConvBlock(8, 5, repeat=2, stride=2, stride_last=True, squeeze=8, squeeze_frames=64),
        ConvBlock(8, 11, repeat=2, groups=4, heads=2, future_frames=3),
        ConvBlock(8, 5, repeat=2, separable=False, residual="dense"),
    )
    assert (settings.norm, settings.activation, settings.mask_padding) == ("instance", "silu", True)
    mode = settings_of({"jasper": [BLOCK | {"residual_mode": "max"}, BLOCK], **ENCODER}, FILE)
    assert [block.residual for block in mode.blocks] == ["max", "max"]
    block = {name: value for name, value in BLOCK.items() if name != "kernel"} | {"kernel_size": [3]}
    nvidia = settings_of({"blocks": [block | {"normalization": "layer"}], "activation": "selu", "in_feats": 8}, FILE)
    assert (nvidia.norm, nvidia.activation, nvidia.mask_padding) == ("layer", "selu", False)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ({}, "have no 'blocks': expected settings of NVIDIA's QuartzNet"),
        ({"jasper": [BLOCK], "activation": "maxout", "feat_in": 8}, "activation 'maxout': expected one of relu"),
        ({"jasper": [BLOCK], "activation": "relu"}, "have no 'in_feats'"),
        ({"jasper": [{"filters": 8}], **ENCODER}, "have no 'residual'"),
        ({"jasper": [BLOCK | {"dropout": 2.0}], **ENCODER}, "dropout is 2.0"),
    ],
)
def test_settings_that_are_not_known(encoder: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        settings_of(encoder, FILE)


def test_blocks_of_different_norms_are_refused() -> None:
    blocks = [BLOCK | {"normalization": "layer"}, BLOCK]
    with pytest.raises(UserError, match=r"the norms \['batch', 'layer'\]"):
        settings_of({"blocks": blocks, "activation": "relu", "in_feats": 8}, FILE)
