"""`python -m asr_jax` lists every command and runs them."""

import subprocess
import sys
from pathlib import Path

import pytest

import asr_jax
from asr_jax.cli.commands import COMMANDS, listing, run

PACKAGE = Path(asr_jax.__file__).parent


def test_every_command_is_listed():
    modules = {path.stem for path in PACKAGE.glob("*.py") if "run_command(main)" in path.read_text()}
    assert set(COMMANDS) == modules
    assert len(listing().splitlines()) == len(COMMANDS)


def test_without_arguments_the_list_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["asr-jax"])
    run()
    assert "transcribe" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["asr-jax", "pln"])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert "pln is not a command; did you mean 'plan'?" in capsys.readouterr().err


def test_a_command_is_run():
    command = [sys.executable, "-m", "asr_jax", "convert", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "python -m asr_jax.convert" in done.stdout
