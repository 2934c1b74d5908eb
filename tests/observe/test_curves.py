"""Curves of a run, drawn with any events."""

import math
import os
import subprocess
import sys

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from asr_jax.core.errors import UserError
from asr_jax.core.options import run_report
from asr_jax.observe.curves import compared_curves, draw_curves, main, smooth
from asr_jax.observe.events import EventLog
from tests.support import approx, assert_close


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


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """A function that draws the events of `write` and returns the points of all lines by panel and label."""
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))

    def draw(write):
        with EventLog(tmp_path / f"{write.__name__}.jsonl") as log:
            write(log)
        draw_curves(tmp_path / f"{write.__name__}.jsonl", tmp_path / "curves.png")
        found = {}
        for axes in figures[-1].axes:  # the axes of the padding have no title
            panel = found.setdefault(axes.get_title("left") or "padding", {})
            panel |= {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
            panel |= {text.get_text(): [] for text in axes.texts}
        return found

    return draw


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


LOSS, ERRORS, RATE, SPEED = "Loss", "Validation errors (%)", "Learning rate", "Throughput (audio-s/s) and padding (%)"
NO_STEPS, NO_VALIDATIONS = {"no train_step events yet": []}, {"no validation events yet": []}


def test_panels_without_events_say_so(drawn):
    assert drawn(nothing) == {LOSS: NO_STEPS, "Validation": NO_VALIDATIONS, RATE: NO_STEPS, SPEED: NO_STEPS}
    found = drawn(not_finite)
    assert found.pop(RATE) == {"learning rate": [[update, 1e-3] for update in (10, 20, 30, 40)]}
    assert found == {LOSS: NO_STEPS, ERRORS: NO_VALIDATIONS | {"WER": [], "CER": []}, SPEED: NO_STEPS}


def test_what_single_events_have_is_drawn(drawn):
    found, loss = drawn(one_point), [[10, approx(50 * math.exp(-0.5))]]
    assert found[LOSS] == {"events": loss, "mean of 5 events": loss}
    names = ("validation", "validation (ema)")
    rates = {f"{kind} {name}": [[10, share]] for name in names for kind, share in (("WER", 12), ("CER", 5))}
    assert found[ERRORS] == rates
    assert found[SPEED] == {"audio-s/s": [[10, 303]]}
    assert found["padding"] == {"padding": [[10, 5]]}
    found = drawn(sparse)
    assert found[LOSS]["events"] == [[0, 50]]
    assert found[ERRORS] == {"WER": [[20, 0]], "CER": []}
    assert found[RATE] == {"learning rate": [[0, 1e-3], [10, 0]]}


def several(log):
    steps(log, [10])
    log.write("validation", update=10, weights="ema", wer=0.5, cer=0.2, loss=3.0)  # of a single set
    for update, weights in ((20, "live"), (20, "ema")):
        sets = {"dev": {"wer": 0.1, "cer": 0.05, "loss": 2.0}, "other": {"wer": 0.3, "cer": None, "loss": 4.0}}
        figures = {"wer": 0.15, "cer": 0.1, "loss": 2.5, "sets": sets, "mean": {"wer": 0.2, "cer": None, "loss": 3.0}}
        log.write("validation", update=update, weights=weights, best_of=several.best_of, **figures)


@pytest.mark.parametrize("best_of", ["all", "mean"])
def test_each_of_several_sets_has_its_lines(drawn, monkeypatch, best_of):
    monkeypatch.setattr(several, "best_of", best_of, raising=False)
    found = drawn(several)
    expected = {
        "WER dev": [[20, 10]], "CER dev": [[20, 5]], "WER other": [[20, 30]], "CER other": [],
        "WER all": [[10, 50], [20, 15]], "CER all": [[10, 20], [20, 10]],
    } | ({"WER mean": [[20, 20]], "CER mean": []} if best_of == "mean" else {})  # fmt: skip
    assert found[ERRORS] == {label: [approx(point) for point in points] for label, points in expected.items()}
    losses = {label: points for label, points in found[LOSS].items() if label.startswith("validation")}
    assert losses == {
        "validation dev": [[20, 2]], "validation other": [[20, 4]], "validation all": [[10, 3], [20, 2.5]],
    } | ({"validation mean": [[20, 3]]} if best_of == "mean" else {})  # fmt: skip


def test_pretraining_has_its_accuracy_where_recognition_has_error_rates(drawn):
    found = drawn(pretraining)
    assert found[LOSS]["validation"] == [[40, 3]]
    accuracies = {"training": [[update, 20] for update in (10, 20, 30, 40)], "validation": [[40, 30]]}
    assert found["Contrastive accuracy (%)"] == accuracies
    assert ERRORS not in found


def test_repeated_updates_count_once(drawn):
    def resumed(log):
        steps(log, range(10, 80, 10))
        steps(log, range(80, 200, 10), learning_rate=5.0)
        validations(log, [100])
        log.write("resumed", update=75)
        steps(log, range(80, 300, 10))
        validations(log, [100, 200])

    def clean(log):
        steps(log, range(10, 300, 10))
        validations(log, [100, 200])

    assert drawn(resumed) == drawn(clean)


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
        assert means[i] == approx(values[low : high + 1].mean())
    line = np.linspace(1.0, 3.0, 20)
    assert_close(smooth(line, num_points=5), line, rtol=1e-12)
    assert len(smooth(np.zeros(0), num_points=5)) == 0


def test_a_missing_file_is_named(tmp_path, capsys, monkeypatch):
    with pytest.raises(UserError, match=r"nowhere/events\.jsonl"):
        draw_curves(tmp_path / "nowhere" / "events.jsonl", tmp_path / "x.png")
    monkeypatch.setattr(sys, "argv", ["curves", str(tmp_path)])
    with pytest.raises(SystemExit) as exit_of:
        run_report(main)
    assert exit_of.value.code == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("write", [nothing, one_point])
def test_the_command_writes_a_picture(tmp_path, capsys, write):
    """Names with formula signs or without glyphs cause no warning."""
    with EventLog(tmp_path / "events.jsonl") as log:
        write(log)
    main([str(tmp_path)])
    assert capsys.readouterr() == (f"{tmp_path / 'curves.png'}\n", "")
    assert matplotlib.image.imread(tmp_path / "curves.png").shape == (975, 1560, 4)


@pytest.mark.slow
def test_the_command_needs_no_display(tmp_path):
    with EventLog(tmp_path / "events.jsonl") as log:
        one_point(log)
    command = [sys.executable, "-W", "error", "-m", "asr_jax.observe.curves", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"MPLBACKEND": "tkagg"})
    assert done.stderr == ""
    assert (tmp_path / "curves.png").exists()


