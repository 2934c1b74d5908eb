import ast
import dataclasses
import importlib
import inspect
import itertools
import pkgutil

import pytest

import asr_jax.cli
from asr_jax.cli import evaluate
from asr_jax.core.flags import flags_of
from asr_jax.core.help import show_help
from asr_jax.core.options import parse

MODULES = [module.name for module in pkgutil.walk_packages(asr_jax.cli.__path__, "asr_jax.cli.") if not module.ispkg]


def options_of(module):
    """Classes of options that the module of a command defines."""
    found = vars(importlib.import_module(module)).values()
    return [each for each in found if isinstance(each, type) and each.__module__ == module and is_options(each)]


def is_options(kind):
    return dataclasses.is_dataclass(kind) and kind.__name__.endswith("Options")


@pytest.mark.parametrize("kind", [kind for module in MODULES for kind in options_of(module)])
def test_every_option_has_a_help_text(kind, capsys):
    [of_class] = ast.parse(inspect.getsource(kind)).body
    for field, text in itertools.pairwise([*of_class.body, None]):
        if isinstance(field, ast.AnnAssign):
            assert isinstance(text, ast.Expr), ast.unparse(field)
    flags = flags_of(kind)
    assert all(flag.text for flag in flags)
    with pytest.raises(SystemExit):
        show_help(["--help"], flags, prog="it", about="")
    shown = " ".join(capsys.readouterr().out.split())
    assert not any(nothing in shown for nothing in ("[None]", "['']", "[]"))


def test_help_on_a_word_has_the_options_with_it(capsys):
    for word, flags in (("worst", ["--alignment", "--worst"]), ("checkpoint", ["RUN", "--checkpoint"])):
        with pytest.raises(SystemExit):
            parse(evaluate.EvaluateOptions, ["--help", word], prog="it", about="  --decoding.kind beam")
        lines = capsys.readouterr().out.splitlines()
        assert sorted(line[2:].split("  ")[0].partition(" ")[0] for line in lines if line[2] != " ") == sorted(flags)
    with pytest.raises(SystemExit):
        parse(evaluate.EvaluateOptions, ["--help", "umlaut"], prog="it", about="")
    assert capsys.readouterr().out == "no flag has 'umlaut' in its name or text\n"


def test_commands_have_one_parser():
    for module in MODULES:
        assert "argparse" not in vars(importlib.import_module(module)), module
