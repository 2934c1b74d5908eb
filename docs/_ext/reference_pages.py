"""Pages of the reference from the code: options of each command, fields of each setting, and functions of modules."""

import dataclasses
import importlib
import pkgutil
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from markdown_text import code, definitions, markdown, table, toctree

from asr_jax.cli.command_line import flags_of_experiment, load_config
from asr_jax.cli.commands import COMMANDS
from asr_jax.config import Experiment
from asr_jax.core.flags import MISSING, DeviceOptions, Flag, field_texts, flags_of
from asr_jax.core.settings import Range

ROOT = Path(__file__).resolve().parent.parent.parent
WITH_SETTINGS = ("audio", "data.batching", "heads", "models", "nn", "optim", "search", "text", "losses", "pretrained")
"""Packages with classes of settings."""
MODULES = {
    "Python": {"asr_jax.api": "load, load_config, train, Run, Stream, Transcript"},
    "Encoders": {"asr_jax.models.base": "Model, Recogniser", "asr_jax.models.encoder": ""},
    "Heads": {"asr_jax.heads.base": ""},
    "Losses": {
        f"asr_jax.losses.{name}": ""
        for name in ("ctc", "transducer", "pruned_transducer", "consistency", "contrastive", "cross_entropy")
    },
    "Values that modules exchange": {f"asr_jax.core.{name}": "" for name in ("batch", "sums", "timed_tokens")},
}
"""Modules for use and for extension, with the names that are described. Empty: all public ones."""
ABOUT_SETTINGS = """# Settings

A config returns an `Experiment`. Its fields are settings of the classes below, or numbers and texts. A flag of the
command line has the path of the field, such as `--optim.schedule.peak-lr 3e-4`. Values outside of their range are
refused.
"""


