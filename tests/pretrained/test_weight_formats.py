"""Export of a model's weights under the names of every system that has such a model, and import."""

import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import asr_jax
from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.models.base import Model
from asr_jax.models.conformer import Conformer
from asr_jax.models.encoder import EncoderSettings
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.models.quartznet import QuartzNet
from asr_jax.models.sanm import SANM
from asr_jax.models.squeezeformer import Squeezeformer
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.models.wav2vec2 import Wav2Vec2
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.recurrent.prediction import LSTMPrediction, StatelessPrediction
from asr_jax.pretrained.formats import FORMATS, exported, imported

TINY: dict[type, EncoderSettings] = {
    Conformer: Conformer.tiny(), QuartzNet: QuartzNet.tiny(num_mels=80), Squeezeformer: Squeezeformer.tiny(),
    W2VBert: W2VBert.tiny(num_mels=80), Zipformer: Zipformer.tiny(),
    Wav2Vec2: Wav2Vec2.tiny(extractor=(), num_features=80),
    SANM: SANM.tiny(num_mels=80),
    LSTMEncoder: LSTMEncoder(num_mels=80, dim=6, layers_before=1, layers_after=2),
}  # fmt: skip


OF_RUST = Conformer.tiny(positions="none", scale_input=False, subsampling="striding")
OF_LSTM = Transducer(prediction=LSTMPrediction(6, num_layers=2), joint_dim=7)
STATELESS = Transducer(prediction=StatelessPrediction(8), joint_dim=7, activation="tanh", pruning=Pruning(2))


@cache
def shapes_of(settings: EncoderSettings) -> tuple[Any, dict[str, Any]]:
    """Shapes of the output and of all variables."""
    encoder, frames = settings.build(dtype=jnp.float32), Frames(jnp.zeros((1, 80, 80)), jnp.array([80]))

    def init() -> tuple[jax.Array, Any]:
        encoded, variables = encoder.init_with_output(jax.random.key(0), frames, step=None)
        return encoded.frames.values, variables

    return jax.eval_shape(init)


def drawn(settings: EncoderSettings, transducer: Transducer | None = None) -> dict[str, Any]:
    """Random variables of a model with a CTC head that has another name, and with a transducer."""
    values, shapes = shapes_of(settings)
    shapes, width = {name: {"encoder": tree} for name, tree in shapes.items()}, values.shape[-1]
    if not isinstance(settings, LSTMEncoder):
        shapes["params"]["heads_letters"] = {"output": {"kernel": np.zeros((width, 5)), "bias": np.zeros(5)}}
    if transducer:
        head, rows = transducer.build(vocab_size=5, blank_id=4, dtype=jnp.float32), jnp.zeros((1, 2), jnp.int32)
        frames = Frames(jnp.zeros((1, 3, width)), jnp.array([3]))
        batch = Batch(None, frames.values, frames.lengths, rows, rows[:, 0], jnp.ones(1), rows[:, 0])
        made = jax.eval_shape(lambda: head.init(jax.random.key(0), Encoded(frames), batch, step=None))
        for name, tree in made.items():
            shapes.setdefault(name, {})["heads_labels"] = tree
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda leaf: rng.normal(size=leaf.shape).astype(np.float32), shapes)


@pytest.mark.parametrize("known", FORMATS, ids=lambda known: f"{known.names}-{known.encoder.__name__}")
def test_all_weights_go_out_and_come_back(known: Any) -> None:
    settings, heads, transducer = TINY[known.encoder], dict[str, Any](), None
    if known.names == "rust" and known.encoder is Conformer:
        settings = OF_RUST
    elif known.names in ("icefall", "caiman", "nemo") or known.encoder is Conformer:
        transducer = STATELESS if known.names == "icefall" else OF_LSTM
        heads = {"labels": transducer}
    if known.names != "caiman":
        heads = {"letters": CTC(), **heads}
    variables, model = drawn(settings, transducer), Model(settings, heads=heads, primary=next(iter(heads)))
    theirs = exported(variables, model, known.names)
    # fairseq and NVIDIA have the same names of wav2vec 2.0, which one of the two entries claims.
    (claiming,) = [other for other in FORMATS if other.encoder is known.encoder and other.claims(theirs)]
    assert claiming is known or claiming.rows == known.rows
    found, left = imported(theirs, model)
    assert left == []
    expected = flatten(variables)
    assert found.keys() == expected.keys()
    for path, leaf in expected.items():
        np.testing.assert_array_equal(found[path], leaf, err_msg=path)


def test_unknown_systems_and_heads_without_names() -> None:
    model, variables = Model(TINY[QuartzNet], heads={"letters": CTC()}), drawn(TINY[QuartzNet])
    with pytest.raises(
        UserError, match="QuartzNet has no weight names of the system keras: expected one of nemo, deeplearning"
    ):
        exported(variables, model, "keras")
    variables["params"]["heads_more"] = {"kernel": np.zeros(2)}
    with pytest.raises(UserError, match="the other system has no names for the parameters params/heads_more/kernel"):
        exported(variables, model, "nemo")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "lost"),
    [
        (("models/zipformer.py", "pretrained/icefall.py"), "Zipformer"),
        (("models/quartznet.py", "pretrained/quartznet.py"), "QuartzNet"),
        (("models/wav2vec2.py", "pretrained/wav2vec2*.py"), "wav2vec 2.0"),
        (("models/w2v_bert.py", "pretrained/w2v_bert.py"), "W2V-BERT"),
        (("models/squeezeformer.py", "pretrained/squeezeformer_*.py"), "Squeezeformer"),
        (("models/conformer.py", "pretrained/conformer.py", "pretrained/paraformer_rust.py"), "Conformer"),
        (("models/sanm.py", "pretrained/funasr.py", "pretrained/funasr_folder.py"), "FunASR"),
        (("models/lstm.py", "pretrained/caiman.py"), "CAIMAN"),
    ],
)
def test_a_models_files_take_the_model_with_them(tmp_path, files, lost):
    """No other file of the package refers to them: it can be imported without them."""
    package = Path(asr_jax.__file__).parent
    shutil.copytree(package, tmp_path / "asr_jax", ignore=shutil.ignore_patterns("__pycache__"))
    for path in [path for pattern in files for path in (tmp_path / "asr_jax").glob(pattern)]:
        path.unlink()
    code = "import asr_jax.api, asr_jax.pretrained.encoders; from asr_jax.pretrained.formats import FORMATS; "
    code += "print([known.of for known in FORMATS])"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert not found.returncode, found.stderr
    assert lost not in found.stdout
    assert "NeMo (" in found.stdout
