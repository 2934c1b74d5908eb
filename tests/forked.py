"""Runs commands in separate processes without the seconds that each would need to import JAX.

The processes are forked from a server that has imported JAX and the package, but has not started a backend, since each
process must read XLA_FLAGS. A test process starts the server once.
"""

import atexit
import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import NamedTuple

import numpy as np

from asr_jax.audio.io import write_flac
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance

ROOT = Path(__file__).parent.parent
# Modules that commands import; the commands themselves are run as main modules.
IMPORTED = (
    "tests.forked", "orbax.checkpoint", "asr_jax.training.loop", "asr_jax.training.preview",
    "asr_jax.inference.trained", "asr_jax.cli.recognition_options", "asr_jax.observe.curves",
    "asr_jax.data.loading.source", "asr_jax.metrics.scoring", "tyro",
)  # fmt: skip


def with_devices(count, **more):
    """Environment of a process with `count` virtual devices that compiles like the tests."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
    threads = {"NPROC": str(2 * count)}  # see core/environment.py, which the server has imported before
    return os.environ | {"XLA_FLAGS": flags.strip(), "PYTHONPATH": str(ROOT)} | threads | more


@cache
def server():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(IMPORTED))
    atexit.register(_end)
    return context


def _end():
    """Waits for the server, so that its CPU time and that of its children counts as ours."""
    for job in multiprocessing.active_children():  # left over by a failed test
        job.kill()
    forkserver._forkserver._stop()


@cache
def prints():
    """Folder for the output of the processes."""
    made = tempfile.mkdtemp(prefix="asr_jax-forked-")
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


class Forked:
    """Process of `python -m MODULE ARGUMENT …` or `python SCRIPT.py ARGUMENT …`, with an interface like Popen."""

    def __init__(self, module, *arguments, env, cwd=ROOT):
        self.files = [Path(tempfile.mkdtemp(dir=prints())) / name for name in ("out", "err")]
        given = (str(module), list(map(str, arguments)), dict(env), str(cwd), *map(str, self.files))
        self.process = server().Process(target=_run, args=given)
        self.process.start()
        self.pid = self.process.pid

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.returncode

    def send_signal(self, number):
        os.kill(self.pid, number)

    def kill(self):
        self.process.kill()

    def communicate(self, timeout=None):
        self.process.join(timeout)
        if self.process.is_alive():
            raise subprocess.TimeoutExpired(self.files[0], timeout)
        return tuple(file.read_text() for file in self.files)


def made_corpus(folder):
    """Makes recordings of noise and returns the folder of their manifests: 20 train, 4 validation, 4 test."""
    rng, utterances = np.random.default_rng(0), []
    (folder / "audio").mkdir(parents=True)
    for number in range(28):
        samples = rng.normal(0, 300 * (number % 7 + 1), 12000 + 400 * (number % 5)).clip(-32768, 32767)
        path = folder / "audio" / f"{number}.flac"
        write_flac(path, samples.astype(np.int16), 16000)
        text = " ".join("".join(rng.choice(list("abc"), 2)) for _ in range(2))
        seconds = len(samples) / 16000
        utterances.append(Utterance(f"u{number}", str(path), text, seconds, speaker=f"s{number % 2}", source="noise"))
    for name, part in (("train", utterances[:20]), ("validation", utterances[20:24]), ("test", utterances[24:])):
        write_manifest(folder / "manifests" / f"{name}.jsonl", part)
    return folder / "manifests"


def finished(module, *arguments, devices=1):
    """Runs a command and returns its stdout, stderr and exit code."""
    job = Forked(module, *arguments, env=with_devices(devices))
    return Finished(*job.communicate(), job.returncode)


class Finished(NamedTuple):
    stdout: str
    stderr: str
    returncode: int


def _run(module, arguments, environment, cwd, *files):
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in enumerate(files, 1):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.argv = [module, *arguments]
    multiprocessing.set_start_method(None, force=True)
    try:
        if module.endswith(".py"):
            runpy.run_path(module, run_name="__main__")
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:  # as at the end of an interpreter; multiprocessing omits the second call
        threading._shutdown()
        atexit._run_exitfuncs()
