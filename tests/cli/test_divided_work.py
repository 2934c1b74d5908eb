"""Commands with --job: one job, and three jobs with a job that is killed and repeated, have the same joined output."""

import json
import shutil
import signal
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from forked import finished
from recordings import jsonl, write

from asr_jax.checkpoints.integrity import SEAL
from asr_jax.cli import align, convert, evaluate, extract_features, merge, recognition_options, transcribe
from asr_jax.cli.recognition_options import RecognitionOptions, checkpoint_digest
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.jobs import Job
from tests.cli.test_transcribe import run, sound

__all__ = ["run"]
NUM = 12
KILLED = """
import os, signal, sys
from asr_jax.cli import transcribe
from asr_jax.transcripts import outputs

def write_and_die(self, named, write=outputs.Folder.write):
    write(self, named)
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    outputs.Folder.write = write_and_die
    transcribe.main(sys.argv[1:])
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Manifest of recordings of different lengths and speakers, two of them longer than a window."""
    folder, lines = tmp_path_factory.mktemp("data"), []
    for n in range(NUM):
        seconds = 9.0 + n if n in (3, 8) else 0.58 + 0.01 * n  # rows of one length: each shape is compiled
        write(folder / f"{n}.flac", sound(seconds, n))
        line = {"id": f"u{n}", "audio_path": f"{n}.flac", "text": "ab a b"[: 2 + n % 5].strip(), "duration": seconds}
        lines.append(line | {"speaker": f"s{n % 4}"})
    return jsonl(folder / "set.jsonl", *lines)


def both(main, arguments, out, folder):
    """Runs a command as one job and as three jobs, and repeats one of the three. Returns both outputs."""
    whole, joined = folder / "whole" / out, folder / "joined" / out
    main([*arguments(whole)])
    for number in (0, 2, 1, 2):
        main([*arguments(joined), "--job", f"{number}/3"])
    merge.main([str(joined)])
    assert not list(joined.parent.glob("*-of-*")), "files of jobs are left"
    return whole, joined


def test_parts_are_consecutive_and_complete():
    for num in (0, 1, 4, 5, 13):
        parts = [list(range(num))[Job(number, 5).rows(num)] for number in range(5)]
        assert [each for part in parts for each in part] == list(range(num))
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for wrong in ("5/5", "1", "-1/3", "a/b", "1/0"):
        with pytest.raises(UserError, match="expected I/N with I from 0"):
            Job.parse(wrong)


@pytest.mark.slow
def test_transcripts_in_one_file_and_pseudo_labels(run, data, tmp_path):
    def arguments(out):
        out.parent.mkdir(exist_ok=True)
        manifest = ["--to-manifest", str(out.parent / "labels.jsonl"), "--min-confidence", "0.1"]
        return [run, str(data), "--format", "json", "--out", str(out), *manifest]

    whole, joined = both(transcribe.main, arguments, "all.jsonl", tmp_path)
    assert joined.read_text() == whole.read_text()
    for name in ("labels.jsonl", "labels.rejected.jsonl"):
        assert (joined.parent / name).read_text() == (whole.parent / name).read_text()


