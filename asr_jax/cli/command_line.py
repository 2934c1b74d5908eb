"""Parses `--config FILE --field.name VALUE …` into an Experiment; reports all mistakes at once."""

import contextlib
import dataclasses
import errno
import gc
import importlib.util
import inspect
import io
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, cast, get_args, get_type_hints

import tyro

from asr_jax.audio.io import AudioError
from asr_jax.cli.field_help import GROUPS, GROUPS_OF, help_on, help_text
from asr_jax.cli.synonyms import meant_by, plain_word
from asr_jax.config import Experiment, Init, Resume, classes, experiment_of, load_experiment
from asr_jax.core.errors import RunError, UserError, nearest
from asr_jax.core.names import counted
from asr_jax.core.native import native_log
from asr_jax.core.options import (
    ABOUT_DEVICES,
    DEVICE_FLAGS,
    asks_for_help,
    help_on_options,
    help_word,
    is_flag,
    parse_known,
    plain_message,
    print_help,
    terminal_width,
    wrapped,
)
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT
from asr_jax.pretrained.hub import Upload

# Short forms of frequently used flags.
ALIASES = {
    "--data": "--data.train",
    "--check": "--data.check-all",
    "--allow-pipes": "--data.allow-pipes",
    "--log-every": "--training.log-every",
    "--epochs-this-job": "--training.limits.epochs-this-job",
    "--init-from": "--init.path",
    "--profile": "--training.profile",
    "--profile-processes": "--training.profile-processes",
    "--upload": "--upload.to",
    "--updates": "--training.num-updates",
    "--epochs": "--training.num-epochs",
}

INIT_FROM = ALIASES["--init-from"]
MISTYPED = re.compile(r"' is not (?:a|of)\b|': expected pairs of ")
"""Part of the messages about values of another type than that of their field."""
EXAMPLE = "configs/read_speech.py"
"""Config whose fields --help shows if none is given."""

DECODING = "--decoding."
"""Prefix of the flags that set the decoding of the primary head."""

SHORT = (
    "--help WORD searches the names and texts of all fields. asr_jax.train also accepts --show schedule. Classes, "
    "such as those of the optimizer, its schedule and the encoder, are chosen in the config file. --decoding.FIELD "
    "sets a field of the decoding of the primary head."
)  # fmt: skip

# Errors of the operating system that the user can fix; they are reported without a traceback.
OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.EMFILE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExperimentSource:
    """Source of the settings: a config file or a run."""

    config: Annotated[str | None, tyro.conf.arg(metavar="FILE")] = None
    """Python file with a function `experiment`; `--config FILE --help` lists its fields."""
    run_dir: Annotated[str | None, tyro.conf.arg(metavar="DIR")] = None
    """Folder of a run; without --config, the command continues that run, or starts one from the run of --init-from.
    RUN/checkpoints/N: a new run beside RUN begins from that checkpoint."""


def run_command(main: Callable[[Sequence[str]], None], arguments: Sequence[str] | None = None) -> None:
    """Calls the main function of a command; prints expected errors without a traceback and exits with their code.

    Every command takes --device and --devices, see `choose_devices`.

    Args:
        main: Main function of the command; takes the arguments.
        arguments: Arguments of the command. Default: those of the process.
    """
    # Tracing creates millions of objects; with the default thresholds, garbage collection takes 25 % of the time.
    gc.set_threshold(100_000, 20, 100)
    with native_log(), _warnings_printed():
        _call(main, sys.argv[1:] if arguments is None else arguments)


