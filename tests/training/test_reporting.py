"""Unreadable utterances: recorded once, also after a restart, without constructing every utterance."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from asr_jax.audio.mono import SILENT
from asr_jax.core.errors import RunError
from asr_jax.data.batching.index import scale_of
from asr_jax.data.loading.source import LoadedBatch
from asr_jax.data.manifests.columns import Columns
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.metrics.throughput import Throughput
from asr_jax.observe.events import EventLog
from asr_jax.training import reporting
from asr_jax.training.reporting import RejectedAudio, Reporter, report_rejected
from asr_jax.training.run import RejectedFile
from asr_jax.training.setup import Setup
from asr_jax.training.step import UpdateReport
from tests.training.toy import toy_batch, toy_model

PLACES = ["/a.wav"] * 4 + [f"/long.wav#seconds={i}.0+1.0" for i in range(4, 20)]
UTTERANCES = Utterances.of(Utterance(f"u{i}", place, "a", 1.0) for i, place in enumerate(PLACES))


def reported_ids(folder: Path, rows: Sequence[int], *, limit: int = 5, num_jobs: int = 1) -> list[list[str]]:
    """Returns the ids in rejected.jsonl after each of several jobs that could not read the given rows, twice."""
    ids = []
    for _ in range(num_jobs):
        with EventLog(folder / "events.jsonl") as log:
            rejections = RejectedAudio(folder, log, utterances=UTTERANCES, limit=limit)
            for _ in range(2):
                rejected = tuple(Rejected(f"u{row}", PLACES[row], "no such file", "audio") for row in rows)
                rejections.add([LoadedBatch(toy_batch(), 0, 0, rejected)])
                rejections.flush()
        ids.append([json.loads(line)["id"] for line in (folder / "rejected.jsonl").read_text().splitlines()])
    return ids


def test_two_utterances_of_one_file_are_two(tmp_path: Path) -> None:
    assert reported_ids(tmp_path, [1, 2, 7], num_jobs=2) == [["u1", "u2", "u7"]] * 2
    events = [json.loads(line)["data"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["count"] for event in events] == [3]


def test_silent_utterances_stop_a_run_only_if_they_are_most_of_it(tmp_path: Path) -> None:
    def reject(rows: Sequence[int], *, limit: int) -> None:
        with EventLog(tmp_path / "events.jsonl") as log:
            rejections = RejectedAudio(tmp_path, log, utterances=UTTERANCES, limit=limit)
            entries = tuple(Rejected(f"u{row}", PLACES[row], f"{SILENT}, but …", "audio") for row in rows)
            rejections.add([LoadedBatch(toy_batch(), 0, 0, entries)])
            rejections.flush()

    reject([1, 2, 7], limit=0)
    reject([8, 9], limit=0)
    with pytest.raises(RunError, match="11 utterances of 20 cannot be read or are silent"):
        reject(range(10, 16), limit=100)


def test_those_of_the_job_before_count_and_those_that_a_filter_rejected_do_not(tmp_path: Path) -> None:
    reported_ids(tmp_path, [1, 2])
    with (tmp_path / "rejected.jsonl").open("a") as file:
        file.write(json.dumps({"id": "dropped", "location": "/a.wav", "reason": "too long"}) + "\n")
    reported_ids(tmp_path, [1, 2, 7], limit=3)
    with pytest.raises(RunError, match=r"4 utterances of 20 .*training\.limits\.max_rejected \(3\)"):
        reported_ids(tmp_path, [9], limit=3)


def test_a_restart_does_not_construct_every_utterance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported_ids(tmp_path, [1])
    monkeypatch.setattr(Columns, "utterance", lambda self, row: pytest.fail("an utterance was constructed"))
    reported_ids(tmp_path, [1])


def test_each_line_of_the_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those of another writer, and a line that a killed job left incomplete."""
    read = list[bytes]()
    add = RejectedFile._add
    monkeypatch.setattr(RejectedFile, "_add", lambda self, line: (read.append(line), add(self, line)))
    listed, other = RejectedFile(tmp_path), RejectedFile(tmp_path)
    with EventLog(tmp_path / "events.jsonl") as log:
        for row in range(20):
            for file in (listed, other):
                report_rejected(file, log, [Rejected(f"u{row}", PLACES[row], "no such file", "audio")])
            if row == 9:
                with listed.path.open("a") as file:
                    file.write('{"id": "cut')
    lines = listed.path.read_bytes().splitlines(keepends=True)
    assert len(lines) == 21
    assert len(b"".join(read)) <= 2 * len(b"".join(lines))
    assert set(RejectedFile(tmp_path).reasons()) == {(f"u{row}", PLACES[row]) for row in range(20)}


