"""The log of native libraries, in processes of their own and in this one."""

import io
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import soundfile

from asr_jax.core.native import VARIABLE, move_native_log, native_log, native_problems, problem_lines

ALARM = "E0000 00:00:17.1 slow_operation_alarm.cc:73] Constant folding an instruction is taking > 1s: add.1"
PROBLEM = "E1124 20:09:03.8 cuda_executor.cc:1228] failed call to cuInit: CUDA_ERROR_NO_DEVICE"
MP3 = "[src/libmpg123/layer3.c:INT123_do_layer3():1804] error: dequantization failed!"
CODE = """
import ctypes, logging, os, signal, subprocess, sys
early = logging.StreamHandler()  # as libraries add them to their loggers
logging.getLogger("library").addHandler(early)
from asr_jax.core.native import move_native_log, native_log
with native_log():
    early.emit(logging.makeLogRecord({"msg": "of a handler"}))
    print("of Python", file=sys.stderr)
    os.write(2, os.environ["LINES"].encode())
    exec(os.environ["AND"])
"""


def run(tmp_path, *lines, then="", **more):
    """Runs a command in a new process; returns its exit code, its stderr and the lines of its log."""
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "LINES": "".join(f"{line}\n" for line in lines)}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=environment | {"AND": then} | more, capture_output=True, text=True,
        cwd=tmp_path,
    )  # fmt: skip
    logs = list((tmp_path / "asr_jax" / "native").glob("*.log"))
    return done.returncode, done.stderr, "".join(path.read_text() for path in logs).splitlines()


def test_lines_go_to_a_file_and_python_to_the_terminal(tmp_path):
    child = 'subprocess.run(["sh", "-c", "echo of a child >&2"])'
    code, stderr, log = run(tmp_path, ALARM, then=child)
    assert (code, stderr.splitlines()) == (0, ["of a handler", "of Python"])
    assert log == [ALARM, "of a child"]


def test_libraries_still_write_to_the_descriptor_themselves(tmp_path):
    """If this fails, libsndfile is quiet: look whether XLA, CUDA and NCCL have an option too, and `native` may go."""
    content = io.BytesIO()
    soundfile.write(content, np.random.default_rng(0).normal(size=16_000), 16_000, format="MP3")
    damaged = bytearray(content.getvalue())
    damaged[400:1200:7] = b"\xff" * len(damaged[400:1200:7])
    path = tmp_path / "damaged.mp3"
    path.write_bytes(damaged)
    _, _, log = run(tmp_path, then=f"import soundfile; soundfile.read({str(path)!r})")
    assert any("mpg123" in line for line in log)


def test_nothing_is_left_without_lines(tmp_path):
    assert run(tmp_path)[2] == []
    assert list((tmp_path / "asr_jax" / "native").iterdir()) == []


def test_problems_and_mp3_files_with_errors_are_named_at_the_end(tmp_path):
    _, stderr, log = run(tmp_path, ALARM, PROBLEM, MP3)
    assert log == [ALARM, PROBLEM, MP3]
    _, _, first, second, third = stderr.splitlines()
    assert first.startswith("warning: native libraries: 1 line reports a problem; all lines are in ")
    assert second == f"  {PROBLEM}"
    assert third.startswith("warning: MP3 files have errors: 1 line in ")


@pytest.mark.parametrize(
    ("death", "number"),
    [
        ("ctypes.string_at(0)", signal.SIGSEGV),
        ("os.abort()", signal.SIGABRT),
        ("os.kill(os.getpid(), signal.SIGKILL)", signal.SIGKILL),
    ],
)
def test_a_crash_shows_the_last_lines(tmp_path, death, number):
    reason = "F1124 20:09:03.8 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_foo=1"
    code, stderr, _ = run(tmp_path, *map(str, range(40)), reason, then=death)
    assert code == -number
    if number != signal.SIGKILL:
        assert 'File "<string>", line 1 in <module>' in stderr  # of faulthandler
    _, where, *lines = stderr[stderr.index("error: the command was killed") :].splitlines()
    assert where.startswith("last lines of native libraries, from ")
    assert lines == [*map(str, range(21, 40)), reason]


