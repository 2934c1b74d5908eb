"""Runs asr_jax.train, records the batches of updates, and sends signals to itself.

    python -m tests.training.recorded LOG WHEN [--config …]

WHEN is `never`; `update:N`, after dispatching the Nth update of this process; `save:N`, before the Nth checkpoint is
renamed; `saving:N:MS`, MS milliseconds after the start of the Nth save; `validation:N`, at the start of the Nth
validation; `slow:MS`, no signal, but reading a batch takes this many milliseconds longer. The signal is SIGKILL unless
signals follow after a space: `update:1 SIGUSR1 SIGTERM`.
"""

import json
import os
import signal
import sys
import threading
import time

from asr_jax.checkpoints import store
from asr_jax.cli import train
from asr_jax.cli.command_line import run_command
from asr_jax.data.loading.source import BatchSource
from asr_jax.training.reporting import RejectedAudio
from asr_jax.training.validation import Validator


def main(log, when, *arguments):
    when, *signals = when.split()
    kind, _, number = when.partition(":")
    number, _, delay_ms = number.partition(":")
    left = {kind: int(number or 0)}

    def reached(here):
        left[here] = left.get(here, 0) - 1
        return left[here] == 0

    def send():
        for name in signals or ["SIGKILL"]:
            os.kill(os.getpid(), signal.Signals[name])

    add, seal, save, validate = RejectedAudio.add, store.seal, store.Checkpoints.save, Validator.validate

    def recording_add(self, group):
        with open(log, "a", encoding="utf-8") as file:
            for loaded in group:
                rows = loaded.batch.utterances.tolist(), loaded.batch.lengths.tolist()
                file.write(json.dumps([loaded.position, *rows]) + "\n")
        add(self, group)
        if reached("update"):
            send()

    def sending_seal(folder):
        seal(folder)
        if reached("save"):
            send()

    def sending_save(self, *positional, **named):
        if reached("saving"):
            threading.Timer(int(delay_ms) / 1000, send).start()
        save(self, *positional, **named)

    def sending_validate(self, *positional, **named):
        if reached("validation"):
            send()
        return validate(self, *positional, **named)

    read = BatchSource.__getitem__

    def slow_read(self, position):
        time.sleep(int(number) / 1000)
        return read(self, position)

    if kind == "slow":
        BatchSource.__getitem__ = slow_read
    RejectedAudio.add, store.seal = recording_add, sending_seal
    store.Checkpoints.save, Validator.validate = sending_save, sending_validate
    run_command(train.main, arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
