import ast
import dataclasses
import importlib
import inspect
import itertools
import pkgutil
import re
import sys
from typing import get_type_hints

import pytest

import asr_jax.cli
from asr_jax.cli import evaluate, report, serve, watch
from asr_jax.core.flags import field_texts, flags_of
from asr_jax.core.help import show_help
from asr_jax.core.options import parse
from asr_jax.core.settings import _has_paths

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


@pytest.mark.parametrize(("command", "has_devices"), [(serve, True), (watch, False), (report, False)])
def test_flags_of_devices_are_listed_where_they_are_used(command, has_devices, capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    assert ("--devices" in capsys.readouterr().out) == has_devices


def marked(kind):
    """Fields of settings or options whose texts are about paths, and whether their types say so."""
    plain, hints, texts = get_type_hints(kind), get_type_hints(kind, include_extras=True), field_texts(kind)
    words = re.compile(r"\b(paths?|folders?|files?|manifests?)\b", re.IGNORECASE)
    of_text = [name for name in hints if name in texts and re.search(r"\bstr\b", str(plain[name]))]
    return {name: _has_paths(hints[name]) for name in of_text if words.search(texts[name])}


def test_every_path_of_options_and_settings_is_marked_as_one():
    """Otherwise `~` in it would not be the home folder, and a run would keep it relative."""
    modules = [module for name, module in sys.modules.items() if name.startswith("asr_jax.")]
    kinds = {each for module in modules for each in vars(module).values() if dataclasses.is_dataclass(each)}
    of_settings = [kind for kind in kinds if isinstance(kind, type) and hasattr(kind, "__post_init__")]
    found = {f"{kind.__name__}.{name}": is_path for kind in of_settings for name, is_path in marked(kind).items()}
    unmarked = {name for name, is_path in found.items() if not is_path and not name.endswith("Options.job")}
    assert unmarked <= {
        "CompareOptions.normaliser", "Experiment.name", "ImportOptions.sha256", "Init.new", "LoRA.kernels",
        "Saving.best_of", "Stream.shards", "TokenizerOptions.model_prefix", "Training.profile_processes"
    }  # fmt: skip
    assert sum(found.values()) >= 25
    for kind in kinds:  # options whose paths nothing would resolve
        if isinstance(kind, type) and kind.__name__.endswith("Options") and kind not in of_settings:
            assert not any("Path" in str(hint) for hint in get_type_hints(kind).values()), kind


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
