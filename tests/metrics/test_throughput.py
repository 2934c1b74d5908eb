"""Throughput: ratios of sums over a window, with the warm-up left out."""

import math

import pytest

from asr_jax.metrics.throughput import Throughput
from tests.support import approx


class Clock:
    """A clock that tests advance."""

    def __init__(self):
        self.now_s = 100.0

    def __call__(self):
        return self.now_s


def counts(scale=1.0):
    return {
        "utterances": 4 * scale, "audio_s": 30.0 * scale, "padded_audio_s": 40.0 * scale, "frames": 750 * scale,
        "feature_values": 60000 * scale, "tokens": 60 * scale, "letters": 240 * scale,
    }  # fmt: skip


def test_rates_are_ratios_of_sums_not_means_of_rates():
    throughput = Throughput(num_devices=2)
    throughput.add(**counts(), waiting_s=0.5, host_s=0.5, device_s=1.0)
    throughput.add(**counts(3.0) | {"padded_audio_s": 110.0}, device_s=8.0)
    throughput.add_masked(1000)
    rates = throughput.rates()
    per_device = rates.pop("per_device")
    assert rates == approx(
        {
            "utterances_per_s": 1.6, "audio_s_per_s": 12.0, "padded_audio_s_per_s": 15.0, "frames_per_s": 300.0,
            "feature_values_per_s": 24000.0, "masked_frames_per_s": 100.0, "letters_per_s": 96.0,
            "tokens_per_s": 24.0, "padding_share": 0.2, "waiting_share": 0.05, "host_share": 0.05,
            "device_share": 0.9, "batch_s": 5.0, "num_batches": 2,
        }
    )  # fmt: skip
    assert per_device == approx(
        {"utterances_per_s": 0.8, "audio_s_per_s": 6.0, "padded_audio_s_per_s": 7.5, "frames_per_s": 150.0,
         "feature_values_per_s": 12000.0, "masked_frames_per_s": 50.0, "letters_per_s": 48.0, "tokens_per_s": 12.0}
    )  # fmt: skip


def test_wall_time_is_measured_by_kind_and_pauses_do_not_count():
    clock = Clock()
    throughput = Throughput(clock=clock)
    for kind, seconds in (("waiting", 1.0), ("host", 2.0), ("device", 5.0)):
        with throughput.timed(kind):
            clock.now_s += seconds
        clock.now_s += 1000.0
    throughput.add(**counts())
    rates = throughput.rates()
    assert rates["audio_s_per_s"] == approx(30 / 8)
    assert [rates[f"{kind}_share"] for kind in ("waiting", "host", "device")] == [1 / 8, 2 / 8, 5 / 8]


def test_time_counts_where_a_block_fails():
    clock = Clock()
    throughput = Throughput(clock=clock)

    def next_batch():
        clock.now_s += 2.0
        raise StopIteration

    with pytest.raises(StopIteration), throughput.timed("waiting"):
        next_batch()
    throughput.add(**counts())
    assert throughput.rates()["batch_s"] == 2.0


@pytest.mark.parametrize("reset_inside", [False, True])
def test_warm_up_is_left_out(reset_inside):
    throughput = Throughput(num_warmup=2)
    for _ in range(2):
        throughput.add(**counts(9.0), device_s=500.0)
        if reset_inside:
            throughput.reset()
    throughput.add(**counts(), device_s=2.0)
    assert throughput.rates()["audio_s_per_s"] == 15.0
    assert throughput.rates()["num_batches"] == 1


def test_reset_begins_a_new_window():
    throughput = Throughput()
    throughput.add(**counts(), device_s=1.0)
    throughput.reset()
    throughput.add(**counts(), device_s=4.0)
    assert throughput.rates()["tokens_per_s"] == 15.0


def test_nothing_counted_is_not_a_number():
    rates = Throughput().rates()
    assert rates["num_batches"] == 0
    assert all(math.isnan(rates[name]) for name in ("audio_s_per_s", "padding_share", "host_share", "batch_s"))


@pytest.mark.parametrize("wrong", [{"num_devices": 0}, {"num_warmup": -1}])
def test_impossible_settings_are_refused(wrong):
    with pytest.raises(ValueError, match="|".join(wrong)):
        Throughput(**wrong)
