"""The recognition benchmark: it measures the recognition that commands use."""

import itertools
import json
from collections import Counter

import jax
import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from asr_jax.cli.benchmark import command
from asr_jax.cli.benchmark.recognising import TimedRecognition, summary
from asr_jax.cli.benchmark.systems import system_of_config
from asr_jax.config import Experiment, Training, Validation
from asr_jax.core.errors import RunError, UserError
from asr_jax.data.batching.batching import Batching
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.dataset import Data
from asr_jax.data.loading.source import BatchSource
from asr_jax.data.manifests.manifest import write_manifest
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.training.batches import noise_of
from asr_jax.training.loop import train
from tests.support import approx
from tests.training.toy import toy_model

CONFIG = ("--config", "tests/toy_config.py")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """Manifest of ten recordings of 0.5 to 1 s, and one that cannot be read."""
    folder, rng = tmp_path_factory.mktemp("set"), np.random.default_rng(0)
    utterances = []
    for i in range(10):
        samples = rng.integers(-9000, 9000, 8000 + 800 * i).astype(np.int16)
        write_flac(folder / f"{i}.flac", samples, 16000)
        utterances.append(Utterance(str(i), str(folder / f"{i}.flac"), "ab", len(samples) / 16000))
    (folder / "broken.flac").write_bytes(b"no audio")
    utterances.append(Utterance("broken", str(folder / "broken.flac"), "ab", 0.8))
    write_manifest(folder / "set.jsonl", utterances)
    return str(folder / "set.jsonl")


@pytest.fixture(scope="module")
def system():
    experiment = Experiment(name="toy", model=toy_model(dim=8), data=Data(train=("none.jsonl",)))
    return system_of_config(experiment, precision=None, vocabulary=6)


def test_what_is_timed_is_what_the_model_recognises(system, monkeypatch):
    shape, search = Bucket(11200, 0, 3, 11200), system.search()
    batch = noise_of(shape, system.scale, np.zeros(1, np.int32))

    @jax.jit
    def frames(variables, batch):
        return system.model.apply(variables, batch, method="emit")["ctc"]

    def found(frames, row):
        path = frames.values[row, : frames.lengths[row]].argmax(-1)
        labels = [label for label, _ in itertools.groupby(path.tolist()) if label != system.tokenizer.blank_id]
        return " ".join(system.tokenizer.decode(labels).split())

    emitted = jax.device_get(frames(system.variables, batch))
    texts = [found(emitted, row) for row in range(3)]
    assert any(texts)
    recognition, found_texts, transcript = TimedRecognition(system, search), [], search.transcript

    def recorded_transcript(*given):
        found = transcript(*given)
        found_texts.append(found.text)
        return found

    monkeypatch.setattr(search, "transcript", recorded_transcript)
    assert recognition.texts(batch) == texts
    times = recognition.times(batch, warm_ups=2, steps=3)
    assert {name: len(each) for name, each in times.items()} == dict.fromkeys(
        ("all", "features", "network", "decoding"), 3
    )
    assert found_texts == texts * (1 + 2 * (2 + 3))  # the separate parts result in the same texts
    assert min(min(each) for each in times.values()) > 0


def test_a_summary_has_mean_and_percentiles_in_milliseconds():
    found = summary([0.001 * i for i in range(101)])
    assert found == approx({"mean": 50, "50%": 50, "90%": 90, "95%": 95, "99%": 99})


