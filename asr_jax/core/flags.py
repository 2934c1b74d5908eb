"""Flags of the command line: one for each field of an options class, or of a tree of settings.

A flag is added by a field with a docstring, which is its help text. The type of the field says which values it takes;
tyro converts them. `tyro.conf.Positional[...]` makes a positional argument, `tyro.conf.UseAppendAction[...]` a flag
that can be repeated, and `tyro.conf.arg` sets the placeholder of the value, short forms, or another name.
"""

import ast
import dataclasses
import functools
import inspect
import itertools
import operator
import os
import re
import textwrap
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from asr_jax.core.errors import UserError, nearest
from asr_jax.core.foreign_words import matching, meant_by, plain_word, rows_on

POSITIONAL = get_args(tyro.conf.Positional[int])[1]
REPEATED = get_args(tyro.conf.UseAppendAction[tuple[int, ...]])[1]
MAY_BE_EMPTY = "may be empty"
"""In an option's `Annotated`: the flag without a value is an empty tuple instead of an error."""
MISSING = dataclasses.MISSING
WRONG = object()
"""Stands for settings with a mistake in them, which has been reported."""

IN_FULL = ("--training.", "--data.")
"""Parts whose flags are written in full, because their groups have fields of one name. In others, the middle may be
omitted, as in --model.dim for --model.encoder.dim."""
Place = tuple[Any, ...]
"""Names of fields, keys and numbers of entries, from the root of a tree of settings to a field."""


@dataclasses.dataclass(frozen=True)
class DeviceOptions:
    """Devices: JAX_PLATFORMS and CUDA_VISIBLE_DEVICES limit those that JAX finds."""

    device: Literal["cpu", "gpu", "tpu"] | None = None
    """Kind of the devices. Default: that of the devices that JAX finds."""
    devices: str | None = None
    """Numbers of the devices, with commas between them, such as 0,2. Default: all devices of this kind."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag or positional argument of the command line."""

    name: str
    """As on the command line, such as --optim.clip-at; for a positional argument its placeholder, such as RUN."""
    aliases: tuple[str, ...] = ()
    place: Place
    owner: type
    """Class of the settings, or class that defines the option."""
    hint: Any
    spec: PrimitiveConstructorSpec[Any]
    value: Any
    """Default; MISSING: the flag is required."""
    metavar: str
    """Placeholder or choices of the value."""
    may_be_empty: bool
    """Whether a flag of several values may have none."""
    is_repeated: bool

    @property
    def is_positional(self) -> bool:
        return not is_flag(self.name)

    @property
    def text(self) -> str:
        """Docstring of the field, on one line."""
        return field_texts(self.owner).get(self.place[-1], "")

    def converted(self, values: Sequence[str]) -> Any:
        """Returns the value of the words after the flag.

        Raises:
            ValueError: If they are not of the type of the field. The message says what was expected.
        """
        spec, number = self.spec, len(values)
        try:
            fits = number in spec.nargs if isinstance(spec.nargs, tuple) else spec.nargs in ("*", number)
            if fits and (values or self.may_be_empty) and (not spec.choices or {*values} <= {*spec.choices}):
                return spec.instance_from_str(list(values))
        except ValueError:
            pass
        raise ValueError(f"expected {_expected(self.hint)}")


class Given(NamedTuple):
    """A flag on the command line."""

    flag: Flag
    written: str
    """The flag as the user wrote it. For a positional argument: its values."""
    values: list[str]


def parse_known[Options](kind: type[Options], arguments: Sequence[str], *, prog: str) -> tuple[Options, list[str]]:
    """Returns the options and, in their order, the arguments that belong to other flags.

    Raises:
        UserError: If flags are missing, or have values of another type.
    """
    flags = flags_of(kind)
    given, others = read(arguments, flags)
    [options] = assembled([kind], flags, given, (), prog=prog)
    return options, [argument for group in others for argument in group]


def parse_flags(trees: Sequence[Any], flags: Sequence[Flag], arguments: Sequence[str], *, prog: str) -> list[Any]:
    """Returns options and settings with the values of the command line.

    Args:
        trees: Options classes, and settings whose fields the flags replace.
        flags: Flags of all trees, in the order of the trees. If two flags have one name, the first is used.

    Raises:
        UserError: If flags are unknown or missing, or values are invalid. The message names all of them.
    """
    given, others = read(arguments, flags)
    return assembled(trees, flags, given, others, prog=prog)


