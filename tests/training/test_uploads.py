"""Uploads of the best checkpoint: to a stand-in of the hub, with the client of the hub, and failures of all kinds."""

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

import asr_jax
from asr_jax.audio.io import write_flac
from asr_jax.cli import upload as command
from asr_jax.config import Experiment, Saving, Training, Validation
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.pytrees import flatten
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference import importing
from asr_jax.inference import trained as trained_module
from asr_jax.inference.importing import import_model, run_and_checkpoint
from asr_jax.inference.trained import Trained, load_trained
from asr_jax.inference.uploading import upload_checkpoint, uploaded
from asr_jax.observe.events import EventLog, read_events
from asr_jax.observe.health import health
from asr_jax.optim.ema import EMA
from asr_jax.pretrained.hub import Upload
from asr_jax.training import uploads as uploads_module
from asr_jax.training.loop import train
from asr_jax.training.uploads import Uploads, check_upload
from tests.hub import TOKEN, Hub, running_hub
from tests.support import ROOT, approx
from tests.training.toy import toy_model

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # of huggingface_hub with httpx

PLACE, ADDRESS = "hf://team/toy", "/{repo_id}/resolve/{revision}/{filename}"
PUBLISHED = ROOT / "tests" / "goldens" / "published"


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    folder, rng = tmp_path_factory.mktemp("private"), np.random.default_rng(0)
    utterances = []
    for number in range(8):
        write_flac(folder / f"{number}.flac", rng.normal(0, 900, 6400).astype(np.int16), 16000)
        utterances.append(Utterance(str(number), str(folder / f"{number}.flac"), "ab c"[: 2 + number % 3], 0.4))
    write_manifest(folder / "dev.jsonl", utterances)
    data = Data(
        train=(str(folder / "dev.jsonl"),), validation=(str(folder / "dev.jsonl"),),
        batching=Batching.planned(num_buckets=1, seconds=1.6, row_multiple=4),
    )  # fmt: skip
    training = Training(
        num_updates=4, validation=Validation(every=2), log_every=1, ema=EMA(0.5), saving=Saving(keep_last=5)
    )
    return Experiment(name="toy", model=toy_model(), data=data, training=training, run_dir=str(folder / "run"))


@pytest.fixture(scope="module")
def run(experiment: Experiment) -> Path:
    train(experiment)
    return Path(experiment.run_dir)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    constants = pytest.importorskip("huggingface_hub.constants")
    with running_hub() as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)  # it was read from HF_ENDPOINT at the import
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + ADDRESS)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        of_children = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_TOKEN": TOKEN, "HF_HOME": str(tmp_path)}
        for name, value in of_children.items():
            monkeypatch.setenv(name, value)
        for module in (importing, trained_module):
            monkeypatch.setattr(module, "CACHES", str(tmp_path / "cache"))
        yield hub


def downloaded(folder: Path) -> Path:
    from huggingface_hub import snapshot_download

    return Path(snapshot_download("team/toy", local_dir=folder))


def assert_equal_weights(before: Trained, after: Trained) -> None:
    expected, found = flatten(before.variables), flatten(after.variables)
    assert found.keys() == expected.keys()
    for path, array in expected.items():
        np.testing.assert_array_equal(found[path], array)


@pytest.mark.slow
def test_a_downloaded_model_computes_the_same(run: Path, hub: Hub, tmp_path: Path) -> None:
    record = upload_checkpoint(run, 4, Upload(to=PLACE))
    assert uploaded(run, Upload(to=PLACE)) == record
    assert record["commit"] == hub.heads["team/toy", "main"]
    folder = downloaded(tmp_path / "model")
    ours = {"README.md", "experiment.json", "model.safetensors", "plan.json", "results.json", "tokenizer"}
    assert {path.name for path in folder.iterdir()} - {".cache", ".gitattributes"} == ours
    before, after = load_trained(run, updates=4), load_trained(run_and_checkpoint(folder)[0])
    assert (after.updates, after.tokenizer, after.longest_s) == (4, before.tokenizer, before.longest_s)
    assert after.experiment.model == before.experiment.model
    assert_equal_weights(before, after)
    audio = str(run.parent / "3.flac")
    texts = [asr_jax.load(place).transcribe(audio) for place in (run / "checkpoints" / "4", folder)]
    assert texts[0] == texts[1]


