"""Help on flags: a short list, the whole text of all (`--help-all`), or the flags with a word (`--help WORD`)."""

import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from asr_jax.core.errors import nearest
from asr_jax.core.flags import MISSING, DeviceOptions, Flag, flags_of, is_flag, known
from asr_jax.core.foreign_words import matching, meant_by, plain_word, rows_on

WIDTH = 120
"""Width of help texts that are not printed in a terminal."""
COLUMN = 34
"""Column of the texts in the lists of flags."""
SENTENCES = r"(?<=[^.\d]\.) (?=[A-Z])"
"""Place between two sentences."""
ASKING = ("-h", "--help", "--help-all")
ABOUT_HELP = (
    "Help: --help-all prints the whole text of each flag, and --help WORD that of the flags with a word in their name "
    "or text, or with this name in another system."
)


def asks_for_help(arguments: Sequence[str]) -> bool:
    return bool({*ASKING} & {*arguments})


def show_help(
    arguments: Sequence[str],
    options: Sequence[Flag],
    settings: Sequence[Flag] = (),
    *,
    prog: str,
    about: str | None,
    most_used: Sequence[str] = (),
    of: str = "",
    uses_devices: bool = True,
) -> NoReturn:
    """Prints the help that the arguments ask for, and exits.

    Args:
        settings: Flags of settings. The short help shows only the most used ones.
        most_used: Names of these, in the order of the help.
        of: Arguments that the settings come from, for their title.
        uses_devices: Whether the flags that choose devices are listed.
    """
    options = [*(flags_of(DeviceOptions) if uses_devices else ()), *options]
    if words := help_words(arguments):
        print(help_on([*options, *settings], words, about=about))
        sys.exit(0)
    whole = "--help-all" in arguments
    required = [f"{flag.name} {_placeholder(flag)}".strip() for flag in options if flag.value is MISSING]
    parts = [" ".join(["usage:", prog, *sorted(required, key=is_flag), "[FLAGS]"])]
    for paragraph in re.split(r"\n\s*\n", (about or "").strip("\n")):
        is_list = any(line.startswith(" ") for line in paragraph.split("\n"))
        parts.append(paragraph if is_list else wrapped(" ".join(paragraph.split()), indent=0))
    for title, flags in reversed(_sections(options).items()):
        flags.sort(key=lambda flag: (not flag.is_positional, flag.value is not MISSING))
        parts.append(_listed(title, flags, whole=whole))
    sections = _sections(settings)
    if whole:
        parts += [_listed(title, flags, whole=True) for title, flags in sections.items()]
    elif settings:
        by_name = {flag.name: flag for flag in settings}
        used = [by_name[name] for name in most_used if name in by_name]
        counts = ", ".join(f"{title.partition(':')[0]} ({len(flags)})" for title, flags in sections.items())
        parts += [_listed(f"Most used settings of {of}", used, whole=False)]
        parts += [wrapped(f"All settings, with their number: {counts}", indent=0)]
    print("\n\n".join([*parts, wrapped(ABOUT_HELP, indent=0)]))
    sys.exit(0)


def help_words(arguments: Sequence[str]) -> str:
    """Returns the words after --help, up to the next flag; empty if there are none."""
    after = itertools.dropwhile(lambda each: each not in ASKING, arguments)
    return " ".join(itertools.takewhile(lambda word: not word.startswith("-"), itertools.islice(after, 1, None)))


def _listed(title: str, flags: Sequence[Flag], *, whole: bool) -> str:
    return "\n".join([f"{title}:", *(described(flag, whole=whole) for flag in flags)])


def _sections(flags: Sequence[Flag]) -> dict[str, list[Flag]]:
    """Returns the flags by the title of their section: each class at each place, of like items of a list the first."""
    found: dict[tuple[str, type], dict[str, list[Flag]]] = {}
    for flag in flags:
        prefix = "" if flag.is_positional else flag.name[2:].rpartition(".")[0]
        like = found.setdefault((re.sub(r"\.\d+(?=\.|$)", ".N", prefix), flag.owner), {})
        like.setdefault(prefix, []).append(flag)
    sections = {}
    for (_, owner), like in found.items():
        first, *others = like
        name = f"{first} to {others[-1]}" if others else first
        about = re.split(SENTENCES, " ".join((owner.__doc__ or "").split()))[0].rstrip(".")
        sections[f"{name}: {about}" if name else about.partition(": ")[0]] = like[first]
    return sections


def described(flag: Flag, *, whole: bool) -> str:
    """Returns the lines on a flag: names, values, default, and its text, as a whole or the first sentence alone."""
    sentences = re.split(SENTENCES, flag.text)
    default = [sentence for sentence in sentences[1:] if sentence.startswith("Default")]
    text = flag.text if whole else " ".join([sentences[0], *default[:1]])
    has_value = not any(flag.value is nothing for nothing in (None, False, MISSING))
    value = " ".join(flag.spec.str_from_instance(flag.value)) if has_value else ""
    text = f"[{value}] {text}" if value else text
    names = [flag.name, *(alias for alias in flag.aliases if "." not in alias)]
    names += [flag.name.replace("--", "--no-", 1)] * (flag.value is True)
    head = f"  {', '.join(names)} {_placeholder(flag)}".rstrip()
    lines = wrapped(text, indent=COLUMN).split("\n")
    return "\n".join([head, *lines] if len(head) > COLUMN - 2 else [head + lines[0][len(head) :], *lines[1:]])


def _placeholder(flag: Flag) -> str:
    return "" if flag.is_positional or flag.hint is bool else flag.metavar


def help_on(flags: Sequence[Flag], text: str, *, about: str | None = None) -> str:
    """Returns the whole texts of the flags whose name or text contains all words, or that another system calls so.

    Args:
        text: Words, or a flag, in any case.
        about: Description of the command, whose lines on flags are searched too.
    """
    words, joined = re.split(r"[\s_-]+", text.strip("- ").lower()), re.sub(r"\s+", "-", text.strip())
    about_it = rows_on(joined)
    meant = {name for row in about_it if row.flag for name in matching(row.flag, known(flags))}
    found = [flag for flag in flags if flag.name in meant]
    with_words = _with_words(flags, words, begins=r"\b") or _with_words(flags, words, begins="")
    found += [flag for flag in with_words if flag not in found]
    advice = [f"{text}: {row.note}" for row in about_it if not row.flag][:1] * (not meant)
    advice += [line.strip() for line in (about or "").split("\n") if re.match(r" +--", line) and words[0] in line]
    if not found and not advice:
        if suggestion := meant_by(joined, known(flags)):
            return f"{text}{suggestion}"
        names = {part for flag in flags for part in re.split(r"[.]", flag.name.strip("-"))}
        return f"no flag has {text!r} in its name or text{nearest(plain_word(joined), names, cutoff=0.75)}"
    return "\n".join([*advice, *(described(flag, whole=True) for flag in found)])


def _with_words(flags: Sequence[Flag], words: Sequence[str], *, begins: str) -> list[Flag]:
    """Flags whose name and text contain all words, each after the pattern `begins`."""
    patterns = [re.compile(begins + re.escape(word), re.IGNORECASE) for word in words]
    return [
        flag
        for flag in flags
        if all(pattern.search(f"{flag.name.replace('-', ' ')} {flag.text.replace('_', ' ')}") for pattern in patterns)
    ]


def wrapped(text: str, *, indent: int) -> str:
    """Returns a text in lines of the terminal's width, or of WIDTH if the output is not a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
    return textwrap.fill(
        text,
        max(width, COLUMN + 40),
        initial_indent=" " * indent,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
