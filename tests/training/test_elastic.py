"""A run that goes on with other devices, in parts or from a named checkpoint has the losses of an unbroken run."""

from dataclasses import replace

import jax
import numpy as np
import pytest

from asr_jax.audio.specaugment import SpecAugment
from asr_jax.config import Experiment, Resume, Saving, Training, Validation, load_experiment
from asr_jax.core import devices, meshes
from asr_jax.core.errors import UserError
from asr_jax.core.meshes import MeshSizes
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.nn.recurrent.prediction import LSTMPrediction, StatelessPrediction
from asr_jax.nn.recurrent.state_passing import StatePassing
from asr_jax.observe.events import read_events
from asr_jax.optim.ema import EMA
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import WarmupHoldDecay
from asr_jax.training.loop import train
from asr_jax.training.reporting import RejectedAudio
from tests.forked import made_corpus
from tests.support import assert_close
from tests.training.arrays import contents
from tests.training.toy import toy_model

UPDATES = 20
PASSING = StatePassing((1.0, 1.0, 1.0))
ANY = Resume(("devices,accumulation,precision",))


@pytest.fixture(scope="module")
def manifests(tmp_path_factory):
    return made_corpus(tmp_path_factory.mktemp("corpus") / "made")


@pytest.fixture
def on(monkeypatch):
    """Returns a function that chooses the number of devices of later runs."""
    there = tuple(jax.devices())

    def choose(number):
        for module in (devices, meshes):
            monkeypatch.setattr(module, "devices", lambda: there[:number])

    return choose


@pytest.fixture
def utterances(monkeypatch):
    """Returns a list with the rows of each update."""
    found, add = [], RejectedAudio.add

    def recording_add(self, group):
        found.append(sorted(row for loaded in group for row in loaded.batch.utterances.tolist() if row >= 0))
        add(self, group)

    monkeypatch.setattr(RejectedAudio, "add", recording_add)
    return found


def experiment(manifests, folder, *, num_updates=UPDATES, model=None, **training):
    """A run with dropout, SpecAugment, accumulation and batches whose rows no number of devices divides."""
    masks = SpecAugment(max_freq_bins=9, num_time_masks=1, max_time_frames=9, max_time_share=0.2)
    settings = {
        "num_updates": num_updates,
        "validation": Validation(every=5),
        "saving": Saving(keep_last=9),
        "log_every": 1,
        "accumulate": 2,
        "ema": EMA(0.5),
    }
    return Experiment(
        name="elastic",
        model=model or replace(toy_model(dropout=0.2), augment=(masks,)),
        data=Data(
            train=(str(manifests / "train.jsonl"),), validation=(str(manifests / "validation.jsonl"),),
            batching=Batching.planned(num_buckets=1, seconds=4.8, row_multiple=1), speeds=(0.9, 1.0),
        ),
        optim=AdamW(schedule=WarmupHoldDecay(peak_lr=5e-3, warmup_updates=2, decay="none")),  # any run length
        training=Training(**settings | training),
        run_dir=str(folder),
    )  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(manifests, tmp_path_factory):
    """Returns a run of 20 updates on one device and, under `rows`, the utterances of each update."""
    folder, patch = tmp_path_factory.mktemp("runs") / "unbroken", pytest.MonkeyPatch()
    with patch.context():
        on.__wrapped__(patch)(1)
        rows = utterances.__wrapped__(patch)
        train(experiment(manifests, folder))
        patch.undo()
    return folder, rows


@pytest.fixture(scope="module")
def short(manifests, tmp_path_factory):
    """Returns the folder of a run of two updates, which compiles less than `unbroken`."""
    folder, patch = tmp_path_factory.mktemp("runs") / "short", pytest.MonkeyPatch()
    with patch.context():
        on.__wrapped__(patch)(1)
        train(of_two_updates(manifests, folder))
        patch.undo()
    return folder


def of_two_updates(manifests, folder):
    return experiment(manifests, folder, model=toy_model(), num_updates=2, validation=Validation(every=1), accumulate=1)


def events(folder, *names):
    return [event["data"] for event in read_events(folder / "events.jsonl", *names)]


def losses(folder):
    """Returns the training loss of each update."""
    return {data["update"]: data["losses"]["total"] for data in events(folder, "train_step")}


def assert_alike(folder, unbroken, *, first=0, rtol=1e-5):
    found, expected = losses(folder), {update: loss for update, loss in losses(unbroken).items() if update > first}
    assert found.keys() == expected.keys()
    assert_close([found[update] for update in expected], list(expected.values()), rtol=rtol)


