"""The processes of one run: who writes, and how all of them come to know the same."""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from asr_jax.core.errors import RunError, UserError

# What processes exchange goes in messages of one size: each other size would compile a program in the middle of a run.
MESSAGE_BYTES = 4096


def join(environment: Mapping[str, str] = os.environ) -> None:
    """Joins the processes of a run where the environment says that there are several; call it before JAX is used.

    JAX_COORDINATOR_ADDRESS (host:port of the first one), JAX_NUM_PROCESSES and JAX_PROCESS_ID say so by hand; srun,
    mpirun and Cloud TPU pods say it themselves.

    Raises: UserError where one of the three is missing or no number.
    """
    by_hand = ("JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    given = [name for name in by_hand if name in environment]
    if given:
        address, count, number = (environment.get(name, "") for name in by_hand)
        host, _, port = address.rpartition(":")
        if not (host and port.isdecimal() and count.isdecimal() and number.isdecimal() and int(number) < int(count)):
            values = ", ".join(f"{name}={environment.get(name, '')!r}" for name in by_hand)
            raise UserError(
                f"{values}: expected host:port, the number of processes and this one's, from 0 to one less; "
                "set all three in every process, or none"
            )
        jax.distributed.initialize(address, int(count), int(number))
    elif _launched(environment):
        jax.distributed.initialize()


def _launched(environment: Mapping[str, str]) -> bool:
    """Whether a launcher that JAX knows has started several processes."""
    tasks = (environment.get(name, "") for name in ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE"))
    return any(task.isdecimal() and int(task) > 1 for task in tasks) or "," in environment.get(
        "TPU_WORKER_HOSTNAMES", ""
    )


def is_main() -> bool:
    """True on the one process that writes."""
    return jax.process_index() == 0


def on_main(function: Callable[[], Any]) -> Any:
    """What `function` gives on the main process, as JSON carries it, on all; what it raises ends all of them."""
    value = together(lambda: function() if is_main() else None)
    return gathered(value)[0]


def together(function: Callable[[], Any]) -> Any:
    """What `function` gives on this process; what it raises on any of them ends all of them, at once and with the same
    words: one that went on would wait for ever.
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
    if told := next(filter(None, gathered(wrong)), None):
        _wait_for_all()
        raise (RunError if told[0] == RunError.exit_code else UserError)(told[1])
    return value


def _wait_for_all() -> None:
    """Waits until all have heard why they end: who ends first would cut off who still listens."""
    with suppress(Exception):
        gathered(None)


def agree(values: Mapping[str, Any]) -> None:
    """Raises: UserError on all processes where one of them has another value, JSON all, than the first one."""
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
            "the processes of this run were not started alike:\n" + "\n".join(lines[:20])
            + "\ngive each of them the same settings and the same data"
        )  # fmt: skip


def gathered(value: Any) -> list[Any]:
    """The JSON values of all processes, in their order; every process must call it."""
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
