"""Migration: makes an experiment of the sources of another system."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from asr_jax.config import Experiment
from asr_jax.core.errors import UserError, nearest
from asr_jax.migration.changes import Change, applied, comments_on, located
from asr_jax.migration.rows import (
    PART,
    Absent,
    Elsewhere,
    NotNeeded,
    Read,
    Row,
    Table,
    To,
    count,
    is_off,
    number,
    real,
    short,
    truth,
)
from asr_jax.migration.sources import DEFAULT, FLAG, SCRIPT, Sources, Value, arguments_of

OF_EVERY_SYSTEM: Mapping[str, Row] = {
    "OMP_NUM_THREADS CUDNN_V8_API_ENABLED TORCH_CUDNN_V8_API_ENABLED NCCL_DEBUG PYTHONPATH":
        NotNeeded("XLA and NumPy need no such variables"),
    "CUDA_VISIBLE_DEVICES": Elsewhere("train --devices"),
    "--help": Elsewhere("train --help"),
    "DISTRIBUTED --local_rank --nproc_per_node":
        NotNeeded("one process uses all devices (documentation: several-machines)"),
}  # fmt: skip


class Given:
    """Values of another system by the first spellings of their names."""

    def __init__(self, values: dict[str, Value]) -> None:
        self.values = values

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: Any = None) -> Any:
        return self.values[name].value if name in self.values else default

    def read(self, name: str, how: Read, default: Any = None) -> Any:
        """Returns a converted value.

        Raises:
            UserError: If the conversion fails.
        """
        return self.values[name].read(how) if name in self.values else default

    def number(self, name: str, default: float = 0) -> Any:
        """Returns a value as an int or a float."""
        return self.read(name, number, default)

    def count(self, name: str, default: int) -> int:
        """Returns a value as a whole number from 1."""
        return int(self.read(name, count, default))

    @property
    def file(self) -> Path:
        """The YAML file, for messages: the first one if there are several."""
        return next((each.path for each in self.values.values() if each.path), Path("the YAML file"))

    def real(self, name: str, default: float = 0.0) -> float:
        return float(self.read(name, real, default))

    def is_on(self, name: str) -> bool:
        """Whether a value is given and means true."""
        return bool(self.read(name, truth, False))

    def is_explicit(self, name: str) -> bool:
        """Whether a value is given, and not a default."""
        return name in self.values and self.values[name].origin > DEFAULT

    def named(self, *prefixes: str) -> list[str]:
        """Returns the names that begin with one of the prefixes."""
        return [name for name in self.values if name.startswith(prefixes)]


class Program(NamedTuple):
    """Scripts or programs of a system that have the same defaults and the same task."""

    names: str
    """Ends of their paths with commas between them, in which * is any text; one that begins with / is a whole path."""
    defaults: str = ""
    """Arguments that it has without others: variables, and flags behind them."""
    command: str = ""
    """Command of this package that does the same, for a program that does not train."""
    rows: Mapping[str, Row] = MappingProxyType({})
    """Rows that differ from the system's."""

    def is_called(self, path: str) -> bool:
        patterns = [name if name.startswith("/") else f"*/{name}" for name in self.names.split(", ")]
        return any(fnmatchcase(f"/{path.removeprefix('./')}", each) for each in patterns)


class System(NamedTuple):
    """Another system."""

    name: str
    title: str
    mark: str
    """Regular expression that finds a text of this system."""
    rows: Mapping[str, Row]
    recipe: Callable[[Given], str]
    """Returns the name of the config that the migration begins with."""
    derive: Callable[[Given, Experiment], Iterator[Change | str]]
    """Yields settings that depend on several values, and sentences on what differs."""
    programs: tuple[Program, ...] = ()


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


def migrate(
    system: System, sources: Sources, *, load: Callable[[str], Experiment], ignore_unknown: bool = False
) -> Migration:
    """Returns the experiment that the sources describe.

    Args:
        load: Returns the experiment of a config of this package, given its name.
        ignore_unknown: Whether names without a row are only reported.

    Raises:
        UserError: If a name has no row, a value cannot be converted, or the settings do not fit each other.
    """
    program = _program(system, sources.shell.programs)
    table = Table(OF_EVERY_SYSTEM, system.rows, program.rows)
    values, nearest_names = _merged(table, program, sources)
    given = Given(values)
    recipe = "" if program.command else system.recipe(given)
    about = f"is not a name of {system.title} that is known here"
    unknown = [f"{name} {about}{hint}" for name, hint in nearest_names.items()]
    if unknown and not ignore_unknown:
        raise UserError("\n".join(unknown) + "\n--ignore-unknown continues without them")
    notes = [*sources.shell.notes, *unknown]
    if program.command:
        lines = [_line(each, table) for each in values.values()]
        if not any(line.result.startswith("evaluate RUN --decoding.kind beam") for line in lines):
            of_beam = re.compile(r"evaluate RUN --decoding\.(?!kind)")
            lines = [line._replace(**GREEDY) if of_beam.match(line.result) else line for line in lines]
        return Migration(system, "", None, {}, lines, notes, _command(program.command, lines))
    base, changes = load(recipe), list[Change]()
    for name, value in values.items():
        match table.row_of(value.name):
            case str(field) if field != PART:
                changes.append(Change(field, value, name))
            case To(fields, read):
                changes += [Change(field, value.read(read), name) for field in fields.split()]
    try:
        derived = list(system.derive(given, base))
    except ValueError as error:
        raise UserError(f"the settings do not fit this package: {error}") from error
    changes += [each for each in derived if isinstance(each, Change)]
    experiment, absent = applied(base, changes)
    made = [each for each in {each.field: each for each in changes}.values() if each.field not in absent]
    notes += [each for each in derived if isinstance(each, str)]
    lines = list[Line]()
    for name, value in values.items():
        lost = [each.field for each in changes if each.field in absent and name in each.origins]
        ending = _result(name, given, made, experiment, notes)
        if lost:
            ending = ("refused" if given.is_explicit(name) else "not needed", f"configs/{recipe}.py has no {lost[0]}")
        lines.append(_line(value, table, ending))
    return Migration(system, recipe, experiment, comments_on(experiment, made, values), lines, notes)


