"""Changes of settings that values of another system make."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import is_dataclass, replace
from typing import Any, NamedTuple, get_args, get_type_hints

from asr_jax.config import Experiment
from asr_jax.core.errors import UserError
from asr_jax.migration.rows import number, real, truth, words
from asr_jax.migration.sources import Value


class Change(NamedTuple):
    """A new value of a setting."""

    field: str
    """Dotted name, as in `rows.Row`."""
    value: Any
    """A `Value` of another system is converted to the type of the setting."""
    names: str = ""
    """First spellings of the names from whose values it is computed, with spaces or with " × " between them."""
    shown: Sequence[str] | None = None
    """Names that the comment has. None: all of `names`."""
    formula: str = ""
    """Formula of the value, for the comment."""

    @property
    def origins(self) -> list[str]:
        return self.names.replace("×", "").split()


def applied(base: Experiment, changes: Sequence[Change]) -> tuple[Experiment, set[str]]:
    """Returns the experiment with changes, and the dotted names that it does not have.

    Raises:
        UserError: If a value cannot be converted, or the settings do not fit each other.
    """
    tree: dict[str, Any] = {}
    for change in changes:
        node = tree
        for part in change.field.split("."):
            node = node.setdefault(part, {})
        node[""] = change
    absent = set[str]()
    try:
        return _replaced(base, tree, absent), absent
    except (ValueError, TypeError) as error:
        raise UserError(f"the settings do not fit this package: {error}") from error


def comments_on(experiment: Experiment, changes: Sequence[Change], values: Mapping[str, Value]) -> dict[str, str]:
    """Returns comments with the values by the names of the settings; keys of YAML files have their last two parts."""
    comments = {}
    for change in changes:
        shown = [values[name] for name in (change.origins if change.shown is None else change.shown) if name in values]
        if shown:
            texts = [str(each._replace(name=".".join(each.name.split(".")[-2:]))) for each in shown]
            text = (" × " if "×" in change.names else ", ").join(texts) + f": {change.formula}" * bool(change.formula)
            comments[located(experiment, change.field)[0]] = text
    return comments


def parts(field: str, settings: Any, names: Mapping[str, str]) -> Iterator[Change]:
    """Yields a change of each field of settings to the value that it has, so that the config shows values as given.

    Args:
        field: Dotted name of the settings.
        names: Names of the other system, as `Change.names`, by the names of fields. Fields that the settings do not
            have are left out. A formula may follow a name after a colon.
    """
    for name, origins in names.items():
        with suppress(KeyError):
            origins, _, formula = origins.partition(": ")
            yield Change(f"{field}.{name}", located(settings, name)[1], origins, formula=formula)


def located(settings: Any, field: str) -> tuple[str, Any]:
    """Returns the dotted name of a setting with numbers in the place of classes, and its value.

    Raises:
        KeyError: If there is no such setting.
    """
    parts = list[str]()
    for part in field.split("."):
        parts.append(_key(settings, part))
        settings = _entries(settings)[parts[-1]]
    return ".".join(parts), settings


def _replaced(settings: Any, tree: Mapping[str, Any], absent: set[str]) -> Any:
    if "" in tree:
        settings = tree[""].value
    entries, changed = _entries(settings), dict[str, Any]()
    for part, node in tree.items():
        key, change = _key(settings, part), node.get("") if part else None
        if change and isinstance(change.value, Value) and key in entries:
            value = _converted(change.value, get_type_hints(type(settings))[key], entries[key])
            node[""] = change._replace(value=value)
        if key in entries or (change and isinstance(settings, dict)):
            changed[key] = _replaced(entries.get(key), node, absent)
        elif part:
            absent |= {each.field for each in _changes(node)}
    if not changed:
        return settings
    if isinstance(settings, tuple):
        return tuple((entries | changed).values())
    return settings | changed if isinstance(settings, dict) else replace(settings, **changed)


def _changes(tree: Mapping[str, Any]) -> Iterator[Change]:
    for part, node in tree.items():
        yield from _changes(node) if part else [node]


def _converted(value: Value, hint: Any, before: Any) -> Any:
    """Returns a value as the type of a setting, or as one of its types; a float stays an int if the recipe has one."""
    kinds = {hint, *get_args(hint)}
    if {int, float} & kinds and bool not in kinds:
        return value.read(real if isinstance(before, float) else number)
    return value.read(words if ... in kinds else truth if bool in kinds else str)


def _entries(settings: Any) -> dict[str, Any]:
    """Returns the fields of settings, or the entries of a dictionary or a tuple by their names or numbers."""
    if isinstance(settings, tuple):
        return {str(number): each for number, each in enumerate(settings)}
    return dict(settings) if isinstance(settings, dict) else vars(settings) if is_dataclass(settings) else {}


def _key(settings: Any, part: str) -> str:
    """Returns the name of an entry; in a tuple, the number of the one whose class has this name."""
    names = [type(each).__name__ for each in settings] if isinstance(settings, tuple) else []
    return str(names.index(part)) if part in names else part