def test_the_card_has_the_measured_figures_and_nothing_has_the_places_of_this_machine(run: Path, hub: Hub) -> None:
    upload_checkpoint(run, 4, Upload(to=PLACE, revision="v1"))
    files = hub.repositories["team/toy"][hub.heads["team/toy", "v1"]]
    figures = [event["data"] for event in read_events(run / "events.jsonl", "validation")][-1]
    assert (figures["update"], figures["weights"]) == (4, "ema")
    card = files["README.md"].decode()
    edits = (figures[name] for name in ("substitutions", "deletions", "insertions", "words"))
    rates = (f"{100 * figures[name]:.2f} %" for name in ("wer", "cer"))
    assert f"| {' | '.join(['dev', *rates, *map(str, edits), '8'])} |" in card
    assert "after 4 updates" in card
    assert "hf download team/toy --revision v1 --local-dir toy" in card
    of_hub = yaml.safe_load(card.split("---\n")[1])
    [result] = of_hub["model-index"][0]["results"]
    assert result["dataset"]["name"] == "dev"
    assert result["metrics"][0] == {"type": "wer", "value": approx(100 * figures["wer"], abs=0.01)}
    assert json.loads(files["results.json"])["sets"][0]["S"] == figures["substitutions"]
    assert not [name for name, content in files.items() if str(run.parent).encode() in content]
    assert hub.private["team/toy"]
    assert hub.repositories["team/toy"][hub.heads["team/toy", "main"]] == {}


@pytest.mark.slow
def test_weights_of_another_system(hub: Hub, tmp_path: Path) -> None:
    import_model(PUBLISHED / "hf_parakeet", tmp_path / "run")
    upload_checkpoint(tmp_path / "run", None, Upload(to=PLACE, format="nemo", private=False))
    assert not hub.private["team/toy"]
    folder = downloaded(tmp_path / "model")
    assert_equal_weights(load_trained(tmp_path / "run"), load_trained(run_and_checkpoint(folder)[0]))
    with pytest.raises(UserError, match="cannot be written"):
        upload_checkpoint(tmp_path / "run", None, Upload(to=PLACE, format="huggingface"))


def test_a_cut_upload_continues_with_the_objects_that_the_hub_has(run: Path, hub: Hub) -> None:
    hub.mode = "loses"
    upload = Upload(to=PLACE)
    (run / "upload.json").unlink(missing_ok=True)
    with pytest.raises(RunError, match=r"hf://team/toy cannot be uploaded: HfHubHTTPError: .*500"):
        upload_checkpoint(run, 2, upload)
    assert not uploaded(run, upload)
    hub.mode = "works"
    assert upload_checkpoint(run, 2, upload)["update"] == 2
    sent = [each for each in hub.requests if each.startswith("PUT")]
    assert len(sent) == len(set(sent))
    assert hub.messages == ["checkpoint after 2 updates"]