def pages() -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each page."""
    yield from of_commands()
    yield from of_settings()
    parts = ["# Python modules", "`asr_jax.load` and the other names of `asr_jax.api` are also in `asr_jax`."]
    for title, modules in MODULES.items():
        parts.append(f"## {title}")
        for module, names in modules.items():
            directive = f".. automodule:: {module}\n   :members: {names}"
            parts.append(f"### {module}\n\n```{{eval-rst}}\n{directive}\n```")
    yield "api.md", "\n\n".join(parts)


def of_commands() -> Iterator[tuple[str, str]]:
    parts = ["# Commands", "`python -m asr_jax.NAME`, or `asr-jax NAME`. All commands have the first two options."]
    rows = [[f"[{name}]({name}.md)", text] for name, text in COMMANDS.items()]
    parts += [options(flags_of(DeviceOptions)), table("command | ", rows), toctree(COMMANDS)]
    yield "commands/index.md", "\n\n".join(parts)
    for name in COMMANDS:
        command = importlib.import_module(importlib.import_module(f"asr_jax.{name}").main.__module__)
        parts = [f"# {name}", markdown(command.__doc__ or "")]
        for kind in options_of(command):
            parts.append(options(flags_of(kind)))
        for part in vars(command).values():  # of a command of commands: benchmark
            if getattr(part, "__package__", None) == command.__package__ and hasattr(part, "main"):
                parts += [f"## {part.__name__.rpartition('.')[2]}", markdown(part.__doc__ or "")]
                parts += [options(flags_of(kind)) for kind in options_of(part)]
        if name in ("train", "plan"):
            parts.append("Each field of a config is a flag too: see [settings](../settings/index.md).")
        yield f"commands/{name}.md", "\n\n".join(parts)


def options_of(module: Any) -> list[type]:
    """Classes of options that a module defines."""
    kinds = [each for each in vars(module).values() if isinstance(each, type) and dataclasses.is_dataclass(each)]
    return [each for each in kinds if each.__module__ == module.__name__ and each.__name__.endswith("Options")]


def options(flags: Sequence[Flag]) -> str:
    """A list of flags, positional and required ones first."""
    found = []
    for flag in sorted(flags, key=lambda flag: (not flag.is_positional, flag.value is not MISSING)):
        value = "" if flag.is_positional or flag.hint is bool else f" {flag.metavar}"
        names = ", ".join(code(f"{name}{value}") for name in (flag.name, *flag.aliases))
        is_none = any(flag.value is nothing for nothing in (None, False)) or flag.value in ("", ())
        found.append((names if is_none else f"{names}, {default(flag.value)}", markdown(flag.text)))
    return definitions(found)


def of_settings() -> Iterator[tuple[str, str]]:
    for package in WITH_SETTINGS:
        path = importlib.import_module(f"asr_jax.{package}").__path__
        for module in pkgutil.walk_packages(path, f"asr_jax.{package}."):
            importlib.import_module(module.name)
    places = places_in_configs()
    groups = defaultdict[str, list[type]](list)
    for kind in sorted(reachable(Experiment), key=lambda kind: (kind.__module__, kind.__name__)):
        if kind in places or not kind.__subclasses__():  # base classes have no settings of their own
            groups[kind.__module__.split(".")[1]].append(kind)
    names = {kind: f"{group}.md#{kind.__name__.lower()}" for group, kinds in groups.items() for kind in kinds}
    rows = [[f"[{kind.__name__}]({link})", code(kind.__module__), summary(kind)] for kind, link in names.items()]
    yield "settings/index.md", "\n\n".join([ABOUT_SETTINGS, table("class | module | ", sorted(rows)), toctree(groups)])
    for group, kinds in groups.items():
        parts = [f"# Settings of asr_jax.{group}"]
        for kind in kinds:
            parts += [f"## {kind.__name__}", code(f"{kind.__module__}.{kind.__name__}"), markdown(kind.__doc__ or "")]
            if any(places[kind]):
                parts.append(f"Flags in the configs: {', '.join(code(f'--{each}…') for each in sorted(places[kind]))}.")
            parts.append(fields(kind, names))
        yield f"settings/{group}.md", "\n\n".join(parts)


def places_in_configs() -> defaultdict[type, set[str]]:
    """Beginnings of the flags of each class of settings in the configs, such as `optim.schedule.`."""
    places = defaultdict[type, set[str]](set)
    for config in sorted((ROOT / "configs").glob("*.py")):
        for flag in flags_of_experiment(load_config(str(config))):
            path = re.sub(r"\.\d+(?=\.)", ".N", flag.name.removeprefix("--"))
            path = re.sub(r"(?<=heads\.)\w+", "NAME", path)
            places[flag.owner].add("".join(path.rpartition(".")[:2]))
    return places


def reachable(root: type) -> set[type]:
    """Dataclasses that the fields of a dataclass may have, at any depth, with their subclasses."""
    found, rest = set[type](), [root]
    while rest:
        kind = rest.pop()
        if kind in found:
            continue
        found.add(kind)
        for hint in get_type_hints(kind).values():
            rest += [part for part in parts_of(hint) if dataclasses.is_dataclass(part) and isinstance(part, type)]
        rest += kind.__subclasses__()
    return found


def parts_of(hint: Any) -> Iterator[Any]:
    yield hint
    for part in get_args(hint):
        yield from parts_of(part)


def fields(kind: Any, names: dict[type, str]) -> str:
    """A list of the fields of settings, with their types, ranges and defaults."""
    hints, texts, found = get_type_hints(kind, include_extras=True), field_texts(kind), []
    for field in dataclasses.fields(kind):
        term = f"{code(field.name)}: {described(hints[field.name], names)}, {default(initial(field))}"
        found.append((term, markdown(texts.get(field.name, ""))))
    return definitions(found) or "It has no fields."


def described(hint: Any, names: dict[type, str]) -> str:
    """The type of a field with its range, such as `int`, at least 1."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        ranges = [str(part) for part in parts[1:] if isinstance(part, Range)]
        return ", ".join([described(parts[0], names), *ranges])
    if origin is Literal:
        return " or ".join(code(part) for part in parts)
    if origin is tuple and parts[-1:] == (...,):
        return f"any number of {described(parts[0], names)}"
    if origin in (tuple, dict):
        return f"{origin.__name__} of " + ", ".join(described(part, names) for part in parts)
    if parts:
        return " or ".join(described(part, names) for part in parts)
    if hint is NoneType:
        return "`None`"
    name = getattr(hint, "__name__", str(hint))
    return f"[{name}]({names[hint]})" if hint in names else code(name)


def default(value: Any) -> str:
    if value is MISSING:
        return "required"
    if dataclasses.is_dataclass(value):
        given = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        changed = [f"{f.name}={given[f.name]!r}" for f in dataclasses.fields(value) if given[f.name] != initial(f)]
        value = f"{type(value).__name__}({', '.join(changed)})"
    return f"default {'empty' if value in ('', ()) else code(value)}"


def initial(field: dataclasses.Field[Any]) -> Any:
    """Default of a field; MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def summary(kind: type) -> str:
    return markdown(" ".join((kind.__doc__ or "").split("\n\n")[0].split()))
