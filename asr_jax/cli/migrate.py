"""Makes a config of another system's scripts, command lines and YAML files.

`python -m asr_jax.migrate --from SYSTEM SOURCE … --out config.py` reads shell scripts and YAML files; a command line
stands after `--`. It writes a commented Python file, and prints what became of each flag, variable and key, and what
differs. Manifests need no migration: `--data.train` reads the manifests of all these systems (documentation: data).
"""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from asr_jax.cli.command_line import config_of_package, load_config
from asr_jax.core.errors import UserError
from asr_jax.core.files import check_writable, write_whole
from asr_jax.core.options import parse
from asr_jax.core.paths import UserPath, quoted
from asr_jax.core.settings import command_options
from asr_jax.core.text_files import read_text

HEADINGS = "Paper|Source|Model|Data|Command|Expected|Time|Recipe|Variants|Next|Memory|Options|Sizes|Export"


@command_options
class MigrateOptions:
    """Options of `asr_jax.migrate`."""

    sources: Annotated[Positional[tuple[UserPath, ...]], arg(metavar="SOURCE …")] = ()
    """Shell scripts and YAML files of one training; a command line stands after --, as in `-- EPOCHS=20 bash
    scripts/train.sh`."""
    of: Annotated[Literal["caiman", "quartznet", "wav2vec2", "rust", "nemo", "icefall"] | None, arg(name="from")] = None
    """System of the sources. Default: the one whose names the sources have."""
    out: Annotated[Path | None, arg(metavar="CONFIG.py")] = None
    """Config to write. Default: only the report is printed."""
    ignore_unknown: bool = False
    """Report names of flags, variables and keys that are not known, and continue."""
    force: bool = False
    """Overwrite an existing config."""


def main(arguments: Sequence[str]) -> None:
    own, command = list(arguments), list[str]()
    if "--" in own:
        command = own[own.index("--") + 1 :]
        own = own[: own.index("--")]
    options = parse(MigrateOptions, own, prog="python -m asr_jax.migrate", about=__doc__)
    if not options.sources and not command:
        raise UserError("there is no source: expected scripts, YAML files, or a command line after --")
    if options.out and (options.out.suffix != ".py" or (options.out.exists() and not options.force)):
        raise UserError(f"--out {options.out}: expected a new name that ends in .py; --force overwrites a file")

    from asr_jax.migration.engine import detected, migrate
    from asr_jax.migration.report import config_text, report
    from asr_jax.migration.sources import read_sources
    from asr_jax.migration.systems import SYSTEMS

    read = read_sources(options.sources, command)
    known = {system.name: system for system in SYSTEMS}
    names = " ".join([*map(str, options.sources), *([shlex.join(command)] if command else [])])
    system = known[options.of] if options.of else detected(SYSTEMS, read.texts, names)
    try:
        found = migrate(
            system, read, load=lambda name: load_config(_recipe(name)), ignore_unknown=options.ignore_unknown
        )
    except UserError as error:
        others = [each for each in SYSTEMS if re.search(each.mark, read.texts) and each != system]
        if re.search(system.mark, read.texts) or len(others) != 1:
            raise
        about = f"{names} looks like a source of {others[0].title}: expected --from {others[0].name}"
        raise UserError(f"{about}\n{error}") from error
    if found.recipe:
        found.differs.extend(_differences(_recipe(found.recipe)))
    if found.experiment:
        check_writable(options.out)
    print("\n".join(report(found)))
    if found.command:
        print(f"\nthis does not train: {found.command}")
        return
    if not options.out:
        print("\n--out CONFIG.py writes the config")
        return
    write_whole(options.out, config_text(found, names))
    if load_config(options.out) != found.experiment:
        raise AssertionError(f"{options.out} has other settings than the migration: this is a mistake of the program")
    flags = [line.result.removeprefix("train ") for line in found.lines if line.result.startswith("train --")]
    next_command = " ".join(["python -m asr_jax.train --config", quoted(options.out), *flags, "--dry-run"])
    print(f"\nwritten: {options.out}; next: {next_command}")


def _recipe(name: str) -> Path:
    return config_of_package(Path("configs") / f"{name}.py")


def _differences(recipe: Path) -> list[str]:
    """Returns what a config of this package says about differences that do not depend on its own settings."""
    text = read_text(recipe).split('"""')[1]
    found = re.search(
        rf"(?ms)^Differs +(.*?)(?=^(?:{HEADINGS})\b|\Z)|Differences: (.*?)(?=^\w|\Z)",
        text,
    )
    if not found:
        return []
    shared = " ".join((found[1] or found[2]).split()).partition(" In this config:")[0]
    return [f"configs/{recipe.name}: {shared}"]