class Slow:
    """Value that a device computes in a second, on a clock that advances only while it is waited for."""

    now_s = 0.0
    is_done = False

    def block_until_ready(self) -> "Slow":
        Slow.now_s += 1 - self.is_done
        self.is_done = True
        return self


def made(cls: type[Any], **fields: Any) -> Any:
    """Returns an object of a frozen class with some of its fields, unchecked."""
    result = object.__new__(cls)
    for name, value in fields.items():
        object.__setattr__(result, name, value)
    return result


def test_the_first_figures_exclude_the_first_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reporting, "Throughput", partial(Throughput, clock=lambda: Slow.now_s))
    model = toy_model().build(vocab_size=6, blank_id=5, precision="f32")
    setup = made(
        Setup, mesh=SimpleNamespace(size=1), experiment=SimpleNamespace(training=SimpleNamespace(accumulate=1)),
        recipe=SimpleNamespace(model=model), data=SimpleNamespace(
            tokenizer=SimpleNamespace(num_letters=np.ones(99)),
            train=SimpleNamespace(index=SimpleNamespace(scale=scale_of(model.front_end, of_features=False))),
        ),
    )  # fmt: skip
    with EventLog(tmp_path / "events.jsonl") as log:
        reporter = Reporter(setup, log, loss_terms=())
    reports = [made(UpdateReport, **dict.fromkeys(UpdateReport.__dataclass_fields__, Slow())) for _ in range(2)]
    for report in reports:
        reporter.add(report, [LoadedBatch(jax.tree.map(np.asarray, toy_batch()), 0, 0, ())])
    assert [report.finite.is_done for report in reports] == [True, False]
    with reporter.throughput.timed("device"):
        jax.block_until_ready(reports)
    assert reporter.throughput.rates()["batch_s"] == 1.0


def test_the_utterances_that_are_named() -> None:
    pairs = {("u1", "/a.wav"), ("u9", "/a.wav"), ("u5", PLACES[5]), ("gone", "/b.wav")}
    assert UTTERANCES.named(pairs) == {("u1", "/a.wav"), ("u5", PLACES[5])}
    assert UTTERANCES.select(np.array([7, 5, 2])).named(pairs) == {("u5", PLACES[5])}
    assert UTTERANCES.named(set()) == set()


def test_utterances_of_another_duration_are_recorded_once(tmp_path: Path) -> None:
    """Also after a restart, and if rejected.jsonl has them for another reason."""
    differing = [Rejected(f"u{row}", PLACES[row], "shorter than its manifest says: …", "used") for row in (1, 2)]
    (tmp_path / "rejected.jsonl").write_text(
        json.dumps(Rejected("u1", PLACES[1], "removed characters", "used", "ö").to_json()) + "\n"
    )
    for _ in range(2):
        with EventLog(tmp_path / "events.jsonl") as log:
            rejections = RejectedAudio(tmp_path, log, utterances=UTTERANCES, limit=5)
            for entry in (differing[0], differing[0], differing[1]):
                rejections.add([LoadedBatch(toy_batch(), 0, 0, (), (entry,))])
                rejections.flush()
            report_rejected(RejectedFile(tmp_path), log, differing, are_used=True)  # as validation does
    lines = [json.loads(line) for line in (tmp_path / "rejected.jsonl").read_text().splitlines()]
    assert [(line["id"], line["reason"][:7]) for line in lines] == [
        ("u1", "removed"),
        ("u1", "shorter"),
        ("u2", "shorter"),
    ]
    events = [json.loads(line)["data"] for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(event["count"], event["files"]) for event in events] == [(1, ["/a.wav"]), (1, ["/a.wav"])]
