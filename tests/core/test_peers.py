"""Watch over the processes of a run, with a store and a clock of the test."""

import json
import sys
import time

import pytest

from asr_jax.core import peers
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.peers import COUNTS, LOST_CODE, LOST_S, VERDICT, Watch
from asr_jax.training.stopping import Stopped


class Store:
    """Key-value store of a coordinator."""

    def __init__(self):
        self.values, self.is_reached = {}, True

    def _check(self):
        if not self.is_reached:
            raise RuntimeError("UNAVAILABLE: failed to connect to all addresses")

    def key_value_set(self, key, value, allow_overwrite=False):
        self._check()
        if key in self.values and not allow_overwrite:
            raise RuntimeError("ALREADY_EXISTS")
        self.values[key] = value

    def key_value_dir_get(self, key):
        self._check()
        return [(name, value) for name, value in self.values.items() if name.startswith(f"{key}/")]

    def key_value_try_get(self, key):
        self._check()
        if key not in self.values:
            raise RuntimeError(f"NOT_FOUND: Config key {key} not found.")
        return self.values[key]


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def run(monkeypatch):
    """A store, a clock, the watches of three processes and the codes and messages that ended each of them."""
    monkeypatch.setattr("asr_jax.core.peers.GRACE_S", 0.0)
    store, clock, ended = Store(), Clock(), [[], [], []]
    watches = [
        Watch(store, index, address="host:1", clock=clock, end=lambda *end, to=ended[index]: to.append(end))
        for index in range(3)
    ]
    return store, clock, watches, ended


def go_on(clock, watches, seconds):
    for _ in range(round(seconds / 5)):
        clock.now += 5
        for watch in watches:
            watch.beat()
            watch.check()


def test_nobody_ends_while_all_count(run):
    _, clock, watches, ended = run
    go_on(clock, watches, 10 * LOST_S)
    assert ended == [[], [], []]


def test_a_process_that_stops_counting_is_named_to_all(run):
    store, clock, watches, ended = run
    go_on(clock, watches, 20)
    go_on(clock, watches[:2], LOST_S - 5)
    assert ended == [[], [], []]
    go_on(clock, watches[:2], 15)
    for code, message in (ended[0][0], ended[1][0]):
        assert code == LOST_CODE
        assert message.startswith("process 2 (")
        assert "has been silent for 50 s: it was killed, hangs or cannot be reached" in message
    go_on(clock, watches[2:], 5)
    assert ended[2][0] == ended[0][0], "a process that had only been stopped ends too"
    assert json.loads(store.values[VERDICT])[0] == LOST_CODE


def test_a_coordinator_that_is_not_reached_is_named(run):
    store, clock, watches, ended = run
    go_on(clock, watches, 20)
    store.is_reached = False
    go_on(clock, watches[1:], 5)
    store.is_reached = True
    go_on(clock, watches, LOST_S)
    assert ended == [[], [], []], "a short interruption is no reason to end"
    store.is_reached = False
    go_on(clock, watches[1:], LOST_S + 5)
    assert ended[1][0][1].startswith("process 0 (the coordinator, host:1) has been silent for 50 s")
    assert ended[1][0][0] == LOST_CODE


def test_an_error_of_one_process_ends_the_others(run):
    _, clock, watches, ended = run
    go_on(clock, watches, 20)
    watches[1].announce(2, "UserError: no data")
    go_on(clock, [watches[0], watches[2]], 5)
    assert ended[0] == ended[2] == [(2, "process 1 ended: UserError: no data")]


def test_a_process_that_is_done_is_not_missed(run):
    _, clock, watches, ended = run
    go_on(clock, watches, 20)
    watches[2].close()
    go_on(clock, watches[:2], 3 * LOST_S)
    assert ended == [[], [], []]


def count_of(store, index):
    return json.loads(store.values[f"{COUNTS}/{index}"])[0]


def test_a_count_that_is_written_while_the_process_closes_is_withdrawn(run):
    store, clock, watches, ended = run
    go_on(clock, watches, 20)
    write = store.key_value_set

    def closes_first(*arguments, **more):
        store.key_value_set = write
        watches[2].close()
        write(*arguments, **more)

    store.key_value_set = closes_first
    watches[2].beat()
    assert count_of(store, 2) == ""
    go_on(clock, watches[:2], 3 * LOST_S)
    assert ended == [[], [], []]


def eventually(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_process_counts_at_once(run, monkeypatch):
    monkeypatch.setattr(peers, "BEAT_S", 600.0)
    store, _, watches, _ = run
    watches[1].start()
    eventually(lambda: f"{COUNTS}/1" in store.values)
    watches[1].close()
    eventually(lambda: count_of(store, 1) == "")


@pytest.fixture
def exits(monkeypatch):
    """Exit codes of a process that ends although JAX waits for others."""
    found = []
    monkeypatch.setattr(peers, "ENDING_S", 0.0)
    monkeypatch.setattr(peers.os, "_exit", found.append)
    return found


def test_an_error_is_announced_once_but_not_a_planned_end(run, exits, monkeypatch):
    """All processes end as planned together. Those that are faster must not end the one that draws curves."""
    store, _, watches, _ = run
    monkeypatch.setattr(peers, "_watch", watches[1])
    peers.explain(Stopped("SIGTERM: saved after update 7", "SIGTERM"))
    assert VERDICT not in store.values
    peers.explain(RunError("the disk is full\nfree it"))
    assert json.loads(store.values[VERDICT]) == [1, "process 1 ended: RunError: the disk is full"]
    eventually(lambda: exits == [1])
    peers.explain(RunError("another"))
    assert exits == [1]


class JaxRuntimeError(RuntimeError):
    """Has the name of JAX's error."""


@pytest.mark.parametrize(
    ("message", "waits"), [("INTERNAL: Gloo all-reduce failed", True), ("RESOURCE_EXHAUSTED: Out of memory", False)]
)
def test_only_an_error_that_may_be_of_a_lost_process_waits_for_its_name(run, exits, monkeypatch, message, waits):
    store, _, watches, _ = run
    slept = []
    monkeypatch.setattr(peers, "_watch", watches[1])
    with monkeypatch.context() as patched:
        patched.setattr(peers.time, "sleep", slept.append)
        peers.explain(JaxRuntimeError(message))
    eventually(lambda: exits == [1])
    assert [seconds > LOST_S for seconds in slept] == [True] * waits
    assert message in json.loads(store.values[VERDICT])[1]


def test_an_error_that_a_program_does_not_catch_is_announced(exits, monkeypatch):
    """`asr_jax.train` in a Python program; the others would wait for this process until JAX gives up."""
    store, printed = Store(), []
    monkeypatch.setattr(Watch, "start", lambda watch: None)
    monkeypatch.setattr(peers.atexit, "register", lambda function: None)
    monkeypatch.setattr(peers, "_watch", None)
    monkeypatch.setattr(sys, "excepthook", lambda *error: printed.append(error))
    peers.watch(store, 1, "host:1")
    error = UserError("no data")
    sys.excepthook(UserError, error, None)
    assert printed == [(UserError, error, None)]
    assert json.loads(store.values[VERDICT]) == [2, "process 1 ended: UserError: no data"]
    eventually(lambda: exits == [2])
