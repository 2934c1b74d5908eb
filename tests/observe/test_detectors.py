"""Each detector reports its problem once, and does not report healthy runs."""

import pytest

from asr_jax.observe.detectors import Detectors
from asr_jax.training.reporting import spread
from tests.support import approx

CHANCE = {"pretrain/accuracy": 0.01, "pretrain/code_perplexity": 2.0}


def warnings_of(*events):
    found = []
    detectors = Detectors(lambda **data: found.append(data), chance=CHANCE)
    for name, data in events:
        detectors({"event": name, "timestamp_ms": 0, "data": data})
    return found


def step(update, loss, waiting=0.0):
    return "train_step", {"update": update, "losses": {"total": loss}, "throughput": {"waiting_share": waiting}}


def pretraining(update, *, accuracy=0.3, perplexity=90.0, loss=5.0):
    name, data = step(update, loss)
    return name, data | {"metrics": {"pretrain/accuracy": accuracy, "pretrain/code_perplexity": perplexity}}


def started(num_updates):
    return "run_start", {"num_updates": num_updates}


def validation(update, wer=0.2, empty=0.0, weights="ema"):
    return "validation", {"update": update, "wer": wer, "empty_share": empty, "weights": weights}


def test_a_loss_spike_is_reported_once_and_again_after_the_loss_came_back():
    falling = [step(u, 5 - u / 20 + 0.1 * (u % 3)) for u in range(40)]
    assert warnings_of(*falling) == []
    spikes = [*falling, step(40, 30.0), step(41, 31.0), step(42, 3.0), step(43, 90.0)]
    found = warnings_of(*spikes)
    assert [(data["detector"], data["update"]) for data in found] == [("loss spike", 40), ("loss spike", 43)]
    assert found[0]["loss"] == 30.0
    assert "optim.schedule.peak_lr" in found[0]["message"]
    assert warnings_of(*falling[:5], step(5, 99.0)) == []  # too few events


def of_processes(*waiting_s, wall_s=20.0):
    name, data = step(4, 1.0, waiting=0.1)
    waiting = spread(list(waiting_s))
    data["throughput"] |= {"batch_s": wall_s / 10, "num_batches": 10}
    return name, data | {"processes": {"number": len(waiting_s), "waiting_s": waiting, "loading_s": waiting}}


def test_a_process_that_waits_for_its_loader_more_than_twice_as_long_as_the_others_is_named():
    (found,) = warnings_of(of_processes(1.0, 2.0, 9.0))
    assert (found["detector"], found["process"], found["others_s"]) == ("straggler", 2, 1.5)
    assert "process 2 waited 9.0 s" in found["message"]
    assert warnings_of(of_processes(5.0, 1.0))[0]["process"] == 0
    for healthy in (of_processes(5.0, 6.0, 9.0), of_processes(0.0, 0.0), of_processes(0.0, 9.0, wall_s=100.0)):
        assert warnings_of(healthy) == []


def test_a_loss_that_is_not_a_number_is_passed_over():
    assert warnings_of(*[step(u, 1.0) for u in range(20)], step(20, None)) == []


@pytest.mark.parametrize(
    ("events", "detector", "word"),
    [
        ([step(1, 1.0, waiting=0.4)], "waiting for data", "--data.workers"),
        ([validation(200, empty=0.97)], "blank only", "longer warm-up"),
        ([started(100), validation(50, empty=1.0), validation(100, empty=1.0)], "blank only", "runs that end there"),
    ],
)
def test_what_is_wrong_is_named_with_advice(events, detector, word):
    (found,) = warnings_of(*events)
    assert found["detector"] == detector
    assert word in found["message"]


def test_codes_that_are_all_the_same_are_reported_once():
    healthy = [pretraining(update) for update in range(0, 400, 50)]
    early = [pretraining(update, perplexity=2.0) for update in (50, 150)]
    assert warnings_of(*early, *healthy) == []
    found = warnings_of(*healthy, *(pretraining(update, perplexity=2.1, accuracy=0.99) for update in (400, 450, 500)))
    assert [(data["detector"], data["update"], data["code_perplexity"]) for data in found] == [("collapse", 400, 2.1)]
    assert "model.heads.pretrain.diversity" in found[0]["message"]


def test_guesses_for_long_are_reported_if_the_loss_does_not_fall():
    def steps(accuracy, slope, last=1500):
        return [pretraining(u, accuracy=accuracy, loss=5.0 - slope * u) for u in range(0, last + 1, 50)]

    assert warnings_of(*steps(0.3, 0.0)) == []
    assert warnings_of(*steps(0.011, 1e-3)) == []  # the loss falls
    assert warnings_of(*steps(0.011, 0.0, last=900)) == []  # too short
    found = warnings_of(*steps(0.011, 0.0))
    assert [(data["detector"], data["update"]) for data in found] == [("guessing", 1000)]
    assert found[0]["accuracy"] == approx(0.011)
    assert "chance level is 1.00%" in found[0]["message"]
    after = [pretraining(u, accuracy=0.3, loss=3.0) for u in range(1550, 4000, 50)]
    assert len(warnings_of(*steps(0.011, 0.0), *after)) == 1


def test_what_is_right_or_early_is_not():
    assert warnings_of(step(1, 1.0, waiting=0.1), validation(100, empty=1.0, wer=1.0), validation(500)) == []


def test_live_and_averaged_weights_are_apart():
    found = warnings_of(
        validation(3000, empty=0.99, weights="live"),
        validation(3000, empty=0.98),
        validation(4000, empty=0.99, weights="live"),
    )
    assert [data["empty_share"] for data in found] == [0.99, 0.98]
