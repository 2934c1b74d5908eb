"""Parses the options of a command into a frozen dataclass: one field per option, its docstring is the help text.

Positional arguments have the type `tyro.conf.Positional[...]`. A field whose type is a dataclass adds the options of
that class; with `tyro.conf.arg(name="")` they have no prefix.
"""

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal, NamedTuple, cast, get_args, get_origin, get_type_hints

import tyro

from asr_jax.core.errors import UserError, nearest

POSITIONAL = get_args(tyro.conf.Positional[int])[1]
WIDTH = 120
"""Width of help texts that are not printed in a terminal."""
DEVICE_FLAGS = ("--device", "--devices")
"""Flags that every command takes (`cli.command_line.run_command`)."""
ABOUT_DEVICES = (
    "Devices: --device cpu, gpu or tpu selects the kind, and --devices 0,2 selects devices of this kind by number. "
    "Default: all devices that JAX finds; CUDA_VISIBLE_DEVICES and JAX_PLATFORMS limit these."
)
"""Help on `DEVICE_FLAGS`."""
ABOUT_HELP = (
    "Help: --help-all prints the whole text of each option, and --help WORD that of the options with a word in their "
    "name or text."
)
COLUMN = 34
"""Column of the texts in the list of options."""
MAY_BE_EMPTY = "may be empty"
"""In an option's `Annotated`: the flag without a value is an empty tuple instead of an error."""


def parse[Options](
    kind: type[Options],
    arguments: Sequence[str],
    *,
    prog: str,
    about: str | None,
    meant: Callable[[str, Collection[str]], str] = lambda flag, known: "",
) -> Options:
    """Parses arguments. `--help` prints `about` and the options, `--help WORD` those with a word, and exits.

    Args:
        arguments: Command line without the command.
        prog: Name of the command, for messages.
        about: Description of the command, for the help.
        meant: Returns the suggestion for an unknown flag, given the flags of the command; empty if it has none.

    Raises:
        UserError: If options are unknown (all of them are listed, each with the nearest known option), are missing, or
            have values of another type.
    """
    if asks_for_help(arguments):
        if word := help_word(arguments):
            print(
                "\n".join(help_on_options(kind, word, about=about) or [f"no option has {word!r} in its name or text"])
            )
        else:
            print_help(kind, prog=prog, about=about, shows_all="--help-all" in arguments)
        sys.exit(0)
    known = {option.flag for option in _options(kind)}
    unknown = [flag for each in arguments if is_flag(each) and (flag := _flag(each)) not in spellings(kind)]
    lines = [f"{flag} is not an option{meant(flag, known) or nearest(flag, sorted(known))}" for flag in unknown]
    for each in arguments:  # such as model_path=a.nemo, or -b 4
        is_word = re.match(r"\+*[A-Za-z][\w.-]*=|-[A-Za-z]\w*$", each) and not os.path.exists(each)
        if is_word and (suggestion := meant(each, known)):
            lines.append(f"{each} is not an option{suggestion}")
    if lines:
        given = {_flag(each) for each in arguments}
        missing = [each.flag for each in _options(kind) if each.is_required and not {each.flag, *each.aliases} & given]
        lines += [f"{flag} is missing" for flag in missing if is_flag(flag)]
        raise UserError("\n".join(lines) + _hint(prog))
    options, others = parse_known(kind, arguments, prog=prog)
    if others:
        raise UserError("\n".join(f"{other!r} belongs to no option" for other in others) + _hint(prog))
    return options


