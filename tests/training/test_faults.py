"""Faults of one of two processes: the other one ends, and the run goes on bit for bit.

With ASR_JAX_FAULTS, each fault appends a line of JSON to that file, for the table of docs/failures.md.
"""

import contextlib
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

UPDATES, MOST_S = 120, 90
PATIENT_S = 1500
"""Longest time in seconds of a whole run, on a machine with much other work."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    return made_corpus(tmp_path_factory.mktemp("corpus") / "made")


def start(manifests, folder, *more, roots=(ROOT, ROOT), before=((), ()), within=((), ()), host="127.0.0.1"):
    """Starts two processes of a run.

    Args:
        manifests: Folder of manifests.
        folder: Folder of the run.
        *more: More flags.
        roots: Folder of the package for each process.
        before: Folders for each process with a sitecustomize.py, which Python runs at its start.
        within: Command that runs each process, before its own command.
        host: Address of process 0.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"{host}:{free.getsockname()[1]}"
    command = [sys.executable, "-m", "asr_jax.train", "--config", ROOT / "tests/resume_config.py", "--run-dir", folder]
    command += ["--data.train", manifests / "train.jsonl", "--data.validation", manifests / "validation.jsonl"]
    command += ["--training.num-updates", UPDATES, "--training.validation.every", 20]
    command += more
    return [
        subprocess.Popen(
            list(map(str, [*within[number], *command])), cwd=root, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=with_devices(
                1, JAX_COORDINATOR_ADDRESS=address, JAX_NUM_PROCESSES="2", JAX_PROCESS_ID=str(number),
                PYTHONPATH=os.pathsep.join(map(str, [*before[number], root])),
            ),
        )
        for number, root in enumerate(roots)
    ]  # fmt: skip


def wait_for_checkpoint(folder, jobs, number=1):
    """Waits until the run has saved `number` checkpoints."""
    events, until = folder / "events.jsonl", time.monotonic() + PATIENT_S
    while not (events.exists() and len(list(read_events(events, "checkpoint_saved"))) >= number):
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
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({"fault": kind, **figures}) + "\n")


