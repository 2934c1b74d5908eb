"""Processes join as their launcher numbers them, with the GPUs that it leaves to each."""

import sys

import jax
import pytest

from asr_jax.core import processes
from asr_jax.core.errors import UserError
from asr_jax.core.processes import LOST_S, check_shared, join

ADDRESS = {"JAX_COORDINATOR_ADDRESS": "a:1"}
OPEN_MPI = {f"OMPI_COMM_WORLD_{name}": value for name, value in (("SIZE", "4"), ("RANK", "3"), ("LOCAL_RANK", "1"))}
SRUN = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (ADDRESS | {"JAX_NUM_PROCESSES": "4", "JOB_COMPLETION_INDEX": "2"}, ("a:1", 4, 2, [])),
        (ADDRESS | OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, ("a:1", 4, 3, [1])),
        (ADDRESS | OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2", "CUDA_VISIBLE_DEVICES": "5"}, ("a:1", 4, 3, [])),
        # Slurm has started the daemons of mpirun.
        (ADDRESS | OPEN_MPI | SRUN | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, ("a:1", 4, 3, [])),
        (ADDRESS | SRUN, ("a:1", 2, 1, [])),
        (ADDRESS | SRUN | {"JAX_NUM_PROCESSES": "3", "JAX_PROCESS_ID": "2"}, ("a:1", 3, 2, [])),
        # Alone on its machine, a process has all of its GPUs.
        (SRUN | {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, (None, None, None, [])),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_LOCALID": "1"}, (None, None, None, [1])),
        (SRUN | {"JAX_LOCAL_DEVICE_IDS": "0,1"}, (None, None, None, None)),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, (None, None, None, [])),
        ({"JOB_COMPLETION_INDEX": "2"}, None),  # jobs that are independent of each other
        ({"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"}, None),
    ],
)
def test_processes_join_as_their_launcher_says(environment, expected, monkeypatch):
    found = []

    def initialize(
        address=None, count=None, number=None, local_device_ids=None, cluster_detection_method=None,
        heartbeat_timeout_seconds=100,
    ):  # fmt: skip
        assert (cluster_detection_method == "deactivate") == (address is not None)
        assert heartbeat_timeout_seconds == LOST_S
        found.append((address, count, number, local_device_ids))

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    join(environment)
    assert found == ([expected] if expected else [])


def test_a_process_joins_once(monkeypatch):
    """A Python program may train several runs one after another."""
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_: pytest.fail("joined again"))
    join(ADDRESS | SRUN)


def test_mpirun_that_gives_no_address_is_refused():
    with pytest.raises(UserError, match="mpirun -x"):
        join(OPEN_MPI)


@pytest.mark.parametrize(
    ("platform", "is_default", "kept"), [("gpu", True, False), ("gpu", False, True), ("cpu", True, True)]
)
def test_several_processes_on_gpus_do_not_use_the_cache_of_their_machine(platform, is_default, kept, monkeypatch):
    monkeypatch.setattr(jax.distributed, "initialize", lambda *_, **__: None)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(processes, "has_default_cache", lambda: is_default)
    before = jax.config.jax_compilation_cache_dir
    try:
        join(ADDRESS | SRUN)
        assert jax.config.jax_compilation_cache_dir == (before if kept else None)
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def test_a_folder_that_is_not_shared_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    monkeypatch.setattr(processes, "on_main", lambda function: function())
    monkeypatch.setattr(processes, "_wait_for_all", lambda: None)
    monkeypatch.setattr(processes, "gathered", lambda is_there: [is_there, False, is_there])
    with pytest.raises(
        UserError, match=rf"NAME {tmp_path}/new: .* do not find \(processes 1\); expected a folder that all"
    ):
        check_shared(tmp_path / "new", "NAME")
    monkeypatch.setattr(processes, "gathered", lambda is_there: [is_there] * 3)
    check_shared(tmp_path / "new", "NAME")
    assert list((tmp_path / "new").iterdir()) == []
