"""The extract_features command: features are written in parts, resumed, and have the loss of their audio."""

import functools
import json
import os
import shutil
from pathlib import Path

import jax
import numpy as np
import pyarrow.parquet
import pytest

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.io import read_audio, write_flac
from asr_jax.audio.presets import rust_zipformer, w2v_bert
from asr_jax.cli import evaluate, extract_features, train
from asr_jax.config import save_experiment
from asr_jax.core.errors import RunError, UserError
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.dataset import Data, plan_training
from asr_jax.data.loading import extraction
from asr_jax.data.loading.source import BatchSource
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.characters import CharacterTokenizer
from tests.support import approx, assert_close
from tests.training.toy import toy_model

TOKENIZER = CharacterTokenizer(symbols=(*" abcd", None), normaliser="none")
NUM = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of recordings of noise at different levels, with texts."""
    folder, rng, utterances = tmp_path_factory.mktemp("noise"), np.random.default_rng(0), []
    for number in range(NUM):
        samples = rng.normal(0, 500 * (number + 1), int(rng.integers(9000, 20000))).clip(-32768, 32767).astype(np.int16)
        path = folder / f"{number}.flac"
        write_flac(path, samples, 16000)
        text = " ".join(rng.choice(list("abcd"), 3))
        utterances.append(Utterance(f"u{number}", str(path), text, len(samples) / 16000, speaker=f"s{number % 8}"))
    write_manifest(folder / "audio.jsonl", utterances)
    return folder


def extract(folder, out, *more):
    extract_features.main(["--input", str(folder / "audio.jsonl"), "--output", str(out), *more])


def loss_of(utterances, model, variables):
    """Loss of every utterance by its id, from batches of audio or of features."""
    source, losses = planned(utterances, model), {}
    evaluate = jax.jit(lambda batch: model.apply(variables, batch, step=None))
    for position in range(source.plan.batches_per_epoch):
        batch = source[position].batch
        for row in np.flatnonzero(batch.weights):
            only = batch.replace(weights=np.eye(len(batch.weights), dtype=np.float32)[row])
            loss = evaluate(only)["ctc/loss"]
            losses[utterances[int(batch.utterances[row])].id] = float(loss.total), float(loss.weight)
    return losses


def test_features_give_the_loss_of_their_audio(folder, tmp_path):
    extract(folder, tmp_path / "f.parquet")
    model = toy_model().build(vocab_size=6, blank_id=5, precision="f32")
    audio, features = read_utterances([folder / "audio.jsonl"]), read_utterances([tmp_path / "f.parquet"])
    assert [(r.id, r.text, r.speaker) for r in features] == [(r.id, r.text, r.speaker) for r in audio]
    init = functools.partial(model.init, jax.random.key(0), step=None)
    shapes, rng = jax.eval_shape(init, planned(audio, model)[0].batch), np.random.default_rng(0)
    variables = jax.tree.map(lambda leaf: rng.normal(0, 0.3, leaf.shape).astype(np.float32), shapes)
    of_audio, of_features = loss_of(audio, model, variables), loss_of(features, model, variables)
    assert of_audio.keys() == of_features.keys()
    assert len(of_audio) == NUM
    for name, (loss, weight) in of_audio.items():
        assert of_features[name][1] == weight
        assert of_features[name][0] == approx(loss, rel=1e-5)


def planned(utterances, model):
    """Source of the batches of a training plan."""
    data = plan_training(
        utterances, Data(train=("x",), batching=Batching.planned(num_buckets=1)), tokenizer=TOKENIZER,
        output_length=model.output_length, frames_needed=np.add,
        front_end=model.front_end, seed=0,
    )  # fmt: skip
    return BatchSource(data.index, data.plan)


def test_columns_are_those_that_were_promised(folder, tmp_path):
    TOKENIZER.save(tmp_path / "tokenizer")
    extract(folder, tmp_path / "f.parquet", "--tokenizer", str(tmp_path / "tokenizer"), "--max-samples", "5")
    rows = pyarrow.parquet.read_table(tmp_path / "f.parquet").to_pylist()
    utterances = list(read_utterances([folder / "audio.jsonl"]))[:5]
    assert {"id", "text", "rows", "cols", "duration_ms", "features", "tokens"} <= rows[0].keys()
    for row, utterance in zip(rows, utterances, strict=True):
        assert (row["id"], row["text"], row["tokens"]) == (
            utterance.id,
            utterance.text,
            TOKENIZER.encode(utterance.text),
        )
        assert row["duration_ms"] == round(utterance.duration_s * 1000)
        assert (row["rows"], row["cols"]) == (KaldiFbank().output_length(round(utterance.duration_s * 16000)), 80)
        assert len(row["features"]) == row["rows"] * row["cols"]


def test_an_interrupted_call_goes_on_with_its_parts(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "PART_RECORDS", 10)
    extract(folder, tmp_path / "whole.parquet")
    written, write = [], pyarrow.parquet.write_table

    def write_two(table, file, **options):
        if len(written) == 2:
            raise KeyboardInterrupt
        write_new(table, file, **options)

    def write_new(table, file, **options):
        part = Path(file.name).name.partition(".")[0]
        assert part not in written
        written.append(part)
        write(table, file, **options)

    monkeypatch.setattr(pyarrow.parquet, "write_table", write_two)
    with pytest.raises(KeyboardInterrupt):
        extract(folder, tmp_path / "f.parquet")
    assert not (tmp_path / "f.parquet").exists()
    monkeypatch.setattr(pyarrow.parquet, "write_table", write_new)
    extract(folder, tmp_path / "f.parquet")
    assert len(written) == 3
    whole, again = (pyarrow.parquet.read_table(tmp_path / f"{name}.parquet") for name in ("whole", "f"))
    assert again.equals(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "f.events.jsonl", "f.parquet", "whole.events.jsonl", "whole.parquet",
    ]  # fmt: skip
    monkeypatch.setattr(pyarrow.parquet, "write_table", lambda *_, **__: pytest.fail("extracted again"))
    extract(folder, tmp_path / "f.parquet")
    with pytest.raises(UserError, match="other inputs or settings"):
        extract(folder, tmp_path / "f.parquet", "--max-samples", "3")


def test_a_folder_gives_a_numbered_file_for_each_of_its_files_and_names_what_is_left_out(folder, tmp_path):
    lines = (folder / "audio.jsonl").read_text().splitlines()
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    for name, part in (("a", lines[:3]), ("b", lines[3:7])):
        rows = [json.loads(line) for line in part]
        for row in rows:
            row["audio_path"] = str(folder / row["audio_path"])
        (jobs / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    copy = tmp_path / "cut.flac"
    copy.write_bytes((folder / "2.flac").read_bytes()[:3000])
    (jobs / "a.jsonl").write_text((jobs / "a.jsonl").read_text().replace(str(folder / "2.flac"), str(copy)))
    with pytest.raises(RunError, match="rejected: 1 utterance;"):
        extract_features.main(["--input", str(jobs), "--output", str(tmp_path / "out")])
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "0000-a.parquet", "0000-a.rejected.jsonl", "0001-b.parquet",
    ]  # fmt: skip
    with pytest.raises(RunError, match="rejected: 1 utterance;"):  # also reported for existing files
        extract_features.main(["--input", str(jobs), "--output", str(tmp_path / "out")])
    rejected = json.loads((tmp_path / "out/0000-a.rejected.jsonl").read_text())
    assert (rejected["id"], rejected["location"]) == ("u2", str(copy))
    assert [utterance.id for utterance in read_utterances([tmp_path / "out"])] == ["u0", "u1", "u3", "u4", "u5", "u6"]


def test_one_output_that_cannot_be_written_ends_no_command(folder, tmp_path, capsys):
    jobs, out = tmp_path / "jobs", tmp_path / "out"
    jobs.mkdir()
    for name in ("a", "x" * 244, "c"):
        row = json.loads((folder / "audio.jsonl").read_text().partition("\n")[0])
        row["audio_path"] = str(folder / row["audio_path"])
        (jobs / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(RunError, match="1 output of 3 could not be written; the reasons are above"):
        extract_features.main(["--input", str(jobs), "--output", str(out)])
    assert "File name too long" in capsys.readouterr().err
    assert sorted(path.name for path in out.iterdir()) == ["0000-a.parquet", "0001-c.parquet"]


@pytest.mark.parametrize("change", ["front-end", "tokenizer", "audio", "dropped"])
def test_features_of_something_else_are_not_taken_for_these(folder, tmp_path, change):
    audio = tmp_path / "audio"
    shutil.copytree(folder, audio)
    TOKENIZER.save(tmp_path / "tokenizer")
    extract(audio, tmp_path / "f.parquet", "--tokenizer", str(tmp_path / "tokenizer"))
    more = ["--tokenizer", str(tmp_path / "tokenizer")]
    if change == "front-end":
        config = tmp_path / "config.py"
        config.write_text(
            "from dataclasses import replace\nfrom asr_jax.audio.features import KaldiFbank\n"
            "from tests.toy_config import experiment as toy\ndef experiment():\n    e = toy()\n"
            "    return replace(e, model=replace(e.model, front_end=KaldiFbank(num_mels=40)))\n"
        )
        more += ["--config", str(config)]
    elif change == "tokenizer":
        CharacterTokenizer(symbols=(*"abcd ", None), normaliser="none").save(tmp_path / "other")
        more = ["--tokenizer", str(tmp_path / "other")]
    elif change == "audio":
        samples = np.zeros(round(next(iter(read_utterances([audio / "audio.jsonl"]))).duration_s * 16000), np.int16)
        write_flac(audio / "0.flac", samples, 16000)
    else:
        with (audio / "audio.jsonl").open("a") as file:
            file.write("{}\n")
    with pytest.raises(UserError, match=r"other inputs or settings: .* --force"):
        extract(audio, tmp_path / "f.parquet", *more)
    if change == "tokenizer":
        before = pyarrow.parquet.read_table(tmp_path / "f.parquet")["tokens"]
        extract(audio, tmp_path / "f.parquet", *more, "--force")
        assert pyarrow.parquet.read_table(tmp_path / "f.parquet")["tokens"] != before


def test_a_front_end_by_config_or_by_run(folder, tmp_path):
    from tests.toy_config import experiment

    (tmp_path / "run").mkdir()
    save_experiment(experiment(), tmp_path / "run" / "experiment.json")
    extract(folder, tmp_path / "a.parquet", "--config", "tests/toy_config.py")
    extract(folder, tmp_path / "b.parquet", "--run", str(tmp_path / "run"))
    one, two = (pyarrow.parquet.read_table(tmp_path / f"{name}.parquet") for name in "ab")
    assert one.equals(two)


def test_two_at_once_are_refused_and_lose_nothing(folder, tmp_path, monkeypatch):
    write = pyarrow.parquet.write_table

    def during(*arguments, **options):
        if not during.inside:
            during.inside = True
            with pytest.raises(UserError, match=rf"f.parquet .*\(process {os.getpid()} on "):
                extract(folder, tmp_path / "f.parquet")
        write(*arguments, **options)

    during.inside = False
    monkeypatch.setattr(pyarrow.parquet, "write_table", during)
    extract(folder, tmp_path / "f.parquet")
    assert during.inside
    assert pyarrow.parquet.read_metadata(tmp_path / "f.parquet").num_rows == NUM


def test_files_of_other_inputs_in_the_folder_are_named(folder, tmp_path):
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    row = json.loads((folder / "audio.jsonl").read_text().splitlines()[0]) | {"audio_path": str(folder / "0.flac")}
    (jobs / "b.jsonl").write_text(json.dumps(row) + "\n")
    extract_features.main(["--input", str(jobs), "--output", str(tmp_path / "out")])
    (jobs / "a.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError, match=r"0000-b\.parquet"):
        extract_features.main(["--input", str(jobs), "--output", str(tmp_path / "out")])


def test_only_some_records_of_each_input_and_none_that_is_too_long(folder, tmp_path, capsys):
    shutil.copy(folder / "audio.jsonl", folder / "again.jsonl")
    extract(folder, tmp_path / "f.parquet", "--input", str(folder / "again.jsonl"), "--max-samples", "3")
    assert [utterance.id for utterance in read_utterances([tmp_path / "f.parquet"])] == [
        "u0", "u1", "u2", "u0#2", "u1#2", "u2#2",
    ]  # fmt: skip
    row = json.loads((folder / "audio.jsonl").read_text().splitlines()[0])
    (folder / "again.jsonl").write_text(json.dumps(row | {"duration": row["duration"] + 0.1}) + "\n")
    extract(folder, tmp_path / "d.parquet", "--input", str(folder / "again.jsonl"), "--max-samples", "1")
    assert "1 utterance used with remarks on the audio" in capsys.readouterr().out
    extract(folder, tmp_path / "short.parquet", "--reject-above", "0.8")  # requested, so this is not an error
    assert "utterances are longer than --reject-above 0.8" in capsys.readouterr().out
    for option, value in (("--reject-above", "0"), ("--max-samples", "-5"), ("--jobs", "-1")):
        with pytest.raises(UserError, match=f"{option[2:].replace('-', '_')} is {value}"):
            extract(folder, tmp_path / "n.parquet", option, value)


@pytest.mark.parametrize(
    ("flags", "front_end"),
    [(["--preset", "rust_zipformer"], rust_zipformer()), (["--architecture", "w2v-bert"], w2v_bert())],
)
def test_a_front_end_by_its_name(folder, tmp_path, flags, front_end):
    extract(folder, tmp_path / "f.parquet", "--max-samples", "1", *flags)
    (found,) = pyarrow.parquet.read_table(tmp_path / "f.parquet").to_pylist()
    samples = read_audio(folder / "0.flac")
    expected = jax.jit(front_end)(samples[None], np.array([len(samples)], np.int32))
    num = int(expected.lengths[0])
    assert (found["rows"], found["cols"]) == (num, front_end.num_features)
    assert_close(np.reshape(found["features"], (num, -1)), expected.values[0, :num], atol=1e-4)


def test_front_ends_that_are_not_known_or_of_two_kinds(folder, tmp_path):
    for flags, message in (
        (["--preset", "nemu"], "unknown front-end 'nemu': expected one of quartznet, .*did you mean 'nemo'"),
        (["--architecture", "lstm"], "unknown architecture 'lstm': expected one of zipformer, conformer"),
        (["--architecture", "conformer", "--preset", "nemo"], "--preset and --architecture exclude each other"),
    ):
        with pytest.raises(UserError, match=message):
            extract(folder, tmp_path / "f.parquet", *flags)


def test_long_audio_has_the_features_of_the_whole(folder, tmp_path):
    """The recordings are shorter and longer than a window."""
    extract(folder, tmp_path / "whole.parquet")
    extract(folder, tmp_path / "windows.parquet", "--max-duration", "0.7", "--batch-seconds", "2")
    whole, found = (
        pyarrow.parquet.read_table(tmp_path / f"{name}.parquet").to_pylist() for name in ("whole", "windows")
    )
    assert min(row["duration_ms"] for row in whole) < 700 < 1200 < max(row["duration_ms"] for row in whole)
    for one, other in zip(whole, found, strict=True):
        assert (one["id"], one["rows"], one["text"]) == (other["id"], other["rows"], other["text"])
        assert_close(other["features"], one["features"], atol=1e-4)
    with pytest.raises(UserError, match="has features of other inputs or settings"):
        extract(folder, tmp_path / "whole.parquet", "--max-duration", "0.7")


def test_worker_processes_start_once(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(extraction, "PART_RECORDS", 7)
    opened, open_batches = [], extraction.open_batches
    monkeypatch.setattr(
        extraction, "open_batches", lambda *args, **options: opened.append(options) or open_batches(*args, **options)
    )
    extract(folder, tmp_path / "f.parquet")
    assert len(opened) == 1


@pytest.mark.slow
def test_a_run_trains_on_features_with_a_validation_set_cut_by_speaker(folder, tmp_path, capsys):
    extract(folder, tmp_path / "f.parquet")
    data = ["--data.train", str(tmp_path / "f.parquet"), "--data.validation"]
    shorter = ["--training.num-updates", "2", "--training.validation.every", "2"]
    train.main(["--config", "tests/toy_config.py", *data, "--run-dir", str(tmp_path / "run"), *shorter])
    assert "validation WER" in capsys.readouterr().out
    split = {
        name: read_utterances([tmp_path / f"run/validation_split/{name}.jsonl"]) for name in ("train", "validation")
    }
    speakers = {name: {utterance.speaker for utterance in utterances} for name, utterances in split.items()}
    assert len(speakers["train"]) + len(speakers["validation"]) == 8
    assert not speakers["train"] & speakers["validation"]
    assert {len(utterances) for utterances in split.values()} == {21, 3}
    evaluate.main([str(tmp_path / "run"), "--data", str(folder / "audio.jsonl")])  # the run also evaluates audio
    assert str(NUM) in capsys.readouterr().out
