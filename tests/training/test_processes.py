"""Runs on four devices, and in two processes, have the losses, utterances and parameters of a run on one device.

They have two validation sets, whose batches the processes share.
"""

import re
import shutil
import socket

import jax
import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.core.processes import join
from asr_jax.metrics.measure import by_set
from asr_jax.observe.events import read_events
from asr_jax.observe.profile import newest_traces, read_trace
from tests.forked import ROOT, Forked, made_corpus, with_devices
from tests.support import assert_close
from tests.training.test_resume import batches, contents

UPDATES = 12
SETS = ("validation", "test")


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    folder = made_corpus(tmp_path_factory.mktemp("corpus") / "made")
    lines = (folder / "train.jsonl").read_text().splitlines()
    lines[3] = lines[3].replace(".flac", ".gone.flac")  # a missing file, on one of the processes
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def start(manifests, folder, *, devices, more=(), train="train.jsonl", cwd=ROOT, when="never", **environment):
    sets = ["--data.train", manifests / train, "--data.validation", *(manifests / f"{name}.jsonl" for name in SETS)]
    # One utterance of each validation set is computed in windows, by one process each.
    sets += ["--training.saving.best-of", "mean", "--training.validation.max-duration-s", "0.8"]
    log = folder.with_name(f"{folder.name}-{environment.get('JAX_PROCESS_ID', '0')}.log")
    command = ["tests.training.recorded", log, when, "--config", ROOT / "tests/resume_config.py"]
    command += [
        *sets,
        "--run-dir",
        folder,
        "--training.num-updates",
        UPDATES,
        "--training.validation.every",
        UPDATES // 2,
    ]
    command += ["--training.validation.loss", "True", *more]
    return Forked(*command, env=with_devices(devices, **environment), cwd=cwd)


def finish(*jobs):
    outputs = []
    try:
        outputs = ["".join(job.communicate(timeout=240)) for job in jobs]
    finally:
        for job in jobs:
            job.kill()  # processes that were joined catch SIGTERM
    assert [job.returncode for job in jobs] == [0] * len(jobs), "\n".join(part[-3000:] for part in outputs)
    return outputs


