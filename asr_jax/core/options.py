"""Options of a command, from the command line, and commands that only report on a run."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.core.flags import flags_of, parse_flags
from asr_jax.core.help import asks_for_help, show_help
from asr_jax.core.text_files import use_utf8


def parse[Options](
    kind: type[Options], arguments: Sequence[str], *, prog: str, about: str | None, uses_devices: bool = True
) -> Options:
    """Returns the options of a command. `--help` prints them and exits.

    Args:
        uses_devices: Whether the command uses devices, so that the help lists the flags that choose them.

    Raises:
        UserError: If flags are unknown or missing, or have values of another type. The message names all of them.
    """
    flags = flags_of(kind)
    if asks_for_help(arguments):
        show_help(arguments, flags, prog=prog, about=about, uses_devices=uses_devices)
    [options] = parse_flags([kind], flags, arguments, prog=prog)
    return options


def given_flags(options: Any, *names: str) -> list[str]:
    """Returns the flags of the options that are given: their values are not the default, None, False or empty."""
    defaults = {field.name: field.default for field in fields(options)}
    values = {name: getattr(options, name) for name in names}
    missing = [n for n, each in values.items() if each is None or each is False or each in ("", (), defaults[n])]
    return [f"--{name.replace('_', '-')}" for name in names if name not in missing]


def run_report(main: Callable[[Sequence[str]], None]) -> None:
    """Calls the main function of a command that reads the events of a run, with the arguments of the process.

    Errors for the user are printed without a traceback, and the process exits with their code.
    """
    use_utf8()
    try:
        main(sys.argv[1:])
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
