"""Health report of a run from its events."""

import re
import shutil

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
    assert re.search(r"stopped.*SIGTERM.*\b20 updates.*\b1 job\b", health(path)[0])
    with EventLog(path) as log:
        log.write("run_start", run="r")
        log.write("resumed", update=10)
    assert "killed" in health(path)[0]
    with EventLog(path) as log:
        steps(log, 20, 30, voided=2)  # update 20 is repeated
        log.write("warning", message="a checkpoint was refused")
        log.write("rejected", count=3, reasons={"too long": 2, "no such file": 1}, path="rejected.jsonl")
        for count in (2, 3):
            log.write("differing", count=count, files=["a.flac"], reason="longer …", path="rejected.jsonl")
        log.write("voided", update=25, count=2, updates=[24, 25], path="voided.jsonl")
        log.write("warning", update=25, detector="loss spike", message="…")
        log.write("warning", update=25, detector="not finite", message="…")
        log.write("validation", update=30, weights="live", wer=0.1)
        log.write("validation", update=30, weights="ema", wer=0.2)
        log.write("checkpoint_saved", update=30, path="checkpoints/30")
        log.write("run_complete", update=30, reason="all updates done")
        log.write("compile", rows=[], seconds=28.0)
    ended, time, detectors, voided, rejected, size, best = health(path)
    assert re.search(r"complete.*all updates done.*\b30 updates.*\b2 jobs", ended)
    assert re.search(r"0:01:00.*waiting 25 %.*host 25 %.*device 50 %.*waiting.*0:00:15.*compiling.*0:00:28", time)
    assert re.search(r"loss spike ×1 .*\b25\b.*not finite ×1 .*\b25\b.*other ×1", detectors)
    assert re.search(r"\b2\b.*voided\.jsonl.*\b0\b", voided)
    assert re.search(r"\b3\b.*\b2 too long.*\b1 no such file.*rejected\.jsonl; .*remarks.*: 5$", rejected)
    assert re.search(r"WER 20\.00 %.*\b30\b.*checkpoints/30", best)
    assert re.fullmatch(r"size: [\d.]+ kB", size)
    for update in (4, 30):
        (tmp_path / "checkpoints" / str(update)).mkdir(parents=True)
        (tmp_path / "checkpoints" / str(update) / "state").write_bytes(bytes(500_000))
    assert re.fullmatch(r"size: 1 MB, of which checkpoints 1 MB \(after updates 4, 30\)", health(path)[5])
    copy = shutil.copytree(tmp_path, tmp_path / "copy")
    found = health(copy / "events.jsonl")
    assert f"{copy}/checkpoints/30" in found[-1]
    assert f"{copy}/voided.jsonl" in found[3]
    assert f"{copy}/rejected.jsonl" in found[4]
    main([str(tmp_path)])
    assert capsys.readouterr().out.splitlines() == health(path)


def test_the_process_that_waits_longest_for_data_is_named(tmp_path):
    with EventLog(tmp_path / "events.jsonl") as log:
        for update, process, waited in ((10, 1, 30.0), (20, 0, 22.0), (30, 1, 40.0)):
            processes = {"number": 2, "waiting_s": {"min": 18.0, "mean": 20.0, "max": waited, "process": process}}
            throughput = {"batch_s": 2.0, "num_batches": 50, "waiting_share": 0.25}
            log.write("train_step", update=update, processes=processes, losses={}, throughput=throughput)
        log.write("warning", update=10, detector="straggler", process=1, message="…")
    _, time, detectors, *_ = health(tmp_path / "events.jsonl")
    assert "mean of the processes 0:01:00; process 1 waited longest in 2 of 3 lines, 0:01:10 in these" in time
    assert "straggler ×1 (process 1, first at update 10)" in detectors


def test_a_run_that_has_hardly_begun(tmp_path):
    with EventLog(tmp_path / "events.jsonl") as log:
        log.write("run_start", run="r")
    _, time, detectors, voided, rejected, _, best = health(tmp_path / "events.jsonl")
    assert not re.search(r"\d", time + detectors + rejected + best)
    assert re.findall(r"\d+", voided) == ["0", "0"]


def test_what_is_no_run_is_named(tmp_path):
    with pytest.raises(UserError, match="cannot read events"):
        main([str(tmp_path)])
    with pytest.raises(UserError):
        health(tmp_path / "events.jsonl")
