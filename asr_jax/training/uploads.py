"""Uploads of best checkpoints during training, by a process that the run does not wait for."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from asr_jax.config import Experiment
from asr_jax.core.processes import EXPLICIT, is_main, on_main
from asr_jax.core.run_folder import UPLOAD_LOG
from asr_jax.inference.shared_folders import OURS
from asr_jax.inference.uploading import uploaded
from asr_jax.observe.events import EventLog
from asr_jax.pretrained.formats import format_of
from asr_jax.pretrained.hub import Upload, has_token, refuse_without_client

POLL_S, KILL_S = 0.2, 5.0
MAX_S = 3600.0
"""Time in seconds after which an upload is stopped."""
WAIT_S = 600.0
"""Longest time in seconds that the end of a complete run waits for the last upload."""
NICENESS = 10
"""Priority of the process below that of the run, which reads its data on the same cores."""


def check_upload(experiment: Experiment) -> None:
    """Checks that the client of the hub is installed, and that the model has the format of the upload.

    Raises:
        UserError: If one of them does not hold.
    """
    if experiment.upload.to:
        refuse_without_client()
        if experiment.upload.format != OURS:
            format_of(experiment.model, experiment.upload.format)


def upload_command(run: Path, updates: int) -> list[str]:
    """Returns the command that uploads a checkpoint with the settings of its run."""
    return [sys.executable, "-m", "asr_jax.upload", str(run), "--checkpoint", str(updates)]


class Uploads:
    """Context manager that uploads the best checkpoint after it is saved, with `python -m asr_jax.upload`.

    The main process starts at most one upload at a time, and writes an event when it ends. An upload that fails, or
    that takes longer than an hour, is tried again after the next checkpoint, and by the next job. Nothing
    here raises an error because of the hub. An upload that still runs when the context ends is stopped.
    """

    def __init__(self, upload: Upload, run: Path, log: EventLog) -> None:
        self._upload, self._run, self._log = upload, run, log
        self._child: subprocess.Popen[bytes] | None = None
        self._best: int | None = None
        self._tried: int | None = None
        """Checkpoint of the last upload that was started since the last call of `offer`."""
        self._began_s = 0.0
        self._is_enabled = bool(upload.to) and is_main()
        if self._is_enabled and not has_token():
            log.write(
                "warning",
                detector="upload",
                message=f"{upload.to} needs a token, and there is none: run hf auth login, or set HF_TOKEN",
            )

    def __enter__(self) -> "Uploads":
        return self

    def __exit__(self, *_: object) -> None:
        if self._child:
            self._stop()
            with suppress(OSError):  # if the disk is full, the first error is the one to report
                self._failed("the job ended before the upload; the next job repeats it")

    def offer(self, best: int | None) -> None:
        """Uploads the best checkpoint if it is not uploaded yet. Call it after a checkpoint is saved.

        Args:
            best: Number of updates of the best checkpoint. None: there is none.
        """
        self._best, self._tried = best, self._tried if self._child else None
        self.poll()

    def poll(self) -> None:
        """Writes the event of an upload that has ended, and starts the next one if there is one."""
        if not self._is_enabled:
            return
        if self._child and self._child.poll() is not None:
            self._ended(self._child.returncode)
        elif self._child and time.monotonic() - self._began_s > MAX_S:
            self._stop()
            self._failed(f"stopped after {MAX_S:g} s")
        if self._child is None and self._best is not None and self._best != self._tried:
            self._tried = self._best
            if uploaded(self._run, self._upload).get("update") != self._best:
                self._start(self._best)

    def finish(self) -> None:
        """Waits for the last upload, and stops it after 10 minutes. All processes must call it together."""
        until_s = time.monotonic() + WAIT_S
        while self._upload.to and on_main(lambda: self._goes_on(until_s)):
            time.sleep(POLL_S)
        if self._child:
            self._stop()
            self._failed(f"not complete {WAIT_S:g} s after the end of the run; the next job repeats it")

    def _goes_on(self, until_s: float) -> bool:
        self.poll()
        return self._child is not None and time.monotonic() < until_s

    def _start(self, updates: int) -> None:
        """Starts a process on the CPU that is not one of the run, and that Ctrl-C does not reach."""
        environment = {name: value for name, value in os.environ.items() if name not in EXPLICIT}
        environment |= {"JAX_PLATFORMS": "cpu", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # settings may have classes of a config
        command = upload_command(self._run, updates)
        self._began_s = time.monotonic()
        try:
            with (self._run / UPLOAD_LOG).open("wb") as output:
                self._child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                    start_new_session=True,
                )
            os.setpriority(os.PRIO_PROCESS, self._child.pid, NICENESS)
        except OSError as error:
            self._failed(f"the process did not start: {error}")

    def _ended(self, code: int) -> None:
        self._child = None
        record = uploaded(self._run, self._upload)
        if code == 0 and record.get("update") == self._tried:
            self._log.write("uploaded", **record, seconds=round(time.monotonic() - self._began_s, 1))
        else:
            self._failed(self._last_line() or f"exit code {code}")

    def _failed(self, reason: str) -> None:
        self._child = None
        self._log.write("upload_failed", update=self._tried, to=self._upload.place, reason=reason)

    def _stop(self) -> None:
        """Ends the process and those that it has started."""
        assert self._child
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, number)
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(KILL_S)
                return

    def _last_line(self) -> str:
        with suppress(OSError):
            lines = (self._run / UPLOAD_LOG).read_bytes().decode(errors="replace").strip().split("\n")
            return lines[-1].strip().removeprefix("error: ")
        return ""
