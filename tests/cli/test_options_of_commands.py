import ast
import dataclasses
import importlib
import inspect
import itertools
import pkgutil

import pytest

import asr_jax.cli
from asr_jax.cli import evaluate
from asr_jax.core.options import parse, print_help

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
    print_help(kind, prog="it", about="")
    shown = " ".join(capsys.readouterr().out.split())
    assert "(default: None)" not in shown
    assert "(default: '')" not in shown
    assert "(default: )" not in shown


def test_help_on_a_word_has_the_options_with_it(capsys):
    for word, flags in (("worst", ["--alignment", "--worst"]), ("checkpoint", ["RUN …", "--checkpoint"])):
        with pytest.raises(SystemExit):
            parse(evaluate.EvaluateOptions, ["--help", word], prog="it", about="  --decoding.kind beam")
        lines = capsys.readouterr().out.splitlines()
        assert sorted(line.strip() for line in lines if not line.startswith("   ")) == sorted(flags)
    with pytest.raises(SystemExit):
        parse(evaluate.EvaluateOptions, ["--help", "umlaut"], prog="it", about="")
    assert capsys.readouterr().out == "no option has 'umlaut' in its name or text\n"


def test_commands_have_one_parser():
    for module in MODULES:
        assert "argparse" not in vars(importlib.import_module(module)), module
