"""Told to stop, a run saves and says how it goes on; without room or rights it says what to mend."""

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from asr_jax.observe.events import read_events
from asr_jax.training import loop
from tests.forked import ROOT, Forked, with_devices
from tests.training.test_resume import assert_same, command, manifests, train, unbroken  # noqa: F401  fixtures


def started(manifests, folder, *more, prefix=()):  # noqa: F811
    words = list(map(str, command(manifests, folder, *more)))
    if not prefix:
        return Forked(*words, env=with_devices(2))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*prefix, sys.executable, "-m", *words], cwd=ROOT, env=with_devices(2), **pipes)


def wait_for(path, job, lines=1):
    """Until a file has that many lines."""
    while not path.exists() or len(path.read_text().splitlines()) < lines:
        assert job.poll() is None, job.communicate()
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGUSR1, 75)])
def test_a_signal_saves_and_the_same_command_goes_on_exactly(manifests, unbroken, tmp_path, number, code):  # noqa: F811
    folder = tmp_path / "stopped"
    job = started(manifests, folder)
    wait_for(folder.with_suffix(".log"), job, lines=2)
    job.send_signal(number)
    said = "".join(job.communicate(timeout=120))
    assert job.returncode == code, said
    assert "Traceback" not in said
    assert "saving and ending" in said
    assert f"{number.name}: saved after update" in said
    assert (folder / "curves.png").stat().st_size > 0
    stopped = [event["data"]["update"] for event in read_events(folder / "events.jsonl", "checkpoint_saved")][-1]
    code, said = train(manifests, folder)
    assert code == 0, said
    assert f"resumed at update {stopped}" in said
    assert_same(folder, unbroken, 12)


def events_of(log, job, name):
    """Once there is one."""
    wait_for(log, job)
    while not (found := list(read_events(log, name))):
        assert job.poll() is None, job.communicate()
        time.sleep(0.005)
    return found


def test_a_second_signal_of_a_scheduler_breaks_nothing_off(manifests, unbroken, tmp_path):  # noqa: F811
    """Slurm sends SIGUSR1, and then SIGTERM."""
    folder = tmp_path / "twice"
    job = started(manifests, folder, "--training.log-every", "1000")
    wait_for(folder.with_suffix(".log"), job, lines=2)
    job.send_signal(signal.SIGUSR1)
    job.send_signal(signal.SIGTERM)
    said = "".join(job.communicate(timeout=120))
    assert job.returncode == 75, said
    stopped = next(read_events(folder / "events.jsonl", "job_stopped"))["data"]["update"]
    steps = list(read_events(folder / "events.jsonl", "train_step"))
    assert steps[-1]["data"]["update"] == stopped  # what was done since the last line is told as well
    assert f"{stopped} updates in 1 job" in said
    assert train(manifests, folder)[0] == 0
    assert_same(folder, unbroken, 12)


def test_a_signal_during_validation_saves_at_once_and_the_validation_is_made_up_for(manifests, unbroken, tmp_path):  # noqa: F811
    folder = tmp_path / "validating"
    job = started(manifests, folder)
    events_of(folder / "events.jsonl", job, "validation_start")
    job.send_signal(signal.SIGTERM)
    said = "".join(job.communicate(timeout=120))
    assert job.returncode == 75, said
    stopped = next(read_events(folder / "events.jsonl", "job_stopped"))["data"]["update"]
    assert f"SIGTERM: saved after update {stopped}" in said
    assert train(manifests, folder)[0] == 0
    assert_same(folder, unbroken, 12)
    found = [
        (event["data"]["update"], event["data"]["weights"])
        for event in read_events(folder / "events.jsonl", "validation")
    ]
    assert {update for update, weights in found if weights == "ema"} == {3, 6, 9, 12}


def test_a_signal_before_the_first_update_ends_the_job_before_it(manifests, unbroken, tmp_path):  # noqa: F811
    """While programs are compiled a signal is noted; there is nothing to save, and the same command begins anew."""
    folder = tmp_path / "early"
    job = started(manifests, folder)
    events_of(folder / "events.jsonl", job, "compile_start")
    job.send_signal(signal.SIGTERM)
    said = "".join(job.communicate(timeout=120))
    assert job.returncode == 75, said
    assert "Traceback" not in said
    assert not folder.with_suffix(".log").exists()
    code, said = train(manifests, folder)
    assert code == 0, said
    assert_same(folder, unbroken, 12)


def test_a_signal_to_the_whole_process_group_saves_as_well(manifests, tmp_path):  # noqa: F811
    """As schedulers send it: the processes that read audio leave it to the one that trains."""
    folder = tmp_path / "group"
    job = started(manifests, folder, "--data.workers", "1", "--training.num-updates", "3000", prefix=["setsid"])
    wait_for(folder.with_suffix(".log"), job, lines=2)
    os.killpg(job.pid, signal.SIGTERM)
    said = "".join(job.communicate(timeout=120))
    assert job.returncode == 75, said
    assert "Traceback" not in said
    assert "SIGTERM: saved after update" in said
    assert list(read_events(folder / "events.jsonl", "checkpoint_saved"))


def test_two_jobs_in_one_folder_the_second_is_refused(manifests, tmp_path):  # noqa: F811
    folder = tmp_path / "shared"
    job = started(manifests, folder, "--training.num-updates", "2000")
    try:
        wait_for(folder / "lock", job)
        code, said = train(manifests, folder, more=("--training.num-updates", "2000"))
        assert code == 2
        assert f"{folder} is being trained in already (process {job.pid} on" in said
    finally:
        job.kill()
        job.communicate()


def can_mount(tmp_path):
    mounting = ["unshare", "-m", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    return shutil.which("unshare") and subprocess.run(mounting, capture_output=True, check=False).returncode == 0


def test_a_full_disk_leaves_the_last_good_checkpoint_and_says_what_to_do(manifests, tmp_path):  # noqa: F811
    """The folder of the checkpoints is a file system of its own, with room for one of them or two."""
    if not can_mount(tmp_path):
        pytest.skip("no right to mount a small file system")
    folder = tmp_path / "full"
    code, said = train(manifests, folder, more=("--training.num-updates", "3"))
    assert code == 0, said
    size_kb = sum(path.stat().st_size for path in (folder / "checkpoints").rglob("*")) // 1000
    kept, small = tmp_path / "kept", folder / "checkpoints"
    small.rename(kept)
    small.mkdir()
    script = f"mount -t tmpfs -o size={size_kb * 2}k tmpfs {small} && cp -r {kept}/. {small}"
    script += f' && "$@"; code=$?; ls {small}; rm -r {kept}; cp -r {small} {kept}; exit $code'
    more = ("--training.num-updates", "30", "--training.keep-last", "30")
    job = started(manifests, folder, *more, prefix=["unshare", "-m", "sh", "-c", script, "sh"])
    said = "".join(job.communicate(timeout=240))
    assert job.returncode == 1, said
    assert "could not be written: No space left on device" in said
    assert "Traceback" not in said
    small.rmdir()
    kept.rename(small)
    code, said = train(manifests, folder, more=("--training.num-updates", "12"))
    assert code == 0, said
    assert "resumed at update" in said


def test_curves_that_cannot_be_drawn_are_told_and_end_nothing(tmp_path, monkeypatch):
    def full(events, picture):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(loop, "draw_curves", full)
    assert "no curves were drawn: OSError(28, 'No space left on device')" in loop._close(tmp_path)
