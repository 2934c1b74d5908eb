"""Parses the options of a command into a frozen dataclass: one field per option, its docstring is the help text.

Positional arguments have the type `tyro.conf.Positional[...]`. A field whose type is a dataclass adds the options of
that class; with `tyro.conf.arg(name="")` they have no prefix.
"""

import contextlib
import dataclasses
import io
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_type_hints

import tyro

from asr_jax.core.errors import UserError, nearest

POSITIONAL = get_args(tyro.conf.Positional[int])[1]


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
    options, others = parse_known(kind, arguments, prog=prog)
    if others:
        flags = list(option_flags(kind))
        unknown = [other for other in others if is_flag(other)] or others
        raise UserError("\n".join(_unknown(other, flags) for other in unknown) + _hint(prog))
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
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message), contextlib.redirect_stdout(message):
            options, others = tyro.cli(kind, args=list(arguments), prog=prog, return_unknown_args=True, add_help=False)
    except SystemExit:
        text = plain_message(message.getvalue())
        if text.startswith("Missing from"):
            text = f"arguments are missing: expected {' '.join(_shown(kind, name) for name in _required(kind))}"
        raise UserError(text.rstrip(".") + _hint(prog)) from None
    if empty := [_shown(kind, name) for name in _required(kind) if getattr(options, name) == ()]:
        raise UserError(f"{', '.join(empty)}: expected at least one value{_hint(prog)}")
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
    print(re.sub(r"\(default: (None|'')?\)", lambda hint: " " * len(hint[0]), shown))


def asks_for_help(arguments: Sequence[str]) -> bool:
    return bool({"-h", "--help"} & set(arguments))


def is_flag(argument: str) -> bool:
    return argument.startswith("--")


def option_flags(kind: type[Any]) -> Iterator[str]:
    """Yields the flags of a class of options, such as `--batch-size`."""
    for field in dataclasses.fields(kind):
        hint = get_type_hints(kind)[field.name]
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from option_flags(hint)
        elif not _is_positional(kind, field.name):
            yield _shown(kind, field.name)


def plain_message(text: str) -> str:
    """Returns an error message of tyro without its frame and title, such as `--rows: 'x' is not a whole number`."""
    lines = [re.sub(r"[╭╮╰╯│─|+]+|-{5,}", " ", line).strip() for line in text.splitlines()]
    message = " ".join(line for line in lines[1:] if line and "For full helptext" not in line)
    message = re.sub(r"^Error parsing ([\w.-]+: )", r"\1", " ".join(message.split()))
    message = re.sub(r"invalid literal for int\(\) with base 10: ('.*?')", r"\1 is not a whole number", message)
    message = re.sub(r"could not convert string to float: ('.*?')", r"\1 is not a number", message)
    return message.partition(" Argument helptext: ")[0]


def _markers(kind: type[Any], name: str) -> tuple[Any, ...]:
    return getattr(get_type_hints(kind, include_extras=True)[name], "__metadata__", ())


def _is_positional(kind: type[Any], name: str) -> bool:
    return POSITIONAL in _markers(kind, name)


def _shown(kind: type[Any], name: str) -> str:
    """Returns an option as it is written on the command line."""
    markers = _markers(kind, name)
    if _is_positional(kind, name):
        return next((marker.metavar for marker in markers if getattr(marker, "metavar", None)), name.upper())
    named = next((marker.name for marker in markers if getattr(marker, "name", None)), name)
    return f"--{named.replace('_', '-')}"


def _required(kind: type[Any]) -> list[str]:
    """Returns the names of the options without a default."""
    missing = dataclasses.MISSING
    return [each.name for each in dataclasses.fields(kind) if each.default is missing is each.default_factory]


def _unknown(argument: str, flags: Sequence[str]) -> str:
    if not is_flag(argument):
        return f"{argument!r} belongs to no option"
    flag = argument.partition("=")[0]
    return f"{flag} is not an option{nearest(flag, flags)}"


def _hint(prog: str) -> str:
    return f"; {prog} --help lists the options"
