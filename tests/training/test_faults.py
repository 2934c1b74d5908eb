"""Faults of one of two processes: the other one ends and names it, and the run goes on bit for bit.

With ASR_JAX_FAULTS, each fault appends a line of JSON to that file, for the table of docs/failures.md.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from asr_jax.observe.events import read_events
from tests.forked import ROOT, made_corpus, with_devices
from tests.training.arrays import contents

UPDATES, LOST_S, MOST_S = 120, 10, 60
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    return made_corpus(tmp_path_factory.mktemp("corpus") / "made")


def start(manifests, folder, roots=(ROOT, ROOT)):
    """Starts two processes of a run, with the package in `roots`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "asr_jax.train", "--config", ROOT / "tests/resume_config.py", "--run-dir", folder]
    command += ["--data.train", manifests / "train.jsonl", "--data.validation", manifests / "validation.jsonl"]
    command += ["--training.num-updates", UPDATES, "--training.validate-every", 20]
    command += ["--training.lost-after-s", LOST_S]
    return [
        subprocess.Popen(
            list(map(str, command)), cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=with_devices(
                1, JAX_COORDINATOR_ADDRESS=address, JAX_NUM_PROCESSES="2", JAX_PROCESS_ID=str(number),
                PYTHONPATH=str(root),
            ),
        )
        for number, root in enumerate(roots)
    ]  # fmt: skip


def wait_for_checkpoint(folder, jobs):
    """Waits until the first checkpoint is saved."""
    events, until = folder / "events.jsonl", time.monotonic() + 240
    while not (events.exists() and list(read_events(events, "checkpoint_saved"))):
        assert time.monotonic() < until
        assert all(job.poll() is None for job in jobs), [job.communicate() for job in jobs]
        time.sleep(0.1)


def end_of(job, timeout_s=MOST_S):
    """Exit code and output of a process that is expected to end."""
    try:
        output, _ = job.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        job.send_signal(signal.SIGABRT)  # prints the stacks of all threads
        pytest.fail(job.communicate(timeout=timeout_s)[0])
    return job.returncode, output


def noted(kind, **figures):
    if path := os.environ.get("ASR_JAX_FAULTS"):
        with open(path, "a") as file:
            file.write(json.dumps({"fault": kind, **figures}) + "\n")


@pytest.fixture(scope="module")
def unbroken(manifests, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    ends = [end_of(job, 400) for job in start(manifests, folder)]
    assert [code for code, _ in ends] == [0, 0], ends
    return folder


def goes_on(manifests, folder, unbroken):
    """Restarts both processes, and compares the end of the run with that of the run without a fault."""
    ends = [end_of(job, 400) for job in start(manifests, folder)]
    assert [code for code, _ in ends] == [0, 0], ends
    expected = contents(unbroken, UPDATES)
    assert {path: leaf.tobytes() for path, leaf in contents(folder, UPDATES).items()} == {
        path: leaf.tobytes() for path, leaf in expected.items()
    }


@pytest.mark.parametrize(
    ("victim", "number", "message"),
    [
        (1, signal.SIGKILL, r"error: process 1 \(\d+ on \S+\) has been silent for \d+ s: it was killed, hangs"),
        (0, signal.SIGKILL, "error: process 0, which coordinates the run, was killed, hangs or cannot be reached"),
        (1, signal.SIGSTOP, r"error: process 1 \(\d+ on \S+\) has been silent for \d+ s: it was killed, hangs"),
        (0, signal.SIGSTOP, r"error: process 0 \(the coordinator, 127.0.0.1:\d+\) has been silent for \d+ s"),
    ],
    ids=["process 1 killed", "process 0 killed", "process 1 stopped", "process 0 stopped"],
)
def test_a_process_that_dies_or_hangs_is_named_and_the_run_goes_on(
    manifests, unbroken, tmp_path, victim, number, message, request
):
    folder = tmp_path / "broken"
    jobs = start(manifests, folder)
    try:
        wait_for_checkpoint(folder, jobs)
        jobs[victim].send_signal(number)
        begun_s = time.monotonic()
        code, output = end_of(jobs[1 - victim])
        seconds = time.monotonic() - begun_s
    finally:
        for job in jobs:
            job.kill()
            job.communicate()  # closes its output
    assert code in (75, -signal.SIGABRT), output
    lines = [line for line in output.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, output
    assert re.match(message, lines[0])
    done = [event["data"]["update"] for event in read_events(folder / "events.jsonl", "train_step")][-1]
    goes_on(manifests, folder, unbroken)
    noted(request.node.callspec.id, seconds=round(seconds, 1), code=code, updates=done)


def test_a_signal_to_one_process_saves_together(manifests, unbroken, tmp_path):
    folder = tmp_path / "asked"
    jobs = start(manifests, folder)
    try:
        wait_for_checkpoint(folder, jobs)
        jobs[1].send_signal(signal.SIGTERM)
        begun_s = time.monotonic()
        ends = [end_of(job) for job in jobs]
        seconds = time.monotonic() - begun_s
    finally:
        for job in jobs:
            job.kill()
            job.communicate()  # closes its output
    assert [code for code, _ in ends] == [75, 75], ends
    (stopped,) = [event["data"]["update"] for event in read_events(folder / "events.jsonl", "job_stopped")]
    assert (folder / "checkpoints" / str(stopped)).is_dir()
    goes_on(manifests, folder, unbroken)
    noted("SIGTERM to process 1", seconds=round(seconds, 1), code=75, updates=stopped)


def test_other_code_is_refused(manifests, tmp_path):
    other = tmp_path / "copy"
    shutil.copytree(ROOT, other, ignore=shutil.ignore_patterns(".*", "tmp", "__pycache__"))
    with (other / "asr_jax/models/conformer.py").open("a") as file:
        file.write("# another version\n")
    ends = [end_of(job, 240) for job in start(manifests, tmp_path / "run", roots=(ROOT, other))]
    outputs = [output for _, output in ends]
    assert [code for code, _ in ends] == [2, 2], outputs
    assert all("source code of asr_jax: " in output for output in outputs)
    assert not (tmp_path / "run" / "events.jsonl").exists()
    noted("other code", seconds=0.0, code=2, updates=0)


def test_a_flipped_byte_in_a_shard_is_refused_by_both(manifests, unbroken, tmp_path):
    folder = tmp_path / "flipped"
    shutil.copytree(unbroken, folder)
    newest = folder / "checkpoints" / str(UPDATES)
    files = [path for path in (newest / "state").rglob("*") if path.is_file()]
    largest = max(files, key=lambda path: path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[len(content) // 2] ^= 1
    largest.write_bytes(content)
    goes_on(manifests, folder, unbroken)
    assert Path(folder / "refused" / str(UPDATES)).is_dir()
    noted("flipped byte", seconds=0.0, code=0, updates=UPDATES)