def test_a_lost_process_is_named_from_the_lines_of_this_command(tmp_path):
    fatal = "distributed service detected fatal errors"
    lost = ["Task went away: it stopped sending heartbeats", "/job:jax_worker/task:3", fatal, *["a stack"] * 300]
    run_folder = tmp_path / "run.log"
    die = f"move_native_log(__import__('pathlib').Path({str(run_folder)!r})); os.kill(os.getpid(), signal.SIGKILL)"
    _, stderr, _ = run(tmp_path, *lost, then=die)
    assert "error: process 3 was killed, hangs or cannot be reached" in stderr
    _, stderr, _ = run(tmp_path, then=die)
    assert "error: the command was killed (for example because the memory was full)" in stderr
    assert "last lines" not in stderr


def test_sigterm_is_named(tmp_path):
    code, stderr, _ = run(tmp_path, ALARM, then="os.kill(os.getpid(), signal.SIGTERM)")
    assert code == -signal.SIGTERM
    assert "error: the command was terminated by SIGTERM" in stderr
    assert "memory" not in stderr
    assert "Stack" not in stderr


def test_an_exception_is_printed_with_the_place_of_the_log(tmp_path):
    code, stderr, _ = run(tmp_path, ALARM, ALARM, then="raise RuntimeError('the reason')")
    assert code == 1
    assert "native libraries: 2 lines in " in stderr
    assert stderr.endswith("RuntimeError: the reason\n")
    assert "native libraries" not in run(tmp_path, ALARM, then="sys.exit(2)")[1]


def test_the_log_moves_to_the_folder_of_a_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "native.log").write_text("of a former job\n")
    move = "import pathlib; move_native_log(pathlib.Path('run/native.log')); os.write(2, b'later\\n')"
    assert run(tmp_path, "before", then=move)[2] == []
    assert (tmp_path / "run" / "native.log").read_text() == "of a former job\nbefore\nlater\n"
    _, stderr, _ = run(tmp_path, PROBLEM, then=f"{move}; os.abort()")
    assert stderr.splitlines()[-2:] == [PROBLEM, "later"]


def test_the_variable_names_the_file_or_leaves_the_terminal(tmp_path):
    assert ALARM in run(tmp_path, ALARM, **{VARIABLE: "-"})[1]
    assert ALARM not in run(tmp_path, ALARM, **{VARIABLE: "own.log"})[1]
    assert (tmp_path / "own.log").read_text() == f"{ALARM}\n"


def test_descriptors_of_another_owner_are_restored(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "a.log"))
    with native_log():
        with native_log():  # a command within a command
            os.write(2, f"{PROBLEM}\n{ALARM}\n".encode())
        assert native_problems().endswith(f"a.log:\n  {PROBLEM}")
        assert native_problems() == ""
        move_native_log(tmp_path / "b.log")  # the user has chosen the file
        print("of Python", file=sys.stderr)
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "of Python\nafter\n"
    assert (tmp_path / "a.log").read_text() == f"{PROBLEM}\n{ALARM}\n"


def test_a_large_log_is_emptied(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "a.log"))
    monkeypatch.setattr("asr_jax.core.native.LARGEST", 100)
    with native_log():
        os.write(2, f"{PROBLEM}\n{ALARM}\n".encode())
        assert PROBLEM in native_problems()
        os.write(2, b"new\n")
    assert (tmp_path / "a.log").read_text() == "earlier lines were removed, because the file was too large\nnew\n"


def test_old_logs_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("asr_jax.core.native.CACHES", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    (tmp_path / "native").mkdir()
    for name, days in (("old.log", 31), ("new.log", 29)):
        (tmp_path / "native" / name).write_text("x\n")
        os.utime(tmp_path / "native" / name, (time.time() - days * 86400,) * 2)
    with native_log():
        pass
    assert [path.name for path in (tmp_path / "native").iterdir()] == ["new.log"]


def test_which_lines_are_problems():
    problems = [
        PROBLEM,
        "W0000 dso_loader.cc:59] Could not load dynamic library 'libcudnn.so.9'; dlerror: no such file",
        "W1124 bfc_allocator.cc:501] Allocator (GPU_0_bfc) ran out of memory trying to allocate 20.00GiB",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ]
    harmless = [
        ALARM,
        MP3,
        "I0000 pjrt_client.cc:1] TfrtCpuClient created.",
        "E0000 cpu_aot_loader.cc:1] Loading XLA:CPU AOT result. Target machine feature is not supported",
        "E0000 cuda_dnn.cc:8498] Unable to register cuDNN factory: it has already been registered",
        "I0000 cpu_feature_guard.cc:1] This TensorFlow binary is optimized to use available CPU instructions",
        "Note: Trying to resync...",
        "E1130 cuda_timer.cc:86] Delay kernel timed out: measured time has sub-optimal accuracy.",
    ]
    assert problem_lines([*problems, *harmless]) == problems