def assembled(
    trees: Sequence[Any], flags: Sequence[Flag], given: Sequence[Given], others: Sequence[Sequence[str]], *, prog: str
) -> list[Any]:
    """Returns options and settings with the values of the flags that `read` has found; arguments as for `parse_flags`.

    Args:
        given: The flags on the command line. Flags of other trees are ignored.
        others: Arguments that belong to no flag, which are mistakes.
    """
    problems = [unknown(group[0], flags) for group in others]
    values, words = dict[Place, Any](), dict[Place, str]()
    for flag, name, following in given:
        if flag.place[0] >= len(trees):
            continue
        if flag.place in values and not flag.is_repeated and flag.spec.nargs == "*":
            problems.append(f"{name} is given twice: expected all values behind one")
        words[flag.place] = " ".join([name, *following] if is_flag(name) else [name])
        try:
            value = flag.converted(following)
            values[flag.place] = (*values.get(flag.place, ()), value) if flag.is_repeated else value
        except ValueError as error:
            values[flag.place] = WRONG
            problems.append(f"{words[flag.place]}: {error}")
    taking = next((name for _, name, following in given if is_flag(name) and len(following) > 1), "")
    for flag in flags:
        if flag.value is MISSING and flag.place not in values:
            values[flag.place] = WRONG
            hint = f"; {taking} takes all values up to the next flag: put {flag.name} before it"
            problems.append(f"{flag.name} is missing{hint * (flag.is_positional and bool(taking))}")
    made = [_replaced(tree, values, (number,), words, problems) for number, tree in enumerate(trees)]
    if problems:
        raise UserError("\n".join([*problems, f"{prog} --help lists the flags"]))
    return made


def _replaced(
    settings: Any, values: Mapping[Place, Any], place: Place, words: Mapping[Place, str], problems: list[str]
) -> Any:
    """Returns a part of a tree with the values at their places, or WRONG if a problem in it has been appended."""
    given = [each for each in values if each[: len(place)] == place]
    if place in values:
        return values[place]
    if not given and not isinstance(settings, type):
        return settings
    parts = {each[len(place)]: None for each in given}
    parts = {name: _replaced(_part(settings, name), values, (*place, name), words, problems) for name in parts}
    right = {name: part for name, part in parts.items() if part is not WRONG}
    if len(right) < len(parts) and (isinstance(settings, type) or not right):
        return WRONG
    is_wrong, parts = len(right) < len(parts), right  # the other mistakes are found with the former values
    try:
        if isinstance(settings, dict):
            made: Any = settings | parts
        elif isinstance(settings, tuple):
            made = tuple(parts.get(number, part) for number, part in enumerate(settings))
        else:
            made = settings(**parts) if isinstance(settings, type) else dataclasses.replace(settings, **parts)
        return WRONG if is_wrong else made
    except (UserError, ValueError) as error:
        of_it = [each for each in given if len(given) == 1 or re.search(rf"\b{each[-1]}\b", str(error))]
        problems.append(f"{', '.join(words[each] for each in of_it)}: {error}".removeprefix(": "))
        return WRONG


def _part(settings: Any, name: Any) -> Any:
    return settings[name] if isinstance(settings, dict | tuple) else getattr(settings, name, None)


def read(arguments: Sequence[str], flags: Sequence[Flag]) -> tuple[list[Given], list[list[str]]]:
    """Assigns arguments to flags.

    `--optim.clip-at 3`, `--optim.clip_at=3` and `--config.optim.clip_at=3` are equivalent. `--model.dim 256` is
    equivalent to `--model.encoder.dim 256` if no other flag begins and ends so. A flag of a bool needs no value, and
    `--no-flag` is its opposite. The last value counts, except that a flag of several values can be given only once.
    """
    names = names_of(flags)
    awaited = [flag for flag in flags if flag.is_positional]
    given, others, free, rest = list[Given](), list[list[str]](), list[str](), list(arguments)
    while rest:
        argument = rest.pop(0)
        if not is_flag(argument) and not _is_setting(argument, flags):
            free.append(argument) if awaited else others.append([argument])
            continue
        name, equals, value = argument.partition("=")
        values = [value] if equals else []
        if flag := _found(name, names) if is_flag(argument) else None:
            while rest and not equals and _takes(flag, values, rest[0]):
                values.append(rest.pop(0))
            if flag.hint is bool and not values:
                values = ["False" if name.startswith("--no-") else "True"]
            given.append(Given(flag, name, values))
        else:
            others.append([argument])
            while rest and not equals and not is_flag(rest[0]) and not _is_setting(rest[0], flags):
                others[-1].append(rest.pop(0))
    for number, flag in enumerate(awaited):
        most = 1 if flag.spec.nargs == 1 else len(free) - len(awaited[number + 1 :])
        if free:
            given.append(Given(flag, " ".join(free[:most]), free[:most]))
            free = free[most:]
    return given, others + [[argument] for argument in free]


