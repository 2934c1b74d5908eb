"""Commands that cannot work: each prints one message with the fix and no traceback.

The exit code is 2 if nothing was written, and 1 if the work had started.
"""

# ruff: noqa: E501  one case per line

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from tests.forked import ROOT, with_devices

CONFIG = str(ROOT / "tests" / "toy_config.py")
CAN_GIVE_UP_RIGHTS = shutil.which("setpriv")


@pytest.fixture(scope="module")
def server():
    """Process that runs commands: `server(folder, command, *arguments)` returns exit code and output.

    If the tests run as root, the process gives up the right to write everywhere.
    """
    prefix = []
    if not os.getuid() and CAN_GIVE_UP_RIGHTS:
        rights = "-dac_override,-dac_read_search"
        prefix = ["setpriv", f"--bounding-set={rights}", f"--inh-caps={rights}"]
    command = [*prefix, sys.executable, "-m", "tests.command_server"]
    with subprocess.Popen(
        command, cwd=ROOT, env=with_devices(2), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as job:

        def ask(folder, command, *arguments):
            job.stdin.write(json.dumps([command, str(folder), *map(str, arguments)]) + "\n")
            job.stdin.flush()
            return json.loads(job.stdout.readline())

        yield ask


@pytest.fixture(scope="module")
def ground(server, tmp_path_factory):
    """Folder with audio, manifests and a trained run; every case has a copy."""
    folder = tmp_path_factory.mktemp("ground")
    (folder / "audio").mkdir()
    rng, rows = np.random.default_rng(0), []
    for number in range(12):
        write_flac(folder / f"audio/{number}.flac", rng.integers(-9000, 9000, 16000).astype(np.int16), 16000)
        rows.append({"audio_path": f"audio/{number}.flac", "text": "ab ba"[number % 3 :], "duration": 1.0})
    for name, part in (("train", rows[:8]), ("validation", rows[8:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    code, output = server(folder, "train", *begin(folder), "--run-dir", folder / "run")
    assert code == 0, output
    return folder


@pytest.fixture
def place(ground, tmp_path):
    shutil.copytree(ground, tmp_path / "place", symlinks=True)
    return tmp_path / "place"


def begin(place, **changes):
    """Arguments of a training command that works."""
    sets = {"data.train": place / "train.jsonl", "data.validation": place / "validation.jsonl"}
    small = {"training.num-updates": 2, "training.validation.every": 2}
    return [
        "--config",
        CONFIG,
        *(str(part) for name, value in (sets | small | changes).items() for part in (f"--{name}", value)),
    ]


def new(place, *more, **changes):
    return ["train", *begin(place, **changes), "--run-dir", place / "new", *more]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def masked(augment):
    """Text of a config with an augmentation."""
    return (
        "from dataclasses import replace\nfrom asr_jax.audio.specaugment import SpecAugment\n"
        "from tests.toy_config import experiment as toy\n"
        f"def experiment():\n    e = toy()\n    return replace(e, model=replace(e.model, augment=({augment},)))\n"
    )


def config(place, body):
    return ["train", "--config", write(place / "mine.py", body), "--run-dir", place / "new"]


def with_lines(place, change):
    """Override for a training set with changed rows."""
    rows = [json.loads(line) for line in (place / "train.jsonl").read_text().splitlines()]
    write(place / "changed.jsonl", "".join(json.dumps(change(row)) + "\n" for row in rows))
    return {"data.train": place / "changed.jsonl"}


def without(row, name):
    return {key: value for key, value in row.items() if key != name}


def damaged(place, name, content=""):
    (place / "run" / name).write_text(content)
    return place / "run"


def replaced(place, old, new):
    path = place / "run" / "experiment.json"
    path.write_text(path.read_text().replace(old, new))
    return place / "run"


EVALUATE = lambda place, *more: ["evaluate", place / "run", "--data", place / "validation.jsonl", *more]  # noqa: E731

# Command, exit code, and parts of the message.
CASES = {
    "no config": (lambda place: ["train"], 2, ["--config is missing", "configs/quickstart.py"]),
    "a config that is not there": (lambda place: ["train", "--config", CONFIG + "x"], 2, ["does not exist", "did you mean"]),
    "a config that fails": (lambda place: config(place, "x = 1 / 0\n"), 2, ["mine.py:1: ZeroDivisionError"]),
    "a config without experiment()": (lambda place: config(place, "x = 1\n"), 2, ["mine.py: AttributeError", "experiment"]),
    "a config with a word that is none of a setting's": (
        lambda place: config(place, masked("SpecAugment(system='banana')")), 2, ["mine.py:6", "system is 'banana': expected one of 'icefall', 'nemo', 'quartznet', 'rnnt', 'rust'"],
    ),
    "a config with a fraction of a mask": (
        lambda place: config(place, masked("SpecAugment(num_time_masks=2.5)")), 2, ["num_time_masks is 2.5: expected int"],
    ),
    "a config that returns something else": (
        lambda place: config(place, "def experiment():\n    return 3\n"), 2, ["returned int, expected an Experiment"],
    ),
    "a run that is not one, without a config": (
        lambda place: ["train", "--run-dir", place / "audio"], 2, ["audio is not a run", "--config"],
    ),
    "a field that does not exist": (lambda place: new(place, "--optim.schedule.peak-rate", 1), 2, ["--optim.schedule.peak-lr"]),
    "a value of the wrong type": (lambda place: new(place, "--seed", "one"), 2, ["--seed one: expected a whole number"]),
    "values that exclude each other": (
        lambda place: new(place, "--data.filters.min-duration-s", 5, "--data.filters.max-duration-s", 2), 2, ["min < max"],
    ),
    "an impossible seed": (lambda place: new(place, "--seed", -1), 2, ["seed is -1: expected at least 0"]),
    "a rate that is no number": (lambda place: new(place, "--optim.schedule.peak-lr", "nan"), 2, ["peak_lr is nan: expected above 0"]),
    "a published name as initial weights": (
        lambda place: new(place, "--init-from", "nvidia/parakeet-ctc-0.6b"), 2,
        ["not downloaded: run hf download nvidia/parakeet-ctc-0.6b --local-dir parakeet-ctc-0.6b"],
    ),
    "initial weights that are not there": (lambda place: new(place, "--init-from", "m.nemo"), 2, ["--init-from m.nemo does not exist: expected"]),
    "a picture of nothing": (lambda place: new(place, "--plot", "a.png"), 2, ["--plot a.png: expected --show schedule"]),
    "another training set in a run": (
        lambda place: [
            "train", "--run-dir", place / "run", "--data.train", with_lines(place, lambda row: row | {"text": "ßßß"})["data.train"],
        ], 2, ["no training utterance is left", "changed.jsonl, but the run", "start a new run from its weights", "--init-from"],
    ),
    "no training manifest": (
        lambda place: new(place, **{"data.train": "gone.jsonl"}), 2,
        ["gone.jsonl: no such file or folder", "prepare_librispeech.py", "--data.train", "asr_jax.quickstart"],
    ),
    "no validation manifest": (lambda place: new(place, **{"data.validation": "gone.jsonl"}), 2, ["gone.jsonl: no such file or folder"]),
    "a training set at a URL": (
        lambda place: new(place, **{"data.train": "s3://bucket/train.jsonl"}), 2, ["s3:// addresses are not read: download the files"],
    ),
    "audio at URLs": (
        lambda place: new(place, **with_lines(place, lambda row: row | {"audio_path": "s3://host/a.wav"})), 2,
        ["changed.jsonl:1: s3://host/a.wav: s3:// addresses are not read"],
    ),
    "commands in the place of files": (
        lambda place: new(place, **with_lines(place, lambda row: row | {"audio_path": "ffmpeg -i a.m4a -f wav - |"})), 2,
        ["the command 'ffmpeg -i a.m4a -f wav - |' is not run: allow it with --allow-pipes"],
    ),
    "commands that are allowed and fail": (
        lambda place: new(place, "--allow-pipes", **with_lines(place, lambda row: row | {"audio_path": f"gunzip -c {place}/audio/1.flac |"})), 2,
        ["8 of 8 opened utterances (of 8) cannot be read", "gunzip failed with exit code 1: gzip: ", "not in gzip format"],
    ),
    "an empty manifest": (lambda place: new(place, **{"data.train": write(place / "none.jsonl", "")}), 2, ["has no utterances", "audio_path"]),
    "a folder for a manifest": (lambda place: new(place, **{"data.train": place / "audio"}), 2, ["no text beside the audio"]),
    "a manifest that is not JSON": (lambda place: new(place, **{"data.train": write(place / "m.jsonl", "a,b\n")}), 2, ["m.jsonl:1: not JSON"]),
    "no text column": (lambda place: new(place, **with_lines(place, lambda row: without(row, "text"))), 2, ['changed.jsonl:1: no "text"']),
    "a text column with numbers": (lambda place: new(place, **with_lines(place, lambda row: row | {"text": 3})), 2, ['"text" is 3; expected a string']),
    "a duration that is text": (lambda place: new(place, **with_lines(place, lambda row: row | {"duration": "one"})), 2, ["expected a finite number of seconds"]),
    "durations in milliseconds": (lambda place: new(place, **with_lines(place, lambda row: row | {"duration": 1000.0})), 2, ["no training utterance is left", "too long"]),
    "texts that are all empty": (lambda place: new(place, **with_lines(place, lambda row: row | {"text": " "})), 2, ["training texts are empty"]),
    "texts that no path fits": (lambda place: new(place, **with_lines(place, lambda row: row | {"text": "ab " * 19})), 2, ["fewer frames than its labels need"]),
    "edges below the longest utterance": (lambda place: new(place, "--data.batching.edges-s", 0.5), 2, ["longer than the last bucket"]),
    "a folder that is a file": (lambda place: ["train", *begin(place), "--run-dir", place / "train.jsonl"], 2, ["train.jsonl is a file"]),
    "a folder with other things": (lambda place: ["train", *begin(place), "--run-dir", place / "audio"], 2, ["is not empty and is not a run"]),
    "a folder without rights": (
        lambda place: ["train", *begin(place), "--run-dir", locked(place / "locked") / "run"], 2,
        ["locked/run cannot be written: Permission denied", "--run-dir"],
    ),
    "checkpoints without rights": (
        lambda place: ["train", "--run-dir", locked(place / "run/checkpoints").parent, "--updates", 4], 2,
        ["run cannot be written", "checkpoints", "--run-dir"],
    ),
    "a folder of another experiment": (lambda place: ["train", *begin(place), "--run-dir", place / "run", "--seed", 5], 2, ["seed: 0 before, 5 now", "--fresh"]),
    "a folder of a run with other data": (
        lambda place: ["train", *begin(place, **with_lines(place, lambda row: row | {"text": "ab"})), "--run-dir", moved_manifest(place)],
        2, ["training data", "have changed since the run was started", "now, of 8 utterances", "may have been added"],
    ),
    "fewer updates than the run has": (lambda place: ["train", "--run-dir", place / "run", "--training.num-updates", 1], 2, ["already has 2 updates", "--training.num-updates"]),
    "all audio missing": (lambda place: new(emptied(place)), 2, ["8 of 8 opened utterances (of 8) cannot be read", "train.jsonl:1", "no such file"]),
    "evaluation of what is not a run": (lambda place: ["evaluate", place, "--data", place / "validation.jsonl"], 2, ["is not a run"]),
    "evaluation without its manifest": (lambda place: ["evaluate", place / "run", "--data", "gone.jsonl"], 2, ["gone.jsonl: no such file or folder"]),
    "evaluation of a checkpoint that is not there": (lambda place: EVALUATE(place, "--checkpoint", 7), 2, ["no checkpoint 7: expected one of 2"]),
    "evaluation into a folder that cannot be": (lambda place: EVALUATE(place, "--json", "/proc/none/out.json"), 2, ["cannot be written", "choose another place"]),
    "evaluation of a damaged checkpoint": (lambda place: EVALUATE(cut_checkpoint(place)), 2, ["is refused", "were written"]),
    "a checkpoint of another model": (
        lambda place: [replaced(place, '"dim": 24', '"dim": 25'), *EVALUATE(place)][1:], 2, ["checkpoint", "does not fit", "hidden"],
    ),
    "the tokenizer of another run": (
        lambda place: [other_tokenizer(place), *EVALUATE(place)][1:], 2, ["is not the tokenizer that checkpoint 2 was made with", "delete that folder"],
    ),
    "a tokenizer of the same size": (
        lambda place: [same_size(place), *EVALUATE(place)][1:], 2, ["is not the tokenizer that checkpoint 2 was made with"],
    ),
    "to continue with it": (
        lambda place: [same_size(place), "train", "--run-dir", place / "run"][1:], 2, ["is not the tokenizer that checkpoint 2 was"],
    ),
    "checkpoints that are gone": (
        lambda place: [shutil.rmtree(place / "run/checkpoints"), "train", "--run-dir", place / "run"][1:], 1,
        ["has no checkpoint, but", "events.jsonl lists some"],
    ),
    "a name that is too long": (lambda place: ["train", *begin(place), "--run-dir", place / ("x" * 300)], 1, ["File name too long"]),
    "nothing that can be read": (
        lambda place: new(place, **with_lines(place, lambda row: row | {"audio_path": str(place / "train.jsonl")})), 2,
        ["8 of 8 opened utterances (of 8) cannot be read", "not audio"],
    ),
    "a tokenizer that is cut": (lambda place: [damaged(place, "tokenizer/tokenizer.json", '{"kind"'), *EVALUATE(place)][1:], 2, ["is not the tokenizer that checkpoint 2 was made with", "delete that folder"]),
    "an experiment that is cut": (lambda place: [damaged(place, "experiment.json", '{"na'), *EVALUATE(place)][1:], 2, ["experiment.json cannot be read"]),
    "a class that no longer exists": (lambda place: [replaced(place, ":Toy", ":Gone"), *EVALUATE(place)][1:], 2, ["Gone", "cannot be loaded"]),
    "a run without checkpoints": (lambda place: [shutil.rmtree(place / "run/checkpoints"), *EVALUATE(place)][1:], 2, ["has no complete checkpoint"]),
    "nothing that is audio": (lambda place: ["transcribe", place / "run", place / "run/curves.png"], 2, ["no input is readable audio"]),
    "an alignment into a folder that cannot be": (
        lambda place: ["align", place / "run", "--data", place / "validation.jsonl", "--out", "/proc/none/out.json"], 2, ["cannot be written", "choose another place"],
    ),
    "pieces into a folder that cannot be": (
        lambda place: ["align", place / "run", "--data", place / "validation.jsonl", "--segment", "--out", "/proc/none/out.jsonl"], 2, ["cannot be written", "choose another place"],
    ),
    "transcripts into a folder that cannot be": (
        lambda place: ["transcribe", place / "run", place / "audio", "--out", "/proc/none/out.json"], 2, ["cannot be written", "choose another place"],
    ),
    "figures into a folder that cannot be": (
        lambda place: ["benchmark", "inference", place / "run", "--json", "/proc/none/out.json"], 2, ["cannot be written", "choose another place"],
    ),
    "an evaluation of which one file is no audio": (lambda place: EVALUATE(broken(place)), 1, ["rejected audio/9.flac: ", "not audio", "1 of 4 utterances could not be evaluated"]),
    "an alignment of which one file is no audio": (
        lambda place: ["align", broken(place) / "run", "--data", place / "validation.jsonl"], 1, ["rejected audio/9.flac: ", "not audio", "1 of 4 utterances could not be aligned"],
    ),
    "one file that is no audio": (lambda place: ["transcribe", place / "run", place / "run/curves.png", place / "audio/1.flac"], 1, ["1 of 2 recordings could not be transcribed"]),
}  # fmt: skip


def locked(folder):
    folder.mkdir(exist_ok=True)
    folder.chmod(0o555)
    return folder


def same_size(place):
    """Swaps two labels of the tokenizer of the run."""
    path = place / "run/tokenizer/tokenizer.json"
    description = json.loads(path.read_text())
    symbols = description["symbols"]
    first, second = (symbols.index(symbol) for symbol in ("a", "b"))
    symbols[first], symbols[second] = "b", "a"
    path.write_text(json.dumps(description))
    return place / "run"


def moved_manifest(place):
    """Changes the training manifest of the run."""
    (place / "train.jsonl").write_text((place / "changed.jsonl").read_text())
    experiment = place / "run" / "experiment.json"
    values = json.loads(experiment.read_text())
    values["data"]["train"] = [str(place / "changed.jsonl")]
    experiment.write_text(json.dumps(values))
    return place / "run"


def broken(place):
    """Replaces a recording of the validation set by a file that is not audio."""
    (place / "audio/9.flac").write_bytes(b"no audio")
    return place


def emptied(place):
    shutil.rmtree(place / "audio")
    return place


def cut_checkpoint(place):
    largest = max((place / "run/checkpoints/2/average").rglob("*"), key=lambda path: path.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    return place


def other_tokenizer(place):
    path = place / "run/tokenizer/tokenizer.json"
    description = json.loads(path.read_text())
    description |= {"symbols": ["z", *description["symbols"]], "blank_id": description["blank_id"] + 1}
    path.write_text(json.dumps(description))


@pytest.mark.parametrize("name", CASES)
def test_wrong_beginning(server, place, name):
    if name.endswith("without rights") and not os.getuid() and not CAN_GIVE_UP_RIGHTS:
        pytest.skip("root may write everywhere, and there is no setpriv to give that up")
    make, expected, parts = CASES[name]
    command, *arguments = make(place)
    code, output = server(place, command, *arguments)
    assert code == expected, output[-3000:]
    assert "Traceback" not in output
    for part in parts:
        assert part in output, f"{part!r} is not in: {output[-3000:]}"
    if expected == 2:
        assert not (place / "new").exists()
    assert len([line for line in output.splitlines() if line.startswith("error: ")]) == 1
