"""Text of a migration: its report and the config."""

import textwrap
from collections.abc import Iterator

from asr_jax.migration.engine import Migration
from asr_jax.migration.python_source import WIDTH, expression

KINDS = {
    "mapped": "Settings",
    "default": "Defaults of the program",
    "elsewhere": "Arguments of commands (python -m asr_jax.COMMAND)",
    "not needed": "Not needed",
    "refused": "There is no such setting",
}
LONGEST = 60
"""Characters of a value in the report."""


def report(found: Migration) -> Iterator[str]:
    """Yields lines: the values by what became of them, and what differs."""
    base = f", from configs/{found.recipe}.py" if found.recipe else ""
    yield f"{found.system.title}{base}"
    for kind, title in KINDS.items():
        lines = [line for line in found.lines if line.kind == kind]
        if not lines:
            continue
        yield f"\n{title}: {len(lines)}"
        given = [line.given if len(line.given) <= LONGEST else f"{line.given[: LONGEST - 1]}…" for line in lines]
        width = max(map(len, given))
        yield from (f"  {text:<{width}}  {line.result}" for text, line in zip(given, lines, strict=True))
    if found.differs:
        yield "\nWhat differs:"
        for each in found.differs:
            yield from textwrap.wrap(each, WIDTH, initial_indent="- ", subsequent_indent="  ")


def config_text(found: Migration, sources: str) -> str:
    """Returns the config: a Python file with a function `experiment`."""
    assert found.experiment is not None
    body, imports = expression(found.experiment, found.comments, indent=4, before="return")
    refused = [line for line in found.lines if line.kind == "refused"]
    about = [
        f"Migrated from {found.system.title}: {sources}".replace("\\", "/"),
        f"Comments name the original values. Settings without a comment have the values of configs/{found.recipe}.py.",
        *(f"Differs: {each}" for each in found.differs),
        *(f"There is no such setting: {line.given}: {line.result}" for line in refused),
    ]
    text = "\n\n".join(textwrap.fill(each.replace('"""', "'''"), WIDTH) for each in about)
    modules = sorted({module for module, _ in imports})
    names = [", ".join(sorted(name for of, name in imports if of == module)) for module in modules]
    lines = "\n".join(f"from {module} import {each}" for module, each in zip(modules, names, strict=True))
    return f'"""{text}\n"""\n\n{lines}\n\n\ndef experiment() -> Experiment:\n{body}\n'