@pytest.mark.slow
def test_other_devices_compute_the_same_updates(manifests, unbroken, tmp_path, on, utterances, capsys):
    whole, rows = unbroken
    assert [each["rows"] for each in events(whole, "compile")[0]["rows"]] == [5], "two devices do not divide it"
    folder = tmp_path / "moved"
    for number, num_updates in ((1, 5), (2, 10), (4, 15), (1, 20)):
        on(number)
        run = experiment(manifests, folder, num_updates=num_updates)
        if num_updates > 5:
            with pytest.raises(UserError, match=r"devices: .*\n.*\n.*--resume\.allow devices\n"):
                train(run)
        capsys.readouterr()
        train(replace(run, resume=Resume(("devices",))))
        first_line = capsys.readouterr().out.splitlines()[0]
        assert f"on {number} CPU device" in first_line
        assert f" threads before, {number} × cpu with " in first_line or num_updates == 5
    assert utterances == rows
    assert_alike(folder, whole)
    changed = [(e["old"], e["new"]) for e in events(folder, "setting_changed") if e["setting"] == "devices"]
    assert [(old[:7], new[:7]) for old, new in changed] == [
        ("1 × cpu", "2 × cpu"), ("2 × cpu", "4 × cpu"), ("4 × cpu", "1 × cpu"),
    ]  # fmt: skip
    padded = [each["message"] for each in events(folder, "warning") if each.get("detector") == "padding rows"]
    assert len(padded) == 2
    assert "row_multiple 2 avoids" in padded[0]
    assert not events(folder, "recompiled")


@pytest.mark.slow
def test_other_meshes_compute_the_same_updates(manifests, unbroken, tmp_path, on, monkeypatch):
    monkeypatch.setattr(type(toy_model().encoder), "model_axis_rules", lambda self: ((r".*/hidden/kernel", -1),))
    folder, all_sizes = tmp_path / "moved", ({}, {"fsdp": 2}, {"fsdp": 4}, {"data": 2, "model": 2})
    for number, sizes in enumerate(all_sizes):
        on(4)
        run = experiment(manifests, folder, num_updates=5 * (number + 1))
        train(replace(run, mesh=MeshSizes(**sizes, min_sharded=100), resume=Resume(("devices",))))
    assert_alike(folder, unbroken[0])
    assert not events(folder, "recompiled")


MESHES = {"4 × data": {}, "2 × data, 2 × fsdp": {"fsdp": 2}, "4 × fsdp": {"fsdp": 4}, "4 × model": {"model": 4}}


@pytest.mark.slow
@pytest.mark.parametrize("sizes", MESHES.values(), ids=MESHES)
def test_a_run_on_a_mesh_has_the_losses_of_one_device(manifests, unbroken, tmp_path, on, monkeypatch, sizes):
    monkeypatch.setattr(type(toy_model().encoder), "model_axis_rules", lambda self: ((r".*/hidden/kernel", -1),))
    on(4)
    train(replace(experiment(manifests, tmp_path / "run"), mesh=MeshSizes(**sizes, min_sharded=100)))
    assert_alike(tmp_path / "run", unbroken[0])


