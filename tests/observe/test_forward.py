"""Events sent to Weights & Biases (offline), MLflow and trackio (folders), in parts, and while they are written."""

import json
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from asr_jax.core.errors import RunError, UserError
from asr_jax.observe import forward as command
from asr_jax.observe.events import EventLog
from asr_jax.observe.forward import forward

RECORDED = Path(__file__).with_name("recorded_events.jsonl")
"""Events of a training whose manifests have no sources."""
SETTINGS = {
    "class": "asr_jax.config:Experiment", "name": "toy", "seed": 3,
    "optim": {"b1": 0.9, "schedule": {"peak_lr": 1e-3}}, "data": {"train": ["a.jsonl"]},
    "model": {"augment": [{"class": "m:A", "rate": 0.5}, {"class": "m:B"}]},
}  # fmt: skip


def step(log, update):
    throughput = {"audio_s_per_s": 10.0 * update}
    log.write("train_step", update=update, epoch=1, losses={"total": 1 / update}, throughput=throughput)


def validation(log, update, wer):
    log.write("validation", update=update, weights="ema", wer=wer, cer=wer / 2, substitutions=3, samples=[])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "experiment.json").write_text(json.dumps(SETTINGS))
    return tmp_path


def first_job(run: Path) -> None:
    with EventLog(run / "events.jsonl") as log:
        log.write("run_start", run="toy", num_updates=4)
        step(log, 1)
        step(log, 2)
        validation(log, 2, 0.5)
        log.write("job_stopped", update=2, reason="SIGTERM")


def second_job(run: Path, *, pause_s: float = 0.0) -> None:
    with EventLog(run / "events.jsonl") as log:
        log.write("run_start", run="toy", num_updates=4)
        log.write("setting_changed", setting="training.limits.patience", old=0, new=3)
        for update in (3, 4):
            time.sleep(pause_s)
            step(log, update)
        validation(log, 4, 0.25)
        log.write("run_complete", update=4, reason="all updates done", wer=0.25, best_wer=0.25)


class Recorder:
    """A receiver that keeps the events; it fails after `fails_after` calls."""

    def __init__(self, *, fails_after: int = 100) -> None:
        self.events, self.opened, self.firsts, self.calls, self.fails_after = [], [], [], 0, fails_after
        self.id = "run 1"

    def open(self, folder, settings, project, identifier):
        self.opened.append((settings["name"], project, identifier))
        return self

    def send(self, events, first):
        self.calls += 1
        self.firsts.append(first)
        if self.calls > self.fails_after:
            raise ConnectionError("no network")
        self.events += [event["event"] for event in events]

    def close(self):
        pass


def test_each_event_is_sent_once(run: Path) -> None:
    recorder = Recorder()
    first_job(run)
    with (run / "events.jsonl").open("ab") as file:
        file.write(b'{"event": "train_st')  # a process that writes
    assert forward(run, "it", recorder.open, project="p", follow=False) == 5
    assert forward(run, "it", recorder.open, project="p", follow=False) == 0
    second_job(run)
    recorder.fails_after = recorder.calls
    with pytest.raises(RunError, match=r"it failed \(ConnectionError: no network\): check its server"):
        forward(run, "it", recorder.open, project="p", follow=False)
    recorder.fails_after = 100
    assert forward(run, "it", recorder.open, project="p", follow=False) == 6
    names = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert recorder.events == names
    assert recorder.firsts == [0, 5, 5]
    assert recorder.opened == [("toy", "p", ""), *[("toy", "p", "run 1")] * 3]


def test_a_running_job_is_followed_to_its_end(run: Path) -> None:
    recorder = Recorder()
    first_job(run)
    job = threading.Thread(target=second_job, args=(run,), kwargs={"pause_s": 0.2})
    job.start()
    number = forward(run, "it", recorder.open, project="p", follow=True, poll_s=0.05)
    job.join()
    assert number == 11
    assert recorder.events[-1] == "run_complete"
    assert recorder.calls > 1


def test_wrong_folders_are_refused(run: Path) -> None:
    with pytest.raises(UserError, match="expected the folder of a run"):
        forward(run, "it", Recorder().open, project="p", follow=False)
    first_job(run)
    (run / "forwarded-it.json").write_text('{"position": 1000000, "events": 9, "id": "x"}')
    with pytest.raises(UserError, match="is shorter than before"):
        forward(run, "it", Recorder().open, project="p", follow=False)
    with pytest.raises(UserError, match="wandb"):
        command.main([str(run), "--to", "paper"])


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("events.jsonl", '{"event": "train_st\n', "not an event: .*repair or delete this line"),
        ("events.jsonl", "[1]\n", "not an event"),
        ("forwarded-it.json", '{"position": ', "forwarded-it.json is damaged.*remove it to send all"),
        ("forwarded-it.json", '{"position": "0"}', "forwarded-it.json is damaged"),
        ("forwarded-it.json", "\udcff", "forwarded-it.json is damaged"),
        ("experiment.json", "[]", "experiment.json is damaged"),
    ],
)
def test_damaged_files_are_named(run: Path, name: str, content: str, message: str) -> None:
    first_job(run)
    (run / name).write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(UserError, match=message):
        forward(run, "it", Recorder().open, project="p", follow=False)


def test_a_tracker_that_cannot_be_reached_is_named(run: Path) -> None:
    first_job(run)

    def refused(*_: Any) -> Recorder:
        raise ConnectionError("no network")

    with pytest.raises(RunError, match="it failed"):
        forward(run, "it", refused, project="p", follow=False)
    assert not (run / "forwarded-it.json").exists()


