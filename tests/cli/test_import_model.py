"""A published model as a run: every command takes it, and takes the model's own file, which it imports into the cache.

tests/goldens/test_published_models.py compares the texts and log-probabilities of each format with those of its system.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

import asr_jax
from asr_jax.audio.io import write_flac
from asr_jax.checkpoints.store import restore_meta
from asr_jax.cli import average, evaluate, export, extract_features, import_model, train, transcribe
from asr_jax.config import load_experiment, model_of, tokenizer_of
from asr_jax.core.errors import UserError
from asr_jax.core.pytrees import flatten
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference import aligning, importing
from asr_jax.inference import trained as trained_module
from asr_jax.inference.importing import run_and_checkpoint
from asr_jax.inference.trained import load_trained
from asr_jax.models.encoder import Context
from asr_jax.models.zipformer import Zipformer
from asr_jax.pretrained.published import read_published
from asr_jax.training.initial_weights import read_initial_weights

CASES = Path(__file__).parents[1] / "goldens" / "published"
SOURCE = CASES / "hf_parakeet"
"""The model whose programs compile fastest."""


@pytest.fixture(scope="module")
def audio(tmp_path_factory: pytest.TempPathFactory) -> Path:
    samples = np.random.default_rng(0).normal(0, 3000, 16000).clip(-32768, 32767).astype(np.int16)
    path = tmp_path_factory.mktemp("audio") / "noise.flac"
    write_flac(path, samples, 16000)
    return path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "run"
    import_model.main([str(SOURCE), "--out", str(run)])
    return run


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module in (importing, trained_module):
        monkeypatch.setattr(module, "CACHES", str(tmp_path / "cache"))
    return tmp_path / "cache" / "imported"


def text_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    transcribe.main(list(arguments))
    return capsys.readouterr().out.strip().rpartition("\t")[2]


def test_a_run_without_training(run: Path) -> None:
    trained, published = load_trained(run), read_published(SOURCE)
    assert (trained.updates, trained.weights) == (0, "live")
    assert trained.tokenizer == published.tokenizer
    found = flatten(trained.variables)
    assert found.keys() == published.weights.keys()
    for path, array in published.weights.items():
        np.testing.assert_array_equal(found[path], array)
    experiment = load_experiment(run / "experiment.json")
    assert (experiment.data.train, experiment.init.path) == ((), str(SOURCE))
    assert (experiment.training.num_updates, experiment.training.num_epochs) == (0, 0)
    assert restore_meta(run / "checkpoints", 0)["source"] == str(SOURCE)
    assert (trained.longest_s, trained.limits.seconds) == (30.0, 240.0)  # on four devices


@pytest.mark.slow
def test_a_run_with_a_context_of_attention(tmp_path: Path) -> None:
    source = str(CASES / "icefall_training" / "model.pt")
    with pytest.raises(UserError, match="--left-frames is 64: expected --chunk-frames too"):
        import_model.main([source, "--out", str(tmp_path / "run"), "--left-frames", "64"])
    import_model.main([source, "--out", str(tmp_path / "run"), "--chunk-frames", "16", "--left-frames", "64"])
    encoder = load_experiment(tmp_path / "run" / "experiment.json").model.encoder
    assert isinstance(encoder, Zipformer)
    assert encoder.contexts == (Context(16, 64),)


def test_commands_take_the_run_and_the_file(
    run: Path, audio: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = text_of(capsys, str(run), str(audio))
    assert text
    assert text_of(capsys, str(SOURCE), str(audio), "--live") == text
    (imported,) = cache.glob("*/*")
    assert imported.name == "hf_parakeet"
    assert asr_jax.load(SOURCE).transcribe(str(audio)).text == text
    (tmp_path / "m.jsonl").write_text(json.dumps({"audio_path": str(audio), "text": text}))
    evaluate.main([str(SOURCE), "--data", str(tmp_path / "m.jsonl"), "--json", str(tmp_path / "out.json")])
    (result,) = json.loads((tmp_path / "out.json").read_text())["runs"]
    assert (result["run"], result["checkpoint"], result["normaliser"]) == (str(SOURCE), 0, "lower.v1")
    assert result["sets"][str(tmp_path / "m.jsonl")]["wer"] == 0
    assert [path.name for path in cache.glob("*/*")] == ["hf_parakeet"]


def test_a_text_with_the_unknown_label_is_not_aligned(run: Path, audio: Path) -> None:
    texts = {"known": "the noise", "unknown": "a box of keys"}
    utterances = Utterances.of([Utterance(name, str(audio), text, 1.0) for name, text in texts.items()])
    data = aligning.plan(load_trained(run), utterances)
    assert [each.id for each in data.index.utterances] == ["known"]
    (rejected,) = data.rejections.entries
    assert (rejected.id, rejected.reason) == (
        "unknown", "'bfkxy' has no labels: expected a text in characters of the vocabulary"
    )  # fmt: skip


@pytest.mark.slow
def test_layers_of_an_encoder_alone(audio: Path, cache: Path, tmp_path: Path) -> None:
    shutil.copytree(CASES / "hf_w2v_bert", tmp_path / "encoder")
    config = json.loads((tmp_path / "encoder" / "config.json").read_text())
    (tmp_path / "encoder" / "config.json").write_text(json.dumps({**config, "architectures": ["Wav2Vec2BertModel"]}))
    given = ["--input", str(audio), "--output", str(tmp_path / "f.parquet")]
    extract_features.main([str(tmp_path / "encoder"), "--layer", "output", *given])
    assert pyarrow.parquet.read_table(tmp_path / "f.parquet").num_rows == 1
    with pytest.raises(UserError, match=r"none of its heads \(\) is a recognising head"):
        transcribe.main([str(tmp_path / "encoder"), str(audio)])


def test_average_and_export_write_what_was_imported(run: Path, tmp_path: Path) -> None:
    export.main([str(run), "--to", "huggingface", "--out", str(tmp_path / "w.safetensors")])
    average.main([str(run), "--out", str(tmp_path / "again")])
    before, after = (flatten(load_trained(each).variables) for each in (run, tmp_path / "again"))
    assert all(np.array_equal(after[path], array) for path, array in before.items())


def test_a_changed_file_is_imported_again(cache: Path, tmp_path: Path) -> None:
    shutil.copytree(SOURCE, tmp_path / "model")
    first, _ = run_and_checkpoint(tmp_path / "model")
    assert run_and_checkpoint(tmp_path / "model")[0] == first
    config = tmp_path / "model" / "processor_config.json"
    config.write_text(config.read_text() + "\n")
    second, _ = run_and_checkpoint(tmp_path / "model")
    assert second != first
    assert [*cache.glob("*/*")] == [second]


def test_other_files_in_the_folder_of_a_file_change_nothing(cache: Path, tmp_path: Path) -> None:
    shutil.copy(CASES / "nemo_fastconformer" / "model.nemo", tmp_path)
    first, _ = run_and_checkpoint(tmp_path / "model.nemo")
    (tmp_path / "other.txt").write_text("x")
    assert run_and_checkpoint(tmp_path / "model.nemo") == (first, None)


def test_an_imported_model_is_not_trained_further(run: Path) -> None:
    with pytest.raises(UserError, match=r"is an imported model, .* with --init-from .* and another --run-dir"):
        train.main(["--run-dir", str(run), "--data.train", "x.jsonl"])
    with pytest.raises(UserError, match=r"are both 0: expected one of them(.|\n)*python -m asr_jax.import SOURCE"):
        train.main(["--config", "tests/toy_config.py", "--training.num-updates", "0"])


def test_configs_take_sizes_weights_and_tokenizer_of_the_run(run: Path) -> None:
    encoder, front_end = model_of(str(SOURCE)) or (None, None)
    assert model_of(str(run)) == (encoder, front_end)
    assert tokenizer_of(str(run)) == str(run / "tokenizer")
    assert (tokenizer_of(str(SOURCE)), tokenizer_of("")) == (str(SOURCE), "")
    experiment = asr_jax.load_config("configs/fastconformer_finetune.py", init_from=str(run))
    assert (experiment.model.encoder, experiment.model.front_end) == (encoder, front_end)
    trained = load_trained(run)
    given = read_initial_weights(experiment, trained.tokenizer, trained.variables)
    assert (given.account.missing, given.account.unused, given.account.kept_rows) == ([], [], {})


@pytest.mark.parametrize("file", ["", "config.json"])
def test_sizes_of_settings_without_weights(tmp_path: Path, file: str) -> None:
    shutil.copy(SOURCE / "config.json", tmp_path)
    experiment = asr_jax.load_config("configs/fastconformer_finetune.py", init_from=str(tmp_path / file))
    assert experiment.model.encoder == (model_of(str(SOURCE)) or (None,))[0]
    given = read_initial_weights(experiment, read_published(SOURCE).tokenizer, {})
    assert (
        given.account.lines()[1].strip()
        == "there are no weights at this path, only settings: all parameters are random"
    )
    (tmp_path / "model.safetensors.index.json").write_text("{}")  # of weights that are not complete
    if not file:
        with pytest.raises(UserError, match="and no weights"):
            read_initial_weights(experiment, read_published(SOURCE).tokenizer, {})


def test_wrong_arguments(run: Path, tmp_path: Path) -> None:
    for arguments, message in (
        ([str(SOURCE), "--out", str(run)], "run already exists: choose another --out"),
        ([str(tmp_path), "--out", str(tmp_path / "x")], "is not a published model"),
        ([str(CASES / "icefall"), "--out", str(tmp_path / "x")], r"expected the path of the file, such as .*model\.pt"),
        ([str(SOURCE / "config.json"), "--out", str(tmp_path / "x")], r"no weights(.|\n)*--init-from"),
        ([str(SOURCE), "--out", str(tmp_path / "x"), "--model.dim", "3"], "--model.dim is not a flag"),
        ([str(SOURCE), "--out", str(tmp_path / "x"), "--normaliser", "low"], "unknown normaliser 'low'"),
        ([str(SOURCE), "--out", str(tmp_path / "x"), "--front-end", "nmo"], "unknown front-end 'nmo'(.|\n)*'nemo'"),
    ):
        with pytest.raises(UserError, match=message):
            import_model.main(arguments)
    assert not (tmp_path / "x").exists()
