"""The picture of a run: drawn whatever events there are."""

import math
import os
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.observe.curves import draw_curves, main, smooth
from asr_jax.observe.events import EventLog


def steps(log, updates, **changes):
    for update in updates:
        data = {
            "epoch": 1, "losses": {"total": 50 * math.exp(-update / 20)}, "learning_rate": 1e-3,
            "throughput": {"audio_s_per_s": 300.0 + update % 7, "padding_share": 0.05},
        }  # fmt: skip
        log.write("train_step", update=update, **data | changes)


def validations(log, updates):
    for update in updates:
        for weights in ("live", "ema"):
            log.write("validation", update=update, weights=weights, wer=1.2 / update, cer=0.5 / update)


def drawn(folder, write):
    folder.mkdir()
    with EventLog(folder / "events.jsonl") as log:
        write(log)
    draw_curves(folder / "events.jsonl", folder / "curves.png")
    return matplotlib.image.imread(folder / "curves.png")


def nothing(log):
    pass


def one_point(log):
    log.write("run_start", run="$one_point$ 試験")
    steps(log, [10])
    validations(log, [10])


def not_finite(log):
    steps(log, range(10, 50, 10), losses={"total": np.nan}, throughput={})
    log.write("validation", update=40, wer=np.nan)


def sparse(log):
    steps(log, [0])
    log.write("train_step", update=10, losses={}, learning_rate=0.0)
    log.write("validation", update=20, wer=0.0)


def pretraining(log):
    steps(log, range(10, 50, 10), metrics={"pretrain/accuracy": 0.2})
    for weights in ("live", "ema"):
        log.write("validation", update=40, weights=weights, loss=3.0, metrics={"pretrain/accuracy": 0.3})


@pytest.mark.parametrize(
    "write", [nothing, one_point, not_finite, sparse, pretraining], ids=lambda write: write.__name__
)
def test_few_and_odd_events_are_drawn(tmp_path, write):
    picture = drawn(tmp_path / "run", write)
    assert picture.shape == (975, 1560, 4)
    assert np.ptp(picture[..., 0]) > 0.5


def test_repeated_updates_count_once(tmp_path):
    def resumed(log):
        log.write("run_start", run="same")
        steps(log, range(10, 80, 10))
        steps(log, range(80, 200, 10), learning_rate=5.0)
        validations(log, [100])
        log.write("resumed", update=75)
        steps(log, range(80, 300, 10))
        validations(log, [100, 200])

    def clean(log):
        log.write("run_start", run="same")
        steps(log, range(10, 300, 10))
        validations(log, [100, 200])

    pictures = [drawn(tmp_path / write.__name__, write) for write in (resumed, clean)]
    np.testing.assert_array_equal(*pictures)


def test_smoothing_is_a_mean_over_a_window_that_shrinks_at_the_ends():
    values = np.random.default_rng(0).normal(size=40)
    means = smooth(values, num_points=17)
    for i, (low, high) in {
        0: (0, 2),
        1: (0, 3),
        2: (0, 4),
        5: (0, 10),
        20: (12, 28),
        37: (35, 39),
        39: (37, 39),
    }.items():
        assert means[i] == pytest.approx(values[low : high + 1].mean())
    line = np.linspace(1.0, 3.0, 20)
    np.testing.assert_allclose(smooth(line, num_points=5), line, rtol=1e-12)
    assert len(smooth(np.zeros(0), num_points=5)) == 0


def test_a_missing_file_is_named(tmp_path, capsys):
    with pytest.raises(UserError, match=r"nowhere/events\.jsonl: cannot read events"):
        draw_curves(tmp_path / "nowhere" / "events.jsonl", tmp_path / "x.png")
    with pytest.raises(SystemExit) as exit_of:
        main([str(tmp_path)])
    assert exit_of.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path):
    with EventLog(tmp_path / "events.jsonl") as log:
        one_point(log)
    command = [sys.executable, "-W", "error", "-m", "asr_jax.observe.curves", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"MPLBACKEND": "tkagg"})
    assert done.stdout == f"{tmp_path / 'curves.png'}\n"
    assert done.stderr == ""
    assert (tmp_path / "curves.png").stat().st_size > 10_000
