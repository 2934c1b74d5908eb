"""Rows of the tables of other systems: what becomes of a flag, an environment variable or a key of a YAML file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

Read = Callable[[Any], Any]
"""Converts a value of another system, a text or a value of YAML. Raises ValueError if it cannot."""


@dataclass(frozen=True)
class To:
    """The value becomes a setting of the experiment."""

    field: str
    """Dotted name; an entry of a tuple has its class as the name, as in model.augment.SpecAugment.num_time_masks."""
    read: Read | None = None
    """Conversion. None: a number."""


@dataclass(frozen=True)
class Part:
    """The system's `derive` computes settings from the value, together with others."""


@dataclass(frozen=True)
class Elsewhere:
    """The value belongs to another command, or is an argument of the training command."""

    command: str
    """Command with its flag, such as evaluate --batch-size; `python -m asr_jax.` is added."""
    read: Read | None = None
    """Conversion of the value. None: the value is not changed."""


@dataclass(frozen=True)
class NotNeeded:
    """Nothing has to be set: the trainer always does it, or does it by itself."""

    reason: str


@dataclass(frozen=True)
class Absent:
    """The trainer does not have it."""

    reason: str
    unless: tuple[Any, ...] = ()
    """Values with which nothing is lost, in addition to the empty ones, False and 0."""

    def is_lost(self, value: Any) -> bool:
        return not is_off(value) and str(value).lower() not in {str(each).lower() for each in self.unless}


Row = To | Part | Elsewhere | NotNeeded | Absent
PART = Part()


class Named(NamedTuple):
    """A row with its first name."""

    first: str
    row: Row


class Table:
    """Rows by their names: flags (--lr), variables (LEARNING_RATE), keys (model.optim.lr) and patterns (trainer.*)."""

    def __init__(self, rows: Mapping[str, Row]) -> None:
        """Makes a table; spaces stand between the names of a row, and `Given` has the first one."""
        self.rows = rows
        self.names = {
            plain(name): Named(names.split()[0], row) for names, row in rows.items() for name in names.split()
        }
        self.patterns = {name: row for name, row in self.names.items() if "*" in name}

    def find(self, name: str) -> Named | None:
        """Returns the row of a name; that of a pattern has the name itself as its first name."""
        if found := self.names.get(plain(name)):
            return found
        return next((Named(name, row.row) for each, row in self.patterns.items() if fnmatchcase(name, each)), None)


EMPTY = Table({})


def row_of(name: str, *tables: Table) -> Named | None:
    """Returns the row of a name in the first table that has one."""
    return next((found for table in tables if (found := table.find(name))), None)


def plain(name: str) -> str:
    """Returns a name with underscores in the place of dashes; flags keep two leading dashes."""
    is_flag = name.startswith("-")
    return "--" * is_flag + name.lstrip("-").replace("-", "_") if is_flag else name


def number(value: Any) -> int | float:
    """Returns the number in a text, without a fraction as an int."""
    if isinstance(value, bool):
        raise ValueError(f"{value}: expected a number")
    try:
        return int(str(value))
    except ValueError:
        found = float(str(value))
        return int(found) if found == int(found) and "." not in str(value) else found


def real(value: Any) -> float:
    """Returns the number in a text as a float."""
    return float(str(value))


def text(value: Any) -> str:
    return str(value)


def truth(value: Any) -> bool:
    """Returns whether a flag is on: True without a value, else true, yes or 1."""
    words = {"true": True, "yes": True, "1": True, "1.0": True, "false": False, "no": False, "0": False, "": False}
    if str(value).lower() not in words:
        raise ValueError(f"{value!r}: expected true or false")
    return words[str(value).lower()]


def is_off(value: Any) -> bool:
    """Whether a value means that nothing is wanted."""
    return str(value).lower() in ("", "none", "null", "false", "no", "0", "0.0", "[]")


def words(value: Any) -> tuple[str, ...]:
    """Returns the words of a list, or of a text with spaces or commas between them."""
    items = value if isinstance(value, list | tuple) else str(value).replace(",", " ").split()
    return tuple(str(each) for each in items)


def numbers(value: Any) -> tuple[int | float, ...]:
    return tuple(number(each) for each in words(value))


def one_of(**meanings: Any) -> Read:
    """Returns a conversion of the words of another system to values of this one."""

    def read(value: Any) -> Any:
        if str(value) not in meanings:
            raise ValueError(f"{value!r}: expected one of {', '.join(meanings)}")
        return meanings[str(value)]

    return read
