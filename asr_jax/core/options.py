"""Parses the options of a command into a frozen dataclass: one field per option, its docstring is the help text.

Positional arguments have the type `tyro.conf.Positional[...]`. A field whose type is a dataclass adds the options of
that class; with `tyro.conf.arg(name="")` they have no prefix.
"""

import contextlib
import dataclasses
import io
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, get_args, get_type_hints

import tyro

from asr_jax.core.errors import UserError, nearest

POSITIONAL = get_args(tyro.conf.Positional[int])[1]
ABOUT_DEVICES = (
    "Devices: --device cpu, gpu or tpu chooses the kind, and --devices 0,2 some of them. Default: all devices that JAX "
    "finds, which CUDA_VISIBLE_DEVICES and JAX_PLATFORMS limit."
)
"""Help on the flags that every command takes (`cli.command_line.run_command`)."""
MAY_BE_EMPTY = "may be empty"
"""In an option's `Annotated`: the flag without a value is an empty tuple instead of an error."""


def parse[Options](kind: type[Options], arguments: Sequence[str], *, prog: str, about: str | None) -> Options:
    """Parses arguments. `--help` prints `about` and the options, and exits.

    Args:
        kind: Dataclass of the options.
        arguments: Command line without the command.
        prog: Name of the command, for messages.
        about: Description of the command, for the help.

    Raises:
        UserError: If options are unknown (all of them are listed, each with the nearest known option), are missing, or
            have values of another type.
    """
    if asks_for_help(arguments):
        print_help(kind, prog=prog, about=about)
        sys.exit(0)
    known = {option.flag for option in _options(kind)}
    if unknown := [flag for each in arguments if is_flag(each) and (flag := _flag(each)) not in spellings(kind)]:
        given = {_flag(each) for each in arguments}
        missing = [each.flag for each in _options(kind) if each.is_required and not {each.flag, *each.aliases} & given]
        lines = [f"{flag} is not an option{nearest(flag, sorted(known))}" for flag in unknown]
        lines += [f"{flag} is missing" for flag in missing if is_flag(flag)]
        raise UserError("\n".join(lines) + _hint(prog))
    options, others = parse_known(kind, arguments, prog=prog)
    if others:
        raise UserError("\n".join(f"{other!r} belongs to no option" for other in others) + _hint(prog))
    return options


def parse_known[Options](kind: type[Options], arguments: Sequence[str], *, prog: str) -> tuple[Options, list[str]]:
    """Parses arguments and returns the options and, in their order, the arguments that belong to no option.

    Args:
        kind: Dataclass of the options.
        arguments: Command line without the command.
        prog: Name of the command, for messages.

    Raises:
        UserError: If options are missing or have values of another type.
    """
    if wrong := list(_wrong_values(kind, arguments)):
        raise UserError("\n".join(wrong) + _hint(prog))
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message), contextlib.redirect_stdout(message):
            options, others = tyro.cli(kind, args=list(arguments), prog=prog, return_unknown_args=True, add_help=False)
    except SystemExit:
        text = plain_message(message.getvalue())
        if text.startswith("Missing from"):
            words = set(text.split())
            missing = [each.flag for each in _options(kind) if each.is_required and each.flag.split()[0] in words]
            text = f"missing: {', '.join(missing)}"
        raise UserError(text.rstrip(".") + _hint(prog)) from None
    given = {_flag(each) for each in arguments}
    for option in _options(kind):
        value = getattr(options, option.name, None)
        is_empty = isinstance(value, tuple) and (not value or () in value)
        if is_empty and (option.is_required or given & {option.flag, *option.aliases}) and not option.may_be_empty:
            positional = [each.flag for each in _options(kind) if each.is_required and not is_flag(each.flag)]
            if positional and _has_value(arguments, option):  # tyro took the value for the missing positional argument
                raise UserError(f"missing: {', '.join(positional)}{_hint(prog)}")
            raise UserError(f"{option.flag}: expected at least one value{_hint(prog)}")
    return options, others


def print_help(kind: type[Any], *, prog: str, about: str | None) -> None:
    """Prints the description of a command and its options.

    Args:
        kind: Dataclass of the options.
        prog: Name of the command.
        about: Description of the command.
    """
    text = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(text):
        tyro.cli(kind, args=["--help"], prog=prog, description=about)
    # The help texts state the meaning of an empty default. Spaces keep the frame aligned.
    shown = re.sub(r"\{None\}\|(\S+)", r"\1       ", text.getvalue())
    shown = re.sub(r"\{None,(\S+)", r"{\1     ", shown)
    print(re.sub(r"\(default: (None|'')?\)", lambda hint: " " * len(hint[0]), shown))
    print(ABOUT_DEVICES)


