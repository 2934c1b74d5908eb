"""The summary of a trace that a small program on all devices has written."""

import time

import jax
import jax.numpy as jnp
import pytest
from jax.profiler import ProfileData

from asr_jax.core.errors import UserError
from asr_jax.core.meshes import by_rows, data_mesh
from asr_jax.core.run_folder import PROFILE
from asr_jax.metrics.throughput import Throughput
from asr_jax.observe.profile import devices, host_line, largest, main, newest_traces, read_trace
from tests.support import approx

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
    assert sum(each["share"] for each in operations) == approx(1)
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
        assert each["busy_s"] + each["idle_share"] * trace.seconds == approx(trace.seconds)
    assert trace.host_s.keys() == {"waiting"}
    assert trace.host_s["waiting"] >= RUNS * WAITED_S
    assert "waiting for data 0." in host_line(trace)
    assert "(100 %)" in host_line(trace)


def xspace(plane, line, *events):
    """A trace with one plane, whose events are (name, begin and end in µs)."""
    names = list(dict.fromkeys(name for name, *_ in events))
    of_line = "".join(
        f"events {{ metadata_id: {names.index(name) + 1} offset_ps: {begin}000000 duration_ps: {end - begin}000000 }}"
        for name, begin, end in events
    )
    metadata = "".join(
        f'event_metadata {{ key: {number} value {{ id: {number} name: "{name}" }} }}'
        for number, name in enumerate(names, 1)
    )
    others = 'lines { name: "Steps" events { metadata_id: 1 duration_ps: 9000000000 } }'
    return f'planes {{ name: "{plane}" lines {{ name: "{line}" {of_line} }} {others} {metadata} }}'


@pytest.mark.parametrize(
    ("device", "line"), [("TPU:0", "XLA Ops"), ("GPU:0", "XLA Ops"), ("GPU:0", "Stream #17(Compute)")]
)
def test_lines_of_operations_of_other_devices_are_read(tmp_path, device, line):
    """A product from 0 to 40 µs beside a collective from 30 to 60 µs, in a loop, and a product from 90 to 100 µs."""
    product, sum_of_devices = "%dot.1 = f32[8,8] dot(a, b)", "%all-reduce.3 = f32[8] all-reduce(c)"
    events = [("%while.2 = (f32[8]) while(d)", 0, 60), (product, 0, 40), (sum_of_devices, 30, 60), (product, 90, 100)]
    text = xspace(f"/device:{device}", line, *events)
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(ProfileData.text_proto_to_serialized_xspace(text))
    trace = read_trace(path)
    assert trace.seconds == approx(100e-6)
    assert [(each["operation"], each["calls"]) for each in largest(trace, 9)] == [("dot.1", 2), ("all-reduce.3", 1)]
    [found] = devices(trace)
    assert found["device"] == device
    assert found["idle_share"] == approx(0.3)
    assert found["collectives_share"] == approx(30 / 80)


def test_the_command_prints_the_summary(run, capsys):
    main([str(run), "--operations", "1"])
    shown = capsys.readouterr().out
    assert "jit_summed" in shown
    assert "collectives share" in shown
    assert "waiting for data" in shown


def test_a_folder_without_a_trace_and_a_file_that_is_not_one_are_refused(tmp_path):
    with pytest.raises(UserError, match="--profile 10:15"):
        main([str(tmp_path)])
    with pytest.raises(UserError, match="absent: no such folder"):
        main([str(tmp_path / "absent")])
    path = tmp_path / "a.xplane.pb"
    for content in (b"", b"no trace"):
        path.write_bytes(content)
        with pytest.raises(UserError, match=r"a\.xplane\.pb"):
            read_trace(path)
