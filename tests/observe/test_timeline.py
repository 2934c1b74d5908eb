"""Timeline of a resumed run."""

import pytest

from asr_jax.observe.events import EventLog, read_events
from asr_jax.observe.timeline import best_of, timeline


def test_after_a_resume_the_later_events_win(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for update in (10, 20, 30, 40):
            log.write("train_step", update=update, job=1)
        for weights in ("live", "ema"):
            log.write("validation", update=40, weights=weights, job=1)
        log.write("resumed", update=25)
        for update in (28, 35):
            log.write("train_step", update=update, job=2)
        log.write("warning", message="it has no update")
    by_name = timeline(read_events(path))
    steps = [(event["data"]["update"], event["data"]["job"]) for event in by_name["train_step"]]
    assert steps == [(10, 1), (20, 1), (28, 2), (35, 2)]
    assert by_name["validation"] == []
    assert set(by_name) == {"train_step", "validation", "resumed"}


def test_a_job_that_starts_over_wins_and_kinds_of_validation_are_apart(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for job in (1, 2):
            for update in (10, 20):
                for weights in ("live", "ema"):
                    log.write("validation", update=update, weights=weights, job=job)
            if job == 1:
                log.write("validation", update=30, weights="ema", job=job)
    kept = [event["data"] for event in timeline(read_events(path))["validation"]]
    assert len(kept) == 4
    assert {data["job"] for data in kept} == {2}
    assert [data["update"] for data in kept] == [10, 10, 20, 20]


def test_without_error_rates_the_best_has_the_lowest_loss(tmp_path):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        for update, loss in ((10, 4.0), (20, 3.0), (30, float("nan")), (40, 3.5)):
            log.write("validation", update=update, weights="live", loss=loss)
    assert best_of(timeline(read_events(path))["validation"])["data"]["update"] == 20


def test_the_best_is_the_last_of_the_lowest_that_the_last_decoding_found(tmp_path):
    path = tmp_path / "events.jsonl"
    assert best_of([]) is None
    with EventLog(path) as log:
        for update, wer, decoding in ((10, 0.1, "beam"), (20, 0.3, "greedy"), (30, 0.2, "greedy"), (40, 0.2, "greedy")):
            log.write("validation", update=update, weights="live", wer=wer, decoding=decoding)
        log.write("validation", update=50, weights="live", wer=0.4, decoding="greedy")
    assert best_of(timeline(read_events(path))["validation"])["data"]["update"] == 40


@pytest.mark.parametrize(("choice", "update"), [("all", 20), ("mean", 30), ("dev", 10)])
def test_the_best_is_that_of_the_set_that_chooses_now(tmp_path, choice, update):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.write("validation", update=5, wer=0.0, sets={"other": {"wer": 0.0}}, mean={"wer": 0.0}, best_of="other")
        for number, whole, mean, dev in ((10, 0.3, 0.4, 0.1), (20, 0.1, 0.3, 0.2), (30, 0.2, 0.2, 0.3)):
            sets = {"dev": {"wer": dev}, "other": {"wer": 0.5}}
            log.write("validation", update=number, wer=whole, sets=sets, mean={"wer": mean}, best_of=choice)
    assert best_of(timeline(read_events(path))["validation"])["data"]["update"] == update
