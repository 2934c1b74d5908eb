"""XLA trace of some updates of a job, for xprof and Perfetto."""

from pathlib import Path
from types import TracebackType

import jax

from asr_jax.config import profiled
from asr_jax.core.run_folder import PROFILE
from asr_jax.observe.events import EventLog


class Profile:
    """Traces the updates of `Training.profile`, such as 10:15. Does nothing if it is empty."""

    def __init__(self, asked: str, folder: Path, log: EventLog) -> None:
        self._span = profiled(asked)
        self._folder, self._log, self._runs, self._begun, self._updates = folder / PROFILE, log, False, False, 0

    def __enter__(self) -> "Profile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        is_cut = self._runs
        self._stop()
        if self._span and (is_cut or not self._begun) and error is None:
            traced = "the trace ends early" if is_cut else "nothing was traced"
            self._log.write(
                "warning", message=f"training.profile is {self._span[0]}:{self._span[1]}, and this job made "
                f"{self._updates} updates: {traced}; expected a range within these updates",
            )  # fmt: skip

    def before(self, update: int) -> None:
        """Starts or stops the trace. Call it before each update of the job; the first update is 0."""
        self._updates = update
        if self._span and update == self._span[0]:
            jax.profiler.start_trace(str(self._folder), create_perfetto_trace=True)
            self._runs = self._begun = True
        elif self._span and update == self._span[1]:
            self._stop()

    def _stop(self) -> None:
        if self._runs:
            jax.profiler.stop_trace()
            self._runs = False
            self._log.write("profile", path=self._folder)
