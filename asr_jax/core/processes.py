"""The processes of one run: how they start, exchange values and fail together."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from jax._src.distributed import global_state
from jax.experimental import multihost_utils

from asr_jax.core.devices import chosen_numbers
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.peers import watch

# Each size of a message compiles a program, so all messages have one size.
MESSAGE_BYTES = 4096


def join(environment: Mapping[str, str] = os.environ) -> None:
    """Joins the processes of a run if the environment describes several. Call it before JAX is used.

    JAX_COORDINATOR_ADDRESS (host:port of process 0), JAX_NUM_PROCESSES and JAX_PROCESS_ID describe them explicitly.
    srun, mpirun and Cloud TPU pods set variables that JAX detects.

    Raises:
        UserError: If one of the three variables is missing or invalid.
    """
    by_hand = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = [name for name in by_hand if name in environment]
    if given:
        address, count, number = (environment.get(name, "") for name in by_hand)
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal() and count.isdecimal() and number.isdecimal() and int(number) < int(count)):
            values = ", ".join(f"{name}={environment.get(name, '')!r}" for name in by_hand)
            raise UserError(
                f"{values}: expected host:port, the number of processes, and JAX_PROCESS_ID from 0 to "
                "JAX_NUM_PROCESSES − 1; set all three variables in every process, or none"
            )
        jax.distributed.initialize(address, int(count), int(number), local_device_ids=chosen_numbers())
    elif _launched(environment):
        jax.distributed.initialize(local_device_ids=chosen_numbers())
    else:
        return
    watch(global_state.client, global_state.process_id, global_state.coordinator_address or "")


def _launched(environment: Mapping[str, str]) -> bool:
    """Returns whether a launcher that JAX detects has started several processes."""
    tasks = (environment.get(name, "") for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"))
    return any(task.isdecimal() and int(task) > 1 for task in tasks) or "," in environment.get(
        "TPU_WORKER_HOSTNAMES", ""
    )


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

    Returns:
        The value of this process.
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
            "the processes of this run have different settings or data:\n" + "\n".join(lines[:20])
            + "\nstart every process with the same settings and the same data"
        )  # fmt: skip


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
