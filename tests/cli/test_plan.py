"""The plan command: it prints the plan of training and does nothing else."""

import json
import logging
import math
import re
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.cli import plan as command
from asr_jax.cli import plan_remarks
from asr_jax.cli.command_line import parse_experiment
from asr_jax.core.errors import UserError
from asr_jax.data.batching.mixing import Mixing
from asr_jax.data.manifests.checking import check_audio
from asr_jax.data.manifests.utterances import Rejected
from asr_jax.heads.ctc import CTC
from asr_jax.models.zipformer import Zipformer
from asr_jax.training import run_data
from asr_jax.training.run import find_run
from asr_jax.training.setup import set_up
from tests.support import approx

CONFIG = str(Path(__file__).parents[1] / "toy_config.py")


@pytest.fixture(autouse=True)
def without_audio(monkeypatch: pytest.MonkeyPatch) -> None:
    """The manifests of these tests name no audio files; tests/data/manifests/test_checking.py opens some."""
    monkeypatch.setattr(run_data, "check_audio", lambda utterances, inputs, role, opens_all: [])


def write_manifest(path: Path, durations: np.ndarray, source: str = "") -> str:
    """Writes a manifest without audio files."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [
        {"id": f"{path.stem}-{i}", "audio_path": f"/none/{i}.flac", "duration": round(float(d), 3), "text": "abc"}
        for i, d in enumerate(durations)
    ]
    path.write_text(
        "".join(json.dumps(line | ({"source": source} if source else {})) + "\n" for line in lines), encoding="utf-8"
    )
    return str(path)


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    durations = np.random.default_rng(0).uniform(0.5, 4.0, 60)
    return write_manifest(tmp_path / "data" / "train.jsonl", np.append(durations, [40.0, 0.05, 45.0]))


def arguments(manifest: str, tmp_path: Path, *more: str) -> list[str]:
    given = ["--config", CONFIG, "--data.train", manifest, "--run-dir", str(tmp_path / "run")]
    return [*given, "--data.batching.num-buckets", "2", *more]


def printed(capsys: pytest.CaptureFixture[str], *given: str) -> str:
    command.main(given)
    return capsys.readouterr().out


def row(text: str, start: str) -> list[str]:
    """Cells of the first line with this beginning."""
    return next(line.split() for line in text.splitlines() if line.startswith(start))


def test_it_prints_what_training_would_do(manifest, tmp_path, capsys):
    validation = write_manifest(tmp_path / "data" / "dev.jsonl", np.full(4, 1.0))
    given = arguments(manifest, tmp_path, "--data.validation", validation)
    output = printed(capsys, *given)
    for name, path in (("train", manifest), ("validation", validation)):
        assert f"{name}: {path}: read as JSON (id, audio_path, text, duration)" in output
    experiment = parse_experiment(given, prog="")
    setup = set_up(experiment, find_run(experiment))
    made = setup.data
    plan = made.train.plan
    assert command.plan(experiment).train.fingerprint() == made.train.fingerprint()
    assert row(output, manifest)[1:3] == ["60", f"{made.train.index.hours:.4g}"]
    assert row(output, "too long")[:6] == ["too", "long", "2", "85", "s", "training"]
    assert row(output, validation)[1:] == ["4", f"{4 / 3600:.4g}"]
    assert "labels: 3 and the blank: a b c\n" in output
    assert "a global batch of" not in output
    assert row(output, "too short")[2] == "1"
    for bucket, num in zip(plan.buckets, plan.batches_by_bucket().tolist(), strict=True):
        cells = row(output, f"{bucket.length / 16000:,.4g}".rjust(7))
        assert cells[1:3] == [str(bucket.num_tokens), str(bucket.batch_size)]
        assert cells[5] == str(num)
    assert f"padding: {plan.padding_share:.1%} of all batches, in 2 shapes" in output
    assert f"h in {plan.batches_per_epoch} batches, {setup.updates_per_epoch:g} updates" in output
    assert f"the run: 6 updates, {6 / setup.updates_per_epoch:.4g} epochs" in output


def test_rejected_utterances_are_named_and_written(manifest, tmp_path, capsys):
    validation, out = tmp_path / "dev.jsonl", tmp_path / "rejected.jsonl"
    lines = ('{"audio_path": "a.flac", "duration": 1}', '{"audio_path": "a.flac", "duration": 1, "text": "a"}', "{")
    validation.write_text("\n".join(lines))
    output = printed(
        capsys, *arguments(manifest, tmp_path, "--data.validation", str(validation), "--rejected", str(out))
    )
    assert re.search(r'^no "text" among its fields +1 +0 s +validation ', output, re.MULTILINE)
    rejected = [json.loads(line) for line in out.read_text().splitlines()]
    assert [each["id"] for each in rejected[:3]] == ["train-61", "train-60", "train-62"]
    assert [each["reason"].partition(" (")[0] for each in rejected[:3]] == ["too short", "too long", "too long"]
    assert len(rejected) == 5
    assert "did you mean" not in rejected[3]["reason"]
    assert Rejected(**rejected[4]).line.startswith(f"{validation}:3: not JSON")


def test_padding_by_bucket_is_that_of_the_batches(manifest, tmp_path):
    planned = command.plan(parse_experiment(arguments(manifest, tmp_path), prog="")).train
    lengths = planned.index.lengths
    for k, shown in enumerate(command.bucket_rows(planned)):
        batches = [planned.plan[p] for p in range(planned.plan.batches_per_epoch) if planned.plan[p].bucket == k]
        audio = sum(int(lengths[b.rows[b.rows >= 0]].sum()) for b in batches)
        room = sum(len(b.rows) for b in batches) * planned.plan.buckets[k].length
        assert shown["padding_share"] == approx(1 - audio / room)
        assert shown["utterances"] == sum(int((b.rows >= 0).sum()) for b in batches)


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(("flag", "amount"), [("--global-seconds", 25.0), ("--global-rows", 17)])
def test_the_accumulation_reaches_what_is_wanted_and_no_less_does(manifest, tmp_path, capsys, accumulate, flag, amount):
    more = ["--training.accumulate", str(accumulate), flag, str(amount)]
    output = printed(capsys, *arguments(manifest, tmp_path, *more))
    plan = command.plan(parse_experiment(arguments(manifest, tmp_path), prog="")).train.plan
    total = plan.length_per_epoch / 16000 if flag == "--global-seconds" else plan.entries_per_epoch
    mean = total / plan.batches_per_epoch
    reaching = int(re.search(r"a global batch of .*: --training\.accumulate (\d+)", output)[1])
    assert reaching * mean >= amount > (reaching - 1) * mean
    assert re.search(rf"global batch \(all utterances of an update\), training\.accumulate {accumulate}: ", output)
    assert len(re.findall("a global batch of", output)) == 1


def test_no_global_batch_is_recommended_by_default(manifest, tmp_path, capsys):
    assert "a global batch of" not in printed(capsys, *arguments(manifest, tmp_path))


def test_a_run_that_ends_before_its_warm_up_is_named(manifest, tmp_path, capsys):
    longer = ["--updates", "200", "--optim.schedule.warmup-updates", "301"]
    output = printed(capsys, *arguments(manifest, tmp_path, *longer))
    assert (
        "warning: the run ends before the warm-up of the learning rate: it has 200 updates, and the warm-up" in output
    )


def test_what_an_epoch_is_too_short_for_is_said(manifest, tmp_path, capsys):
    output = printed(capsys, *arguments(manifest, tmp_path, "--global-seconds", "18000"))
    plan = command.plan(parse_experiment(arguments(manifest, tmp_path), prog="")).train.plan
    hours = math.ceil(5 * 3600 * 16000 / (plan.length_per_epoch / plan.batches_per_epoch))
    assert f"a global batch of 5.00 h of audio: --training.accumulate {hours}; an epoch has fewer batches" in output


def test_speeds_and_mixing_are_shown_by_source(tmp_path):
    rng = np.random.default_rng(0)
    paths = [
        write_manifest(tmp_path / f"{name}.jsonl", rng.uniform(0.5, 4.0, num), name)
        for name, num in (("one", 80), ("two", 40))
    ]
    given = ["--config", CONFIG, "--data.train", *paths, "--data.speeds", "0.9", "1.1"]
    experiment = parse_experiment(given, prog="")
    plain = command.set_rows(command.plan(experiment).train, experiment)
    assert [shown["source"] for shown in plain] == ["one", "two"]
    for shown in plain:
        assert shown["epoch hours"] == approx(shown["hours"] * (1 / 0.9 + 1 / 1.1), rel=1e-4)
    mixing = Mixing("absolute", weights=(1.0, 1.0))
    mixed = replace(experiment, data=replace(experiment.data, mixing=mixing))
    planned = command.plan(mixed).train
    one, two = command.set_rows(planned, mixed)
    assert (one["utterances"], two["utterances"]) == (plain[0]["utterances"], plain[1]["utterances"])
    assert one["epoch hours"] == approx(plain[0]["epoch hours"] * two["utterances"] / one["utterances"], rel=0.03)
    assert two["epoch hours"] == approx(plain[1]["epoch hours"])
    assert one["epoch_share"] + two["epoch_share"] == approx(1)
    rows = [planned.plan[position].rows for position in range(planned.plan.batches_per_epoch)]
    drawn = np.bincount(planned.index.utterances.columns.input_of[np.concatenate([r[r >= 0] for r in rows])])
    assert abs(int(drawn[0] - drawn[1])) <= 1


def test_nothing_is_compiled_or_written(manifest, tmp_path, capsys, caplog):
    before = sorted(tmp_path.rglob("*"))
    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        printed(capsys, *arguments(manifest, tmp_path))
        assert "Compiling" not in caplog.text
        jax.jit(lambda x: x * 3 + len(before))(jnp.float32(1.5))
        assert "Compiling" in caplog.text  # the log does contain compilations
    assert sorted(tmp_path.rglob("*")) == before


def test_the_validation_set_may_be_missing(manifest, tmp_path, capsys):
    gone = str(tmp_path / "gone.jsonl")
    assert "an epoch: 60 utterances" in printed(capsys, *arguments(manifest, tmp_path, "--data.validation", gone))
    with pytest.raises(UserError, match=r"gone\.jsonl: no such file"):
        command.main(arguments(gone, tmp_path))


def test_the_plot_is_a_picture_of_the_durations(manifest, tmp_path, capsys):
    out = tmp_path / "out.png"
    assert str(out) in printed(capsys, *arguments(manifest, tmp_path, "--plot", str(out)))
    content = out.read_bytes()
    assert content.startswith(b"\x89PNG")
    assert int.from_bytes(content[16:20], "big") > 1000
    with pytest.raises(UserError, match=r"expected a name that ends in \.png"):
        command.main(arguments(manifest, tmp_path, "--plot", str(tmp_path / "out.jpg")))


@pytest.mark.parametrize("wrong", [["--global-seconds", "0"], ["--global-rows", "-3"], ["--global-seconds", "inf"]])
def test_a_batch_of_nothing_is_refused(manifest, tmp_path, wrong):
    with pytest.raises(UserError, match=r"expected (a finite number, )?(above 0|at least 1)"):
        command.main(arguments(manifest, tmp_path, *wrong))


def test_wrong_fields_are_named_as_in_training(manifest, tmp_path):
    with pytest.raises(UserError, match=r"--data\.batching\.num-bukets is not a flag"):
        command.main(arguments(manifest, tmp_path, "--data.batching.num-bukets", "3"))


def test_help_lists_its_own_options_and_all_fields(capsys):
    with pytest.raises(SystemExit):
        command.main(["--config", CONFIG, "--help-all"])
    output = capsys.readouterr().out
    assert "--global-seconds" in output
    assert "--data.batching.num-by-labels" in output


def test_the_frames_that_labels_need_are_those_of_the_primary_head(tmp_path):
    """A head on an inner output with twice the frame rate fits twice the labels."""
    path = tmp_path / "train.jsonl"
    texts = [letters * 13 for letters in ("ab", "bc")] * 8
    lines = [
        {"id": str(i), "audio_path": f"/none/{i}.flac", "duration": 1.0, "text": text} for i, text in enumerate(texts)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = arguments(str(path), tmp_path, "--data.filters.max-chars-per-s", "90")
    experiment = parse_experiment(given, prog="plan")
    tapped = replace(experiment.model, encoder=Zipformer.tiny(taps=("stack_0",)), heads={"ctc": CTC(tap="stack_0")})
    with pytest.raises(UserError, match="fewer frames than its labels need"):
        command.plan(replace(experiment, model=replace(tapped, heads={"ctc": CTC()})))
    planned = command.plan(replace(experiment, model=tapped)).train
    assert len(planned.index) == len(texts)


TEXTS = ("Der Zug nach Köln fährt um 5 Uhr.", "Grüße aus München!", "straße der lieder", "ein haus am see")


def test_a_model_that_cannot_be_spread_stops_training(manifest, tmp_path, capsys):
    output = printed(capsys, *arguments(manifest, tmp_path, "--mesh.model", "2", "--data.validation", manifest))
    assert "warning: training would stop, because --mesh.model 2: the model has no rules for the axis model" in output


@pytest.fixture
def german(tmp_path: Path) -> list[str]:
    """Arguments of a run whose normaliser removes a tenth of the characters."""
    paths = []
    for name in ("train", "dev"):
        paths.append(tmp_path / f"{name}.jsonl")
        lines = [
            {"id": f"{name}-{i}", "audio_path": f"/none/{name}/{i}.flac", "duration": 2.0 + i / 100, "text": text}
            for i, text in enumerate(TEXTS * 3)
        ]
        paths[-1].write_text("".join(json.dumps(line) + "\n" for line in lines))
    normaliser = ("--data.tokenizer.normaliser", "english_letters.v1")
    return arguments(str(paths[0]), tmp_path, "--data.validation", str(paths[1]), *normaliser)


def test_removed_characters_are_in_the_plan_and_stop_training(german, capsys):
    output = printed(capsys, *german)
    row = r"training +'ö' \(LATIN SMALL LETTER O WITH DIAERESIS\) +the normaliser english_letters.v1 +3 +3 +Der Zug"
    assert re.search(row, output)
    assert "warning: training would stop, because 21 of 249 characters (8.4 %) of the training texts" in output
    assert "3 of 12 validation utterances have the same text and duration" in output  # those with 20 characters or more
    experiment = parse_experiment(german, prog="")
    with pytest.raises(UserError, match=r"train-1: 'Grüße.*\n(.*\n)*.*lower.v1.*\n.*\n.*max-removed-share 0.09"):
        set_up(experiment, find_run(experiment))


def test_a_normaliser_that_removes_nothing_trains(german):
    experiment = parse_experiment([*german[:-1], "lower.v1"], prog="")
    made = set_up(experiment, find_run(experiment)).data
    assert not any(of_set.parts for of_set in made.removed.values())
    assert set("öüßä5.!") < set(filter(None, made.tokenizer.symbols))


def test_validation_texts_that_labels_write_otherwise_are_a_warning(german, tmp_path, capsys):
    english = tmp_path / "english.jsonl"
    lines = [{"audio_path": f"/e/{i}.flac", "duration": 2.0, "text": "the quick brown fox jumps"} for i in range(9)]
    english.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = [str(english) if each.endswith("train.jsonl") else each for each in german[:-1]] + ["lower.v1"]
    output = printed(capsys, *given)
    assert re.search(r"validation +'ü' \(LATIN .*\) +not in the vocabulary +6 +3 +Grüße aus", output)
    assert (
        "warning: 12 of 12 validation texts are not what the labels write; even if every label is right, WER" in output
    )
    experiment = parse_experiment(given, prog="")
    data = set_up(experiment, find_run(experiment)).data
    assert "ß" in {part.part for part in data.round_trips["validation"].missing.parts}
    assert not data.round_trips["training"].texts


def test_a_higher_limit_trains_and_names_the_characters(german):
    experiment = parse_experiment([*german, "--data.max-removed-share", "0.09"], prog="")
    removed = set_up(experiment, find_run(experiment)).data.removed["training"]
    numbers = {part.part: part.number for part in removed.parts}
    assert numbers == {"ü": 6, "ß": 6, "ö": 3, "ä": 3, "5": 3, ".": 3, "!": 3}
    entry = removed.entries()[0].to_json()
    assert entry["stage"] == "used"
    assert (entry["value"], entry["id"]) == ("ü", "train-1")


@pytest.mark.parametrize(
    ("more", "size"),
    [
        ((), "--data.batching.budget 8 (padded-seconds, over all devices)"),
        (("--data.batching.edges", "none", "--data.batching.rows", "3"), "--data.batching.rows 3 (over all devices)"),
        (
            ("--data.batching.edges-s", "2", "4.5", "--data.batching.edges-labels", "8", "16",
             "--data.batching.rows", "4", "3", "--data.batching.devices", "0"),
            "--data.batching.rows 4 3 (on each device)",
        ),
    ],
)  # fmt: skip
def test_the_steps_of_tuning_have_the_figures_of_the_plan(manifest, tmp_path, capsys, monkeypatch, more, size):
    given = arguments(manifest, tmp_path, "--training.accumulate", "2", *more)
    if not more:
        assert "tuning of an update" not in printed(capsys, *given)  # a minute of audio is too little for it
    monkeypatch.setattr(plan_remarks, "LEAST_H", 0.0)
    output = printed(capsys, *given)
    plan = command.plan(parse_experiment(given, prog="")).train.plan
    utterances = plan.entries_per_epoch / plan.batches_per_epoch
    seconds = plan.length_per_epoch / 16000 / plan.batches_per_epoch
    steps = [row(output, f"{number}. ") for number in range(1, 6)]
    assert "--training.accumulate 1 (now 2) and --training.split 2 (now 1)" in " ".join(steps[0])
    assert size in " ".join(steps[1])
    assert f"{seconds:,.1f} s of audio, {utterances:,.1f} utterances" in " ".join(steps[3])
    of_utterances, of_hours = map(int, re.findall(r"--training.accumulate (\d+) for.* or (\d+) for", output)[0])
    for reaching, mean, wanted in ((of_utterances, utterances, 1024), (of_hours, seconds, 5 * 3600)):
        assert reaching * mean >= wanted > (reaching - 1) * mean
    assert f"now {2 * utterances:,.1f} utterances and {2 * seconds / 3600:,.2f} h" in output


def test_a_product_of_rows_other_than_the_expected_one_is_a_warning(manifest, tmp_path, capsys):
    more = ["--data.batching.edges", "none", "--data.batching.rows", "3", "--data.batching.devices", "8"]
    more += ["--training.accumulate", "2", "--data.batching.rows-product"]
    assert "data.batching.rows_product is 1,152" in printed(capsys, *arguments(manifest, tmp_path, *more, "1152"))
    assert "rows_product" not in printed(capsys, *arguments(manifest, tmp_path, *more, "48"))


def test_utterances_that_fit_no_bucket_are_counted(manifest, tmp_path, capsys):
    more = ["--data.batching.edges-s", "1.5", "3", "--data.batching.devices", "2", "--data.batching.budget", "6"]
    given = arguments(manifest, tmp_path, *more)
    output = printed(capsys, *given)
    durations = np.random.default_rng(0).uniform(0.5, 4.0, 60)
    assert row(output, "longer than the last bucket")[5] == str((durations > 3).sum())
    assert row(output, "an epoch:")[2] == str((durations <= 3).sum())


def test_absent_manifests_are_refused_and_absent_audio_is_not(manifest, tmp_path, monkeypatch, capsys):
    with pytest.raises(
        UserError, match=r"gone.jsonl: no such file .*\n(.*\n)+A plan needs the manifests .* be absent\.$"
    ):
        command.main(arguments(str(tmp_path / "gone.jsonl"), tmp_path))
    monkeypatch.setattr(run_data, "check_audio", check_audio)
    assert "warning: training would stop, because " in printed(capsys, *arguments(manifest, tmp_path))