def asks_for_help(arguments: Sequence[str]) -> bool:
    return bool({"-h", "--help", "--help-all"} & set(arguments))


def is_flag(argument: str) -> bool:
    return argument.startswith("--")


def plain_message(text: str) -> str:
    """Returns an error message of tyro without its frame and title, such as `--rows: 'x' is not a whole number`."""
    lines = [re.sub(r"^\s*[╭╮╰╯│|+]|[╭╮╰╯│|+]\s*$|[─-]{5,}", " ", line).strip() for line in text.splitlines()]
    message = " ".join(line for line in lines[1:] if line and "For full helptext" not in line)
    message = " ".join(message.split()).partition(" Argument helptext: ")[0]
    message = re.sub(r"^Error parsing ([\w.-]+: )", r"\1", message)
    message = re.sub(
        r"no type matching \{None\}\W(INT|FLOAT|\w+) could be instantiated from \[('.*?')\].*", _not_of_type, message
    )
    message = re.sub(r"invalid literal for int\(\) with base 10: ('.*?')", r"\1 is not a whole number", message)
    message = re.sub(r"could not convert string to float: ('.*?')", r"\1 is not a number", message)
    message = re.sub(r"Missing value for argument '(.*?)'. Expected .*", r"\1: expected a value", message)
    return message.replace("'None', ", "").replace(", 'None'", "")


def _not_of_type(found: re.Match[str]) -> str:
    kinds = {"INT": "a whole number", "FLOAT": "a number"}
    return f"{found[2]} is not {kinds.get(found[1], f'of type {found[1]}')}"


class _Option(NamedTuple):
    name: str
    flag: str
    """As on the command line; for positional arguments the metavar."""
    aliases: tuple[str, ...]
    is_required: bool
    is_bool: bool
    is_optional: bool
    """Whether None is a value."""
    may_be_empty: bool


def _options(kind: type[Any]) -> Iterator[_Option]:
    """Yields the options of a class, and of the classes that it contains."""
    hints, whole = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, markers = hints[field.name], getattr(whole[field.name], "__metadata__", ())
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _options(hint)
            continue
        named = [marker for marker in markers if hasattr(marker, "aliases")]
        name = next((marker.name for marker in named if marker.name), field.name)
        metavar = next((marker.metavar for marker in named if marker.metavar), name.upper())
        missing = dataclasses.MISSING
        yield _Option(
            field.name, metavar if POSITIONAL in markers else f"--{name.replace('_', '-')}",
            tuple(alias for marker in named for alias in marker.aliases or ()),
            is_required=field.default is missing is field.default_factory, is_bool=hint is bool,
            is_optional=type(None) in get_args(hint), may_be_empty=MAY_BE_EMPTY in markers,
        )  # fmt: skip


def spellings(kind: type[Any]) -> set[str]:
    """Returns all flags that are accepted."""
    found = set[str]()
    for option in _options(kind):
        found |= {option.flag, *option.aliases} | ({option.flag.replace("--", "--no-", 1)} if option.is_bool else set())
    return found


def _has_value(arguments: Sequence[str], option: _Option) -> bool:
    """Returns whether a value follows the option's flag."""
    following = itertools.pairwise(arguments)
    return any(_flag(each) in (option.flag, *option.aliases) and not is_flag(value) for each, value in following)


def _flag(argument: str) -> str:
    return argument.partition("=")[0].replace("_", "-")


def _wrong_values(kind: type[Any], arguments: Sequence[str]) -> Iterator[str]:
    """Yields messages for values that tyro would accept in another sense."""
    by_flag = {flag: option for option in _options(kind) for flag in (option.flag, *option.aliases)}
    for argument, following in itertools.zip_longest(arguments, arguments[1:], fillvalue=""):
        option = by_flag.get(_flag(argument))
        _, equals, value = argument.partition("=")
        if option and option.is_bool and equals:
            yield f"{option.flag} takes no value: expected {option.flag}, or --no-{option.flag[2:]}"
        if option and option.is_optional and (value if equals else following) == "None":
            yield f"{option.flag} None: expected a value; leave the option out for its default"


def _hint(prog: str) -> str:
    return f"; {prog} --help lists the options"