@pytest.mark.slow
def test_transcripts_in_a_folder_after_a_killed_job(run, data, tmp_path):
    """The killed job leaves its finished transcripts, and the repeated one does the rest."""
    lines = [*data.read_text().splitlines(), json.dumps({"id": "gone", "audio_path": "/gone.flac", "duration": 1.0})]
    manifest = data.with_name("with_gone.jsonl")
    manifest.write_text("\n".join(lines) + "\n")
    arguments = [run, str(manifest), "--format", "json", "--out"]
    with pytest.raises(RunError, match="1 of 13 recordings"):
        transcribe.main([*arguments, str(tmp_path / "whole")])
    out = tmp_path / "joined"

    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    for number in (0, 2):
        transcribe.main([*arguments, str(out), "--job", f"{number}/3"])
    there = set(out.glob("*.json"))
    assert finished(script, *arguments, out, "--job", "1/3").returncode == -signal.SIGKILL
    assert len({*out.glob("*.json")} - there) == 1
    with pytest.raises(UserError, match=r"1 of 3 jobs are not finished; .* --job 1/3"):
        merge.main([str(out)])
    transcribe.main([*arguments, str(out), "--job", "1/3"])
    with pytest.raises(RunError, match="1 of 13 recordings were rejected"):
        merge.main([str(out)])
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert sorted(path.name for path in out.iterdir()) == names
    for name in names:
        assert (out / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_error_rates(run, data, tmp_path, capsys):
    def arguments(out):
        out.parent.mkdir(exist_ok=True)
        lines = ["--predictions", str(out.parent / "lines.jsonl"), "--worst", "2"]
        return [run, "--data", str(data), "--max-duration", "4", "--json", str(out), *lines]

    whole, joined = both(evaluate.main, arguments, "rates.json", tmp_path)
    assert json.loads(joined.read_text()) == json.loads(whole.read_text())
    assert len(json.loads(joined.read_text())["runs"][0]["sets"][str(data)]["windowed_ids"]) == 2
    assert (joined.parent / "lines.jsonl").read_text() == (whole.parent / "lines.jsonl").read_text()
    table = [line for line in capsys.readouterr().out.splitlines() if "set.jsonl" in line]
    assert table[: len(table) // 2] == table[len(table) // 2 :]
    with pytest.raises(UserError, match="--calibrate with --job"):
        evaluate.main([*arguments(joined), "--job", "0/2", "--calibrate"])


@pytest.mark.slow
def test_alignments(run, data, tmp_path):
    def arguments(out):
        out.parent.mkdir(exist_ok=True)
        return [run, "--data", str(data), "--max-duration", "4", "--out", str(out)]

    whole, joined = both(align.main, arguments, "aligned.jsonl", tmp_path)
    assert joined.read_text() == whole.read_text()
    assert len(joined.read_text().splitlines()) == NUM


def test_features(data, tmp_path):
    def arguments(out):
        out.parent.mkdir(exist_ok=True)
        return ["--input", str(data), "--output", str(out), "--batch-size", "4"]

    whole, joined = both(extract_features.main, arguments, "features.parquet", tmp_path)
    assert pq.read_table(joined).equals(pq.read_table(whole), check_metadata=True)
    extract_features.main(arguments(joined))  # the joined file is complete for one job too
    other = tmp_path / "other.parquet"
    extract_features.main([*arguments(other), "--job", "0/2"])
    own = Job(0, 2).path(other)
    written = own.stat().st_ino
    extract_features.main([*arguments(other), "--job", "0/2"])
    assert own.stat().st_ino == written
    extract_features.main([*arguments(other), "--job", "0/2", "--force"])
    assert own.stat().st_ino != written


def test_manifests(data, tmp_path):
    """Durations are measured by the jobs, and repeated ids of different jobs become unique as for one job."""
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    for line in lines:
        line.pop("duration")
        line["id"] = line["speaker"]
    manifest = jsonl(data.with_name("bare.jsonl"), *lines)

    def arguments(out):
        out.parent.mkdir(exist_ok=True)
        return [str(manifest), str(out)]

    whole, joined = both(convert.main, arguments, "out.jsonl", tmp_path)
    assert joined.read_text() == whole.read_text()
    assert len({json.loads(line)["id"] for line in joined.read_text().splitlines()}) == NUM


def test_jobs_of_changed_inputs_or_weights_are_not_joined(run, data, tmp_path, monkeypatch):
    out, inputs = str(tmp_path / "out.jsonl"), tmp_path / "set.jsonl"
    lines = [json.loads(line) for line in data.read_text().splitlines()]
    for line in lines:
        line["audio_path"] = str(data.parent / line["audio_path"])
    jsonl(inputs, *lines[:8])
    convert.main([str(inputs), out, "--job", "0/2"])
    jsonl(inputs, *lines)
    with pytest.raises(UserError, match="of other inputs, weights or settings"):
        convert.main([str(inputs), out, "--job", "0/2"])
    other = tmp_path / "other.jsonl"
    for _ in range(2):  # a job whose file is gone is not finished
        convert.main([str(inputs), str(other), "--job", "0/2"])
        Job(0, 2).path(other).unlink()
    with pytest.raises(UserError, match="not finished; repeat the command with --job 1/2"):
        merge.main([str(other)])

    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    options = RecognitionOptions()
    before = checkpoint_digest(folder, options)
    assert checkpoint_digest(Path(run), options) == before
    assert before.startswith("2 ")  # updates
    seal = folder / "checkpoints" / "2" / SEAL
    monkeypatch.setattr(recognition_options, "checkpoint_to_evaluate", lambda folder, updates: 2)
    seal.write_text(seal.read_text() + " ")
    assert checkpoint_digest(folder, options) != before


def test_jobs_of_other_settings_are_not_joined(data, tmp_path):
    out = str(tmp_path / "out.jsonl")
    convert.main([str(data), out, "--job", "0/2"])
    with pytest.raises(UserError, match="of other inputs, weights or settings"):
        convert.main([str(data), str(data), out, "--job", "0/2"])
    convert.main([str(data), str(data), out, "--job", "1/2"])
    with pytest.raises(UserError, match="of other inputs, weights or settings than"):
        merge.main([out])
    convert.main([str(data), out, "--job", "0/3"])
    with pytest.raises(UserError, match="jobs of 2 and of 3 jobs"):
        merge.main([out])
    with pytest.raises(UserError, match="no job with --job is finished"):
        merge.main([str(tmp_path / "other.jsonl")])
    assert not Path(out).exists()