@pytest.fixture(scope="module")
def unbroken(manifests, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    ends = [end_of(job, PATIENT_S) for job in start(manifests, folder)]
    assert [code for code, _ in ends] == [0, 0], ends
    return folder


def goes_on(manifests, folder, unbroken):
    """Restarts both processes, and compares the end of the run with that of the run without a fault."""
    all_done(start(manifests, folder), folder, unbroken)


def all_done(jobs, folder, unbroken):
    """Waits for both processes, and compares the end of the run with that of the run without a fault."""
    ends = [end_of(job, PATIENT_S) for job in jobs]
    assert [code for code, _ in ends] == [0, 0], ends
    expected = contents(unbroken, UPDATES)
    assert {path: leaf.tobytes() for path, leaf in contents(folder, UPDATES).items()} == {
        path: leaf.tobytes() for path, leaf in expected.items()
    }


FAILED = "a computation of all processes failed, because another process of the run was killed"


@pytest.mark.parametrize(
    ("victim", "number", "message"),
    [
        (1, signal.SIGKILL, f"({FAILED}|process 1 was killed, hangs or cannot be reached)"),
        (0, signal.SIGKILL, f"({FAILED}|process 0, which coordinates the run, was killed, hangs)"),
        (1, signal.SIGSTOP, "process 1 was killed, hangs or cannot be reached"),
        (0, signal.SIGSTOP, "process 0, which coordinates the run, was killed, hangs or cannot be reached"),
    ],
    ids=["process 1 killed", "process 0 killed", "process 1 stopped", "process 0 stopped"],
)
def test_a_process_that_dies_or_hangs_ends_the_other_and_the_run_goes_on(
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
    assert code == (75 if FAILED in output else -signal.SIGABRT), output
    lines = errors_of(output)
    assert len(lines) == 1, output
    assert re.match(f"error: {message}", lines[0])
    done = [event["data"]["update"] for event in read_events(folder / "events.jsonl", "train_step")][-1]
    goes_on(manifests, folder, unbroken)
    noted(request.node.callspec.id, seconds=round(seconds, 1), code=code, updates=done)


def test_one_process_that_cannot_write_ends_both(manifests, unbroken_sharded, tmp_path):
    folder = tmp_path / "limited"
    jobs = start(manifests, folder, *SHARDED)
    limit = ("prlimit", "--fsize=1000", "--pid", jobs[1].pid)  # bytes of a file; process 1 writes checkpoints alone
    ends, seconds = ends_after(lambda: run(*limit), folder, jobs)
    assert [code for code, _ in ends] == [1, 1], ends
    for _, output in ends:
        assert any("process 1: checkpoint" in line and "File too large" in line for line in errors_of(output)), output
    done = updates_of(folder)
    all_done(start(manifests, folder, *SHARDED), folder, unbroken_sharded)
    noted("process 1 cannot write", seconds=round(seconds, 1), code=1, updates=done)


def test_a_signal_to_one_process_saves_together(manifests, unbroken, tmp_path):
    folder = tmp_path / "asked"
    jobs = start(manifests, folder)
    ends, seconds = ends_after(lambda: jobs[1].send_signal(signal.SIGTERM), folder, jobs)
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
    ends = [end_of(job, PATIENT_S) for job in start(manifests, tmp_path / "run", roots=(ROOT, other))]
    outputs = [output for _, output in ends]
    assert [code for code, _ in ends] == [2, 2], outputs
    assert all("source code of asr_jax: " in output for output in outputs)
    assert not (tmp_path / "run" / "events.jsonl").exists()
    noted("other code", seconds=0.0, code=2, updates=0)


OTHER_VERSION = """
import importlib.metadata
version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.0.1" if name == "flax" else version(name)
"""
SLOW_FILES = """
import time
import soundfile
opens = soundfile.SoundFile.__init__
def wait_and_open(*arguments, **options):
    time.sleep(0.3)
    opens(*arguments, **options)
soundfile.SoundFile.__init__ = wait_and_open
"""


def patched(folder, code):
    """Returns a folder with code that Python runs at its start."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return folder


def test_other_versions_of_libraries_are_refused(manifests, tmp_path):
    before = ((), (patched(tmp_path / "other", OTHER_VERSION),))
    ends = [end_of(job, PATIENT_S) for job in start(manifests, tmp_path / "run", before=before)]
    outputs = [output for _, output in ends]
    assert [code for code, _ in ends] == [2, 2], outputs
    assert all("libraries: " in output and "0.0.1" in output for output in outputs), outputs
    assert not (tmp_path / "run" / "events.jsonl").exists()
    noted("other library", seconds=0.0, code=2, updates=0)


def test_a_process_that_loads_slowly_is_named(manifests, unbroken, tmp_path):
    folder, before = tmp_path / "slow", ((), (patched(tmp_path / "patch", SLOW_FILES),))
    all_done(start(manifests, folder, "--training.log-every", 10, before=before), folder, unbroken)
    warnings = [event["data"] for event in read_events(folder / "events.jsonl", "warning")]
    named = [each["process"] for each in warnings if each.get("detector") == "straggler"]
    assert named
    assert set(named) == {1}
    health = subprocess.run(
        [sys.executable, "-m", "asr_jax.observe.health", folder], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "process 1 waited longest" in health.stdout
    noted("process 1 loads slowly", seconds=0.0, code=0, updates=UPDATES)


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


def run(*command, **more):
    """Runs a command of the system and returns what it printed."""
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True, **more).stdout


def ends_after(fault, folder, jobs, checkpoints=1):
    """Calls a function after a number of checkpoints. Returns how the jobs ended, and the seconds until then."""
    try:
        wait_for_checkpoint(folder, jobs, checkpoints)
        fault()
        begun_s = time.monotonic()
        return [end_of(job) for job in jobs], time.monotonic() - begun_s
    finally:
        for job in jobs:
            job.kill()
            job.communicate()  # closes its output


may_mount = pytest.mark.skipif(
    subprocess.run(["unshare", "-nm", "true"], capture_output=True).returncode != 0 or not Path("/dev/loop0").exists(),
    reason="network namespaces and mounts are for root",
)


class Network:
    """Two machines, as network namespaces that are connected by a bridge."""

    def __init__(self, folder):
        self.names = [f"asr{os.getpid() % 100000}{letter}" for letter in "ab"]
        self.bridge, self.host = f"{self.names[0]}r", "10.213.0.1"
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "link", "set", self.bridge, "up")
        self.within = []
        for number, name in enumerate(self.names):
            address = f"10.213.0.{number + 1}"
            run("ip", "netns", "add", name)
            run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", name, "up", "master", self.bridge)
            run("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", name, "link", "set", "lo", "up")
            run("ip", "-n", name, "link", "set", "eth0", "up")
            hosts = folder / f"hosts-{number}"  # Gloo connects to the address of the host's name
            hosts.write_text(f"127.0.0.1 localhost\n{address} {socket.gethostname()}\n")
            mounted = 'mount --bind "$0" /etc/hosts && exec "$@"'
            self.within.append(("ip", "netns", "exec", name, "sh", "-c", mounted, hosts))

    def cut(self):
        """Drops all packets between the two; neither gets an error."""
        run("ip", "link", "set", self.names[1], "nomaster")

    def reconnect(self):
        run("ip", "link", "set", self.names[1], "master", self.bridge)

    def close(self):
        for name in self.names:
            run("ip", "netns", "delete", name)
        run("ip", "link", "delete", self.bridge)


@pytest.fixture
def network(tmp_path):
    made = Network(tmp_path)
    yield made
    made.close()


def updates_of(folder):
    """Returns the last update in the events."""
    return [event["data"]["update"] for event in read_events(folder / "events.jsonl", "train_step")][-1]


def errors_of(output):
    return [line for line in output.splitlines() if line.startswith("error: ")]


@may_mount
def test_a_network_that_is_cut(manifests, unbroken, tmp_path, network):
    """Training waits for an interruption of 5 s. Both processes end in one of 120 s."""
    folder = tmp_path / "cut"
    of_both = {"within": network.within, "host": network.host}
    jobs, waits = start(manifests, folder, **of_both), []
    try:
        for number in (1, 2):
            wait_for_checkpoint(folder, jobs, number)
            network.cut()
            time.sleep(2)
            before = updates_of(folder)
            time.sleep(3)
            assert updates_of(folder) == before < UPDATES
            network.reconnect()
            begun_s = time.monotonic()
            while updates_of(folder) == before:
                assert time.monotonic() < begun_s + MOST_S
                assert all(job.poll() is None for job in jobs), [job.communicate() for job in jobs]
                time.sleep(0.1)
            waits.append({"seconds": round(time.monotonic() - begun_s, 1), "code": None, "updates": before})
        wait_for_checkpoint(folder, jobs, 3)
        network.cut()
        begun_s = time.monotonic()
        ends = [end_of(job, 100) for job in jobs]
        seconds = time.monotonic() - begun_s
        time.sleep(max(0.0, begun_s + 120 - time.monotonic()))
        network.reconnect()
    finally:
        for job in jobs:
            job.kill()
            job.communicate()  # closes its output
    assert {code for code, _ in ends} <= {75, -signal.SIGABRT}, ends
    for _, output in ends:
        (line,) = errors_of(output)
        assert re.match(rf"error: (process \d\b.* was killed, hangs or cannot be reached|{FAILED})", line), line
    done = updates_of(folder)
    all_done(start(manifests, folder, **of_both), folder, unbroken)
    for each in waits:
        noted("network cut, 5 s", **each)
    noted("network cut, 120 s", seconds=round(seconds, 1), code=ends[0][0], updates=done)


class Disk:
    """A small file system that both processes write to."""

    def __init__(self, folder):
        self.image, self.folder = folder / "image", folder / "disk"
        self.folder.mkdir()
        with self.image.open("wb") as file:
            file.truncate(64 << 20)
        run("mkfs.ext4", "-q", "-m", "0", self.image)
        self.mount()

    def mount(self):
        run("mount", "-o", "loop,errors=remount-ro", self.image, self.folder)

    def fill(self):
        with (self.folder / "filler").open("wb", buffering=0) as file:
            for size in (1 << 20, 4096, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def free(self):
        (self.folder / "filler").unlink()

    def break_(self):
        """Reports an error to the kernel, which makes the file system read-only, although files are open."""
        device = Path(run("findmnt", "-n", "-o", "SOURCE", self.folder).strip()).name
        Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("test", encoding="utf-8")

    def repair(self):
        run("umount", self.folder)
        assert subprocess.run(["e2fsck", "-p", self.image], capture_output=True).returncode in (0, 1)
        self.mount()

    def close(self):
        subprocess.run(["fsfreeze", "-u", self.folder], capture_output=True)
        run("umount", "-l", self.folder)


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path)
    yield made
    made.close()


SHARDED = ("--mesh.fsdp", 2, "--mesh.min-sharded", 16)
"""Both processes write arrays."""


@pytest.fixture(scope="module")
def unbroken_sharded(manifests, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "sharded"
    ends = [end_of(job, PATIENT_S) for job in start(manifests, folder, *SHARDED)]
    assert [code for code, _ in ends] == [0, 0], ends
    return folder


@may_mount
def test_a_shared_file_system_that_is_full_read_only_slow_or_loses_a_folder(
    manifests, unbroken_sharded, tmp_path, disk
):
    """Both processes end if they cannot write. They wait for a slow file system, and make a lost folder again."""
    folder = disk.folder / "run"
    faults = [
        ("full", disk.fill, disk.free, "No space left on device"),
        ("read-only", disk.break_, disk.repair, "Read-only file system|Input/output error"),
    ]
    found = []
    for kind, fault, repair, reason in faults:
        before = saved(folder)
        jobs = start(manifests, folder, *SHARDED)
        ends, seconds = ends_after(fault, folder, jobs, before + 1)
        codes = [code for code, _ in ends]
        assert 1 in codes, (kind, ends)
        assert {*codes} <= {1, 75}, (kind, ends)
        for code, output in ends:  # 75: a computation failed, because the other process had ended
            expected = reason if code == 1 else FAILED
            assert any(re.search(expected, line) for line in errors_of(output)), (kind, output)
        done = updates_of(folder)
        repair()
        found.append((f"shared file system {kind}", {"seconds": round(seconds, 1), "code": 1, "updates": done}))
    before = saved(folder)
    jobs = start(manifests, folder, *SHARDED)
    try:
        wait_for_checkpoint(folder, jobs, before + 1)
        for seconds in (5, 30):
            run("fsfreeze", "-f", disk.folder)
            begun_s, done = time.monotonic(), updates_of(folder)
            time.sleep(seconds)
            assert updates_of(folder) == done < UPDATES
            run("fsfreeze", "-u", disk.folder)
            begun_s = time.monotonic()
            while updates_of(folder) == done:
                assert time.monotonic() < begun_s + MOST_S
                assert all(job.poll() is None for job in jobs), [job.communicate() for job in jobs]
                time.sleep(0.1)
            waited_s = round(time.monotonic() - begun_s, 1)
            kind = f"shared file system stands still, {seconds} s"
            found.append((kind, {"seconds": waited_s, "code": None, "updates": done}))
        wait_for_checkpoint(folder, jobs, before + 2)  # none is being written
        (folder / "checkpoints").rename(folder / "away")
        done = updates_of(folder)
        all_done(jobs, folder, unbroken_sharded)
        found.append(("checkpoints moved away", {"seconds": 0.0, "code": 0, "updates": done}))
    finally:
        for job in jobs:
            job.kill()
            job.communicate()  # closes its output
    for kind, figures in found:
        noted(kind, **figures)


def saved(folder):
    """Returns the number of checkpoints that the events name."""
    events = folder / "events.jsonl"
    return len(list(read_events(events, "checkpoint_saved"))) if events.exists() else 0
