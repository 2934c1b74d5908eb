"""Benchmark that trains a model beside its original in PyTorch."""

import json
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import unflatten
from asr_jax.models.zipformer import Zipformer
from asr_jax.nn.stochastic import Regulariser
from asr_jax.observe.events import read_events
from asr_jax.pretrained.icefall import ICEFALL
from benchmarks import learning
from benchmarks.model import OF_ZIPFORMER
from tests.recordings import noise, write
from tests.support import assert_close, assert_within, part

ROOT = Path(__file__).parents[2]
UPDATES = 2
"""Longer trainings differ by rounding, because float32 gradients of QuartzNet are exact to only about 1 %."""


has_originals = pytest.mark.skipif(
    not (learning.REFERENCE.exists() and (ROOT / ".peers/DeepLearningExamples").exists()),
    reason="needs scripts/setup_reference.sh, also with --peers",
)


@pytest.mark.slow
@has_originals
def test_quartznet_of_both_systems_has_equal_losses(tmp_path):
    """Neither has dropout, so only rounding differs.

    16 utterances fill all batches. With a padding row, losses would differ by 4e-4: NVIDIA's rounding gives a row
    without frames one frame after the strided convolution. If it rounds down, 12 utterances have equal losses too.
    """
    for name, seeds in (("train", range(16)), ("dev", range(2)), ("test", range(2))):
        lines = []
        for seed in seeds:
            audio = write(tmp_path / name / f"{seed}.wav", noise(seed, 16000 + 800 * seed))
            lines.append(json.dumps({"audio_path": str(audio), "text": f"{name} number {'abcdefghijklmnop'[seed]}"}))
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    config, out = tmp_path / "config.py", tmp_path / "out.json"
    text = learning.CONFIG.read_text().replace("data/an4/manifests", str(tmp_path))
    assert "28.0, 5000" in text
    config.write_text(text.replace("28.0, 5000", f"8.0, {UPDATES}"))
    given = ["--model", "quartznet", "--seeds", "0", "--out", tmp_path / "trainings", "--config", config, "--json", out]
    learning.main([str(each) for each in [*given, "--plot", tmp_path / "curves.png"]])
    ours, theirs = json.loads(out.read_text())["trainings"]
    folder = tmp_path / "trainings/quartznet_0"
    found = json.loads((folder / "theirs.json").read_text())
    steps = [each["data"] for each in read_events(folder / "run/events.jsonl", "train_step")]
    assert set(found["hypotheses"]) == {"0", "1", "2", "3"}
    assert len(steps) == UPDATES
    assert_close([each["losses"]["total"] for each in steps], found["losses"], rtol=1e-5)
    assert {name: ours[name] for name in ("dev, WER %", "test, WER %")} == {
        name: theirs[name] for name in ("dev, WER %", "test, WER %")
    }
    assert (tmp_path / "curves.png").stat().st_size > 10_000


@pytest.mark.slow
@has_originals
def test_regularisers_change_the_gradients_of_zipformer_as_in_icefall(tmp_path, monkeypatch):
    """Every regulariser is applied. Without whitening in feed-forward modules, gradients of kernels change by 0.4 %.

    Regularisers whose statistics are within their limits are not tested. Gradients of norms nearly cancel.
    """
    monkeypatch.setattr(Regulariser, "_drawn", lambda *_: jnp.array(True))
    settings = Zipformer.tiny(regularise=True, mask_padding=False, dropout_start=0.0, dropout_end=0.0)
    given = json.dumps({name: getattr(settings, name) for name in OF_ZIPFORMER})
    side = Path(__file__).with_name("regularised_side.py")
    subprocess.run([learning.REFERENCE, side, given, tmp_path / "theirs.npz"], check=True)
    theirs = dict(np.load(tmp_path / "theirs.npz"))
    params, grads = (
        unflatten(ICEFALL.find(part(theirs, kind), settings)[0])["params"]["encoder"] for kind in ("param/", "grad/")
    )
    encoder, frames = settings.build(dtype=jnp.float32), jnp.asarray(theirs["features"])

    @jax.jit
    def gradients(params):
        def loss(params):
            lengths = jnp.full(len(frames), frames.shape[1])
            streams = {"dropout": jax.random.key(0), "regularise": jax.random.key(0)}
            y = encoder.apply({"params": params}, Frames(frames, lengths), step=jnp.int32(5000), rngs=streams)
            return jnp.sum(y.frames.values * theirs["weights"]), y.frames.values

        return jax.grad(loss, has_aux=True)(params)

    ours, output = gradients(params)
    assert_close(output, theirs["output"], rtol=1e-4, atol=1e-4)
    for (path, found), expected in zip(jax.tree.leaves_with_path(ours), jax.tree.leaves(grads), strict=True):
        if (name := jax.tree_util.keystr(path)).endswith("['kernel']"):
            error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
            assert_within(error, 2e-3, what=name)