@pytest.fixture(scope="module")
def alone(manifests, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "alone"
    finish(start(manifests, folder, devices=1))
    return folder


def losses(folder):
    return [event["data"]["losses"]["total"] for event in read_events(folder / "events.jsonl", "train_step")]


def errors(folder):
    found = [event["data"] for event in read_events(folder / "events.jsonl", "validation")]
    rates = [[(each["wer"], each["cer"]) for each in by_set(data).values()] for data in found]
    return [(of, data["samples"], data["rejected"]) for of, data in zip(rates, found, strict=True)]


def messages(folder):
    return [event["data"]["message"] for event in read_events(folder / "events.jsonl", "data")]


def validation_losses(folder):
    found = [event["data"] for event in read_events(folder / "events.jsonl", "validation")]
    assert [list(data["sets"]) for data in found] == [list(SETS)] * len(found)
    return [each["loss"] for data in found for each in by_set(data).values()]


def assert_alike(folder, alone):
    assert_close(losses(folder), losses(alone), rtol=1e-5)
    assert_close(validation_losses(folder), validation_losses(alone), rtol=1e-5)
    assert len(losses(folder)) == UPDATES // 2
    assert errors(folder) == errors(alone)
    assert (folder / "rejected.jsonl").read_text() == (alone / "rejected.jsonl").read_text()
    assert len((alone / "rejected.jsonl").read_text().splitlines()) == 1
    assert "2 of 8 utterances are longer than 0.8 s and are computed in windows, without a loss" in messages(folder)
    assert not list(read_events(folder / "events.jsonl", "recompiled"))
    expected, found = contents(alone, UPDATES), contents(folder, UPDATES)
    for path, leaf in found.items():
        if "params" in path or "batch_stats" in path:
            scale = np.abs(expected[path]).max()
            assert_close(leaf, expected[path], atol=1e-5 * max(scale, 1.0), rtol=0, what=path)


@pytest.mark.slow
def test_devices_agree_with_one(manifests, alone, tmp_path):
    folder = tmp_path / "many"
    finish(start(manifests, folder, devices=4))
    assert_alike(folder, alone)
    assert batches(tmp_path / "many-0") == batches(alone.with_name("alone-0"))


def two(manifests, folder, *more, second=(), train="train.jsonl", cwd=(ROOT, ROOT), when="never"):
    """Starts two processes. The second one has the arguments `second`, the manifest `train` and `when`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    return [
        start(
            manifests, folder, devices=1, more=(*more, *second) if number else more,
            train=train if number else "train.jsonl", cwd=cwd[number], when=when if number else "never",
            JAX_COORDINATOR_ADDRESS=address,
            JAX_NUM_PROCESSES="2", JAX_PROCESS_ID=str(number),
        )
        for number in range(2)
    ]  # fmt: skip


@pytest.mark.slow
def test_what_ends_the_main_process_ends_the_other(manifests, alone, tmp_path):
    folder = tmp_path / "blocked"
    shutil.copytree(alone, folder)
    (folder / "plan.json").unlink()
    (folder / "plan.json").mkdir()
    jobs = two(manifests, folder, "--resume.allow", "devices")
    try:
        main, other = ("".join(job.communicate(timeout=120)) for job in jobs)
    finally:
        for job in jobs:
            job.kill()
    assert jobs[1].returncode == 1, other
    assert "error: process 0 ended: IsADirectoryError" in other
    assert jobs[0].returncode == 1, main
    assert "error: Is a directory" in main


@pytest.mark.parametrize(
    ("unlike", "messages"),
    [
        (
            {"second": ("--optim.clip-at", "0.5", "--training.log-every", "7"), "train": "reversed.jsonl"},
            [
                "optim.clip_at: 1.0 in process 0, 0.5 in process 1",
                "training.log_every: 2 in process 0, 7 in process 1",  # a setting that may change
                "training data: ",
            ],
        ),
        ({"train": "gone.jsonl"}, ["process 1: data.train: "]),
    ],
    ids=["settings and order of the data", "no data"],
)
def test_processes_that_are_not_started_alike_are_refused_together(manifests, tmp_path, unlike, messages):
    lines = (manifests / "train.jsonl").read_text().splitlines()
    (manifests / "reversed.jsonl").write_text("\n".join(reversed(lines)) + "\n")
    jobs = two(manifests, tmp_path / "run", **unlike)
    try:
        for job in jobs:
            output = "".join(job.communicate(timeout=90))
            assert job.returncode == 2, output
            assert [message for message in messages if message not in output] == []
    finally:
        for job in jobs:
            job.kill()
    assert not (tmp_path / "run" / "experiment.json").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("is_there", "code", "message"),
    [(False, 2, "process 1: --init-from"), (True, 2, "initial weights: ")],
    ids=["missing", "another"],
)
def test_processes_with_other_initial_weights_are_refused_together(manifests, alone, tmp_path, is_there, code, message):
    """The same path on the disks of two machines."""
    folders = [tmp_path / "here", tmp_path / "there"]
    for folder in folders:
        shutil.copytree(alone, folder)
    last = folders[1] / "checkpoints" / str(UPDATES)
    shutil.rmtree(last)
    if is_there:
        shutil.copytree(last.with_name(str(UPDATES // 2)), last)
    else:
        shutil.rmtree(folders[1])
        folders[1].mkdir()
    jobs = two(manifests, tmp_path / "run", "--init-from", f"/proc/self/cwd/checkpoints/{UPDATES}", cwd=folders)
    try:
        for job in jobs:
            output = "".join(job.communicate(timeout=120))
            assert job.returncode == code, output
            assert message in output
    finally:
        for job in jobs:
            job.kill()


def test_two_processes_agree_with_one(manifests, alone, tmp_path):
    folder = tmp_path / "two [1-10]"  # a name, not a pattern
    # Saving at every line adds messages between the processes.
    profiled = ("--profile", "4:6", "--profile-processes", "1")
    outputs = finish(*two(manifests, folder, "--training.saving.every-minutes", "0.0001", *profiled, when="slow:100"))
    assert "validation WER" in outputs[0]
    assert "validation WER" not in outputs[1]
    assert_alike(folder, alone)
    [trace] = newest_traces(folder)
    assert trace.is_relative_to(folder / "profile" / "process-1")
    assert read_trace(trace).host_s.keys() == {"waiting", "host", "device"}
    steps = [event["data"] for event in read_events(folder / "events.jsonl", "train_step")]
    for of in (data["processes"] for data in steps):
        assert of["number"] == 2
        assert all(of[name]["min"] <= of[name]["mean"] <= of[name]["max"] for name in ("loading_s", "waiting_s"))
    loading = [data["processes"]["loading_s"] for data in steps]
    assert sum(each["process"] == 1 for each in loading) > len(loading) / 2  # the one that reads slowly
    assert sum(each["max"] for each in loading) > 0.1 * UPDATES
    assert "processes" not in next(read_events(alone / "events.jsonl", "train_step"))["data"]
    whole = batches(alone.with_name("alone-0"))
    first, second = (batches(tmp_path / f"two [1-10]-{number}") for number in range(2))
    assert whole.keys() == first.keys() == second.keys()
    for position, (rows, lengths) in whole.items():
        parts = first[position], second[position]
        assert [*parts[0][0], *parts[1][0]] == rows
        assert [*parts[0][1], *parts[1][1]] == lengths


@pytest.mark.slow
def test_two_processes_that_share_the_parameters_agree_with_one(manifests, alone, tmp_path):
    """Each fetches the whole parameters for the utterances that it computes in windows."""
    folder = tmp_path / "spread"
    finish(*two(manifests, folder, "--mesh.fsdp", "2", "--mesh.min-sharded", "16"))
    assert_alike(folder, alone)


@pytest.mark.slow
def test_a_run_of_one_process_goes_on_in_two_from_a_checkpoint(manifests, alone, tmp_path):
    shutil.copytree(alone, tmp_path / "whole")
    checkpoint = tmp_path / "whole" / "checkpoints" / str(UPDATES // 2)
    outputs = finish(*two(manifests, checkpoint, "--resume.allow", "devices"))
    changed = r"devices: 1 × cpu with \d+ threads before, 2 × cpu with \d+ threads in 2 processes now"
    assert re.search(changed, " ".join(outputs[0].split()))
    assert_close(losses(tmp_path / "whole-2"), losses(alone)[UPDATES // 4 :], rtol=1e-5)
    whole = batches(alone.with_name("alone-0"))
    first, second = (batches(checkpoint.with_name(f"{checkpoint.name}-{number}")) for number in range(2))
    assert {position: first[position][0] + second[position][0] for position in first} == {
        position: rows for position, (rows, _) in whole.items() if position >= UPDATES
    }


@pytest.mark.slow
def test_two_processes_that_share_a_beam_search_agree_with_one(manifests, tmp_path):
    beam = ("--decoding.kind", "beam", "--decoding.search.beam-width", "4")
    finish(start(manifests, tmp_path / "one", devices=1, more=beam))
    finish(*two(manifests, tmp_path / "two", *beam))
    assert_alike(tmp_path / "two", tmp_path / "one")
    assert all(found["hypothesis"] for *_, samples, _ in errors(tmp_path / "two")[-1:] for found in samples)


@pytest.mark.parametrize(
    "environment",
    [
        {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1"},
        {"JAX_COORDINATOR_ADDRESS": "127.0.0.1:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "2"},
        {"JAX_NUM_PROCESSES": "two", "JAX_PROCESS_ID": "0"},
    ],
)
def test_processes_that_are_half_described_are_refused(environment):
    with pytest.raises(UserError, match="JAX_PROCESS_ID="):
        join(environment)


def test_one_process_waits_for_no_coordinator():
    join({"SLURM_STEP_NUM_TASKS": "1", "SLURM_JOB_ID": "1", "SLURM_PROCID": "0", "SLURM_STEP_NODELIST": "nowhere"})
    assert not jax.distributed.is_initialized()
