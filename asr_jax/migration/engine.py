"""Migration: reads scripts, command lines and YAML files of another system, and makes an experiment of them."""

import dataclasses
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import yaml

from asr_jax.config import Experiment
from asr_jax.core.errors import UserError, nearest
from asr_jax.core.flags import is_flag
from asr_jax.core.text_files import read_text
from asr_jax.migration.rows import EMPTY, Absent, Elsewhere, NotNeeded, Part, Table, To, is_off, number, plain, row_of
from asr_jax.migration.shell import Shell

OF_EVERY_SYSTEM = Table({
    "OMP_NUM_THREADS CUDNN_V8_API_ENABLED TORCH_CUDNN_V8_API_ENABLED NCCL_DEBUG PYTHONPATH":
        NotNeeded("XLA and NumPy need no such variables"),
    "CUDA_VISIBLE_DEVICES": Elsewhere("train --devices"),
    "--help": Elsewhere("train --help"),
    "DISTRIBUTED --local_rank --nproc_per_node": NotNeeded("one process uses all devices (docs/several-machines.md)"),
})  # fmt: skip
LONGEST = 200
"""Characters of a value in comments."""
DEFAULT, SCRIPT, FILE, VARIABLE, FLAG = range(5)
"""Origins of values; later ones replace earlier ones."""


class Change(NamedTuple):
    """A setting that `derive` computes."""

    field: str
    """Dotted name, as in `To.field`."""
    value: Any
    names: tuple[str, ...] = ()
    """First names of the rows from whose values it is computed."""
    by: str = " × "
    """Text between the values in the comment."""
    shown: tuple[str, ...] | None = None
    """Names of the values that the comment has. None: all of `names`."""


class Program(NamedTuple):
    """A script or a program of a system."""

    pattern: str
    """Regular expression for the end of its path."""
    defaults: Mapping[str, Any] = MappingProxyType({})
    """Values of names that are not given."""
    command: str = ""
    """Command of this package that does the same, for a program that does not train."""
    table: Table = EMPTY
    """Rows that differ from the system's."""


class System(NamedTuple):
    """Another system."""

    name: str
    title: str
    mark: str
    """Regular expression that finds a text of this system."""
    table: Table
    recipe: "Callable[[Given], str]"
    """Returns the name of the config that the migration begins with."""
    derive: "Callable[[Given, Experiment], Iterator[Change | str]]"
    """Yields settings that depend on several values, and sentences on what differs."""
    programs: tuple[Program, ...] = ()


@dataclass
class Value:
    """A value of another system."""

    name: str
    """As written."""
    value: Any
    origin: int

    def __str__(self) -> str:
        shown = "" if self.value is True and self.origin == FLAG else f"={_short(self.value)}"
        return f"{self.name}{shown}" + " by default" * (self.origin == DEFAULT)


class Given:
    """Values of another system by the first names of their rows."""

    def __init__(self, values: dict[str, Value]) -> None:
        self.values = values
        self.asked = set[str]()
        """Names whose values were asked for."""

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return self.values[name].value if name in self.values else default

    def number(self, name: str, default: float = 0) -> Any:
        """Returns a value as a number.

        Raises:
            UserError: If it is none.
        """
        return self.read(name, number, default)

    def read(self, name: str, how: Callable[[Any], Any], default: Any = None) -> Any:
        """Returns a converted value.

        Raises:
            UserError: If the conversion fails.
        """
        try:
            return how(self.get(name)) if name in self.values else default
        except ValueError as error:
            raise UserError(f"{self.values[name]}: {error}") from error

    def is_explicit(self, name: str) -> bool:
        """Whether a value is given, and not a default."""
        return name in self.values and self.values[name].origin > DEFAULT

    def said(self, names: Sequence[str], by: str = " × ") -> str:
        """Returns a comment with the values; keys of YAML files are without their first parts."""
        found = [self.values[name] for name in names if name in self.values]
        return by.join(str(replace(each, name=".".join(each.name.split(".")[-2:]))) for each in found)


class Line(NamedTuple):
    """A line of the report."""

    given: str
    kind: str
    result: str


