"""The processes of one run: how they start, exchange values and fail together.

JAX's coordination service ends all processes, with signal 6, if one of them sends no heartbeat for LOST_S: it was
killed, hangs or cannot be reached.
"""

import faulthandler
import json
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

from asr_jax.core.devices import chosen_numbers
from asr_jax.core.environment import has_default_cache
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.native import end_native_log

# Each size of a message compiles a program, so all messages have one size.
MESSAGE_BYTES = 4096
LOST_S = 45
"""Seconds without a heartbeat after which JAX ends all processes of a run (`heartbeat_timeout_seconds`)."""
LOST_CODE = 75
"""Exit code if a computation has failed because another process is lost (EX_TEMPFAIL)."""
OF_COLLECTIVES = re.compile("Gloo|NCCL|coordination service")
"""Errors of collectives whose other processes are lost. JAX raises some of them as ValueError."""
GRACE_S = 2.0
"""Seconds that process 0, the coordinator, waits before it exits after an error: its exit ends all others at once."""

EXPLICIT = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
"""Variables that describe the processes of a run."""


class Launcher(NamedTuple):
    """Names of the variables of a launcher."""

    size: str = ""
    rank: str = ""
    local_rank: str = ""  # on the machine
    local_size: str = ""


LAUNCHERS = (
    Launcher(*(f"OMPI_COMM_WORLD_{name}" for name in ("SIZE", "RANK", "LOCAL_RANK", "LOCAL_SIZE"))),
    Launcher("SLURM_STEP_NUM_TASKS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    Launcher("JAX_NUM_PROCESSES", "JOB_COMPLETION_INDEX"),  # an indexed job of Kubernetes knows the number alone
)
"""mpirun can run within a job of Slurm, whose variables then describe the daemons of mpirun."""


def join(environment: Mapping[str, str] = os.environ) -> None:
    """Joins the processes of a run if the environment describes several; a process that has joined does nothing.

    Call it before JAX is used. JAX_COORDINATOR_ADDRESS (host:port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID
    describe the processes explicitly. With the address alone, Open MPI's mpirun, srun or an indexed job of
    Kubernetes gives the other two. Without an address, JAX detects srun, mpirun and Cloud TPU pods.

    Raises:
        UserError: If one of the three variables is missing or invalid, or if JAX needs the address to detect mpirun.
    """
    if jax.distributed.is_initialized():
        return
    launcher = next((each for each in LAUNCHERS if {each.size, each.rank} <= environment.keys()), Launcher())
    if any(name in environment for name in EXPLICIT):
        others = dict(zip(EXPLICIT[1:], launcher[:2], strict=True))
        values = {name: environment.get(name, environment.get(others.get(name, ""), "")) for name in EXPLICIT}
        address, count, number = values.values()
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal() and count.isdecimal() and number.isdecimal() and int(number) < int(count)):
            raise UserError(
                f"{', '.join(f'{name}={value!r}' for name, value in values.items())}: expected host:port, the number "
                "of processes, and JAX_PROCESS_ID from 0 to JAX_NUM_PROCESSES − 1; set all three variables in every "
                "process, or none; mpirun, srun and indexed jobs of Kubernetes set JAX_PROCESS_ID"
            )
        own = _own_devices(environment, launcher)
        # Otherwise, JAX would ask the launcher, or Kubernetes, for the devices.
        jax.distributed.initialize(
            address,
            int(count),
            int(number),
            own,
            cluster_detection_method="deactivate",
            heartbeat_timeout_seconds=LOST_S,
        )
    elif _launched(environment, launcher):
        own = _own_devices(environment, launcher)
        jax.distributed.initialize(local_device_ids=own, heartbeat_timeout_seconds=LOST_S)
    else:
        return
    if jax.default_backend() != "cpu" and has_default_cache():
        # JAX writes compiled programs in process 0 only, and XLA divides the timing of kernels among the processes. If
        # only process 0 found a program in a cache of its machine, it would not time kernels, and the others would wait
        # for its share. The programs of a run are kept in its folder instead (`core.programs.compiled_in`).
        jax.config.update("jax_compilation_cache_dir", None)
    faulthandler.enable(2)  # to the log: JAX aborts all processes if one is lost, and `core.native` prints a message
    sys.excepthook = _exit_after  # of a Python program; commands call `exit_at_once`


def _launched(environment: Mapping[str, str], launcher: Launcher) -> bool:
    """Returns whether a launcher that JAX detects has started several processes."""
    if "," in environment.get("TPU_WORKER_HOSTNAMES", ""):
        return True
    count = environment.get(launcher.size, "")
    if not count.isdecimal() or int(count) < 2:
        return False
    has_address = "OMPI_MCA_orte_hnp_uri" in environment or find_spec("mpi4py")  # Open MPI 5 has none
    if launcher.size == "OMPI_COMM_WORLD_SIZE" and not has_address:
        raise UserError(
            f"mpirun has started {count} processes without an address: expected JAX_COORDINATOR_ADDRESS=HOST:PORT of "
            "the first machine, set with mpirun -x, or the package mpi4py"
        )
    return True