def test_errors_of_the_hub_are_one_line(run: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    hub.mode = "fails"
    with pytest.raises(RunError, match="500"):
        upload_checkpoint(run, 4, Upload(to=PLACE))
    hub.mode = "works"
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    with pytest.raises(RunError, match="401") as error:
        command.main([str(run), "--to", PLACE])
    assert "\n" not in str(error.value)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(RunError, match="ConnectError"):
        upload_checkpoint(run, 4, Upload(to=PLACE))
    with pytest.raises(UserError, match="to is 'team/toy': expected hf://ORGANISATION/NAME"):
        command.main([str(run), "--to", "team/toy"])
    with pytest.raises(UserError, match=r"the run has no upload\.to"):
        command.main([str(run)])


SUCCEEDS = "import json, sys; json.dump(json.loads(sys.argv[2]) | {'update': int(sys.argv[3])}, open(sys.argv[1], 'w'))"
FAILS = "import sys; print('error: the hub refuses the token', file=sys.stderr); sys.exit(1)"
HANGS = "import time; time.sleep(60)"


class Runs:
    """The uploads of a run whose processes execute a script instead of the command."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
        self.script, self.folder, self.started = SUCCEEDS, folder, []
        self.log = EventLog(folder / "events.jsonl")
        self.upload = Upload(to=PLACE)
        for name, value in seconds.items():
            monkeypatch.setattr(uploads_module, name, value)
        monkeypatch.setattr(uploads_module, "has_token", lambda: True)
        monkeypatch.setattr(uploads_module, "upload_command", self.command)
        self.uploads = Uploads(self.upload, folder, self.log)

    def command(self, run: Path, updates: int) -> list[str]:
        self.started.append(updates)
        record = {"to": PLACE, "revision": "", "format": "ours", "commit": "c", "url": "u"}
        return [sys.executable, "-S", "-c", self.script, str(run / "upload.json"), json.dumps(record), str(updates)]

    def events(self) -> list[tuple[str, int]]:
        found = read_events(self.folder / "events.jsonl")
        return [(each["event"], each["data"].get("update", 0)) for each in found]

    def reasons(self) -> list[str]:
        return [each["data"]["reason"] for each in read_events(self.folder / "events.jsonl", "upload_failed")]


def test_a_failed_upload_is_tried_again_after_the_next_checkpoint_and_by_the_next_job(tmp_path, monkeypatch) -> None:
    runs = Runs(tmp_path, monkeypatch)
    runs.script = FAILS
    with runs.uploads as uploads:
        uploads.offer(2)
        uploads.finish()
        uploads.poll()
        assert runs.started == [2]
        uploads.offer(2)  # the best checkpoint is the same
        uploads.finish()
        runs.script = SUCCEEDS
        uploads.offer(4)
        uploads.finish()
        uploads.offer(4)
        uploads.finish()
    failed = ("upload_failed", 2)
    assert runs.events() == [failed, failed, ("uploaded", 4)]
    assert runs.reasons() == ["the hub refuses the token"] * 2
    with Uploads(runs.upload, tmp_path, runs.log) as next_job:
        next_job.offer(4)
        assert runs.started == [2, 2, 4]
        next_job.offer(6)
        next_job.finish()
    assert runs.events()[-1] == ("uploaded", 6)
    line = next(line for line in health(tmp_path / "events.jsonl") if line.startswith("uploads"))
    assert line == "uploads: 2, the last one is checkpoint 6 at u; the last of 2 failures: the hub refuses the token"


def test_a_slow_upload_is_stopped_and_the_newest_best_checkpoint_follows(tmp_path, monkeypatch) -> None:
    runs = Runs(tmp_path, monkeypatch, MAX_S=3.0, WAIT_S=30.0)
    runs.script = HANGS
    with runs.uploads as uploads:
        began_s = time.monotonic()
        uploads.offer(2)
        uploads.offer(4)
        assert time.monotonic() - began_s < 3  # it does not wait
        assert runs.started == [2]
        runs.script = SUCCEEDS
        uploads.finish()
    assert runs.events() == [("upload_failed", 2), ("uploaded", 4)]


def test_the_end_of_a_run_waits_for_a_limited_time(tmp_path, monkeypatch) -> None:
    runs = Runs(tmp_path, monkeypatch, WAIT_S=0.2)
    runs.script = HANGS
    with runs.uploads as uploads:
        uploads.offer(2)
        child = uploads._child
        assert child is not None
        began_s = time.monotonic()
        uploads.finish()
        assert 0.2 <= time.monotonic() - began_s < 10
        assert child.returncode is not None
    assert runs.reasons() == ["not complete 0.2 s after the end of the run; the next job repeats it"]


def test_a_job_that_is_stopped_does_not_wait(tmp_path, monkeypatch) -> None:
    runs = Runs(tmp_path, monkeypatch)
    runs.script = HANGS
    with runs.uploads as uploads:
        uploads.offer(2)
        child = uploads._child
    assert child is not None
    assert child.returncode is not None
    assert runs.reasons() == ["the job ended before the upload; the next job repeats it"]


def test_uploads_that_cannot_work_are_refused_before_the_run(experiment: Experiment, monkeypatch) -> None:
    run = replace(experiment, upload=Upload(to=PLACE, format="nemo"))
    with pytest.raises(UserError, match="Toy has no weight names of the system nemo"):
        check_upload(run)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"ASR_JAX_EXTRAS=upload "):
        train(run)


def test_a_missing_token_is_a_warning(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(uploads_module, "has_token", lambda: False)
    Uploads(Upload(to=PLACE), tmp_path, EventLog(tmp_path / "events.jsonl"))
    assert "set HF_TOKEN" in next(read_events(tmp_path / "events.jsonl", "warning"))["data"]["message"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["works", "fails", "loses", "hangs", "refuses", "is down"])
def test_a_run_goes_on_whatever_the_hub_does(experiment, hub: Hub, tmp_path, monkeypatch, mode) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(ROOT / "tests"))))
    monkeypatch.setattr(uploads_module, "NICENESS", 0)  # other tests may use all cores
    monkeypatch.setattr(uploads_module, "WAIT_S", 1800.0)
    monkeypatch.setattr(uploads_module, "MAX_S", 30.0 if mode == "hangs" else 1800.0)
    given = replace(experiment, run_dir=str(tmp_path / "run"), upload=Upload(to=PLACE))
    if mode == "refuses":
        monkeypatch.setenv("HF_TOKEN", "hf_another")
    elif mode == "is down":
        monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    else:
        hub.mode = mode
    summary = train(given)
    assert summary["update"] == 4
    events = list(read_events(tmp_path / "run" / "events.jsonl"))
    best = min(reversed([e["data"] for e in events if e["event"] == "validation"]), key=lambda data: data["wer"])
    names = [event["event"] for event in events]
    assert names[-1] == "run_complete"
    assert ("uploaded" in names) == (mode == "works")
    assert ("upload_failed" in names) == (mode != "works")
    hub.mode = "works"
    hub.goes_on.set()
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setattr(uploads_module, "MAX_S", 1800.0)
    already = train(given)  # the next job
    assert already["already"]
    record = [event["data"] for event in read_events(tmp_path / "run" / "events.jsonl", "uploaded")][-1]
    assert record["commit"] == hub.heads["team/toy", "main"]
    folder = downloaded(tmp_path / "model")
    assert json.loads((folder / "results.json").read_text())["updates"] == record["update"]
    assert best["update"] <= record["update"]
