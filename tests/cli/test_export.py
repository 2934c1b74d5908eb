"""`python -m asr_jax.export`, and the attention context that commands choose."""

from dataclasses import replace
from pathlib import Path

import pytest
from exporting.small_models import MODELS, STREAMING
from exporting.untrained import untrained, write_run

import asr_jax
from asr_jax.cli import export
from asr_jax.cli.recognition_options import RecognitionOptions, load
from asr_jax.core.errors import UserError
from asr_jax.models.encoder import Context


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(untrained(MODELS["quartznet"]), tmp_path_factory.mktemp("runs") / "run")


def test_a_run_is_written_and_described(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    export.main([str(run), "--to", "onnx", "--out", str(tmp_path / "out"), "--weights", "f32", "f16"])
    first, *files = capsys.readouterr().out.splitlines()
    assert first == "tried with noise of 3 s, because no recording was found"
    assert [line.partition(":")[0] for line in files] == ["model.onnx", "model.f16.onnx"]
    assert "largest difference" in files[0]
    assert "the best label differs in" in files[1]


def test_from_python(run: Path, tmp_path: Path) -> None:
    [line] = asr_jax.load(run).export(tmp_path / "weights.safetensors", to="safetensors")
    assert "weights of checkpoint 0" in line
    with pytest.raises(UserError, match=r'the run computes in bf16, and files compute in f32: .* precision="f32"'):
        asr_jax.load(run, precision="bf16").export(tmp_path / "out", to="onnx")


@pytest.mark.slow
def test_a_context_is_chosen_and_one_that_the_model_cannot_have_is_refused(run: Path, tmp_path: Path) -> None:
    streaming = write_run(untrained(STREAMING["streaming_conformer"]), tmp_path / "streaming")
    trained = load(streaming, RecognitionOptions(chunk_frames=4, left_frames=8))
    assert trained.model.encoder.settings.contexts == (Context(4, 8),)
    assert trained.description()["context"] == {"chunk_frames": 4, "left_frames": 8}
    assert "context" not in load(streaming, RecognitionOptions(chunk_frames=0)).description()
    with pytest.raises(UserError, match="--left-frames is 8: expected --chunk-frames too"):
        load(streaming, RecognitionOptions(left_frames=8))
    zipformer = MODELS["zipformer"]
    causal = replace(zipformer, encoder=replace(zipformer.encoder, causal=True))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"chunk_frames is 7: expected a multiple of .*; choose another number"):
        causal.with_context(Context(7))
    with pytest.raises(UserError, match=r"left_frames is 20: expected a multiple of chunk_frames, 16; choose another"):
        causal.with_context(Context(16, 20))
    with pytest.raises(UserError, match=r"chunk_frames is 16: expected None without causal; .* remove --chunk-frames"):
        zipformer.with_context(Context(16))
    with pytest.raises(UserError, match="QuartzNet has no contexts of attention: remove --chunk-frames"):
        export.main([str(run), "--to", "onnx", "--out", str(tmp_path / "out"), "--chunk-frames", "8"])
