"""The benchmark of steps, on the toy model: a row for each bucket with a time for each part."""

import json

import numpy as np

from asr_jax.audio.io import write_flac
from tests.forked import finished


def test_every_part_of_a_step_is_timed(tmp_path):
    lines, rng = [], np.random.default_rng(0)
    for i, seconds in enumerate([0.5, 0.6, 1.0, 1.1, 0.55, 1.05]):
        write_flac(tmp_path / f"{i}.flac", rng.integers(-900, 900, int(seconds * 16000)).astype(np.int16), 16000)
        lines.append({"audio_path": f"{i}.flac", "text": "ab", "duration": seconds})
    manifest, folder = tmp_path / "train.jsonl", tmp_path / "run"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sets = ["--data.train", manifest, "--data.validation", manifest, "--run-dir", folder]
    done = finished("asr_jax.benchmark", "steps", "--config", "tests/toy_config.py", *sets)
    assert done.returncode == 0, done.stderr
    title, header, _, *rows = done.stdout.splitlines()
    assert title.startswith("toy: milliseconds per batch")
    assert header.split() == ["seconds", "rows", "read", "front-end", "forward", "backward", "update", "step"]
    cells = [row.split() for row in rows]
    assert [(row[0], row[1]) for row in cells] == [("0.61", "4"), ("1.11", "4")]
    assert all(float(row[place]) > 0 for row in cells for place in (2, 3, 6, 7))
    assert not folder.exists()