@pytest.mark.parametrize(("number", "split"), [(1, 2), pytest.param(2, 3, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_named_checkpoint_begins_a_run_and_its_batches_may_be_computed_in_parts(
    manifests, unbroken, on, utterances, number, split, capsys
):
    whole, rows = unbroken
    on(number)
    checkpoint = whole / "checkpoints" / "10"
    parts = experiment(manifests, checkpoint, split=split)
    there = {path.name for path in whole.parent.iterdir()}
    with pytest.raises(UserError, match=r"training.split: 1 before, \d now\n.*\n.*--resume\.allow accumulation\n"):
        train(parts)
    assert {path.name for path in whole.parent.iterdir()} == there, "nothing is written"
    summary = train(replace(parts, resume=ANY))
    (folder,) = [path for path in whole.parent.iterdir() if path.name not in there]
    assert summary["folder"] == str(folder)
    assert folder.name.startswith("unbroken-")
    assert f"training.split: 1 before, {split} now" in capsys.readouterr().out.splitlines()[0]
    assert [(e["update"], e["path"]) for e in events(folder, "resumed")] == [(10, str(checkpoint))]
    assert utterances == rows[10:]
    assert_alike(folder, whole, first=10)
    assert (folder / "rejected.jsonl").read_text() == (whole / "rejected.jsonl").read_text()
    assert load_experiment(folder / "experiment.json").run_dir == str(folder)
    shapes = [each["rows"] for each in events(folder, "compile")[-1]["rows"]]
    assert max(shapes) < max(each["rows"] for each in events(whole, "compile")[-1]["rows"])


@pytest.mark.slow
def test_a_run_may_go_on_in_another_precision(manifests, unbroken, on, capsys):
    whole, _ = unbroken
    on(1)
    run = experiment(manifests, whole / "checkpoints" / "15", precision="bf16")
    with pytest.raises(UserError, match=r"f32' before, 'bf16' now\n.*\n.*--resume\.allow precision\n"):
        train(run)
    capsys.readouterr()
    folder = train(replace(run, resume=ANY))["folder"]
    assert "training.precision: f32 before, bf16 now" in capsys.readouterr().out.splitlines()[0]
    assert_alike(whole.with_name(folder.rpartition("/")[2]), whole, first=15, rtol=0.05)


@pytest.mark.slow
def test_another_size_of_updates_follows_the_last_batch(manifests, unbroken, tmp_path, on):
    """The way that keeps the utterances of each update is named. The change itself needs the setting's own name."""
    whole, _ = unbroken
    on(1)
    run = experiment(manifests, whole / "checkpoints" / "10", accumulate=4, num_updates=14)
    with pytest.raises(UserError, match=r"--training\.split N --resume\.allow accumulation"):
        train(replace(run, resume=ANY))
    limited = replace(
        run,
        training=replace(run.training, limits=replace(run.training.limits, epochs_this_job=0.2)),
        resume=Resume(("training.accumulate",)),
    )
    stopped = train(limited)
    folder = stopped["continues"].rpartition("--run-dir ")[2].partition(" ")[0]
    train(replace(run, run_dir=folder))
    found = [
        [batch["position"] for batch in each["batches"]]
        for each in events(whole.with_name(folder.rpartition("/")[2]), "batch_start")
    ]
    assert [len(each) for each in found] == [4] * 4
    assert [position for each in found for position in each] == list(range(20, 36))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fresh": True}, "--fresh True starts from random weights"),
        ({"number": 7}, r"has no checkpoint 7: expected one of 1, 2"),
    ],
)
def test_checkpoints_that_cannot_begin_a_run_are_refused(manifests, short, on, changes, message):
    on(1)
    run = of_two_updates(manifests, short / "checkpoints" / str(changes.pop("number", 1)))
    with pytest.raises(UserError, match=message):
        train(replace(run, **changes))


RNNT = Transducer(prediction=LSTMPrediction(8, num_layers=1, dropout=0.2), joint_dim=12, dropout=0.3)
PRUNED = replace(RNNT, prediction=StatelessPrediction(8, regularise=False), pruning=Pruning(3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "others"),
    [
        (RNNT, ((1, 2, 2), (2, 1, 2), (4, 1, 4), (4, 2, 2))),
        (PRUNED, ((2, 2, 1), (4, 1, 2))),
        (replace(RNNT, durations=(0, 1, 2), sigma=0.05, omega=0.2), ((2, 1, 2), (4, 2, 1))),
    ],
    ids=["rnnt", "pruned", "tdt"],
)
def test_a_transducer_has_equal_updates_on_any_devices_in_parts_of_batches_and_of_the_joint_network(
    manifests, tmp_path, on, head, others
):
    """Losses and norms of gradients of five updates with dropout and, of RNN-T, random state passing on."""
    found, passing = {}, PASSING if head == RNNT else StatePassing()
    for number, split, of_joint in ((1, 1, 1), *others):
        on(number)
        name, model = f"{number}-{split}-{of_joint}", toy_model(dropout=0.2)
        run = experiment(
            manifests, tmp_path / name, num_updates=5, split=split, pass_states=passing,
            model=replace(model, heads={"transducer": replace(head, split=of_joint)}),
        )  # fmt: skip
        batching = replace(run.data.batching, row_multiple=4)  # batches are the same with all splits
        train(replace(run, data=replace(run.data, batching=batching)))
        steps = events(tmp_path / name, "train_step")
        found[name] = [(each["losses"]["total"], each["gradient_norm"]) for each in steps]
    assert len(found["1-1-1"]) == 5
    for name, others in found.items():
        assert_close(others, found["1-1-1"], rtol=1e-5, what=name)


@pytest.mark.slow
def test_passed_states_continue_bit_by_bit(manifests, tmp_path, on):
    on(1)
    head = Transducer(prediction=LSTMPrediction(8, num_layers=1, dropout=0.2), joint_dim=12, dropout=0.3)
    model = replace(toy_model(), heads={"transducer": head})
    for name, ends in (("whole", (4,)), ("resumed", (1, 2, 3, 4)), ("without", (4,))):
        for end in ends:
            passing = StatePassing() if name == "without" else PASSING
            train(experiment(manifests, tmp_path / name, num_updates=end, model=model, pass_states=passing))
    found = {name: losses(tmp_path / name) for name in ("whole", "resumed", "without")}
    assert found["whole"] == found["resumed"] != found["without"]
    jax.tree.map(np.testing.assert_array_equal, *(contents(tmp_path / name, 4) for name in ("whole", "resumed")))


@pytest.mark.slow
def test_statistics_of_parts_are_mentioned(manifests, tmp_path, on):
    on(1)
    model = toy_model(norm=True)
    train(experiment(manifests, tmp_path / "run", num_updates=1, model=model))
    parts = experiment(manifests, tmp_path / "run", num_updates=2, model=model, split=2)
    train(replace(parts, resume=Resume(("accumulation",))))
    (message,) = (e["message"] for e in events(tmp_path / "run", "warning") if e.get("detector") == "batch norm")
    assert "training.split is 2: batch norm uses the statistics of each part" in message
