"""No command replaces one of its inputs by its output, also with --force."""

import importlib

import pytest

from asr_jax.core.errors import UserError


@pytest.mark.parametrize(
    "command",
    [
        "evaluate RUN --data A --json A",
        "evaluate RUN --data A --predictions A",
        "evaluate RUN --data B.safetensors --log-probs B.safetensors",
        "compare A A --json A",
        "convert A A --force",
        "transcribe RUN A --to-manifest A --force",
        "transcribe RUN A --out A --force",
        "align RUN --data A --out A --force",
        "align RUN --data A --segment --out new.jsonl --rejected A --force",
        "align RUN a.wav --text A --out A --force",
        "tokenizer --input A --corpus-output A",
        "extract_features RUN --input A --output A --force",
    ],
)
def test_an_output_that_is_an_input_is_refused(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "RUN").mkdir()
    line = '{"audio_path": "a.wav", "text": "one two", "duration": 1.0}\n'
    for name in ("a.jsonl", "B.safetensors"):
        (tmp_path / name).write_text(line)
    name, *arguments = [{"A": "a.jsonl"}.get(word, word) for word in command.split()]
    with pytest.raises(UserError, match="is also an input of this command"):
        importlib.import_module(f"asr_jax.cli.{name}").main(arguments)
    assert (tmp_path / "a.jsonl").read_text() == line
