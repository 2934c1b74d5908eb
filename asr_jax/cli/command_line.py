"""Runs commands, and parses `--config FILE --field.name VALUE …` into an Experiment."""

import contextlib
import dataclasses
import errno
import gc
import importlib.util
import inspect
import logging
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated

from tyro.conf import arg

from asr_jax.audio.io import AudioError
from asr_jax.config import Experiment, Init, Resume, classes, experiment_of, load_experiment
from asr_jax.core.errors import RunError, UserError, nearest
from asr_jax.core.files import OF_ALL_FILES
from asr_jax.core.flags import DeviceOptions, Flag, flags_of, parse_flags, parse_known
from asr_jax.core.foreign_words import meant_by
from asr_jax.core.help import asks_for_help, show_help
from asr_jax.core.native import native_log
from asr_jax.core.paths import UserPath, at_home
from asr_jax.core.run_folder import CHECKPOINTS, EXPERIMENT
from asr_jax.core.settings import command_options
from asr_jax.core.text_files import use_utf8
from asr_jax.pretrained.hub import Upload

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
"""Short forms of frequently used flags."""
MOST_USED = """
--data.train --data.validation --run-dir --init.path --training.num-updates --training.num-epochs
--data.batching.budget --training.accumulate --training.precision --optim.schedule.peak-lr
--optim.schedule.warmup-updates --optim.schedule.warmup-epochs --optim.schedule.warmup-share --optim.weight-decay
--training.validation.every --training.log-every --data.tokenizer.kind --data.tokenizer.path --data.tokenizer.normaliser
--data.filters.max-duration-s --data.speeds --data.workers --model.encoder.dropout --model.encoder.remat
--decoding.kind --seed --fresh --dry-run --resume.allow
"""
"""Fields that the short help lists."""
EXAMPLE = "configs/read_speech.py"
"""Config whose fields --help shows if none is given."""
DECODING = "--decoding."
"""Prefix of the flags that set the decoding of the primary head."""
ABOUT_FIELDS = """

Each setting of the config file is a flag, --field.name VALUE. Classes, such as those of the optimizer, its schedule and
the encoder, are chosen in the file. --decoding.FIELD sets a field of the decoding of the primary head."""

PROCESSES = "asr_jax.core.processes"
"""Module that a command without JAX does not import."""
# Errors of the operating system that the user can fix; they are reported without a traceback.
OF_THE_MACHINE = (*OF_ALL_FILES, errno.EACCES, errno.EPERM)


@dataclasses.dataclass(frozen=True)
class NoOptions:
    """Options of a command without any."""


@command_options
class ExperimentSource:
    """Source of the settings: a config file or a run."""

    config: Annotated[UserPath | None, arg(metavar="FILE")] = None
    """Python file with a function `experiment`; `--config FILE --help` lists its fields."""
    run_dir: Annotated[UserPath | None, arg(metavar="DIR")] = None
    """Folder of a run; without --config, the command continues that run, or starts one from the run of --init-from.
    RUN/checkpoints/N: a new run beside RUN begins from that checkpoint."""
    init_from: Annotated[UserPath | None, arg(metavar="PATH", aliases=["--init.path"])] = None
    """Weights to start from; without --config, a run, whose settings are used too."""


FULL_MEMORY = re.compile("RESOURCE_EXHAUSTED|Out of memory allocating")
"""Parts of XLA's messages about allocations that have failed."""


def run_command(
    main: Callable[[Sequence[str]], None],
    arguments: Sequence[str] | None = None,
    *,
    on_cpu: bool = False,
    reserves_memory: bool = False,
) -> None:
    """Calls the main function of a command; prints expected errors without a traceback and exits with their code.

    Every command takes --device and --devices, see `choose_devices`.

    Args:
        arguments: Arguments of the command. None: the arguments of this process, which runs no other command.
        on_cpu: Whether the command uses the CPU unless --device or JAX_PLATFORMS names another device.
        reserves_memory: Whether JAX reserves most of a GPU's memory at once. Otherwise it takes memory as it needs it,
            because a training may use the same GPU.
    """
    if arguments is None:
        use_utf8()
        if on_cpu and "JAX_PLATFORMS" not in os.environ:
            os.environ["JAX_PLATFORMS"] = "cpu"
            if jax := sys.modules.get("jax"):
                jax.config.update("jax_platforms", "cpu")
        if not reserves_memory:
            os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # Tracing creates millions of objects; with the default thresholds, garbage collection takes 25 % of the time.
    gc.set_threshold(100_000, 20, 100)
    with native_log(), _warnings_printed():
        _call_in_run(main, sys.argv[1:] if arguments is None else arguments)


