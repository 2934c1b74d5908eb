"""Everything that is shown of a run, from its events."""

import pytest

from asr_jax.observe.progress import clock
from asr_jax.watching.state import State, state_of
from tests.watching.recorded_runs import (
    START_MS,
    event,
    extraction,
    failed,
    finished,
    start,
    step,
    training,
    validation,
)


def curve(state, title):
    [found] = [each for each in state.curves if each.title == title]
    return found


def test_no_events():
    assert state_of([], name="mine") == State(name="mine")


def test_a_running_job():
    state = state_of(training())
    assert (state.name, state.doing, state.place) == ("zipformer_medium", "training", "update 1,200/2,000")
    assert not state.is_over
    assert state.left == clock(800 * 0.3)
    assert state.figures["throughput"].endswith("audio-s/s")
    assert state.figures["memory"] == "device 41 GB of 80 GB, host 6.2 GB"
    assert state.figures["devices"] == "2 × NVIDIA H100 (gpu:0, gpu:1)"
    assert state.figures["waiting"] == "2 %"
    assert state.figures["epoch"] == "3 of 4"
    assert state.rejected == {"too long (41.2, needs 35)": 3, "empty text": 2}
    assert state.warnings == ("update 950: the loss of update 950 is 2.1 times the mean of the last 100 updates",)
    assert state.samples_title == "validation (ema) at 1,200: WER 8.12 %"
    assert [sample.id for sample in state.samples] == ["1272-0003", "1272-0017", "1272-0040"]
    assert list(curve(state, "loss").lines) == ["training", "validation ema"]
    assert list(curve(state, "errors (%)").lines) == ["WER ema", "CER ema"]
    updates, rates = curve(state, "errors (%)").lines["WER ema"]
    assert updates.tolist() == [400, 800, 1200]
    assert rates[-1] < rates[0] < 100
    assert all(curve(state, title).lines for title in ("learning rate", "gradient norm", "audio-s/s"))
    assert list(curve(state, "padding, waiting (%)").lines) == ["padding", "waiting"]


@pytest.mark.parametrize(
    ("events", "doing", "detail"),
    [
        (training()[:1], "starting", ""),
        (training()[:5], "compiling", "1 of 3 batch shapes"),
        ([*training(until=50), event("validation_start", 60, update=50)], "validating", ""),
        (finished(), "complete", "all updates done"),
        (failed(), "FAILED", "RunError: the last 20 updates were not finite (limits.max_failed is 20)"),
        ([*training(until=50), event("job_stopped", 60, update=50, reason="SIGTERM")], "stopped", "SIGTERM"),
        ([*failed(), start("again", 300)], "starting", ""),
    ],
)
def test_what_it_does(events, doing, detail):
    state = state_of(events)
    assert (state.doing, state.detail) == (doing, detail)
    assert state.is_over == (doing in ("complete", "stopped", "FAILED"))
    assert not (state.is_over and state.left)


def test_a_resumed_job_repeats_updates():
    first = training(until=600)
    again = [start("zipformer_medium", 230), event("resumed", 231, update=400, path="c"), step(450, 260.0, loss=9.0)]
    state = state_of([*first, *again])
    updates, losses = curve(state, "loss").lines["training"]
    assert updates.tolist() == [*range(50, 401, 50), 450]
    assert losses[-1] == 9.0
    assert state.place == "update 450/2,000"
    assert state.left == ""  # one line has no rate
    assert state.figures["elapsed"] == f"{clock(260)} in 2 jobs"
    more = state_of([*first, *again, step(500, 280.0)])
    assert more.left == clock(1500 * 20 / 50)  # the rate of this job alone


def test_values_that_are_not_finite():
    broken = step(50, 60.0)
    broken["data"] |= {"losses": {"total": None}, "gradient_norm": None, "learning_rate": None}
    state = state_of([start("mine"), broken])
    assert state.figures["loss"] == state.figures["gradient norm"] == "not finite"
    assert not curve(state, "loss").lines


def test_a_run_without_error_rates_has_its_accuracy():
    figures = {"update": 50, "weights": "live", "measure": "loss", "loss": 2.0, "metrics": {"c/accuracy": 0.25}}
    state = state_of([start("mine"), step(50, 50.0), event("validation", 60, **figures)])
    _, shares = curve(state, "accuracy (%)").lines["validation"]
    assert shares.tolist() == [25.0]
    assert state.figures["best"] == "loss 2 at 50"
    assert not state.samples


def test_the_best_validation():
    state = state_of([start("mine"), validation(50, 50, 0.1), validation(100, 90, 0.2)])
    assert state.figures["best"] == "WER 10.00 % at 50"
    assert state.figures["last"] == "WER 20.00 %"


def test_an_extraction():
    state = state_of(extraction(), name="features")
    assert (state.name, state.doing, state.place) == ("features", "extracting", "utterance 8,000/12,000")
    assert (state.done, state.total) == (8000, 12_000)
    assert state.left == clock(4000 * 40 / 6000)
    assert state.figures["skipped, long"] == "17"
    assert state.figures["workers"].startswith("8 processes, ")
    assert state.samples_title == "utterance-0040 (4.2 s)\nthe quick brown fox"
    assert state.figures["shard"]
    ends = [event("extracted", 50, output="f", utterances=12_000, rejected=3, skipped_long=17)]
    assert state_of([*extraction(), *ends]).doing == "extracting"
    over = state_of([*extraction(), *ends, event("extraction_complete", 51, files=1)])
    assert (over.doing, over.left, over.figures["rejected"]) == ("complete", "", "3")
    assert over.timestamp_ms == START_MS + 51_000
    assert state_of([event("run_failed", 2, reason="KeyboardInterrupt: ")]).doing == "FAILED"