def _own_devices(environment: Mapping[str, str], launcher: Launcher) -> list[int] | None:
    """Returns the numbers of the GPUs of this process, among those that it sees. Empty: all. None: JAX's choice.

    Each of several processes that a launcher starts on a machine has one GPU. JAX's choice would also be one GPU for
    a process that has the machine alone, and the wrong one if the launcher lets each process see its own GPU only.
    """
    if chosen := chosen_numbers():
        return chosen
    if "JAX_LOCAL_DEVICE_IDS" in environment:
        return None
    on_machine = re.match(r"\d+", environment.get(launcher.local_size, ""))  # of Slurm: 8(x2),4
    sees_one = environment.get("CUDA_VISIBLE_DEVICES", ",").count(",") == 0
    if not on_machine or int(on_machine[0]) == 1 or sees_one:
        return []
    return [int(environment[launcher.local_rank])]


def lost_peer(error: BaseException) -> UserError | None:
    """Returns an error for the user if a computation of all processes has failed, because another process is lost."""
    if (
        not jax.distributed.is_initialized()
        or isinstance(error, UserError)
        or not OF_COLLECTIVES.search(str(error))
        or "RESOURCE_EXHAUSTED" in str(error)
    ):
        return None
    lost = UserError(
        "a computation of all processes failed, because another process of the run was killed or cannot be reached "
        f"({str(error).partition('\n')[0]}). All processes of the run end; the same command continues it from the "
        "newest checkpoint"
    )
    lost.exit_code = LOST_CODE
    return lost


def exit_at_once(code: int, error: BaseException | None = None) -> None:
    """Prints the traceback of an error and exits, in one of several processes. Returns in a process that is alone.

    At a regular exit, JAX would wait for the other processes, which may wait for this one.
    """
    if not jax.distributed.is_initialized():
        return
    if error:
        traceback.print_exception(error)
    if is_main():
        time.sleep(GRACE_S)
    end_native_log()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_after(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an error that ends a Python program, and exits."""
    if lost := lost_peer(error):
        print(f"error: {lost}", file=sys.stderr)
    else:
        traceback.print_exception(kind, error, trace)
    exit_at_once(getattr(lost or error, "exit_code", RunError.exit_code))


def is_main() -> bool:
    """Returns whether this is the one process that writes files."""
    return jax.process_index() == 0


def on_main(function: Callable[[], Any]) -> Any:
    """Runs `function` on the main process and returns its JSON value on all; if it raises, all processes raise."""
    value = together(lambda: function() if is_main() else None)
    return gathered(value)[0]


def together(function: Callable[[], Any]) -> Any:
    """Runs `function` on every process, and raises the same error on all of them if any of them fails.

    Without this, the processes that did not fail would wait forever for the one that did.
    """
    if jax.process_count() == 1:
        return function()
    value = wrong = None
    try:
        value = function()
    except UserError as error:
        wrong = [error.exit_code, f"process {jax.process_index()}: {error}"]
    except Exception as error:
        gathered([RunError.exit_code, f"process {jax.process_index()} ended: {error!r}"])
        _wait_for_all()
        raise
    if message := next(filter(None, gathered(wrong)), None):
        _wait_for_all()
        raise (RunError if message[0] == RunError.exit_code else UserError)(message[1])
    return value


def _wait_for_all() -> None:
    """Waits until all processes have the error: the first one to exit would disconnect the others."""
    with suppress(Exception):
        gathered(None)


def check_shared(folder: Path, name: str) -> None:
    """Checks that a folder is the same for all processes.

    Args:
        folder: Folder; it is created if it does not exist.
        name: Name of the setting that the folder is from, for the message.

    Raises:
        UserError: On all processes, if one of them does not find a file that the main process has written there.
    """
    if jax.process_count() == 1:
        return

    def write() -> str:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix="shared-", delete=False) as file:
            return file.name

    token = Path(on_main(write))
    found = gathered((folder / token.name).exists())
    if is_main():
        token.unlink(missing_ok=True)
    if without := [str(number) for number, is_there in enumerate(found) if not is_there]:
        _wait_for_all()
        raise UserError(
            f"{name} {folder}: process 0 has written a file there that other processes do not find (processes "
            f"{', '.join(without)}); expected a folder that all processes share. Without {name}, the folder of the run "
            "is used"
        )


def agree(values: Mapping[str, Any]) -> None:
    """Checks that JSON values are equal on all processes.

    Raises:
        UserError: On all processes, if one of them has values that differ from those of process 0.
    """
    everyone = gathered(dict(values))
    lines = [
        f"  {name}: {everyone[0].get(name)!r} in process 0, {other.get(name)!r} in process {number}"
        for number, other in enumerate(everyone)
        for name in sorted(everyone[0].keys() | other.keys())
        if everyone[0].get(name) != other.get(name)
    ]
    if lines:
        _wait_for_all()
        raise UserError(
            "the processes of this run have different settings or data:\n"
            + "\n".join(lines[:20])
            + "\nstart every process with the same settings and the same data"
        )


def gathered(value: Any) -> list[Any]:
    """Returns the JSON values of all processes in their order. Every process must call it."""
    if jax.process_count() == 1:
        return [value]
    content, position, longest = json.dumps(value).encode(), 0, 1
    lengths, texts = list[int](), [b""] * jax.process_count()
    while position < longest:
        part = content[position : position + MESSAGE_BYTES].ljust(MESSAGE_BYTES, b"\0")
        message = np.frombuffer(len(content).to_bytes(8) + part, np.uint8)
        rows = np.asarray(multihost_utils.process_allgather(message)).reshape(len(texts), -1)
        lengths = [int.from_bytes(row[:8].tobytes()) for row in rows]
        texts = [text + row[8:].tobytes() for text, row in zip(texts, rows, strict=True)]
        position, longest = position + MESSAGE_BYTES, max(lengths)
    return [json.loads(text[:length]) for text, length in zip(texts, lengths, strict=True)]
