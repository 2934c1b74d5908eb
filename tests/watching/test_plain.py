"""Events as lines, for pipes and logs."""

import io

from asr_jax.watching.plain import print_events
from tests.watching.recorded_runs import event, extraction, failed, finished, start, training, write


def lines(paths, names, *changes):
    """Lines that are printed while the files change between two looks at them."""
    stream, left = io.StringIO(), list(changes)

    def wait():
        left.pop(0)()

    print_events(paths, names, stream=stream, wait=wait)
    assert not left
    return stream.getvalue().splitlines()


def test_a_finished_run(tmp_path):
    shown = lines([write(tmp_path / "events.jsonl", finished())], ["mine"])
    assert shown[0].startswith("run zipformer_medium: parameters 23.3 M")
    assert sum(line.startswith("epoch ") for line in shown) == 40
    assert "rejected 5 utterances: 3 too long (41.2, needs 35), 2 empty text" in shown
    assert "compiled 3 of 3 in 0:00:21" in shown
    assert shown[-1] == "done (all updates done): 2,000 updates in 0:11:00"
    assert not any("\x1b" in line for line in shown)


def test_a_run_that_goes_on_and_fails(tmp_path):
    path = tmp_path / "events.jsonl"
    shown = lines(
        [path],
        ["mine"],
        lambda: write(path, training(until=50), rest='{"event": '),
        lambda: write(path, failed("zipformer_medium")),
    )
    assert shown[0] == f"{path}: not written yet; waiting for it"
    assert sum(line.startswith("run zipformer_medium") for line in shown) == 1
    assert shown[-1].startswith("failed: RunError: the last 20 updates were not finite")


def test_a_run_that_another_job_continues(tmp_path):
    path = tmp_path / "events.jsonl"
    first = [*training(until=50), event("job_stopped", 60, update=50, reason="SIGTERM")]
    write(path, [*first, start("mine", 70)])
    shown = lines([path], ["mine"], lambda: write(path, [*first, start("mine", 70), *finished()[-1:]]))
    assert "stopped after update 50: SIGTERM" in shown
    assert shown[-1].startswith("done")


def test_several_runs_have_prefixes(tmp_path):
    paths = [write(tmp_path / "a" / "e.jsonl", finished()), write(tmp_path / "b" / "e.jsonl", failed())]
    shown = lines(paths, ["a", "b"])
    assert {line[:3] for line in shown} == {"a: ", "b: "}
    assert any(line.startswith("b: failed: ") for line in shown)


def test_a_file_that_is_replaced(tmp_path):
    path = write(tmp_path / "events.jsonl", training(until=50))
    shown = lines([path], ["mine"], lambda: write(path, finished("another")))
    assert f"{path} was replaced; from its beginning:" in shown
    assert any(line.startswith("run another: ") for line in shown)


def test_an_extraction(tmp_path):
    ends = [
        event("extracted", 50, output="f.parquet", utterances=12_000, rejected=3, skipped_long=17),
        event("extraction_complete", 51, files=1),
    ]
    shown = lines([write(tmp_path / "f.events.jsonl", [*extraction(), *ends])], ["f"])
    assert shown[0] == (
        "features/0000-train.parquet: 12,000 utterances, 2,000 of them done, 17 skipped as too long; 8 processes, "
        "1 × NVIDIA H100 (gpu:0)"
    )
    assert "8,000 of 12,000 utterances | " in shown[-3]
    assert shown[-2:] == ["f.parquet: done, 3 rejected utterances", "done: 1 file in 0:00:51"]