def _program(system: System, called: Sequence[str]) -> Program:
    """Returns the program of the last script or program that is one of the system's."""
    found = [each for path in reversed(called) for each in system.programs if each.is_called(path)]
    if called and system.programs and not found:
        known = ", ".join(each.names for each in system.programs).replace(" /", " ")
        raise UserError(f"{called[-1]} is no program of {system.title} that can be migrated: expected {known}")
    # an outer script of another kind, such as a benchmark, calls the training script
    usual = system.programs[0] if len(system.programs) == 1 else Program("")
    return next((each for each in reversed(found) if each.command), found[0] if found else usual)


def _merged(table: Table, program: Program, sources: Sources) -> tuple[dict[str, Value], dict[str, str]]:
    """Returns the values by the first spellings of their names, and names without a row with the nearest known one."""
    values, unknown = dict[str, Value](), dict[str, str]()
    defaults = [each._replace(origin=DEFAULT) for each in arguments_of(program.defaults.split())]
    for each in sorted((*defaults, *sources.values), key=lambda value: value.origin):
        named, is_of_script = table.find(each.name), each.origin == SCRIPT
        if each.value in (None, "", "???") or (is_of_script and re.fullmatch(r"[1-9@]|[a-z]\w*", each.name)):
            continue
        if named is None:
            if each.name not in sources.shell.used:  # otherwise a variable that flags or other variables use
                known = [other.name for other in table.values() if other.name[:1] == each.name[:1]]
                unknown[each.name] = nearest(each.name, known, cutoff=0.6)
            continue
        before = values.get(named.first)
        if before and each.origin == FLAG and before.origin > DEFAULT and str(before.value) == str(each.value):
            continue  # a script passes the variable on as a flag
        values.pop(named.first, None)
        values[named.first] = each
    return values, unknown


def _result(
    name: str, given: Given, changes: Sequence[Change], experiment: Experiment, notes: Sequence[str]
) -> tuple[str, str]:
    """Returns what became of a value that settings are computed from: the kind of its line, and the settings."""
    fields = list(dict.fromkeys(change.field for change in changes if name in change.origins))
    own = [field for field in fields if not any(other.startswith(f"{field}.") for other in fields)]
    kind = "mapped" if given.is_explicit(name) else "default"
    if own:
        return kind, "; ".join(f"{field} = {short(located(experiment, field)[1])}" for field in own)
    if is_off(given.get(name)):
        return "not needed", "it is off"
    if any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w.-])", note) for note in notes):
        return kind, "see What differs"
    return "not needed", "it has no effect beside the other values"


def _command(command: str, lines: Sequence[Line]) -> str:
    """Returns a command with the options of the lines, each once."""
    options = "".join(line.result.removeprefix(command) for line in lines if line.result.startswith(f"{command} "))
    each = dict.fromkeys(re.findall(r" --\S+(?: (?!--)\S+)*", options))
    missing = " --data MANIFEST" * (command == "evaluate RUN" and "--data" not in options)
    return f"python -m asr_jax.{command}{missing}{''.join(each)}"


GREEDY = {"kind": "not needed", "result": "greedy search does not use it"}
OF_TRAINING = ("not needed", "it is a setting of training, and no argument of this command")


def _line(value: Value, table: Table, mapped: tuple[str, str] = OF_TRAINING) -> Line:
    """Returns the line of a value; `mapped` is the end of one with a setting."""
    match table.row_of(value.name):
        case Elsewhere() if is_off(value.value):
            kind, result = "not needed", "it is off"
        case Elsewhere(command, read):
            word = "" if str(value.value).lower() == "true" else value.read(read)
            kind, result = "elsewhere", f"{command} {word}".strip()
        case NotNeeded(reason):
            kind, result = "not needed", reason
        case Absent(reason) as row:
            is_lost = row.is_lost(value.value)
            kind, result = ("refused", reason) if is_lost else ("not needed", "the trainer does the same")
        case _:
            kind, result = mapped
    return Line(str(value), kind, result)


def detected(systems: Sequence[System], texts: str, sources: str) -> System:
    """Returns the system that the texts of the sources are of; `sources` names them in messages.

    Raises:
        UserError: If none or several match.
    """
    found = [system for system in systems if re.search(system.mark, texts)]
    if len(found) != 1:
        names, known = (" and ".join(each.name for each in of) for of in (found, systems))
        known = known.replace(" and ", "|")
        if not found:
            raise UserError(f"no known system was recognised in {sources}: expected sources of one, or --from {known}")
        raise UserError(f"{sources}: names of {names} were found: expected --from {known}")
    return found[0]