def _call_in_run(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> None:
    """Calls the main function. An error of one of several processes ends this process at once."""
    try:
        main(arguments)
    except Exception as error:
        processes = sys.modules.get("asr_jax.core.processes")  # a command without JAX does not import it
        if processes and not getattr(error, "is_planned", False):
            processes.fail(error)
        raise


def _call(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> None:
    try:
        _call_in_run(main, choose_devices(arguments))
    except UserError as error:
        print(error if error.is_planned else f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except AudioError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(RunError.exit_code)
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if error.errno not in OF_THE_MACHINE and not error.filename:
            raise
        where = f" ({error.filename})" if error.filename else ""
        print(f"error: {error.strerror}{where}; fix this and run the same command again", file=sys.stderr)
        sys.exit(RunError.exit_code)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


@contextlib.contextmanager
def _warnings_printed() -> Iterator[None]:
    """Prints warnings that this package logs as `warning: …`, without the name of their module."""
    logger, handler = logging.getLogger("asr_jax"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("warning: %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


def choose_devices(arguments: Sequence[str]) -> list[str]:
    """Chooses the devices of `--device cpu|gpu|tpu` and `--devices 0,2`, and returns the other arguments.

    Raises:
        UserError: If a flag has no value or a wrong one, or is given twice.
    """
    rest, given, following = list[str](), dict[str, str](), list(arguments)
    while following:
        argument = following.pop(0)
        flag, equals, value = argument.partition("=")
        if flag not in DEVICE_FLAGS:
            rest.append(argument)
            continue
        if flag in given:
            raise UserError(f"{flag} is given twice: expected it once")
        given[flag] = value if equals else following.pop(0) if following and not is_flag(following[0]) else ""
        if flag == "--devices" and given[flag].isdecimal() and following and following[0].isdecimal():
            raise UserError(f"--devices {given[flag]} {following[0]}: expected a comma between numbers, such as 0,2")
    if not given:
        return rest
    kind, numbers = given.get("--device"), given.get("--devices", "")
    if kind not in (None, "cpu", "gpu", "tpu"):
        raise UserError(f"--device {kind!r}: expected cpu, gpu or tpu")
    each = numbers.split(",") if "--devices" in given else []
    if not all(number.isdecimal() for number in each) or len(set(each)) < len(each):
        raise UserError(
            f"--devices {numbers!r}: expected different numbers of devices, from 0, with commas between them, such as "
            "0,2"
        )
    from asr_jax.core.devices import choose  # imported late, because JAX takes a second

    choose(cast(Any, kind), [int(number) for number in each])
    return rest


def parse_experiment(arguments: Sequence[str], *, prog: str) -> Experiment:
    """Returns the experiment of the file after `--config`, with the overridden fields replaced.

    Without `--config`, returns the experiment of the run in `--run-dir`, to continue that run, or that of the run after
    `--init-from`, to start a new run from its weights. `--run-dir` may also be one of its checkpoints, as
    RUN/checkpoints/N.

    `--optim.clip-at 3`, `--optim.clip_at=3` and `--config.optim.clip_at=3` are equivalent. `--model.dim 256` is
    equivalent to `--model.encoder.dim 256` if no other part of the model has a field `dim`. `--help` prints the common
    fields, `--help-all` all of them, and `--help WORD` the fields with a word in their name or text, each with its
    type, its description and its value in that file, and exits.

    Raises:
        UserError: If fields are unknown or values are invalid. The message names all of them, with the nearest known
            field for each unknown one.
    """
    source, rest = parse_known(ExperimentSource, arguments, prog=prog)
    if source.run_dir is not None:
        rest += ["--run-dir", source.run_dir]
        if source.config is None and (before := _experiment_of(Path(source.run_dir))):
            return parse_fields(rest, before, prog=prog, of=source.run_dir)
    init_from = _init_from(rest)
    if source.config is None and (parent := experiment_of(init_from)):
        if source.run_dir is None and not asks_for_help(rest):
            raise UserError(
                f"--run-dir is missing: --init-from {init_from} without --config starts a new run with the settings of "
                "that run; expected --run-dir DIR, the folder of the new run"
            )
        new = dataclasses.replace(
            parent, init=Init(), resume=Resume(), upload=Upload(), run_dir="", fresh=False, dry_run=False
        )  # fmt: skip
        return parse_fields(rest, new, prog=prog, of=f"--init-from {init_from}")
    if source.config is None:
        if asks_for_help(rest):
            command = f"{prog} --config FILE --help {help_word(rest)}".strip()
            print(f"The fields of a config file are flags; {command} lists them.")
            beside_package = Path(__file__).parents[2] / EXAMPLE  # the current folder may be another
            if example := next((str(path) for path in (Path(EXAMPLE), beside_package) if path.is_file()), ""):
                print(f"As an example, those of {example}:\n")
                parse_fields(rest, load_config(example), prog=prog, of=example)  # exits
            sys.exit(0)
        if source.run_dir is not None:
            raise UserError(
                f"{source.run_dir} is not a run (it has no experiment.json), and --config is missing: pass the folder "
                f"of a run to continue it, or {prog} --config FILE --run-dir {source.run_dir} to start a run, or "
                f"{prog} --init-from RUN --run-dir {source.run_dir} to start one with the settings and weights of RUN"
            )
        hints = (meant_by(each, ["--run-dir"]) for each in rest)
        hint = next((text for text in hints if "--run-dir" in text), "")
        raise UserError(f"--config is missing: expected {prog} --config FILE, such as configs/quickstart.py{hint}")
    try:
        default = load_config(source.config, init_from=init_from)
    except UserError:
        # The config has read the weights. Otherwise they are checked later, by all processes of a run together.
        Init(path=init_from).check_exists()
        raise
    return parse_fields(rest, default, prog=prog, of=f"--config {source.config}")


def _experiment_of(folder: Path) -> Experiment | None:
    """Settings of a run, or of the checkpoint RUN/checkpoints/N; None if the folder is neither.

    Raises:
        UserError: If the checkpoint is missing or damaged.
    """
    if folder.parent.name == CHECKPOINTS and folder.name.isdecimal():
        from asr_jax.training.run import experiment_of_checkpoint  # imported late, because it takes a second

        return dataclasses.replace(experiment_of_checkpoint(folder), upload=Upload())  # a new run, of another place
    return load_experiment(folder / EXPERIMENT) if (folder / EXPERIMENT).is_file() else None


def parse_with_experiment[Options](
    kind: type[Options], arguments: Sequence[str], *, prog: str, about: str | None
) -> tuple[Options, Experiment]:
    """Parses the options of a command and the experiment that the remaining arguments describe.

    `--help` prints the options and the fields of the file after `--config`, or of EXAMPLE if no file is given.

    Args:
        prog: The command, for messages.
        about: Description of the command, for `--help`.

    Raises:
        UserError: If `parse_known` or `parse_experiment` rejects the arguments.
    """
    if asks_for_help(arguments):
        if word := help_word(arguments):
            for line in help_on_options(kind, word, about=None):
                print(line)
        else:
            print_help(
                kind, prog=f"{prog} --config FILE [--field.name VALUE …]", about=about,
                shows_all="--help-all" in arguments, also=(ExperimentSource,),
            )  # fmt: skip
            print()
        parse_experiment(arguments, prog=prog)  # exits
    options, rest = parse_known(kind, arguments, prog=prog)
    return options, parse_experiment(rest, prog=prog)


def _init_from(arguments: Sequence[str]) -> str:
    """Value of --init-from in any of its spellings, or an empty string if it is not given."""
    plain = [_plain(argument) for argument in arguments]
    places = [place for place, argument in enumerate(plain) if argument.partition("=")[0] == INIT_FROM]
    if not places:
        return ""
    _, equals, value = plain[places[-1]].partition("=")
    return value if equals else next(iter(plain[places[-1] + 1 :]), "")


def parse_fields[Settings](arguments: Sequence[str], default: Settings, *, prog: str, of: str) -> Settings:
    """Returns a tree of settings in which the fields that the arguments name are replaced.

    Args:
        arguments: Flags of the fields, each followed by its value or values.
        prog: The command, for messages; empty if the fields are not those of a command.
        of: Source of `default`, for messages.

    Raises:
        UserError: If fields are unknown or values are invalid, as for `parse_experiment`.
    """
    fields = list(field_flags(default))
    before = ["", *arguments]
    undashed = [each for each, last in zip(arguments, before, strict=False) if _is_undashed(each, last, fields)]
    arguments = [argument for argument in arguments if argument not in undashed]
    arguments = [_whole(_of_primary(_plain(argument), default), fields) for argument in arguments]
    for i, argument in enumerate(arguments):
        is_last = i + 1 == len(arguments) or arguments[i + 1].startswith("--")
        if argument in ("--fresh", "--dry-run", ALIASES["--check"], ALIASES["--allow-pipes"]) and is_last:
            arguments[i] = f"{argument}=True"
    if (word := help_word(arguments)) and isinstance(default, Experiment):
        if any(word in flag for flag in DEVICE_FLAGS):
            print(ABOUT_DEVICES)
        print(help_on(default, word))
        sys.exit(0)
    if asks_for_help(arguments) and isinstance(default, Experiment):
        shows_all = "--help-all" in arguments
        text = help_text(
            default, of=of, shows_all=shows_all, width=terminal_width(), short=ALIASES,
            groups=GROUPS_OF.get(prog, tuple(GROUPS)),
        )  # fmt: skip
        print(text)
        print(f"\n{wrapped(SHORT, indent=0)}")
        sys.exit(0)
    problems = [_of_undashed(argument, default) for argument in undashed] + _problems(arguments, default)
    if isinstance(default, Experiment) and default.primary_decoding:
        problems = [problem.replace(_of_primary(DECODING, default), DECODING) for problem in problems]
    if problems:
        raise UserError(
            f"{counted(len(problems), 'setting')} of {of} cannot be used:\n"
            + "\n".join(f"  {problem}" for problem in problems)
            + f"\n{'' if prog else 'python -m asr_jax.train --config FILE '}--help-all lists all fields"
        )
    return _parse(arguments, default, prog=prog)


def load_config(path: str | Path, *, init_from: str = "") -> Experiment:
    """Calls the function `experiment` of a Python file and returns its Experiment.

    Args:
        path: Python file.
        init_from: Path of the initial weights. It is passed to `experiment` if that function has an argument
            `init_from`, from which it can read settings.

    Raises:
        UserError: If the file is missing, fails, does not return an Experiment, or defines a class of the settings
            itself.
    """
    file = Path(path)
    if not file.is_file():
        others = [str(p) for p in file.parent.glob("*.py")] if file.parent.is_dir() else []
        raise UserError(f"config {path} does not exist{nearest(str(path), others)}")
    spec = importlib.util.spec_from_file_location(f"asr_jax_config_{file.stem}", file.absolute())
    if spec is None or spec.loader is None:
        raise UserError(
            f"config {path} is not a Python file: expected one with a function experiment(), such as "
            "configs/read_speech.py; its fields are set in that file or by flags"
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module there
    try:
        spec.loader.exec_module(module)
        takes = "init_from" in inspect.signature(module.experiment).parameters
        experiment = module.experiment(init_from=init_from) if takes else module.experiment()
    except Exception as error:  # a config is the user's code: report its error and line
        line = next((f":{e.lineno}" for e in _frames(error) if Path(e.filename) == file.absolute()), "")
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        raise UserError(f"config {path}{line}: {kind}{error}") from error
    if not isinstance(experiment, Experiment):
        raise UserError(f"config {path}: experiment() returned {type(experiment).__name__}, expected an Experiment")
    own = sorted(name for name in classes(experiment) if name.startswith(spec.name + ":"))
    if own:
        raise UserError(
            f"config {path} defines {', '.join(own)}, which cannot be imported when the run is evaluated: move it to "
            "a module that can be imported"
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
    return ALIASES.get(flag, flag) + equals + value


def _of_primary(argument: str, default: Any) -> str:
    """Replaces `--decoding.FIELD` by the flag of that field in the primary head."""
    decoding = default.primary_decoding if isinstance(default, Experiment) else None
    if decoding is None or not argument.startswith(DECODING):
        return argument
    whole = _whole(argument, list(field_flags(decoding, DECODING)))
    return f"--model.heads.{default.model.recognising.replace('_', '-')}.{whole.removeprefix('--')}"


def _whole(argument: str, fields: Sequence[str]) -> str:
    """Completes a flag without its middle part (--model.dim for --model.encoder.dim) if exactly one field matches."""
    flag, equals, value = argument.partition("=")
    meant = [] if flag in fields else _meant(flag, fields)
    return meant[0] + equals + value if len(meant) == 1 else argument


def _meant(flag: str, fields: Iterable[str]) -> list[str]:
    """Fields that begin with the first part of the flag and end with its other parts."""
    first, _, last = flag.partition(".")
    return sorted(field for field in fields if last and field.startswith(f"{first}.") and field.endswith(f".{last}"))


def _parse[Settings](arguments: Sequence[str], default: Settings, *, prog: str) -> Settings:
    # Without AvoidSubcommands, the fields of an optional setting (`Pruning | None`) are no flags.
    return tyro.cli(
        type(default), default=default, args=list(arguments), prog=prog, description=SHORT,
        config=(tyro.conf.FlagConversionOff, tyro.conf.AvoidSubcommands),
    )  # fmt: skip


def _problems(arguments: Sequence[str], default: Any) -> list[str]:
    """Messages for all mistakes in the overrides; tyro itself stops at the first mistake."""
    fields = set(field_flags(default))
    overrides = _overrides(arguments)
    problems = [_unknown(override[0], default) for override in overrides if _flag(override) not in fields]
    known = [override for override in overrides if _flag(override) in fields]
    flags = [_flag(override) for override in known]
    problems += [f"{flag} is given {flags.count(flag)} times" for flag in dict.fromkeys(flags) if flags.count(flag) > 1]

    def complaint(overrides: Sequence[Sequence[str]]) -> str:
        return _complaint([argument for override in overrides for argument in override], default)

    mistyped = list[str]()
    while message := complaint(known):
        # An override is the cause if the message disappears, or changes, when the override is left out. If several
        # overrides change the message, they are invalid only in combination, and the message is reported alone.
        without = [complaint([other for other in known if other is not override]) for override in known]
        accused = [override for override, rest in zip(known, without, strict=True) if not rest]
        accused = accused[:1] or [override for override, rest in zip(known, without, strict=True) if rest != message]
        # Settings may only seem to lack a field whose value is of another type.
        hides = any(_lacks(message, flag, accused) for flag in mistyped)
        if not hides:
            problems.append(f"{' '.join(accused[0])}: {message}" if len(accused) == 1 else message)
        if not accused:
            break
        if len(accused) == 1 and MISTYPED.search(message):
            mistyped.append(_flag(accused[0]))
        known = [override for override in known if override not in accused]
    return problems


def _lacks(message: str, flag: str, accused: Sequence[Sequence[str]]) -> bool:
    """Whether a message is about fields of the same settings as a flag, and names the flag's field."""
    settings, _, name = flag.rpartition(".")
    return bool(re.search(rf"\b{name.replace('-', '_')}\b", message)) and all(
        _flag(override).rpartition(".")[0] == settings for override in accused
    )


def _flag(override: Sequence[str]) -> str:
    return override[0].partition("=")[0]


def _unknown(argument: str, default: Any) -> str:
    """Message for an argument that is not a field, with the fields that may be meant."""
    if not argument.startswith("--"):
        return f"{argument!r} does not belong to a field: expected --field.name before it"
    flag, fields = argument.partition("=")[0], named_fields(default)
    if suggestion := meant_by(flag, fields, shortens=False):
        return f"{flag} is not a field{suggestion}"
    meant = _meant(flag, fields) or sorted(field for field in fields if field.endswith(f".{flag[2:]}"))
    if meant:
        expected = f"did you mean {meant[0]}?" if len(meant) == 1 else f"expected one of {', '.join(meant)}"
        return f"{flag} is not a field; {expected}"
    if suggestion := meant_by(flag, fields):
        return f"{flag} is not a field{suggestion}"
    suggestion = nearest(flag.removeprefix("--"), [known.removeprefix("--") for known in fields])
    return f"{flag} is not a field{suggestion.replace(chr(39), chr(39) + '--', 1)}"


def named_fields(default: Any) -> list[str]:
    """Flags of all fields, with those of the primary decoding under their short prefix."""
    fields = list(field_flags(default))
    decoding = default.primary_decoding if isinstance(default, Experiment) else None
    if decoding is None:
        return fields
    prefix = _of_primary(DECODING, default)
    return [field.replace(prefix, DECODING, 1) if field.startswith(prefix) else field for field in fields]


def _is_undashed(argument: str, last: str, fields: Sequence[str]) -> bool:
    """Whether an argument sets a field as in Hydra (`model.optim.lr=1e-4`, `+trainer.devices=1`), or has one dash.

    Args:
        last: The argument before it; an argument after a flag is its value.
    """
    if argument.startswith("--") or (last.startswith("--") and "=" not in last) or os.path.exists(argument):
        return False
    is_setting = re.match(r"[+~]{0,2}[A-Za-z][\w./-]*=|-[A-Za-z][A-Za-z_]*(=|$)", argument)
    known = f"--{plain_word(argument)}"
    return bool(is_setting and (known in fields or known in ALIASES or meant_by(known, fields)))


def _of_undashed(argument: str, default: Any) -> str:
    """Message for an argument that `_is_undashed` recognises."""
    flag = _whole(_of_primary(_plain(f"--{plain_word(argument)}"), default), list(field_flags(default)))
    _, equals, value = argument.partition("=")
    if flag in field_flags(default):
        return f"{argument} is not a flag; did you mean {flag}{equals}{value}?"
    return _unknown(flag, default).replace(flag, argument, 1)


def _overrides(arguments: Sequence[str]) -> list[list[str]]:
    groups: list[list[str]] = []
    for argument in arguments:
        if argument.startswith("--") or not groups:
            groups.append([argument])
        else:
            groups[-1].append(argument)
    return groups


def _complaint(arguments: Sequence[str], default: Any) -> str:
    """Tyro's message without its frame and flag, or an empty string if the arguments are valid."""
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
    """Yields the flag of every leaf field of a tree of settings."""
    if dataclasses.is_dataclass(settings) and not isinstance(settings, type):
        known = [(field.name, getattr(settings, field.name)) for field in dataclasses.fields(settings)]
        # An empty tuple of settings, such as of augmentations, has no fields to set.
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
