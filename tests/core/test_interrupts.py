"""Ctrl-C and SIGTERM within a block that they do not divide."""

import signal
import threading

import pytest

from asr_jax.core.interrupts import Terminated, terminable, uninterrupted


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


def test_sigterm_waits_too_if_it_has_a_handler():
    done = []

    def work():
        with terminable(), uninterrupted():
            signal.raise_signal(signal.SIGTERM)
            done.append("block")

    with pytest.raises(Terminated, match="terminated by SIGTERM") as caught:
        work()
    assert done == ["block"]
    assert caught.value.exit_code == 143


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
