"""`python -m asr_jax` lists every command and runs them."""

import importlib
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import jax
import pytest

import asr_jax
from asr_jax.cli.commands import COMMANDS, listing, run

PACKAGE = Path(asr_jax.__file__).parent


def test_every_command_is_listed():
    modules = {path.stem for path in PACKAGE.glob("*.py") if "run_command(main" in path.read_text()}
    assert set(COMMANDS) == {*modules, "observe.health", "observe.curves", "observe.forward", "observe.profile"}
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


def test_the_console_command_runs_them():
    scripts = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, function = scripts["asr-jax"].partition(":")
    assert getattr(importlib.import_module(module), function) is run


def test_a_command_can_import_modules_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["asr-jax", "plan"])
    found = []
    monkeypatch.setattr(runpy, "run_module", lambda *given, **options: found.append(sys.path[0]))
    run()
    assert found == [str(tmp_path)]


def test_the_versions(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["asr-jax", "--version"])
    run()
    versions = capsys.readouterr().out
    assert versions.startswith(f"asr-jax {asr_jax.__version__}, jax {jax.__version__}, ")


def test_a_command_is_run():
    command = [sys.executable, "-m", "asr_jax", "convert", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "python -m asr_jax.convert" in done.stdout