@dataclass
class Migration:
    """Result of a migration."""

    system: System
    recipe: str
    """Name of the config that it began with; empty if the program does not train."""
    experiment: Experiment | None
    comments: dict[str, str]
    """Comments by the dotted names of the settings."""
    lines: list[Line]
    differs: list[str]
    """Sentences on what differs."""
    command: str = ""


@dataclass
class Read:
    """Content of the sources."""

    programs: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    texts: str = ""
    """All texts, in which the marks of the systems are looked for."""
    used: set[str] = field(default_factory=set)
    """Variables that only help others."""


def read_sources(sources: Sequence[str], command: Sequence[str]) -> Read:
    """Reads files and a command line.

    Args:
        sources: Shell scripts and YAML files.
        command: Command line in words, such as `LR=1 bash scripts/train.sh`.

    Raises:
        UserError: If a file does not exist or cannot be read.
    """
    found, shell = Read(), Shell()
    command = shlex.split(command[0]) if len(command) == 1 else command
    given = [words for words in command if re.match(r"[A-Z_]\w*=", words)]
    commands = [word for word in command if word not in given] if command else []
    for each in given:
        name, _, value = each.partition("=")
        shell.variables[name] = value
        shell.given.add(name)
    files = [Path(source) for source in sources]
    for path in files:
        if not path.is_file():
            raise UserError(
                f"{path} does not exist: expected a shell script or a YAML file, or a command line after --"
            )
        found.texts += f"{path}\n{read_text(path)}\n"
    scripts = [path for path in files if path.suffix not in (".yaml", ".yml")]
    shell.folders += [path.absolute().parent for path in files]
    named = [word for word in commands if word.endswith(".sh")]
    if len(scripts) == 1 and named and Path(named[0]).name == scripts[0].name:  # the command calls the given script
        place = commands.index(named[0])
        commands[place] = str(scripts.pop())
    for path in scripts:
        shell.run_file(path, [])
    if commands:
        shell.run([shlex.quote(word) if not is_flag(word) else word for word in commands])
    found.texts += shlex.join(command)
    found.programs, found.notes, found.used = shell.programs, shell.notes, shell.used
    for name, value in shell.variables.items():
        origin = VARIABLE if name in shell.given else SCRIPT
        found.values.append(Value(name, value, origin))
    found.values += list(arguments_of(shell.arguments))
    for path in _yaml_files(found, files, shell):
        found.values = [Value(key, value, FILE) for key, value in read_yaml(path).items()] + found.values
        found.texts += f"\n{read_text(path)}" * (path not in files)
    return found


def _yaml_files(found: Read, files: Sequence[Path], shell: Shell) -> list[Path]:
    """Returns the YAML files that are given, or that flags name; a file that is not there is a note."""
    paths = [path for path in files if path.suffix in (".yaml", ".yml")]
    folder = next((str(each.value) for each in found.values if plain(each.name) == "--config_path"), "")
    for each in found.values:
        name = str(each.value)
        if plain(each.name) == "--config_name":
            name = str(Path(folder) / name) + ".yaml" * (not name.endswith(".yaml"))
        elif not name.endswith((".yaml", ".yml")):
            continue
        if any(Path(name).name == path.name for path in paths):
            continue
        if path := shell.find(name):
            paths.append(path)
        elif name.endswith((".yaml", ".yml")):
            found.notes.append(
                f"{name} was not found: the settings of the recipe are used instead; add the file to the sources"
            )
    return list(dict.fromkeys(paths))


def arguments_of(arguments: Sequence[str]) -> Iterator[Value]:
    """Yields flags with their values, and settings as in Hydra: model.optim.lr=1e-4."""
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if is_flag(word):
            name, equals, value = word.partition("=")
            values = [value] if equals else []
            while (
                rest and not equals and not is_flag(rest[0]) and not re.match(r"[+~]{0,2}[a-z][\w.]*\.[\w.]*=", rest[0])
            ):
                values.append(rest.pop(0))
            if plain(name) == "--override_config":
                key, _, value = (values or [rest.pop(0)])[0].partition("=")
                yield Value(key, yaml.safe_load(value), FLAG)
            else:
                yield Value(name, values if len(values) > 1 else values[0] if values else True, FLAG)
        elif found := re.fullmatch(r"[+~]{0,2}([A-Za-z_][\w.]*)=(.*)", word, re.DOTALL):
            yield Value(found[1], yaml.safe_load(found[2]), FLAG)
        else:
            yield Value("--program", word, FLAG)


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
        place = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from _flat(value, f"{place}.")
        else:
            yield place, value


