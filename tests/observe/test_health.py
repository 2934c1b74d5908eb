"""A few lines that say whether a run was healthy, from its events alone."""

import pytest

from asr_jax.core.errors import UserError
from asr_jax.observe.events import EventLog
from asr_jax.observe.health import health, main


def steps(log, *updates, voided=0):
    for update in updates:
        throughput = {"batch_s": 2.0, "num_batches": 10, "waiting_share": 0.25, "host_share": 0.25, "device_share": 0.5}
        log.write("train_step", update=update, losses={"total": 1.0}, voided=voided, throughput=throughput)


def test_lines_of_a_run_that_was_stopped_and_went_on(tmp_path, capsys):
    path = tmp_path / "events.jsonl"
    with EventLog(path) as log:
        log.write("run_start", run="r")
        steps(log, 10, 20)
        log.write("job_stopped", update=20, reason="SIGTERM")
    assert health(path)[0].startswith("ended: stopped (SIGTERM); 20 updates in 1 job")
    with EventLog(path) as log:
        log.write("run_start", run="r")
        log.write("resumed", update=10)
    assert "no end told: it goes on, or was killed" in health(path)[0]
    with EventLog(path) as log:
        steps(log, 20, 30, voided=2)  # 20 is done again
        log.write("warning", message="a checkpoint was refused")
        log.write("skipped", count=3, reasons={"too long": 2, "no such file": 1}, path="skipped.jsonl")
        log.write("voided", update=25, count=2, updates=[24, 25], path="voided.jsonl")
        log.write("warning", update=25, detector="loss spike", message="…")
        log.write("warning", update=25, detector="not finite", message="…")
        log.write("validation", update=30, weights="live", wer=0.1)
        log.write("validation", update=30, weights="ema", wer=0.2)
        log.write("checkpoint_saved", update=30, path="checkpoints/30")
        log.write("run_complete", update=30, reason="all updates done")
        log.write("compile", rows=[], seconds=28.0)
    ended, time, detectors, voided, skipped, best = health(path)
    assert ended.startswith("ended: complete (all updates done); 30 updates in 2 jobs")
    assert time == (
        "time in training: 0:01:00: waiting 25 %, host 25 %, device 50 %; lost to waiting for data: 0:00:15; "
        "compiling: 0:00:28"
    )
    assert detectors == "detectors: loss spike ×1 (first at update 25), not finite ×1 (first at update 25), other ×1"
    assert voided == "updates that changed nothing: 2; their batches are in voided.jsonl; programs compiled late: 0"
    assert skipped == "skipped recordings: 3: 2 too long, 1 no such file; all in skipped.jsonl"
    assert best.startswith("best checkpoint: WER 20.00 % at update 30, checkpoints/30")
    main([str(tmp_path)])
    assert capsys.readouterr().out.splitlines() == health(path)


def test_a_run_that_has_hardly_begun(tmp_path):
    with EventLog(tmp_path / "events.jsonl") as log:
        log.write("run_start", run="r")
    assert health(tmp_path / "events.jsonl")[1:] == [
        "time: no training yet", "detectors: nothing", "updates that changed nothing: 0; programs compiled late: 0",
        "skipped recordings: none", "best checkpoint: no validation yet",
    ]  # fmt: skip


def test_what_is_no_run_is_named(tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([str(tmp_path)])
    assert "cannot read events" in capsys.readouterr().err
    with pytest.raises(UserError):
        health(tmp_path / "events.jsonl")
