"""The step benchmark with the toy model: one row for each bucket, with a time for each part."""

import json

import numpy as np
import pytest

from asr_jax.audio.io import write_flac
from benchmarks import steps


@pytest.mark.slow
def test_every_part_of_a_step_is_timed(tmp_path, capsys):
    lines, rng = [], np.random.default_rng(0)
    for i, seconds in enumerate([0.5, 0.6, 1.0, 1.1]):
        write_flac(tmp_path / f"{i}.flac", rng.integers(-900, 900, int(seconds * 16000)).astype(np.int16), 16000)
        lines.append({"audio_path": f"{i}.flac", "text": "ab", "duration": seconds})
    manifest, folder = tmp_path / "train.jsonl", tmp_path / "run"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sets = [f"--data.{name}={manifest}" for name in ("train", "validation")]
    steps.main(["--config", "tests/toy_config.py", *sets, "--run-dir", str(folder)])
    title, header, _, *rows = capsys.readouterr().out.splitlines()
    assert title.startswith("toy: ")
    assert header.split() == ["seconds", "rows", "read", "front-end", "forward", "backward", "update", "step"]
    (cells,) = [row.split() for row in rows]
    assert cells[:2] == ["1.11", "4"]
    assert all(float(cells[place]) > 0 for place in (2, 3, 6, 7))
    assert not folder.exists()
