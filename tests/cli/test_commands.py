"""Every command as users run it, on some recordings of noise."""

import functools
import json
import re
import shutil

import jax
import numpy as np
import pytest
import soundfile

from asr_jax.audio.io import write_flac
from asr_jax.config import load_experiment
from asr_jax.core.batch import Batch
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.inference.trained import load_trained
from asr_jax.observe.events import read_events
from asr_jax.observe.health import health
from tests.forked import finished, made_corpus
from tests.support import approx, assert_close


def run(*command, code=0):
    """Runs a command and returns its output; checks the exit code, and that there is no traceback."""
    done = finished(*command, devices=2)
    assert done.returncode == code, (
        f"{command} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return made_corpus(tmp_path_factory.mktemp("corpus") / "made")


@pytest.fixture(scope="module")
def trained(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "toy"
    sets = ["--data.train", corpus / "train.jsonl", "--data.validation", corpus / "validation.jsonl"]
    command = ["asr_jax.train", "--config", "tests/resume_config.py", *sets, "--run-dir", folder]
    output = run(*command).stdout
    assert "validation WER" in output
    assert "Compiled, one row per bucket" in output
    assert f"tensorboard --logdir {folder.parent}" in output
    assert re.search(r"size: .* of which checkpoints .* \(after updates 3, 6\)", output)
    assert re.search(r"caches: .*B in .*; python -m asr_jax.clean lists and removes them", output)
    assert re.search(r"update 6/6 .* remaining 0:00:00 ", output)  # a file has the time left in its lines
    assert not (folder / "native.log").exists()
    assert "already trained: 6 updates" in run(*command).stdout
    return folder


def events(folder, *names):
    return [event["data"] for event in read_events(folder / "events.jsonl", *names)]


def test_training_leaves_a_whole_run(trained):
    for name in ("experiment.json", "plan.json", "events.jsonl", "curves.png", "tokenizer/tokenizer.json"):
        assert (trained / name).stat().st_size > 0, name
    assert any((trained / "tensorboard").iterdir())
    assert {p.name for p in (trained / "checkpoints").iterdir()} >= {"3", "6"}
    assert load_experiment(trained / "experiment.json").name == "resume"
    steps = events(trained, "train_step")
    assert [step["update"] for step in steps] == [2, 3, 4, 6]
    assert all(step["losses"]["total"] > 0 and step["throughput"]["padding_share"] < 1 for step in steps)
    speed = steps[-1]["throughput"]
    assert speed["letters_per_s"] == speed["tokens_per_s"] > 0 == speed["masked_frames_per_s"]
    assert speed["feature_values_per_s"] > 20 * 95 * speed["audio_s_per_s"]
    assert steps[-1]["losses"]["total"] < steps[0]["losses"]["total"]
    validations = events(trained, "validation")
    assert [(v["update"], v["weights"]) for v in validations] == [(3, "live"), (3, "ema"), (6, "live"), (6, "ema")]
    assert {"wer", "cer", "substitutions", "deletions", "insertions", "samples"} <= validations[0].keys()


def test_the_loss_of_the_validation_set_stands_beside_its_error_rate(trained, corpus):
    utterances = read_utterances([corpus / "validation.jsonl"])
    for each in events(trained, "validation"):
        assert each["losses"].keys() == {"ctc/loss"}
        assert each["loss"] == each["losses"]["ctc/loss"]
        assert each["utterances"] == each["loss_utterances"] == len(utterances)
    assert "best checkpoint: WER " in health(trained / "events.jsonl")[-1]
    run = load_trained(trained, updates=6)
    signals = [Location.parse(utterance.location).audio(rate_hz=16000) for utterance in utterances]
    lengths = np.array([len(signal) for signal in signals], np.int32)
    labels = [run.tokenizer.encode(utterance.text) for utterance in utterances]
    batch = Batch(
        audio=np.stack([np.pad(signal, (0, max(lengths) - len(signal))) for signal in signals]), features=None,
        lengths=lengths, tokens=np.array(labels, np.int32), token_lengths=np.array(list(map(len, labels)), np.int32),
        weights=np.ones(len(signals), np.float32), utterances=np.arange(len(signals), dtype=np.int32),
    )  # fmt: skip
    loss = jax.jit(functools.partial(run.model.apply, step=None))(run.variables, batch)["ctc/loss"]
    (last,) = [each for each in events(trained, "validation") if (each["update"], each["weights"]) == (6, "ema")]
    assert last["loss"] == approx(loss.mean(), rel=1e-5)


def test_evaluate_prints_a_table_and_writes_json(trained, corpus, tmp_path):
    out, lines = tmp_path / "scores.json", tmp_path / "predictions.jsonl"
    test, validation = corpus / "test.jsonl", corpus / "validation.jsonl"
    command = ["asr_jax.evaluate", trained, "--data", test, validation, "--json", out, "--predictions", lines]
    output = run(*command, "--by", "speaker").stdout
    assert str(test)[-12:] in output
    sets = json.loads(out.read_text())["runs"][0]["sets"]
    assert set(sets) == {str(test), str(validation)}
    wanted = {"wer", "cer", "substitutions", "deletions", "insertions", "words", "utterances", "rejected", "by_source"}
    assert wanted <= sets[str(test)].keys()
    utterances = read_utterances([test])
    assert sets[str(test)]["utterances"] == len(utterances)
    assert sets[str(test)]["words"] == sum(len(utterance.text.split()) for utterance in utterances)
    assert sets[str(test)]["by_source"].keys() == {"noise"}
    assert sets[str(test)]["normaliser"] == "lower.v1"
    (last,) = [each for each in events(trained, "validation") if (each["update"], each["weights"]) == (6, "ema")]
    assert 0 < last["ter"] == sets[str(validation)]["ter"]
    assert sets[str(test)]["by_speaker"].keys() == {utterance.speaker for utterance in utterances}
    assert all(f"  {utterance.speaker} " in output for utterance in utterances)
    low, high = sets[str(test)]["wer_interval"]
    assert f"{100 * sets[str(test)]['wer']:.2f} % ({100 * low:.1f}–{100 * high:.1f})" in output
    assert re.search(rf"{re.escape(str(test))}.*95 %.*\b{len(sets[str(test)]['by_speaker'])} speakers", output)
    predicted = [json.loads(line) for line in lines.read_text().splitlines()]
    assert {line["id"] for line in predicted} >= {utterance.id for utterance in utterances}
    of_test = [line for line in predicted if line["set"] == str(test)]
    for name, column in (("words", "reference_words"), ("deletions", "deletions"), ("insertions", "insertions")):
        assert sum(line[column] for line in of_test) == sets[str(test)][name]
    for line in of_test:
        errors = line["substitutions"] + line["deletions"] + line["insertions"]
        assert line["wer"] == approx(errors / line["reference_words"], abs=1e-6)
        assert [word["text"] for word in line["words"]] == line["hypothesis"].split()


def test_several_runs_in_one_table_decoded_by_beam_search_and_calibrated(trained, corpus, tmp_path):
    folder, out, lines = tmp_path / "toy", tmp_path / "scores.json", tmp_path / "lines"
    shutil.copytree(trained, folder)
    oldest = min((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    command = ["asr_jax.evaluate", folder, oldest, "--data", corpus / "validation.jsonl", "--json", out]
    beam = ["--decoding.kind", "beam", "--decoding.search.beam-width", "4"]
    output = run(
        *command, *beam, "--precision", "bf16", "--predictions", lines, "--calibrate", "--alignment", "sclite"
    ).stdout
    assert output.count("word errors by sclite's alignment") == 2
    found = json.loads(out.read_text())
    first, second = found["runs"]
    row = found["over_runs"][0]
    assert (row["measure"], row["runs"], row["head"]) == ("wer", 2, "ctc")
    assert row["mean"] == approx((first["sets"][row["set"]]["wer"] + second["sets"][row["set"]]["wer"]) / 2)
    assert "over all runs" in output
    assert (second["checkpoint"], second["weights"]) == (int(oldest.name), "averaged")
    assert (first["precision"], first["decoding"], first["calibrated"]) == ("bf16", "beam 4", False)
    assert f"toy {oldest.name}" in output
    for result in (first, second):
        assert f"calibrated on {result['calibration']['words']} words" in output
    assert len(json.loads((folder / "calibration.json").read_text())) == 2
    written = {f"toy-{result['checkpoint']}.jsonl" for result in (first, second)}
    assert {path.name for path in lines.iterdir()} == written
    rows = [json.loads(line) for line in (lines / f"toy-{first['checkpoint']}.jsonl").read_text().splitlines()]
    of_set = first["sets"][str(corpus / "validation.jsonl")]
    assert (first["alignment"], of_set["alignment"]) == ("sclite", "sclite")
    assert sum(each["insertions"] for each in rows) == of_set["insertions"]
    row = rows[0]
    assert row["n_best"][0]["text"] == row["hypothesis"] == " ".join(word["text"] for word in row["words"])


def test_log_probabilities_in_files_give_the_predictions(trained, corpus, tmp_path):
    """The set contains a recording that is much longer than those of training, which is recognised in windows."""
    lines, folder, out = tmp_path / "lines.jsonl", tmp_path / "log_probs", tmp_path / "scores.json"
    utterances = read_utterances([corpus / "validation.jsonl"])
    several = list(read_utterances([corpus / "train.jsonl"]))
    audio = [Location.parse(utterance.location).audio(rate_hz=16000) for utterance in several]
    write_flac(tmp_path / "long.flac", np.concatenate(audio), 16000)
    text, length_s = " ".join(utterance.text for utterance in several), sum(map(len, audio)) / 16000
    write_manifest(
        tmp_path / "m.jsonl", [Utterance("joined", str(tmp_path / "long.flac"), text, length_s + 0.4), *utterances]
    )
    command = ["asr_jax.evaluate", trained, "--data", tmp_path / "m.jsonl", "--predictions", lines, "--json", out]
    output = run(*command, "--live", "--log-probs", folder).stdout
    assert re.search(r"\b1 .*windows.*: joined", " ".join(output.split()))
    counts = json.loads(out.read_text())["runs"][0]["sets"][str(tmp_path / "m.jsonl")]
    assert (counts["windowed_ids"], counts["utterances"], counts["rejected"]) == (["joined"], len(utterances) + 1, 0)
    assert counts["differing"] == 1
    assert counts["words"] == sum(len(each.text.split()) for each in (*several, *utterances))
    labels = json.loads((folder / "labels.json").read_text())
    predicted = {row["id"]: row["hypothesis"] for row in map(json.loads, lines.read_text().splitlines())}
    assert "joined" in predicted
    rows = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    assert {row["id"] for row in rows} == predicted.keys()
    assert {row["set"] for row in rows} == {str(tmp_path / "m.jsonl")}
    for row in rows:
        values = np.load(folder / row["file"])
        assert values.shape == (row["frames"], len(labels["symbols"]))
        assert_close(np.exp(values).sum(1), 1, rtol=1e-4)
        path = values.argmax(1)
        kept = path[np.r_[True, path[1:] != path[:-1]] & (path != labels["blank_id"])]
        assert " ".join("".join(labels["symbols"][label] for label in kept).split()) == predicted[row["id"]]


def test_transcribe_prints_a_line_per_file_and_names_what_is_broken(trained, corpus, tmp_path):
    paths = [utterance.location for utterance in read_utterances([corpus / "train.jsonl"])][:3]
    broken = tmp_path / "broken.flac"
    broken.write_bytes(b"no audio")
    empty = tmp_path / "empty.wav"
    soundfile.write(empty, np.zeros(0, np.int16), 16000)
    done = run("asr_jax.transcribe", trained, paths[0], empty, paths[1], broken, paths[2], code=1)
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == paths
    assert str(broken) in done.stderr
    assert str(empty) in done.stderr
    assert "5 recordings: 3 transcribed, 2 rejected; " in done.stderr
    assert "error: 2 of 5 recordings could not be transcribed" in done.stderr
