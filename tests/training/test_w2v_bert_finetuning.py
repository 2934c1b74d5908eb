"""Fine-tuning from a Hugging Face folder, and export to a Hugging Face folder, with the commands."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from asr_jax.audio.io import write_flac
from asr_jax.audio.presets import w2v_bert
from asr_jax.cli import export, train
from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference.trained import load_trained
from asr_jax.models.base import Model
from asr_jax.models.w2v_bert import W2VBert
from asr_jax.observe.events import read_events
from asr_jax.pretrained.encoders import encoder_of
from asr_jax.pretrained.w2v_bert import HUGGINGFACE, folder_files
from asr_jax.text.characters import CharacterTokenizer

SETTINGS = W2VBert(dim=8, num_layers=1, num_heads=2, feedforward_dim=8, kernel_size=3, layer_drop=0.0)
QUICK = (
    "--training.num-updates", "3", "--training.precision", "f32", "--data.workers", "0", "--log-every", "1",
    "--data.batching.num-buckets", "1", "--optim.schedule.warmup-updates", "0", "--training.ema.decay", "0",
)  # fmt: skip


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, utterances = tmp_path_factory.mktemp("data"), []
    for number in range(8):
        samples = np.random.default_rng(number).integers(-3000, 3000, 16000 + 700 * number).astype(np.int16)
        write_flac(folder / f"{number}.flac", samples, 16000)
        text = "Ab cab"[: 3 + number % 4]
        utterances.append(Utterance(str(number), str(folder / f"{number}.flac"), text, len(samples) / 16000))
    write_manifest(folder / "train.jsonl", utterances)
    return folder / "train.jsonl"


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of an encoder without a head, as the released model."""
    encoder, frames = SETTINGS.build(dtype=jnp.float32), Frames(jnp.zeros((1, 8, 160)), jnp.array([8]))
    shapes = jax.eval_shape(lambda: encoder.init(jax.random.key(0), frames, step=None))["params"]
    rng = np.random.default_rng(0)
    params = jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), shapes)
    folder = tmp_path_factory.mktemp("pretrained")
    save_file(HUGGINGFACE.export({"params": {"encoder": params}}, SETTINGS), folder / "model.safetensors")
    files = folder_files(Model(SETTINGS, front_end=w2v_bert()), CharacterTokenizer((None,), "none"))
    for name in ("config.json", "preprocessor_config.json"):
        (folder / name).write_text(str(files[name]))
    return folder


def tune(pretrained: Path, manifest: Path, run: Path, *more: str) -> None:
    data = ("--data.train", str(manifest), "--data.validation", str(manifest))
    config = ("--config", "configs/w2v_bert_finetune.py", "--init-from", str(pretrained), "--run-dir", str(run))
    train.main([*config, *data, *QUICK, *more])


@pytest.fixture(scope="module")
def tuned(pretrained: Path, manifest: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run with a frozen encoder, and the exported folder."""
    run = tmp_path_factory.mktemp("runs") / "run"
    tune(pretrained, manifest, run, "--optim.freeze-updates", "encoder/.*", "-1", "rest", "0")
    out = run.with_name("tuned-1.0")
    export.main([str(run), "--to", "huggingface", "--out", str(out)])
    return run, out


@pytest.mark.slow
def test_from_a_folder_to_a_run_to_a_folder(pretrained: Path, tuned: tuple[Path, Path]) -> None:
    run, out = tuned
    trained = load_trained(run)
    assert trained.experiment.model.encoder == encoder_of(pretrained, masks=True, remat="layers")
    assert trained.tokenizer.symbols == (" ", "a", "b", "c", None)
    (event,) = (event["data"] for event in read_events(run / "events.jsonl", "initialised"))
    assert event["missing"] == ["params/heads_ctc/output/bias", "params/heads_ctc/output/kernel"]
    losses = [e["data"]["losses"]["total"] for e in read_events(run / "events.jsonl", "train_step")]
    assert len(losses) == 3
    assert np.isfinite(losses).all()

    written, before = load_file(out / "model.safetensors"), load_file(pretrained / "model.safetensors")
    for name, array in before.items():
        np.testing.assert_array_equal(written[f"wav2vec2_bert.{name}"], array, err_msg=name)  # the encoder was frozen
    head = flatten(trained.variables)["params/heads_ctc/output/kernel"]
    np.testing.assert_array_equal(written["lm_head.weight"], np.asarray(head).T)
    assert json.loads((out / "vocab.json").read_text()) == {"|": 0, "a": 1, "b": 2, "c": 3, "<pad>": 4}
    config = json.loads((out / "config.json").read_text())
    assert (config["vocab_size"], config["pad_token_id"], config["architectures"]) == (5, 4, ["Wav2Vec2BertForCTC"])


@pytest.mark.slow
def test_that_folder_again_with_an_adapter_keeps_the_rows_of_its_labels(
    tuned: tuple[Path, Path], manifest: Path, tmp_path: Path
) -> None:
    run, out = tuned
    head = flatten(load_trained(run).variables)["params/heads_ctc/output/kernel"]
    adapter = ("--model.encoder.num-adapters", "1", "--init.new", "heads_.*", "encoder/adapter.*")
    tune(out, manifest, tmp_path / "more", *adapter, "--optim.freeze-updates", "encoder/.*", "-1", "rest", "3")
    again = flatten(load_trained(tmp_path / "more").variables)
    np.testing.assert_array_equal(again["params/heads_ctc/output/kernel"], head)
    assert "params/encoder/adapter_0/residual_conv/kernel" in again


@pytest.mark.slow
def test_what_the_folder_lacks_is_refused_where_it_may_not_be_new(
    pretrained: Path, manifest: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"missing: params/encoder/adapter_0(.|\n)*--init.new PATTERN"):
        tune(pretrained, manifest, tmp_path / "run", "--model.encoder.num-adapters", "1")
    with pytest.raises(UserError, match=r"new: '\(' is not a regular expression"):
        tune(pretrained, manifest, tmp_path / "run", "--init.new", "(")