@pytest.mark.slow
def test_a_config_is_measured_on_grid_and_set(manifest, tmp_path, capsys):
    out = tmp_path / "figures" / "inference.json"
    sizes = ("--batch-sizes", "1", "2", "--seconds", "0.5", "--steps", "2", "--warm-ups", "1", "--repeats", "3")
    command.main(["inference", *CONFIG, "--model.encoder.dim", "10", *sizes, "--data", manifest, "--json", str(out)])
    output, figures = capsys.readouterr().out, json.loads(out.read_text())
    assert "toy, random weights, 1,929 parameters, f32, greedy, on cpu" in output
    assert [(each["batch"], each["seconds"]) for each in figures["batches"]] == [(1, 0.5), (2, 0.5)]
    for each in figures["batches"]:
        assert each["rtfx"] == approx(1000 * each["batch"] * each["seconds"] / each["ms"]["all"]["mean"])
    (of_set,) = figures["sets"].values()
    assert [found["batch"] for found in of_set] == [1, 2, None]
    assert [found["batches"] for found in of_set] == [11, 6, 1]
    for found in of_set:
        assert found["utterances"] == 10
        (rejected,) = found["rejected"]
        assert "broken.flac: " in rejected
        assert found["audio_s"] == approx(sum(0.5 + 0.05 * i for i in range(10)))
        assert (found["warm_ups"], found["repeats"]) == (1, 3)
        assert found["rtfx"] == approx(3 * found["audio_s"] / found["seconds"])
        assert 0 < found["waiting_share"] < 1
        assert 0 <= found["padding_share"] < 0.6
        ms = found["ms"]
        assert ms["both"]["mean"] == approx(ms["data"]["mean"] + ms["network"]["mean"])
        assert all(list(part) == ["mean", "50%", "90%", "95%", "99%"] for part in ms.values())
        assert 3 * found["batches"] * ms["both"]["mean"] < 1000 * found["seconds"]
    for words in ("3 repeats after 1 warm-ups", "evaluation", "network", "both"):
        assert words in output
    assert figures["steps"] == 2
    assert figures["machine"]["cores"] > 0


@pytest.mark.slow
def test_a_run_is_measured_in_another_precision_decoding_and_size_of_batch(manifest, tmp_path, capsys, monkeypatch):
    data = Data(
        train=(manifest,), validation=(manifest,), batching=Batching.planned(num_buckets=1, seconds=4.0, row_multiple=4)
    )
    training = Training(num_updates=1, validation=Validation(every=1), log_every=1)
    train(Experiment(name="toy", model=toy_model(dim=8), data=data, training=training, run_dir=str(tmp_path / "run")))
    read = Counter()
    load = BatchSource.__getitem__

    def counted(source, position):
        read[len(source.plan[position].rows)] += 1
        return load(source, position)

    monkeypatch.setattr(BatchSource, "__getitem__", counted)
    capsys.readouterr()
    command.main(
        ["inference", str(tmp_path / "run" / "checkpoints" / "1"), "--precision", "bf16", "--batch-sizes", "--data",
         manifest, "--batch-seconds", "2", "--live", "--decoding.kind", "beam",
         "--decoding.search.beam-width", "3", "--json", str(tmp_path / "figures.json")]
    )  # fmt: skip
    output, figures = capsys.readouterr().out, json.loads((tmp_path / "figures.json").read_text())
    assert f"{tmp_path / 'run'}, checkpoint 1, live parameters, " in output
    assert "parameters, bf16, beam 3, on cpu" in output
    assert (figures["decoding"], figures["weights"]) == ("beam 3", "checkpoint 1, live parameters")
    assert set(read) == {2}  # rows are as long as 1 s, and there are no rows of noise
    assert "batches" not in figures
    broken = Utterance("broken", str(tmp_path / "missing.flac"), "ab", 0.8)
    write_manifest(tmp_path / "broken.jsonl", [broken])
    with pytest.raises(RunError, match=r"broken\.jsonl: no utterance could be read; the reasons are above"):
        command.main(["inference", str(tmp_path / "run"), "--batch-sizes", "--data", str(tmp_path / "broken.jsonl")])
    assert f"rejected broken: {tmp_path / 'missing.flac'}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "RUN, or --config FILE"),
        (("folder", "--model.dim", "3"), "--model.dim is not a flag"),
        ((*CONFIG, "--live"), "--live"),
        ((*CONFIG, "--decoding.kind", "beem"), "--decoding.kind beem: "),
        ((*CONFIG, "--steps", "0"), "steps is 0"),
        ((*CONFIG, "--warm-ups", "-1"), "warm_ups is -1"),
        ((*CONFIG, "--repeats", "0"), "repeats is 0"),
        ((*CONFIG, "--warm-up-repeats", "-1"), "warm_up_repeats is -1"),
        ((*CONFIG, "--seconds", "2", "0"), r"seconds is \(2.0, 0.0\)"),
        ((*CONFIG, "--batch-sizes"), "nothing to measure"),
        ((*CONFIG, "--vocabulary", "1"), "--vocabulary 1"),
    ],
)
def test_what_cannot_be_measured(arguments, message):
    with pytest.raises(UserError, match=message):
        command.main(["inference", *arguments])
