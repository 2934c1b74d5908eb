"""The padding of a transducer's frames, labels and nodes is that of the batches of an epoch."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from asr_jax.cli import plan as command
from asr_jax.cli.command_line import parse_experiment
from asr_jax.cli.plan_remarks import lattice_lines, lattice_padding
from asr_jax.heads.transducer import Transducer
from tests.support import approx

CONFIG = str(Path(__file__).parents[1] / "toy_config.py")


def test_padding_is_that_of_the_batches(tmp_path):
    random, path = np.random.default_rng(0), tmp_path / "train.jsonl"
    lines = [
        {"id": str(i), "audio_path": f"/none/{i}.flac", "duration": d, "text": "abc"[: 1 + i % 3] * int(3 * d)}
        for i, d in enumerate(random.uniform(0.5, 4.0, 40).round(3).tolist())
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = ["--config", CONFIG, "--data.train", str(path), "--run-dir", str(tmp_path / "run")]
    experiment = parse_experiment([*given, "--data.batching.num-buckets", "2", "--data.speeds", "0.9", "1.1"], prog="")
    planned = command.plan(experiment).train
    lengths, labels, plan = planned.index.lengths, planned.index.num_labels(), planned.plan
    real, padded = np.zeros(3), np.zeros(3)
    for position in range(plan.batches_per_epoch):
        batch, rows = plan[position], plan[position].rows
        bucket = plan.buckets[batch.bucket]
        t, u = np.rint(lengths[rows] / batch.speeds), labels[rows]
        real += np.where(rows[None] >= 0, [t, u, t * (u + 1)], 0).sum(1)
        sizes = bucket.length, bucket.num_tokens, bucket.length * (bucket.num_tokens + 1)
        padded += len(rows) * np.array(sizes)
    found = lattice_padding(planned)
    assert [*found.values()] == approx(1 - real / padded, abs=1e-4)
    assert 0 < found["frames"] < found["nodes"] < 1
    assert found["frames"] == approx(plan.padding_share)
    heads = {"transducer": Transducer()}
    (line,) = lattice_lines(planned, heads)
    assert f"{found['labels']:.1%} of labels (U), {found['nodes']:.1%} of nodes" in line
    assert lattice_lines(planned, experiment.model.heads) == []
    whole = command.lines(planned, replace(experiment, model=replace(experiment.model, heads=heads)), {})
    assert line in whole