def _takes(flag: Flag, values: Sequence[str], following: str) -> bool:
    """Whether an argument is a value of the flag before it, after other values of it."""
    if is_flag(following) or (flag.hint is bool and following not in ("True", "False")):
        return False
    return not isinstance(flag.spec.nargs, int) or len(values) < flag.spec.nargs


def names_of(flags: Sequence[Flag]) -> dict[str, Flag]:
    """Returns the flags by all their spellings."""
    spelled = [(name, flag) for flag in flags if not flag.is_positional for name in (flag.name, *flag.aliases)]
    spelled += [(name.replace("--", "--no-", 1), flag) for name, flag in spelled if flag.hint is bool]
    return dict(reversed(spelled))


def _found(written: str, names: Mapping[str, Flag]) -> Flag | None:
    """Returns the flag that an argument names, also without the middle of its name; None if there is none."""
    name = "--" + written.removeprefix("--").removeprefix("config.").replace("_", "-")
    found = {names[each].place: names[each] for each in ([name] if name in names else _shortened(name, names))}
    return next(iter(found.values())) if len(found) == 1 else None


def _ends(name: str, names: Collection[str]) -> list[str]:
    """Returns the names that begin with the first part of a name and end with its other parts."""
    first, _, last = name.partition(".")
    return sorted(each for each in names if last and each.startswith(f"{first}.") and each.endswith(f".{last}"))


def _shortened(name: str, names: Collection[str]) -> list[str]:
    """Returns the names that a name without its middle stands for."""
    return [] if name.startswith(IN_FULL) else _ends(name, names)


def _is_setting(argument: str, flags: Sequence[Flag]) -> bool:
    """Whether an argument without dashes sets a flag as in Hydra: `model.optim.lr=1e-4`, `+trainer.devices=1`."""
    if not re.match(r"[+~]{0,2}[A-Za-z][\w./-]*=", argument) or os.path.exists(argument):
        return False
    names = known(flags)
    is_foreign = any(matching(row.flag, names) for row in rows_on(argument))
    return is_foreign or _found(f"--{plain_word(argument)}", names_of(flags)) is not None


def known(flags: Sequence[Flag]) -> set[str]:
    """Names of flags for suggestions, including the flags that every command has."""
    return {flag.name for flag in (*flags, *flags_of(DeviceOptions))}


def unknown(argument: str, flags: Sequence[Flag]) -> str:
    """Returns the message for an argument that is no flag, with the flags that may be meant."""
    if argument.startswith("-") and os.path.exists(argument):
        return f"{argument} is not a flag; write ./{argument} for the file of this name"
    written, equals, value = argument.partition("=")
    name, names, spelled = f"--{plain_word(written)}", known(flags), names_of(flags)
    if is_flag(argument):
        argument = written
    elif equals and (flag := _found(name, spelled)):
        return f"{argument} is not a flag; did you mean {flag.name}={value}?"
    elif not equals or not rows_on(argument):
        return f"{argument!r} belongs to no flag: expected --flag before it"
    if suggestion := meant_by(name, names):
        return f"{argument} is not a flag{suggestion}"
    if meant := _ends(name, names) or sorted(each for each in names if each.endswith(f".{name[2:]}")):
        expected = f"expected one of {', '.join(meant)}" if meant[1:] else f"did you mean {meant[0]}?"
        return f"{argument} is not a flag; {expected}"
    suggestion = nearest(name[2:], sorted(each.removeprefix("--") for each in spelled))
    return f"{argument} is not a flag{suggestion.replace(chr(39), chr(39) + '--', 1)}"


