"""From `--config FILE --field.name value …` to an Experiment, with every mistake named at once."""

import contextlib
import dataclasses
import errno
import gc
import importlib.util
import inspect
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import tyro

from asr_jax.audio.io import AudioError
from asr_jax.config import FORMER_FIELDS, Experiment, classes, load_experiment
from asr_jax.core.errors import RunError, UserError, nearest
from asr_jax.core.options import asks_for_help, parse_known, plain_message, print_help
from asr_jax.core.run_folder import EXPERIMENT

# Short spellings of fields that are typed often.
ALIASES = {
    "--data": "--data.train",
    "--log-every": "--training.log-every",
    "--epochs-this-job": "--training.epochs-this-job",
    "--init-from": "--init.path",
    "--profile": "--training.profile",
    "--updates": "--training.num-updates",
    "--epochs": "--training.num-epochs",
}

FORMER_FLAGS = {
    f"--training.{former.replace('_', '-')}": f"--training.{now.replace('_', '-')}"
    for former, now in FORMER_FIELDS.items()
}
"""Present names of flags, by their former names."""

INIT_FROM = ALIASES["--init-from"]

DECODING = "--decoding."
"""In front of the fields of the decoding of the head that texts come from."""

SHORT = (
    "Short forms: " + ", ".join(f"{short} for {field}" for short, field in ALIASES.items())
    + ". With asr_jax.train also --show schedule. Another class, such as of the optimizer, its schedule or the "
    "encoder, is chosen in the config file. --decoding.FIELD is that of the head that texts come from."
)  # fmt: skip

# What a person can mend, wherever in a command it is met.
OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentSource:
    """Where an experiment's settings begin."""

    config: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Python file with a function `experiment`; `--config FILE --help` lists its fields."""
    run_dir: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of a run, to continue it without --config."""


