"""XLA traces of some updates of a job, for xprof, Perfetto and `python -m asr_jax.observe.profile`."""

from pathlib import Path

import jax

from asr_jax.config import Training, profiled
from asr_jax.core.errors import UserError
from asr_jax.core.run_folder import PROFILE
from asr_jax.observe.events import EventLog


def traced_processes(training: Training) -> list[int]:
    """Returns the numbers of the processes that write a trace, in ascending order.

    Raises:
        UserError: If there are fewer processes.
    """
    num = jax.process_count()
    if training.profile_processes == "all":
        return list(range(num))
    numbers = sorted(set(map(int, training.profile_processes.split(","))))
    if training.profile and numbers[-1] >= num:
        raise UserError(
            f"training.profile_processes is {training.profile_processes}, and the job has {num} "
            f"process{'es' * (num > 1)}: expected {f'numbers from 0 to {num - 1}' if num > 1 else '0'}, or all"
        )
    return numbers


class Profile:
    """Traces the updates of `Training.profile`, such as 10:15, in chosen processes. Does nothing if it is empty."""

    def __init__(self, training: Training, folder: Path, log: EventLog) -> None:
        self._span, self._processes = profiled(training.profile), traced_processes(training)
        self._path, self._log, self._runs, self._begun, self._updates = folder / PROFILE, log, False, False, 0
        self._traces = jax.process_index() in self._processes
        # Traces have the name of their machine, which may run several processes.
        self._folder = self._path / f"process-{jax.process_index()}" if jax.process_count() > 1 else self._path

    def __enter__(self) -> "Profile":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        is_cut = self._runs
        self._stop()
        if self._span and (is_cut or not self._begun) and error is None:
            traced = "the trace ends early" if is_cut else "nothing was traced"
            self._log.write(
                "warning",
                message=f"training.profile is {self._span[0]}:{self._span[1]}, and this job made "
                f"{self._updates} updates: {traced}; expected a range within these updates",
            )

    def before(self, update: int) -> None:
        """Starts or stops the trace. Call it before each update of the job; the first update is 0."""
        self._updates = update
        if self._span and update == self._span[0]:
            if self._traces:
                jax.profiler.start_trace(str(self._folder), create_perfetto_trace=True)
            self._runs = self._begun = True
        elif self._span and update == self._span[1]:
            self._stop()

    def _stop(self) -> None:
        if self._runs:
            if self._traces:
                jax.profiler.stop_trace()
            self._runs = False
            self._log.write("profile", path=self._path, processes=self._processes)