def migrate(
    system: System, read: Read, *, load: Callable[[str], Experiment], ignore_unknown: bool = False
) -> Migration:
    """Returns the experiment that the sources describe.

    Args:
        load: Returns the experiment of a config of this package, given its name.
        ignore_unknown: Whether names without a row are only reported.

    Raises:
        UserError: If a name has no row, a value cannot be converted, or the settings do not fit each other.
    """
    called = [
        each for path in reversed(read.programs) for each in system.programs if re.search(f"({each.pattern})$", path)
    ]
    if read.programs and system.programs and not called:
        known = ", ".join(re.sub(r"\\w\*|\\|\(\^\|/\)|^\^", "", each.pattern) for each in system.programs)
        raise UserError(f"{read.programs[-1]} is no program of {system.title} that can be migrated: expected {known}")
    # an outer script of another kind, such as a benchmark, calls the training script
    program = next((each for each in reversed(called) if each.command), called[0] if called else Program(""))
    values, unknown = _merged(system, program, read)
    given = Given(values)
    recipe = "" if program.command else system.recipe(given)
    if unknown and not ignore_unknown:
        raise UserError("\n".join(unknown) + "\n--ignore-unknown continues without them")
    lines = [
        _line(value, row_of(value.name, program.table, system.table, OF_EVERY_SYSTEM)) for value in values.values()
    ]
    notes = [*read.notes, *unknown]
    if program.command:
        parts = [line.result for line in lines if line.kind == "elsewhere" and line.result.startswith(program.command)]
        flags = [part.removeprefix(program.command).strip() for part in parts]
        return Migration(system, "", None, {}, lines, notes, f"python -m asr_jax.{' '.join([program.command, *flags])}")
    base = load(recipe)
    changes, differs = list[Change](), list[str]()
    for first, value in values.items():
        named = row_of(value.name, program.table, system.table)
        if named and isinstance(named.row, To):
            field_, read_ = named.row.field, named.row.read or number
            changes.append(Change(field_, given.read(first, read_), (first,)))
    for each in system.derive(given, base):
        changes.append(each) if isinstance(each, Change) else differs.append(each)
    experiment, comments = applied(base, changes, given)
    fields = dict[str, list[str]]()
    for change in changes:
        for name in change.names:
            fields.setdefault(name, []).append(f"{change.field} = {_short(change.value)}")
    shown = list[Line]()
    for (first, _), line in zip(values.items(), lines, strict=True):
        if line.kind == "mapped" and first not in fields and first not in given.asked:
            shown.append(line._replace(kind="not needed", result="it has no effect beside the other values"))
        else:
            kind = "default" if line.kind == "mapped" and not given.is_explicit(first) else line.kind
            shown.append(line._replace(kind=kind, result="; ".join(fields.get(first, [])) or line.result))
    return Migration(system, recipe, experiment, comments, shown, [*notes, *differs])


def _merged(system: System, program: Program, read: Read) -> tuple[dict[str, Value], list[str]]:
    """Returns the values by the first names of their rows, and messages on names without one."""
    values, unknown = dict[str, Value](), list[str]()
    tables = (program.table, system.table, OF_EVERY_SYSTEM)
    defaults = [Value(name, value, DEFAULT) for name, value in program.defaults.items()]
    for each in sorted((*defaults, *read.values), key=lambda value: value.origin):
        if each.name in read.used and not row_of(each.name, *tables):
            continue  # a variable of a script that only flags or other variables use
        if each.name == "--program" or (each.origin == SCRIPT and re.fullmatch(r"[1-9@]|[a-z]\w*", each.name)):
            continue
        if each.value is None or each.value == "" or each.value == "???":
            continue
        named = row_of(each.name, *tables)
        if named is None:
            unknown.append(_unknown(each, system, program))
            continue
        before = values.get(named.first)
        if before and each.origin == FLAG and before.origin > DEFAULT and str(before.value) == str(each.value):
            continue  # a script passes the variable on as a flag
        values.pop(named.first, None)
        values[named.first] = each
    return values, unknown