def run_command(main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> None:
    """Calls a command's main: an error that is for a person is printed without a traceback and sets the exit code."""
    # Tracing makes millions of objects; with its usual thresholds, the collector takes a quarter of the time.
    gc.set_threshold(100_000, 20, 100)
    try:
        main(sys.argv[1:] if arguments is None else arguments)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except AudioError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(RunError.exit_code)
    except BrokenPipeError:  # whoever read the output has enough of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if error.errno not in OF_THE_MACHINE and not error.filename:
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror}{where}; mend that and give the same command again", file=sys.stderr)
        sys.exit(RunError.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def parse_experiment(arguments: Sequence[str], *, prog: str) -> Experiment:
    """The experiment of the file after `--config`, with the fields that are given by dotted name replaced.

    Without `--config`, that of the run in `--run-dir`: to continue it.

    `--optim.clip-at 3`, `--optim.clip_at=3` and `--config.optim.clip_at=3` are the same, and so are
    `--model.encoder.dim 256` and `--model.dim 256`, where no other part of the model has a `dim`. `--help` prints every
    field with its type, meaning and value in that file, and exits.

    Raises: UserError that names all unknown fields (with the nearest known one), all wrong types and all impossible
    values at once.
    """
    source, rest = parse_known(ExperimentSource, arguments, prog=prog)
    if source.run_dir is not None:
        rest += ["--run-dir", source.run_dir]
        if source.config is None and (Path(source.run_dir) / EXPERIMENT).is_file():
            return parse_fields(rest, load_experiment(Path(source.run_dir) / EXPERIMENT), prog=prog, of=source.run_dir)
    if source.config is None:
        if asks_for_help(rest):
            print(
                f"usage: {prog} --config FILE [--field.name VALUE …]\n\n{prog} --config FILE --help lists its fields."
            )
            sys.exit(0)
        if source.run_dir is not None:
            raise UserError(
                f"{source.run_dir} is not a run (it has no experiment.json), and --config is missing: give the folder "
                f"of a run to continue it, or {prog} --config FILE --run-dir {source.run_dir} to begin one"
            )
        raise UserError(f"--config is missing: expected {prog} --config FILE, such as configs/quickstart.py")
    default = load_config(source.config, init_from=_init_from(rest))
    return parse_fields(rest, default, prog=prog, of=f"--config {source.config}")


def parse_with_experiment[Options](
    kind: type[Options], arguments: Sequence[str], *, prog: str, about: str | None
) -> tuple[Options, Experiment]:
    """A command's own options, and the experiment that the other arguments give.

    `--help` prints the options and, with `--config FILE`, that file's fields.

    Raises: UserError, as `parse_known` and `parse_experiment`.
    """
    if asks_for_help(arguments):
        print_help(kind, prog=prog, about=about)
        parse_experiment(arguments, prog=prog)  # exits
    options, rest = parse_known(kind, arguments, prog=prog)
    return options, parse_experiment(rest, prog=prog)


def _init_from(arguments: Sequence[str]) -> str:
    """The value of --init-from, by any of its spellings; empty where it is not given."""
    plain = [_plain(argument) for argument in arguments]
    places = [place for place, argument in enumerate(plain) if argument.partition("=")[0] == INIT_FROM]
    if not places:
        return ""
    _, equals, value = plain[places[-1]].partition("=")
    return value if equals else next(iter(plain[places[-1] + 1 :]), "")


def parse_fields[Settings](arguments: Sequence[str], default: Settings, *, prog: str, of: str) -> Settings:
    """A tree of settings with the fields replaced that the arguments name.

    Raises: UserError, as `parse_experiment`.
    """
    fields = list(field_flags(default))
    arguments = [_whole(_of_primary(_plain(argument), default), fields) for argument in arguments]
    for i, argument in enumerate(arguments):
        is_last = i + 1 == len(arguments) or arguments[i + 1].startswith("--")
        if argument in ("--fresh", "--dry-run") and is_last:
            arguments[i] = f"{argument}=True"
    if asks_for_help(arguments):
        _parse(arguments, default, prog=f"{prog} {of}")
    problems = _problems(arguments, default)
    if isinstance(default, Experiment) and default.decoding:
        problems = [problem.replace(_of_primary(DECODING, default), DECODING) for problem in problems]
    if problems:
        raise UserError(
            f"{len(problems)} setting{'s' * (len(problems) > 1)} of {of} cannot be used:\n"
            + "\n".join(f"  {problem}" for problem in problems)
            + f"\n{'' if prog else 'python -m asr_jax.train --config FILE '}--help lists all fields"
        )
    return _parse(arguments, default, prog=prog)


def load_config(path: str, *, init_from: str = "") -> Experiment:
    """What the function `experiment` of a Python file returns. Where it takes `init_from`, it gets the path of the
    weights to begin with, which settings can be read from.

    Raises: UserError where the file is missing, cannot be run, or does not return an Experiment.
    """
    file = Path(path)
    if not file.is_file():
        others = [str(p) for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise UserError(f"config {path} does not exist{nearest(path, others)}")
    spec = importlib.util.spec_from_file_location(f"asr_jax_config_{file.stem}", file.absolute())
    if spec is None or spec.loader is None:
        raise UserError(f"config {path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
        takes = "init_from" in inspect.signature(module.experiment).parameters
        experiment = module.experiment(init_from=init_from) if takes else module.experiment()
    except Exception as error:  # a config is a person's own code: say what failed in it, and where
        line = next((f":{e.lineno}" for e in _frames(error) if Path(e.filename) == file.absolute()), "")
        raise UserError(f"config {path}{line}: {type(error).__name__}: {error}") from error
    if not isinstance(experiment, Experiment):
        raise UserError(f"config {path}: experiment() returned {type(experiment).__name__}, expected an Experiment")
    own = sorted(name for name in classes(experiment) if name.startswith(spec.name + ":"))
    if own:
        raise UserError(
            f"config {path} defines {', '.join(own)}, which nobody could load again to evaluate the run: "
            "move it to a module that can be imported"
        )
    return experiment


def _frames(error: BaseException) -> Iterator[Any]:
    import traceback

    yield from reversed(traceback.extract_tb(error.__traceback__))


def _plain(argument: str) -> str:
    if not argument.startswith("--"):
        return argument
    flag, equals, value = argument.partition("=")
    flag = "--" + flag.removeprefix("--").removeprefix("config.").replace("_", "-")
    return (ALIASES | FORMER_FLAGS).get(flag, flag) + equals + value


def _of_primary(argument: str, default: Any) -> str:
    """`--decoding.FIELD` as the field of the head that texts come from."""
    decoding = default.decoding if isinstance(default, Experiment) else None
    if decoding is None or not argument.startswith(DECODING):
        return argument
    whole = _whole(argument, list(field_flags(decoding, DECODING)))
    return f"--model.heads.{default.model.recognising.replace('_', '-')}.{whole.removeprefix('--')}"


def _whole(argument: str, fields: Sequence[str]) -> str:
    """A field's name with the middle of it left out (--model.dim for --model.encoder.dim), where it is one's alone."""
    flag, equals, value = argument.partition("=")
    meant = [] if flag in fields else _meant(flag, fields)
    return meant[0] + equals + value if len(meant) == 1 else argument


def _meant(flag: str, fields: Iterable[str]) -> list[str]:
    """Fields that have the same first part and the same last ones."""
    first, _, last = flag.partition(".")
    return sorted(field for field in fields if last and field.startswith(f"{first}.") and field.endswith(f".{last}"))


def _parse[Settings](arguments: Sequence[str], default: Settings, *, prog: str) -> Settings:
    return tyro.cli(
        type(default), default=default, args=list(arguments), prog=prog, config=(tyro.conf.FlagConversionOff,),
        description=SHORT,
    )  # fmt: skip


def _problems(arguments: Sequence[str], default: Any) -> list[str]:
    """What is wrong with the overrides, one after the other: tyro stops at the first mistake."""
    fields = set(field_flags(default))
    overrides = _overrides(arguments)
    problems = [_unknown(override[0], fields) for override in overrides if _flag(override) not in fields]
    known = [override for override in overrides if _flag(override) in fields]
    flags = [_flag(override) for override in known]
    problems += [f"{flag} is given {flags.count(flag)} times" for flag in dict.fromkeys(flags) if flags.count(flag) > 1]

    def complaint(overrides: Sequence[Sequence[str]]) -> str:
        return _complaint([argument for override in overrides for argument in override], default)

    while message := complaint(known):
        # Without which of them there is no complaint, or another one? Of several, none is wrong by itself.
        without = [complaint([other for other in known if other is not override]) for override in known]
        accused = [override for override, rest in zip(known, without, strict=True) if not rest]
        accused = accused[:1] or [override for override, rest in zip(known, without, strict=True) if rest != message]
        problems.append(f"{' '.join(accused[0])}: {message}" if len(accused) == 1 else message)
        if not accused:
            break
        known = [override for override in known if override not in accused]
    return problems


def _flag(override: Sequence[str]) -> str:
    return override[0].partition("=")[0]


def _unknown(argument: str, fields: set[str]) -> str:
    if not argument.startswith("--"):
        return f"{argument!r} belongs to no field: expected --field.name before it"
    flag = argument.partition("=")[0]
    if meant := _meant(flag, fields):
        return f"{flag} is not a field; expected one of {', '.join(meant)}"
    suggestion = nearest(flag.removeprefix("--"), [known.removeprefix("--") for known in fields])
    return f"{flag} is not a field{suggestion.replace(chr(39), chr(39) + '--', 1)}"


def _overrides(arguments: Sequence[str]) -> list[list[str]]:
    groups: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not groups:
            groups.append([argument])
        else:
            groups[-1].append(argument)
    return groups


def _complaint(arguments: Sequence[str], default: Any) -> str:
    """Tyro's message without its frame and without the flag, or an empty string."""
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message), contextlib.redirect_stdout(message):
            _parse(arguments, default, prog="")
    except SystemExit:
        return re.sub(r"^--[\w.-]+: ", "", plain_message(message.getvalue()))
    return ""


def _is_list_of_settings(settings: Any, name: str) -> bool:
    """Whether a field is a tuple of dataclasses."""
    return any(dataclasses.is_dataclass(part) for part in get_args(get_type_hints(type(settings))[name]))


def field_flags(settings: Any, prefix: str = "--") -> Iterator[str]:
    """The flag of every leaf field of a tree of settings."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        known = [(field.name, getattr(settings, field.name)) for field in dataclasses.fields(settings)]
        # Settings that a config lists, such as augmentations: where it lists none there is nothing to set.
        items = [(name, value) for name, value in known if value != () or not _is_list_of_settings(settings, name)]
    elif isinstance(settings, dict):
        items = list(settings.items())
    elif isinstance(settings, tuple) and any(dataclasses.is_dataclass(value) for value in settings):
        items = [(str(i), value) for i, value in enumerate(settings)]
    else:
        yield prefix.rstrip(".")
        return
    for name, value in items:
        yield from field_flags(value, prefix + name.replace("_", "-") + ".")