def flags_of(settings: Any, *, place: Place = (0,), prefix: str = "--") -> list[Flag]:
    """Returns the flags of an options class, or of a tree of settings.

    Args:
        settings: The class, whose fields have no value yet; or a dataclass, or a dictionary or tuple of dataclasses.
        place: Place of the settings in the trees of the command; its first part is the number of the tree.
        prefix: Beginning of the names.
    """
    found = list[Flag]()
    if isinstance(settings, dict | tuple):
        for key, value in settings.items() if isinstance(settings, dict) else enumerate(settings):
            found += flags_of(value, place=(*place, key), prefix=f"{prefix}{key}.".replace("_", "-"))
        return found
    kind = settings if isinstance(settings, type) else type(settings)
    hints, with_markers = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        value = _default(field) if isinstance(settings, type) else getattr(settings, field.name)
        at, name = (*place, field.name), f"{prefix}{field.name}".replace("_", "-")
        if _has_settings(value):
            found += flags_of(value, place=at, prefix=f"{name}.")
            continue
        markers: tuple[Any, ...] = getattr(with_markers[field.name], "__metadata__", ())
        hint = hints[field.name]
        owner = kind
        if isinstance(settings, type):
            owner = next(each for each in kind.__mro__ if field.name in inspect.get_annotations(each))
            hint = _without_none(hint)  # an option that is None is left out
        spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(hint, {REPEATED} & {*markers}))
        if not isinstance(spec, PrimitiveConstructorSpec):
            continue  # such as an empty tuple of augmentations
        named: Any = next((marker for marker in markers if hasattr(marker, "metavar")), tyro.conf.arg())
        if named.name:
            name = prefix + named.name
        flag = Flag(
            name=(named.metavar or field.name.upper()) if POSITIONAL in markers else name,
            aliases=tuple(named.aliases or ()),
            place=at,
            owner=owner,
            hint=hint,
            spec=spec,
            value=value,
            metavar=named.metavar or _placeholder(hint),
            may_be_empty=MAY_BE_EMPTY in markers or not isinstance(settings, type),
            is_repeated=REPEATED in markers,
        )
        found.append(flag)
    return found


def _without_none(hint: Any) -> Any:
    parts = [part for part in get_args(hint) if part is not type(None)]
    return functools.reduce(operator.or_, parts) if type(None) in get_args(hint) else hint


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def _has_settings(value: Any) -> bool:
    """Whether a value is a dataclass, or has dataclasses in it."""
    items = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else [value]
    return any(dataclasses.is_dataclass(item) and not isinstance(item, type) for item in items)


@functools.cache
def field_texts(kind: Any) -> dict[str, str]:
    """Docstring of each field of a dataclass, on one line, keyed by the field."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        [body] = (node.body for node in ast.parse(textwrap.dedent(inspect.getsource(cast(type, base)))).body)  # type: ignore[attr-defined]
        for field, text in itertools.pairwise(body):
            is_text = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and is_text:
                found[field.target.id] = " ".join(str(text.value.value).split())
    return found


def _placeholder(hint: Any) -> str:
    """Returns the choices of a type, or its name in upper case."""
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part is not type(None)]
    if origin is tuple:
        return " ".join("…" if part is ... else _placeholder(part) for part in parts)
    if parts:
        return "|".join(dict.fromkeys(str(part) if origin is Literal else _placeholder(part) for part in parts))
    return "TEXT" if hint is str else hint.__name__.upper()


def _expected(hint: Any) -> str:
    """Returns what a value of a type is, such as `a whole number`."""
    origin, parts = get_origin(hint), [part for part in get_args(hint) if part is not type(None)]
    if origin is tuple and ... in parts:
        return f"{_expected(parts[0])}, or several"
    if parts:
        *others, last = [str(part) if origin is Literal else _expected(part) for part in parts]
        return f"{', '.join(others)} {'and' if origin is tuple else 'or'} {last}" if others else last
    return {int: "a whole number", float: "a number", bool: "True or False"}.get(hint, "a value")


def is_flag(argument: str) -> bool:
    """Whether an argument is a flag in any spelling; -1, -inf and - are values."""
    return bool(re.match(r"--|-(?!inf$)[A-Za-z]", argument))
