"""Rows of the tables of other systems: what becomes of a flag, an environment variable or a key of a YAML file.

A table is a dictionary. Its keys are names: flags (--lr), variables (LEARNING_RATE), keys (model.optim.lr) and patterns
(trainer.*). Names with spaces between them have the same row each; those with | between them are spellings of one name,
which `Given` knows by the first.
"""

import dataclasses
import shlex
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

Read = Callable[[Any], Any]
"""Converts a value of another system, a text or a value of YAML. Raises ValueError if it cannot."""
LONGEST = 200
"""Characters of a value in reports and comments."""


def short(value: Any) -> str:
    """Returns a value for the report; of settings, their class alone."""
    if dataclasses.is_dataclass(value):
        return f"{type(value).__name__}(…)"
    if isinstance(value, dict):
        return ", ".join(f"{name}: {short(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        if value and isinstance(value[0], dict):
            return f"{len(value)} entries"
        return (", " if value and dataclasses.is_dataclass(value[0]) else " ").join(map(short, value)) or "nothing"
    return str(value) if len(str(value)) <= LONGEST else f"{str(value)[:LONGEST]}…"


def argument(value: Any) -> str:
    """Returns a value, or each value of a list, as an argument of a command, quoted for a shell."""
    return shlex.join(map(str, value if isinstance(value, list | tuple) else (value,)))


def arguments(value: Any) -> str:
    """Returns the words of a value, such as `1 2 4`, as arguments of a command."""
    return argument(value if isinstance(value, list | tuple) else str(value).split())


class To(NamedTuple):
    """The converted value becomes a setting."""

    fields: str
    """Dotted names with spaces between them, as in a row that is only a name (see `Row`)."""
    read: Read


class Elsewhere(NamedTuple):
    """The value belongs to another command, or is an argument of the training command."""

    command: str
    """Command with its flag, such as evaluate --batch-size; `python -m asr_jax.` is added."""
    read: Read = argument


class NotNeeded(NamedTuple):
    """Nothing has to be set: the trainer always does it, or does it by itself."""

    reason: str


class Absent(NamedTuple):
    """The trainer does not have it."""

    reason: str
    unless: tuple[Any, ...] = ()
    """Values with which nothing is lost, in addition to the empty ones, False and 0."""

    def is_lost(self, value: Any) -> bool:
        return not is_off(value) and str(value).lower() not in {str(each).lower() for each in self.unless}


PART = "part"
"""The system's `derive` computes settings from the value, together with others."""
Row = str | To | Elsewhere | NotNeeded | Absent
"""A text is `PART`, or the dotted name of a setting of the same meaning, whose type converts the value. An entry of a
tuple has its class as the name, as in model.augment.SpecAugment.num_time_masks."""


class Named(NamedTuple):
    """A row with the first spelling of its name."""

    first: str
    row: Row
    name: str
    """The spelling itself."""


class Table(dict[str, Named]):
    """Rows by the spellings of their names, with underscores instead of dashes."""

    def __init__(self, *layers: Mapping[str, Row]) -> None:
        """Makes a table of several; rows of later ones replace those of earlier ones."""
        for rows in layers:
            for names, row in rows.items():
                for spellings in names.split():
                    first, *others = spellings.split("|")
                    self.update({plain(name): Named(first, row, name) for name in (first, *others)})
        self.patterns = [name for name in self if "*" in name]

    def find(self, name: str) -> Named | None:
        """Returns the row of a name; that of a pattern has the name itself as its first spelling."""
        matching = (Named(name, self[each].row, name) for each in self.patterns if fnmatchcase(name, each))
        return self.get(plain(name)) or next(matching, None)

    def row_of(self, name: str) -> Row | None:
        found = self.find(name)
        return found and found.row


def to(part: str, pairs: str) -> dict[str, Row]:
    """Returns rows of names that become settings of one part, such as optim, from pairs as in --beta1=b1 --beta2=b2."""
    return {names: f"{part}.{setting}" for names, setting in (pair.split("=") for pair in pairs.split())}


def under(prefix: str, names: str) -> str:
    """Returns names with a prefix: those of the keys of a section of a YAML file."""
    return " ".join(f"{prefix}.{name}" for name in names.split())


def plain(name: str) -> str:
    """Returns a name with underscores in the place of dashes; flags keep two leading dashes."""
    return "--" + name.lstrip("-").replace("-", "_") if name.startswith("-") else name


def number(value: Any) -> int | float:
    """Returns the number in a text, without a fraction as an int."""
    try:
        return int(str(value))
    except ValueError:
        found = real(value)
        return int(found) if found.is_integer() and "." not in str(value) else found


def real(value: Any) -> float:
    """Returns the number in a text as a float."""
    try:
        return float(str(value))
    except ValueError:
        raise ValueError("expected a number") from None


def count(value: Any) -> int:
    """Returns the number in a text, a whole one from 1."""
    if not str(value).isdecimal() or int(value) < 1:
        raise ValueError("expected a whole number from 1")
    return int(value)


def truth(value: Any) -> bool:
    """Returns whether a flag is on: True without a value, else true, yes or 1."""
    meanings = {"true": True, "yes": True, "1": True, "1.0": True, "false": False, "no": False, "0": False, "": False}
    if str(value).lower() not in meanings:
        raise ValueError("expected true or false")
    return meanings[str(value).lower()]


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
            raise ValueError(f"expected one of {', '.join(meanings)}")
        return meanings[str(value)]

    return read


def times(factor: float) -> Read:
    """Returns a conversion of a number to another unit."""
    return lambda value: factor * real(value)
