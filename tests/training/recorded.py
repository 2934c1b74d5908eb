"""Trains as asr_jax.train does, records the batches that were taken, and kills itself where a test says so.

    python -m tests.training.recorded LOG KILL [--config …]

KILL is `never`; `update:N`, after dispatching the Nth update of this process; `save:N`, at the Nth checkpoint when all
of it is written but for its name; `saving:N:MS`, some milliseconds after the Nth save began.
"""

import json
import os
import signal
import sys
import threading

from asr_jax import train
from asr_jax.checkpoints import store
from asr_jax.command_line import run_command
from asr_jax.training.reporting import Unread


def main(log, kill, *arguments):
    kind, _, number = kill.partition(":")
    number, _, delay_ms = number.partition(":")
    left = {kind: int(number or 0)}

    def reached(here):
        left[here] = left.get(here, 0) - 1
        return left[here] == 0

    def die():
        os.kill(os.getpid(), signal.SIGKILL)

    add, seal, save = Unread.add, store.seal, store.Checkpoints.save

    def recording_add(self, group):
        with open(log, "a") as file:
            for loaded in group:
                rows = loaded.batch.records.tolist(), loaded.batch.lengths.tolist()
                file.write(json.dumps([loaded.position, *rows]) + "\n")
        add(self, group)
        if reached("update"):
            die()

    def killing_seal(folder):
        seal(folder)
        if reached("save"):
            die()

    def killing_save(self, *positional, **named):
        if reached("saving"):
            threading.Timer(int(delay_ms) / 1000, die).start()
        save(self, *positional, **named)

    Unread.add, store.seal, store.Checkpoints.save = recording_add, killing_seal, killing_save
    run_command(train.main, arguments)


if __name__ == "__main__":
    main(*sys.argv[1:])