def parse_known[Options](kind: type[Options], arguments: Sequence[str], *, prog: str) -> tuple[Options, list[str]]:
    """Parses arguments and returns the options and, in their order, the arguments that belong to no option.

    Args:
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


def print_help(
    kind: type[Any], *, prog: str, about: str | None, shows_all: bool = False, also: Sequence[type[Any]] = ()
) -> None:
    """Prints usage, description and options of a command, in groups. The command's own options are first.

    Args:
        kind: Dataclass of the options.
        prog: Name of the command.
        about: Description of the command.
        shows_all: Whether the text of each option is whole; otherwise its first sentence and its default are printed.
        also: Further dataclasses of options.
    """
    options = [*_options(kind), *(option for each in also for option in _options(each))]
    required = [f"{option.flag} {option.value}".strip() for option in options if option.is_required]
    required.sort(key=is_flag)
    print(" ".join(["usage:", prog, *required, "[OPTIONS]"]))
    for paragraph in re.split(r"\n\s*\n", (about or "").strip("\n")):
        is_list = any(line.startswith(" ") for line in paragraph.splitlines())
        print("\n" + (paragraph if is_list else wrapped(" ".join(paragraph.split()), indent=0)))
    texts = {name: text for each in (*also, kind) for name, text in _texts_of_options(each).items()}
    parts = [part for part in get_type_hints(kind).values() if isinstance(part, type)]
    for each in (kind, *also, *parts, *kind.__mro__[1:]):
        names = inspect.get_annotations(each) if dataclasses.is_dataclass(each) else {}
        group = [option for option in options if option.name in names]
        group.sort(key=lambda option: (is_flag(option.flag), not option.is_required))  # keeps the order of the others
        if group:
            title = "Options" if each is kind else inspect.cleandoc(each.__doc__ or "").splitlines()[0].rstrip(".")
            print(f"\n{title.partition(': ')[0]}:")
        for option in group:
            print(_described(option, texts.get(option.name, ""), shows_all=shows_all))
    print()
    print(wrapped(ABOUT_HELP, indent=0))
    print(wrapped(ABOUT_DEVICES, indent=0))


def _described(option: "_Option", text: str, *, shows_all: bool) -> str:
    """Returns the lines of an option in the help."""
    sentences = re.split(r"(?<=[^.\d]\.) (?=[A-Z])", text)
    default = [sentence for sentence in sentences[1:] if sentence.startswith("Default")]
    shown = text if shows_all else " ".join([sentences[0], *default[:1]])
    shown += f" (default: {option.default})" * bool(option.default)
    flags = [option.flag, *option.aliases] + [option.flag.replace("--", "--no-", 1)] * bool(option.default == "True")
    head = f"  {', '.join(flags)} {option.value}".rstrip()
    lines = wrapped(shown, indent=COLUMN).splitlines()
    return "\n".join([head, *lines] if len(head) > COLUMN - 2 else [head + lines[0][len(head) :], *lines[1:]])


def help_on_options(kind: type[Any], word: str, *, about: str | None) -> list[str]:
    """Returns lines on the options whose name or text contains a word, and on the lines of `about` that contain it.

    Args:
        word: The word, in any case.
        about: Description of the command.
    """
    name, spoken = word.lower().replace("_", "-").strip("-"), word.lower().replace("_", " ").replace("-", " ").strip()
    lines, texts = list[str](), _texts_of_options(kind)
    for option in _options(kind):
        text = texts.get(option.name, "")
        if name in option.flag.lower() or spoken in text.lower():
            lines += [f"  {option.flag}", wrapped(text, indent=6)]
    if any(name in flag for flag in DEVICE_FLAGS):
        lines += [wrapped(ABOUT_DEVICES, indent=2)]
    found = [line.strip() for line in (about or "").splitlines() if line.strip().startswith("--") and name in line]
    return lines + [f"  {line}" for line in found]


def _texts_of_options(kind: type[Any]) -> dict[str, str]:
    parts = [
        hint for hint in get_type_hints(kind).values() if isinstance(hint, type) and dataclasses.is_dataclass(hint)
    ]
    return {name: text for part in (*parts, kind) for name, text in field_texts(part).items()}


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


def wrapped(text: str, *, indent: int) -> str:
    """Returns a text in lines of the terminal's width, or of WIDTH if the output is not a terminal."""
    width = terminal_width() or WIDTH
    return textwrap.fill(
        text, width, initial_indent=" " * indent, subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def terminal_width() -> int | None:
    """Returns the width of the terminal (COLUMNS, if it is set) in characters; None if the output is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def asks_for_help(arguments: Sequence[str]) -> bool:
    return bool({"-h", "--help", "--help-all"} & set(arguments))


def help_word(arguments: Sequence[str]) -> str:
    """Returns the words after --help, up to the next flag; empty if there are none."""
    places = [place for place, each in enumerate(arguments) if each in ("-h", "--help", "--help-all")]
    after = arguments[places[0] + 1 :] if places else ()
    return " ".join(itertools.takewhile(lambda word: not word.startswith("-"), after))


def is_flag(argument: str) -> bool:
    return argument.startswith("--")


_KINDS = {"INT": "a whole number", "FLOAT": "a number"}
"""Names of tyro's types in messages."""


def plain_message(text: str) -> str:
    """Returns an error message of tyro without its frame and title, such as `--rows: 'x' is not a whole number`."""
    lines = [re.sub(r"^\s*[╭╮╰╯│|+]|[╭╮╰╯│|+]\s*$|[─-]{5,}", " ", line).strip() for line in text.splitlines()]
    message = " ".join(line for line in lines[1:] if line and "For full helptext" not in line)
    message = " ".join(message.split()).partition(" Argument helptext: ")[0]
    message = re.sub(r"^Error parsing ([\w.-]+: )", r"\1", message)
    message = re.sub(
        r"no type matching \{None\}\W(INT|FLOAT|\w+) could be instantiated from \[('.*?')\].*", _not_of_type, message
    )
    message = re.sub(
        r"invalid choice ('.*?') for argument '([\w.-]+)'. Expected one of \((.*?)\)\.?", _of_choices, message
    )
    not_of_type = r"\1 is not of the type of this field"
    message = re.sub(r"Could not find valid parse for arguments: \[(.*?)\]", not_of_type, message)
    message = re.sub(r"invalid literal for int\(\) with base 10: ('.*?')", r"\1 is not a whole number", message)
    message = re.sub(r"could not convert string to float: ('.*?')", r"\1 is not a number", message)
    message = re.sub(r"Missing value for argument '(.*?)'. Expected .*", r"\1: expected a value", message)
    return message.replace("'None', ", "").replace(", 'None'", "")


def _not_of_type(found: re.Match[str]) -> str:
    return f"{found[2]} is not {_KINDS.get(found[1], f'of type {found[1]}')}"


def _of_choices(found: re.Match[str]) -> str:
    choices = found[3].replace("'", "").removesuffix(",").split(", ")  # a single choice has a comma behind it
    if "None" in choices:  # tyro has no order of the others then
        choices = sorted({*choices} - {"None"})
    *others, last = choices
    return f"{found[2]}: {found[1]} is not a choice; expected {', '.join(others) + ' or ' if others else ''}{last}"


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
    value: str
    """Placeholder or choices of the value; empty for positional arguments and flags without a value."""
    default: str
    """Default as it is written on the command line; empty if it is empty, None, or the flag is not set."""


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
        has_value = POSITIONAL not in markers and hint is not bool
        value = next((marker.metavar for marker in named if marker.metavar), _placeholder(hint)) if has_value else ""
        default = field.default if field.default is not missing else None
        if field.default_factory is not missing:
            default = field.default_factory()
        yield _Option(
            field.name, metavar if POSITIONAL in markers else f"--{name.replace('_', '-')}",
            tuple(alias for marker in named for alias in marker.aliases or ()),
            is_required=field.default is missing is field.default_factory, is_bool=hint is bool,
            is_optional=type(None) in get_args(hint), may_be_empty=MAY_BE_EMPTY in markers,
            value=value, default=_written(default),
        )  # fmt: skip


def _placeholder(hint: Any) -> str:
    """Returns the choices of a type, or its name in upper case."""
    parts = [part for part in get_args(hint) if part is not type(None)]
    if get_origin(hint) is Literal:
        return "|".join(str(part) for part in parts if part is not None)
    if get_origin(hint) is tuple:
        return f"{_placeholder(parts[0])} …"
    return "|".join(map(_placeholder, parts)) if parts else "TEXT" if hint is str else hint.__name__.upper()


def _written(default: Any) -> str:
    if isinstance(default, tuple):
        return " ".join(map(str, default))
    return "" if default is None or default is False else str(default)


def spellings(kind: type[Any]) -> set[str]:
    """Returns all spellings of the flags of an options class."""
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
