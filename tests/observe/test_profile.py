"""The summary of a trace that a small program on all devices has written."""

import time

import jax
import jax.numpy as jnp
import pytest

from asr_jax.core.errors import UserError
from asr_jax.core.meshes import by_rows, data_mesh
from asr_jax.core.run_folder import PROFILE
from asr_jax.metrics.throughput import Throughput
from asr_jax.observe.profile import devices, host_line, largest, main, newest_traces, read_trace

RUNS, WAITED_S = 2, 0.1


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose trace has a loop and a sum over devices, twice, and the wait for a batch in between."""
    folder = tmp_path_factory.mktemp("run")
    rows = jax.device_put(jnp.ones((8, 64)), by_rows(data_mesh()))

    @jax.jit
    def summed(rows):
        looped, _ = jax.lax.scan(lambda x, _: (jnp.sin(x), None), rows, length=5)
        return looped.sum()

    summed(rows).block_until_ready()
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(str(folder / PROFILE), profiler_options=options):
        for _ in range(RUNS):
            with Throughput().timed("waiting"):
                time.sleep(WAITED_S)
            summed(rows).block_until_ready()
    return folder


def test_operations_collectives_idle_time_and_waiting_are_those_of_the_program(run):
    [path] = newest_traces(run)
    trace = read_trace(path)
    operations = largest(trace, 100)
    assert sum(each["share"] for each in operations) == pytest.approx(1)
    assert {each["program"] for each in operations} == {"jit_summed"}
    assert [each["ms"] for each in operations] == sorted((each["ms"] for each in operations), reverse=True)
    assert not any(each["operation"].startswith("while") for each in operations)
    num = jax.device_count()
    calls = [each["calls"] for each in operations if each["operation"].startswith("all-reduce")]
    assert calls == [RUNS * num]
    found = devices(trace)
    assert [each["device"] for each in found] == [f"CPU:{number}" for number in range(num)]
    for each in found:
        assert 0 < each["collectives_share"] < 1
        assert each["idle_share"] * trace.seconds >= WAITED_S
        assert each["busy_s"] + each["idle_share"] * trace.seconds == pytest.approx(trace.seconds)
    assert trace.host_s.keys() == {"waiting"}
    assert trace.host_s["waiting"] >= RUNS * WAITED_S
    assert "waiting for data 0." in host_line(trace)
    assert "(100 %)" in host_line(trace)


def test_the_command_prints_the_summary(run, capsys):
    main([str(run), "--operations", "1"])
    shown = capsys.readouterr().out
    assert "jit_summed" in shown
    assert "collectives share" in shown
    assert "waiting for data" in shown


def test_a_folder_without_a_trace_and_a_file_that_is_not_one_are_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "--profile 10:15" in capsys.readouterr().err
    path = tmp_path / "a.xplane.pb"
    for content in (b"", b"no trace"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.xplane\.pb"):
            read_trace(path)