def _unknown(each: Value, system: System, program: Program) -> str:
    names = [*program.table.names, *system.table.names]
    hint = nearest(plain(each.name), [name for name in names if name[:1] == each.name[:1]], cutoff=0.6)
    return f"{each.name} is not a name of {system.title} that is known here{hint}"


def _line(value: Value, named: Any) -> Line:
    row = named.row
    if isinstance(row, Elsewhere):
        if is_off(value.value):
            return Line(str(value), "not needed", "it is off")
        word = "" if str(value.value).lower() == "true" else _short((row.read or _same)(value.value))
        return Line(str(value), "elsewhere", f"{row.command} {word}".strip())
    if isinstance(row, NotNeeded):
        return Line(str(value), "not needed", row.reason)
    if isinstance(row, Absent):
        if row.is_lost(value.value):
            return Line(str(value), "refused", row.reason)
        return Line(str(value), "not needed", "the trainer does the same")
    return Line(str(value), "mapped", "as in the recipe" if isinstance(row, Part) else "")


def _same(value: Any) -> Any:
    return value


def _short(value: Any) -> str:
    """Returns a value for the report; of settings, their class alone."""
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}(…)"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_short(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], dict):
            return f"{len(value)} entries"
        return (", " if value and dataclasses.is_dataclass(value[0]) else " ").join(map(_short, value)) or "nothing"
    return str(value) if len(str(value)) <= LONGEST else f"{str(value)[:LONGEST]}…"


def applied(base: Experiment, changes: Sequence[Change], given: Given) -> tuple[Experiment, dict[str, str]]:
    """Returns the experiment with changes, and comments on them by the names of the settings.

    Raises:
        UserError: If the settings do not fit each other.
    """
    tree: dict[str, Any] = {}
    for change in changes:
        node = tree
        for part in change.field.split("."):
            node = node.setdefault(part, {})
        node[""] = change
    try:
        experiment = _replaced(base, tree)
    except (ValueError, TypeError) as error:
        raise UserError(f"the settings do not fit this package: {error}") from error
    comments = {}
    for change in changes:
        if comment := given.said(change.names if change.shown is None else change.shown, change.by):
            comments[_place(experiment, change.field)] = comment
    return experiment, comments


def _replaced(value: Any, tree: Mapping[str, Any]) -> Any:
    if "" in tree:
        value = tree[""].value
    inner = {part: node for part, node in tree.items() if part}
    if not inner:
        return value
    if isinstance(value, dict):
        return value | {part: _replaced(value.get(part), node) for part, node in inner.items()}
    if isinstance(value, tuple):
        entries = list(value)
        for part, node in inner.items():
            place = _number(value, part)
            entries[place] = _replaced(entries[place], node)
        return tuple(entries)
    return replace(value, **{part: _replaced(getattr(value, part), node) for part, node in inner.items()})


def _number(entries: tuple[Any, ...], part: str) -> int:
    """Returns the place of the entry with a class of this name, or with this number."""
    names = [type(each).__name__ for each in entries]
    if part not in names and not part.isdecimal():
        raise ValueError(f"there is no {part} among {', '.join(names) or 'no entries'}")
    return int(part) if part.isdecimal() else names.index(part)


def _place(settings: Any, name: str) -> str:
    """Returns a dotted name with numbers in the place of classes."""
    parts = list[str]()
    for part in name.split("."):
        if isinstance(settings, tuple):
            part = str(_number(settings, part))
            settings = settings[int(part)]
        else:
            settings = settings[part] if isinstance(settings, dict) else getattr(settings, part)
        parts.append(part)
    return ".".join(parts)


def detected(systems: Sequence[System], texts: str) -> System:
    """Returns the system that the sources are of.

    Raises:
        UserError: If none or several match.
    """
    found = [system for system in systems if re.search(system.mark, texts)]
    if len(found) != 1:
        names = ", ".join(system.name for system in found) or "none"
        known = "|".join(system.name for system in systems)
        raise UserError(f"the sources may be of {names}: expected --from {known}")
    return found[0]
