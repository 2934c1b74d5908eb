"""Reads the sources of a migration: shell scripts, YAML files, and a command line."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from asr_jax.core.errors import UserError
from asr_jax.core.flags import is_flag
from asr_jax.core.text_files import read_text
from asr_jax.migration.rows import Read, plain, short
from asr_jax.migration.shell import Shell

DEFAULT, SCRIPT, FILE, VARIABLE, FLAG = range(5)
"""Origins of values; later ones replace earlier ones."""


class Value(NamedTuple):
    """A value of another system."""

    name: str
    """As written."""
    value: Any
    origin: int
    path: Path | None = None
    """File of the value, if it is a YAML file."""

    def __str__(self) -> str:
        shown = "" if self.value is True and self.origin == FLAG else f"={short(self.value)}"
        return f"{self.name}{shown}" + " by default" * (self.origin == DEFAULT)

    def read(self, how: Read) -> Any:
        """Returns the converted value.

        Raises:
            UserError: If the conversion fails.
        """
        try:
            return how(self.value)
        except ValueError as error:
            raise UserError(f"{self}: {error}") from error


@dataclass
class Sources:
    """Content of the sources."""

    shell: Shell = field(default_factory=Shell)
    values: list[Value] = field(default_factory=list)
    texts: str = ""
    """All texts, in which the marks of the systems are looked for."""


def read_sources(sources: Sequence[str], command: Sequence[str]) -> Sources:
    """Reads files and a command line.

    Args:
        sources: Shell scripts and YAML files.
        command: Command line in words, such as `LR=1 bash scripts/train.sh`, or in one text.

    Raises:
        UserError: If a file does not exist or cannot be read.
    """
    found, files = Sources(), [Path(source) for source in sources]
    for path in files:
        if not path.is_file():
            raise UserError(
                f"{path} does not exist: expected a shell script or a YAML file, or a command line after --"
            )
        found.texts += f"{path}\n{read_text(path)}\n"
    words = shlex.split(command[0], comments=True) if len(command) == 1 else list(command)
    found.texts += shlex.join(words)
    assigned = [word for word in words if re.match(r"[A-Z_]\w*=", word)]
    called = [word for word in words if word not in assigned]
    given = dict(word.split("=", 1) for word in assigned)
    scripts = [path for path in files if not _is_yaml(path)]
    shell = found.shell
    shell.variables |= given
    shell.folders += [path.absolute().parent for path in files]
    script = next((word for word in called if word.endswith(".sh")), "")
    if len(scripts) == 1 and Path(script).name == scripts[0].name:  # the command calls the given script
        called[called.index(script)] = str(scripts.pop())
    for path in scripts:
        shell.run_file(path, [])
    if called:
        shell.run([word if is_flag(word) else shlex.quote(word) for word in called])
    variables = [Value(*item, VARIABLE if item[0] in given else SCRIPT) for item in shell.variables.items()]
    found.values = [*variables, *arguments_of(shell.arguments)]
    for path in _yaml_files(found, files):
        found.values += [Value(key, value, FILE, path) for key, value in read_yaml(path).items()]
        found.texts += f"\n{read_text(path)}" * (path not in files)
    return found


def _is_yaml(path: Path | str) -> bool:
    return str(path).endswith((".yaml", ".yml"))


def _yaml_files(found: Sources, files: Sequence[Path]) -> list[Path]:
    """Returns the YAML files that are given, or that flags name; a file that is not there is a note."""
    paths = [path for path in files if _is_yaml(path)]
    folder = next((str(each.value) for each in found.values if plain(each.name) == "--config_path"), "")
    for each in found.values:
        name = str(each.value)
        if plain(each.name) == "--config_name":
            name = str(Path(folder) / name) + ".yaml" * (not _is_yaml(name))
        if not _is_yaml(name) or any(Path(name).name == path.name for path in paths):
            continue
        if path := found.shell.find(name):
            paths.append(path)
        else:
            found.shell.notes.append(
                f"{name} was not found: the settings of the recipe are used instead; add the file to the sources"
            )
    return paths


def arguments_of(arguments: Sequence[str]) -> Iterator[Value]:
    """Yields flags with their values, and settings as in Hydra: model.optim.lr=1e-4."""
    rest = list(arguments)
    while rest:
        name, equals, value = rest.pop(0).partition("=")
        if not is_flag(name):
            if equals:
                yield Value(name.lstrip("+~"), yaml.safe_load(value), FLAG)
            continue
        values = [value] if equals else []
        while rest and not equals and not is_flag(rest[0]) and not re.match(r"[+~]{0,2}[a-z]\w*\.[\w.]*=", rest[0]):
            values.append(rest.pop(0))
        if plain(name) == "--override_config":
            key, _, value = (values or [rest.pop(0)])[0].partition("=")
            yield Value(key, yaml.safe_load(value), FLAG)
        else:
            yield Value(name, values if len(values) > 1 else values[0] if values else True, FLAG)


def read_yaml(path: Path) -> dict[str, Any]:
    """Returns the values of a YAML file by dotted keys; references as ${model.sample_rate} are resolved.

    Raises:
        UserError: If it is no YAML with a mapping.
    """
    try:
        tree = yaml.safe_load(read_text(path).replace("!!merge ", ""))
    except yaml.YAMLError as error:
        raise UserError(f"{path} cannot be read: {error}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{path} contains no mapping: expected a YAML file of settings")

    def resolved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: resolved(each) for key, each in value.items()}
        if isinstance(value, list):
            return [resolved(each) for each in value]
        if isinstance(value, str) and (found := re.fullmatch(r"\$\{([\w.]+)\}", value)):
            target: Any = tree
            for part in found[1].split("."):
                target = target.get(part) if isinstance(target, dict) else None
            return resolved(target)
        return value

    return dict(_flat(resolved(tree)))


def _flat(tree: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
