"""Ctrl-C within a block that it does not divide."""

import signal
import threading

import pytest

from asr_jax.core.interrupts import uninterrupted


def test_an_interrupt_waits_for_the_end_of_the_block(ctrl_c):
    done = []

    def work():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("block")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert done == ["block"]
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_blocks_of_other_threads_leave_the_handler():
    found = []

    def work():
        with uninterrupted():
            found.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [before]