def _call_in_run(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> None:
    """Calls the main function. An error of one of several processes ends this process at once."""
    try:
        _call(main, arguments)
    except BaseException as error:
        processes, code = sys.modules.get(PROCESSES), RunError.exit_code
        if isinstance(error, SystemExit):
            code = int(error.code or 0)
        if processes and code and not isinstance(error, _PlannedExit):
            processes.exit_at_once(code, None if isinstance(error, SystemExit) else error)
        raise


class _PlannedExit(SystemExit):
    """Exit of all processes together, after which none has to be ended."""


def _call(main: Callable[[Sequence[str]], None], arguments: Sequence[str]) -> None:
    try:
        main(choose_devices(arguments))
    except UserError as error:
        print(error if error.is_planned else f"error: {error}", file=sys.stderr)
        raise (_PlannedExit if error.is_planned else SystemExit)(error.exit_code) from None
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
    except Exception as error:
        processes = sys.modules.get(PROCESSES)
        known = (processes and processes.lost_peer(error)) or _full_memory(error)
        if not known:
            raise
        print(f"error: {known}", file=sys.stderr)
        sys.exit(known.exit_code)


def _full_memory(error: Exception) -> RunError | None:
    """Returns an error for the user if an allocation has failed, on a device or in the memory of this machine."""
    if not isinstance(error, MemoryError) and not FULL_MEMORY.search(str(error)):
        return None
    return RunError(
        f"the memory is full ({str(error).partition('\n')[0] or type(error).__name__}): compute smaller batches, with "
        "--data.batching.budget or --training.split 2 in training, or --batch-seconds in other commands, or end other "
        "programs that use this memory"
    )


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
        UserError: If a flag has no value or a wrong one.
    """
    options, rest = parse_known(DeviceOptions, arguments, prog=Path(sys.argv[0]).name)
    if options == DeviceOptions():
        return rest
    numbers = [] if options.devices is None else options.devices.split(",")
    if not all(number.isdecimal() for number in numbers) or len(set(numbers)) < len(numbers):
        raise UserError(
            f"--devices {options.devices!r}: expected different numbers of devices, from 0, with commas between them, "
            "such as 0,2"
        )
    from asr_jax.core.devices import choose  # imported late, because JAX takes a second

    choose(options.device, [int(number) for number in numbers])
    return rest


def parse_experiment(arguments: Sequence[str], *, prog: str) -> Experiment:
    """Returns the experiment that the arguments describe, as `parse_with_experiment`."""
    return parse_with_experiment(NoOptions, arguments, prog=prog, about=None)[1]


def parse_with_experiment[Options](
    kind: type[Options], arguments: Sequence[str], *, prog: str, about: str | None
) -> tuple[Options, Experiment]:
    """Parses the options of a command, and the experiment of the file after `--config` with flags for its fields.

    Without `--config`, the experiment is that of the run in `--run-dir`, to continue that run, or that of the run after
    `--init-from`, to start a new run from its weights. `--run-dir` may also be one of its checkpoints, as
    RUN/checkpoints/N. `--help` prints the options, and the fields of the file, or of EXAMPLE if no file is given.

    Raises:
        UserError: If there is no experiment, flags are unknown or missing, or values are invalid. The message names all
            of them.
    """
    source, _ = parse_known(ExperimentSource, arguments, prog=prog)
    if asks_for_help(arguments) and source == ExperimentSource():
        source = ExperimentSource(config=EXAMPLE)
    before, of = experiment_from(source, arguments, prog=prog)
    options, fields, of_source = flags_of(kind), flags_of_experiment(before), flags_of(ExperimentSource, place=(2,))
    if asks_for_help(arguments):
        prog, about = f"{prog} --config FILE", (about or "") + ABOUT_FIELDS
        most_used = MOST_USED.split()
        show_help(arguments, [*of_source, *options], fields, prog=prog, about=about, most_used=most_used, of=of)
    flags = [*options, *fields, *of_source]
    found, experiment, _ = parse_flags([kind, before, ExperimentSource], flags, arguments, prog=f"{prog} {of}")
    return found, experiment


def experiment_from(source: ExperimentSource, arguments: Sequence[str], *, prog: str) -> tuple[Experiment, str]:
    """Returns the experiment before the flags of its fields, and the arguments that it is from.

    Args:
        arguments: Command line, for suggestions.
        prog: The command, for messages.

    Raises:
        UserError: If there is none.
    """
    init_from, run_dir = source.init_from or "", source.run_dir
    if source.config is not None:
        try:
            return load_config(source.config, init_from=init_from), f"--config {source.config}"
        except UserError:
            # The config has read the weights. Otherwise they are checked later, by all processes of a run together.
            Init(path=init_from).check_exists()
            raise
    if run_dir is not None and (before := _experiment_of(Path(run_dir))):
        return before, f"--run-dir {run_dir}"
    if parent := experiment_of(init_from):
        if run_dir is None and not asks_for_help(arguments):
            raise UserError(
                f"--run-dir is missing: --init-from {init_from} without --config starts a new run with the settings of "
                "that run; expected --run-dir DIR, the folder of the new run"
            )
        new = dataclasses.replace(
            parent, init=Init(), resume=Resume(), upload=Upload(), run_dir="", fresh=False, dry_run=False
        )
        return new, f"--init-from {init_from}"
    if run_dir is not None:
        raise UserError(
            f"{run_dir} is not a run (it has no experiment.json), and --config is missing: pass the folder of a run to "
            f"continue it, or {prog} --config FILE --run-dir {run_dir} to start a run, or {prog} --init-from RUN "
            f"--run-dir {run_dir} to start one with the settings and weights of RUN"
        )
    hints = (meant_by(each, ["--run-dir"]) for each in arguments)
    hint = next((text for text in hints if "--run-dir" in text), "")
    raise UserError(f"--config is missing: expected {prog} --config FILE, such as configs/quickstart.py{hint}")


def flags_of_experiment(experiment: Experiment) -> list[Flag]:
    """Returns the flags of an experiment with their short forms; `--decoding.FIELD` is a field of the primary head."""
    short, found = {long: each for each, long in ALIASES.items()}, []
    head = experiment.model.recognising.replace("_", "-") if experiment.model.recognises else ""
    primary = f"--model.heads.{head}.decoding."
    for flag in flags_of(experiment, place=(1,)):
        if flag.name.startswith(primary):
            flag = dataclasses.replace(flag, name=flag.name.replace(primary, DECODING), aliases=(flag.name,))
        elif flag.name in short:
            flag = dataclasses.replace(flag, aliases=(short[flag.name],))
        found.append(flag)
    return found


def _experiment_of(folder: Path) -> Experiment | None:
    """Settings of a run, or of the checkpoint RUN/checkpoints/N; None if the folder is neither."""
    if folder.parent.name == CHECKPOINTS and folder.name.isdecimal():
        from asr_jax.training.run import experiment_of_checkpoint  # imported late, because it takes a second

        return dataclasses.replace(experiment_of_checkpoint(folder), upload=Upload())  # a new run, of another place
    return load_experiment(folder / EXPERIMENT) if (folder / EXPERIMENT).is_file() else None


def config_of_package(file: Path) -> Path:
    """Returns the package's config, in a wheel or a checkout.

    Args:
        file: `configs/NAME.py`. If the package has no such config, the path is returned unchanged.
    """
    package = Path(__file__).parents[1]
    of_wheel, of_checkout = (folder / file for folder in (package, package.parent))
    return next((each for each in (of_wheel, of_checkout) if each.is_file()), file)


def load_config(path: str | Path, *, init_from: str = "") -> Experiment:
    """Calls the function `experiment` of a Python file and returns its Experiment.

    Args:
        path: Python file. If there is no `configs/NAME.py` in the current folder, the package's config of this name is
            used.
        init_from: Path of the initial weights. It is passed to `experiment` if that function has an argument
            `init_from`, from which it can read settings.

    Raises:
        UserError: If the file is missing, fails, does not return an Experiment, or defines a class of the settings
            itself.
    """
    file = Path(at_home(str(path)))
    if not file.is_file() and file.parent == Path("configs"):
        file = config_of_package(file)
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
        frames = reversed(traceback.extract_tb(error.__traceback__))
        line = next((f":{frame.lineno}" for frame in frames if Path(frame.filename) == file.absolute()), "")
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        raise UserError(f"config {path}{line}: {kind}{error}{_meant(error, module)}") from error
    if not isinstance(experiment, Experiment):
        raise UserError(f"config {path}: experiment() returned {type(experiment).__name__}, expected an Experiment")
    own = sorted(name for name in classes(experiment) if name.startswith(spec.name + ":"))
    if own:
        raise UserError(
            f"config {path} defines {', '.join(own)}, which cannot be imported when the run is evaluated: move it to "
            "a module that can be imported"
        )
    return experiment


def _meant(error: Exception, module: ModuleType) -> str:
    """Returns `; did you mean …?` if the error is a misspelled field of a class that a config has imported."""
    found = re.match(r"(\w+)\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    kind = vars(module).get(found[1]) if found else None
    return nearest(found[2], [each.name for each in dataclasses.fields(kind)]) if found and kind else ""
