"""The flags --device and --devices: the devices that they choose, and their mistakes."""

import jax
import pytest

from asr_jax.cli.command_line import choose_devices
from asr_jax.core import devices
from asr_jax.core.errors import UserError
from tests.forked import finished, made_corpus


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "gpus"], "--device gpus: expected cpu, gpu or tpu"),
        (["--device", "--devices", "0"], "--device: expected cpu"),
        (["--devices", "0,x"], "--devices '0,x': expected different numbers"),
        (["--devices=1,1"], "--devices '1,1': expected different numbers"),
        (["a", "--devices"], "--devices: expected a value"),
        (["a", "--devices="], "--devices '': expected different numbers"),
    ],
)
def test_mistakes_are_named(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError) as error:
        choose_devices(arguments)
    assert message in str(error.value)


def test_the_flags_are_taken_out_of_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = list[tuple[str | None, list[int]]]()
    monkeypatch.setattr(devices, "choose", lambda kind, numbers: chosen.append((kind, numbers)))
    assert choose_devices(["a", "--devices", "0,2", "b", "--seed", "1", "--device=cpu"]) == ["a", "b", "--seed", "1"]
    assert choose_devices(["a", "--num-devices", "3"]) == ["a", "--num-devices", "3"]
    assert chosen == [("cpu", [0, 2])]


def test_the_chosen_devices_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("virtual devices of the CPU")
    monkeypatch.setitem(devices._chosen, "is", ("cpu", (1, 3)))
    try:
        assert devices.devices.__wrapped__() == tuple(jax.devices()[number] for number in (1, 3))
        assert jax.numpy.zeros(1).devices() == {jax.devices()[1]}
        assert devices.chosen_flags() == ["--device", "cpu", "--devices", "1,3"]
    finally:
        jax.config.update("jax_default_device", None)


class Accelerator:
    def __init__(self, used: int, peak: int) -> None:
        self._stats = {"bytes_in_use": used, "peak_bytes_in_use": peak, "bytes_limit": 80, "num_allocs": 3}

    def memory_stats(self) -> dict[str, int]:
        return self._stats


def test_the_memory_is_that_of_the_fullest_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "local_devices", lambda: [Accelerator(9, 20), Accelerator(5, 30)])
    monkeypatch.setattr(devices, "resident_bytes", lambda: 7)
    expected = {"host_bytes": 7, "device_bytes": 5, "device_peak_bytes": 30, "device_limit_bytes": 80}
    assert devices.memory_in_use() == expected


def test_more_virtual_devices_than_threads_can_serve_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`jax.config.update("jax_num_cpu_devices", 4)` in a program of a user is not seen when the variables are set."""
    if jax.default_backend() != "cpu":
        pytest.skip("virtual devices of the CPU")
    number = jax.local_device_count()
    monkeypatch.setenv("NPROC", str(2 * number - 1))
    with pytest.raises(UserError, match=rf"{number} CPU devices with {2 * number - 1} threads .* NPROC={2 * number} "):
        devices.devices.__wrapped__()


def test_a_command_says_what_it_uses_and_which_devices_exist(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("corpus")
    command = ["asr_jax.feature_statistics", "--preset", "icefall", "--data", made_corpus(folder) / "test.jsonl"]
    done = finished(*command, "--out", folder / "o.json", "--devices", "1,3", devices=4)
    assert done.returncode == 0, done
    assert done.stderr.startswith("on 2 CPU devices (cpu:1, cpu:3; ")
    for flags, message in (
        (("--devices", "1,9"), "--devices 1,9: the number 9 is too large"),
        (("--device", "gpu"), "--device gpu: "),
    ):
        wrong = finished(*command, "--out", folder / "p.json", *flags, devices=4)
        assert wrong.returncode == 2, wrong
        assert message in wrong.stderr
        assert "expected devices that exist: " in wrong.stderr
        assert "cpu:0, cpu:1, cpu:2, cpu:3" in wrong.stderr
        assert not (folder / "p.json").exists()