def test_a_missing_client_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first_job(run)
    for name in ("wandb", "mlflow", "trackio"):
        monkeypatch.setitem(__import__("sys").modules, name, None)
        monkeypatch.delitem(__import__("sys").modules, f"asr_jax.observe.{name}", raising=False)
        with pytest.raises(UserError, match=f"ASR_JAX_EXTRAS={name} "):
            command.main([str(run), "--to", name])


@pytest.mark.slow  # imports take seconds
def test_mlflow_has_metrics_parameters_and_state(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (run / "mlruns").as_uri())
    client = mlflow.MlflowClient()
    first_job(run)
    command.main([str(run), "--to", "mlflow", "--project", "speech"])
    experiment = client.get_experiment_by_name("speech").experiment_id
    [found] = client.search_runs([experiment])
    assert found.info.status == "KILLED"
    second_job(run)
    command.main([str(run), "--to", "mlflow", "--project", "speech"])
    [found] = client.search_runs([experiment])
    assert (found.info.run_name, found.info.status) == ("toy", "FINISHED")
    params = found.data.params
    assert (params["optim.schedule.peak_lr"], params["model.augment.0.rate"]) == ("0.001", "0.5")
    assert params["data.train"] == "['a.jsonl']"
    assert found.data.tags["changed/training.limits.patience"] == "3"
    assert found.data.metrics["summary/best_wer"] == 0.25
    losses = client.get_metric_history(found.info.run_id, "train/losses/total")
    assert [(each.step, each.value) for each in losses] == [(n, 1 / n) for n in (1, 2, 3, 4)]
    rates = client.get_metric_history(found.info.run_id, "validation_ema/wer")
    assert [(each.step, each.value) for each in rates] == [(2, 0.5), (4, 0.25)]


@pytest.mark.slow
def test_mlflow_takes_the_events_of_a_run_without_sources(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (run / "mlruns").as_uri())
    shutil.copy(RECORDED, run / "events.jsonl")
    command.main([str(run), "--to", "mlflow"])
    [found] = mlflow.MlflowClient().search_runs([mlflow.MlflowClient().get_experiment_by_name("asr_jax").experiment_id])
    assert 0 < found.data.metrics["validation/by_source/no source/wer"] < 1


@pytest.mark.slow
def test_trackio_has_metrics_and_settings(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(run / "trackio"))
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    first_job(run)
    command.main([str(run), "--to", "trackio", "--project", "speech"])
    second_job(run)
    command.main([str(run), "--to", "trackio", "--project", "speech"])
    [name] = SQLiteStorage.get_runs("speech")
    assert name == json.loads((run / "forwarded-trackio.json").read_text())["id"]
    assert name.startswith("toy-")
    assert (run / "trackio").is_dir()
    config = SQLiteStorage.get_run_config("speech", name)
    assert config["optim"]["schedule"]["peak_lr"] == 1e-3
    logs = SQLiteStorage.get_logs("speech", name)
    losses = [(row["step"], row["train/losses/total"]) for row in logs if "train/losses/total" in row]
    assert losses == [(n, 1 / n) for n in (1, 2, 3, 4)]
    rates = [(row["step"], row["validation_ema/wer"]) for row in logs if "validation_ema/wer" in row]
    assert rates == [(2, 0.5), (4, 0.25)]
    assert [row["summary/best_wer"] for row in logs if "summary/best_wer" in row] == [0.25]


def records_in(content: bytes) -> Iterator[bytes]:
    """Yields the records of a .wandb file: LevelDB's log format, after a header of 7 bytes."""
    place, whole, block = 7, b"", 32768
    while place + 7 <= len(content):
        if block - place % block < 7:
            place += block - place % block
            continue
        size, kind = struct.unpack("<HB", content[place + 4 : place + 7])
        whole += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # the record is complete
            yield whole
            whole = b""


def written_records(folder: Path, parse: Callable[[bytes], Any]) -> list[Any]:
    """Waits for the process of wandb, which ends each file with an exit record after `finish` has returned."""
    for _ in range(200):
        paths = sorted(folder.glob("offline-run-*/*.wandb"), key=lambda path: path.parent.name)
        files = [[parse(data) for data in records_in(path.read_bytes())] for path in paths]
        if len(files) == 2 and all(records and records[-1].HasField("exit") for records in files):
            break
        time.sleep(0.1)
    return [record for records in files for record in records]


def values_of(items: Iterable[Any]) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


@pytest.mark.slow
def test_wandb_has_history_settings_and_summary(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    first_job(run)
    command.main([str(run), "--to", "wandb"])
    second_job(run)
    command.main([str(run), "--to", "wandb"])
    history, config, summary, identifiers = [], {}, {}, set()
    for record in written_records(run / "wandb", wandb_internal_pb2.Record.FromString):
        if record.HasField("run"):
            identifiers.add(record.run.run_id)
            config |= values_of(record.run.config.update)
        if record.HasField("history"):
            history.append(values_of(record.history.item))
        summary |= values_of(record.summary.update)
    assert len(identifiers) == 1
    assert config["optim"]["schedule"]["peak_lr"] == 1e-3
    assert [row["_step"] for row in history] == [1, 2, 3, 7, 8, 9]  # numbers of the events
    losses = [(row["update"], row["train/losses/total"]) for row in history if "train/losses/total" in row]
    assert losses == [(n, 1 / n) for n in (1, 2, 3, 4)]
    rates = [(row["update"], row["validation_ema/wer"]) for row in history if "validation_ema/wer" in row]
    assert rates == [(2, 0.5), (4, 0.25)]
    assert summary["summary/best_wer"] == 0.25
