"""Options of a command, from the command line."""

from collections.abc import Sequence

from asr_jax.core.flags import flags_of, parse_flags
from asr_jax.core.help import asks_for_help, show_help


def parse[Options](kind: type[Options], arguments: Sequence[str], *, prog: str, about: str | None) -> Options:
    """Returns the options of a command. `--help` prints them and exits.

    Args:
        arguments: Command line without the command.
        prog: Name of the command, for messages.
        about: Description of the command, for the help.

    Raises:
        UserError: If flags are unknown or missing, or have values of another type. The message names all of them.
    """
    flags = flags_of(kind)
    if asks_for_help(arguments):
        show_help(arguments, flags, prog=prog, about=about)
    [options] = parse_flags([kind], flags, arguments, prog=prog)
    return options