def test_runs_are_compared_in_the_same_axes(tmp_path):
    runs = {}
    for name, factor in (("first", 1.0), ("second", 2.0)):
        runs[name] = tmp_path / f"{name}.jsonl"
        with EventLog(runs[name]) as log:
            steps(log, range(10, 50, 10), learning_rate=factor)
            log.write("validation", update=40, weights="live", wer=0.9)
            log.write("validation", update=40, weights="ema", wer=0.1 * factor, loss=factor)
    axes = {each.get_title("left"): each for each in compared_curves(runs).axes}
    assert list(axes) == [
        "Training loss", "Validation WER (%)", "Validation loss", "Learning rate", "Throughput (audio-s/s)",
        "Padding (%)",
    ]  # fmt: skip
    for panel in axes.values():
        assert [line.get_label() for line in panel.lines] == ["first", "second"]
    assert {panel.get_xlim() for panel in axes.values()} == {(0, 1.02 * 40)}
    assert [line.get_ydata().item() for line in axes["Validation WER (%)"].lines] == approx([10.0, 20.0])
    assert [line.get_ydata().tolist() for line in axes["Learning rate"].lines] == [[1.0] * 4, [2.0] * 4]


def test_runs_without_events_are_compared(tmp_path):
    for name in ("a", "b"):
        EventLog(tmp_path / f"{name}.jsonl").close()
    [panel] = compared_curves({name: tmp_path / f"{name}.jsonl" for name in ("a", "b")}).axes
    assert panel.texts[0].get_text() == "no train_step events yet"
