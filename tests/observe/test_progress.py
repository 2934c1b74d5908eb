"""Console output: plain lines in a log, a bar on a terminal, aligned transcripts, tables."""

import io
import re
import time

import pytest
from rich.console import Console

from asr_jax.observe.events import EventLog
from asr_jax.observe.progress import ProgressView, clock
from asr_jax.observe.tables import console_for, print_table, quantity


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Latin(io.TextIOWrapper):
    """A stream that cannot encode every character."""

    def __init__(self):
        super().__init__(io.BytesIO(), encoding="ascii")

    def getvalue(self):
        self.flush()
        return self.buffer.getvalue().decode()


VALIDATION = {
    "update": 30, "weights": "ema", "wer": 0.0812, "cer": 0.031, "substitutions": 31, "deletions": 9,
    "insertions": 4, "words": 1542, "utterances": 120,
    "samples": [
        {"id": "a", "reference": "turn on the light", "hypothesis": "turn off the big light"},
        {"id": "b", "reference": "[bold]x", "hypothesis": "\x1b[31mred\r"},
    ],
}  # fmt: skip


def step(update, **changes):
    data = {
        "update": update, "epoch": 2, "losses": {"total": 0.41234}, "learning_rate": 9.8e-4,
        "throughput": {"audio_s_per_s": 3123.456, "padding_share": 0.0412},
    }  # fmt: skip
    return {"event": "train_step", "timestamp_ms": 0, "data": data | {"elapsed_s": update * 2.0} | changes}


def event(name, **data):
    return {"event": name, "timestamp_ms": 0, "data": {"elapsed_s": 0.0} | data}


def shown(*events, stream=None, **options):
    stream = stream or io.StringIO()
    view = ProgressView(console_for(stream), **options)
    for one in events:
        view(one)
    view.close()
    return stream.getvalue()


START = event("run_start", run="quickstart", num_updates=100, num_epochs=5, num_parameters=2_345_678, num_devices=1)


def test_plain_lines_every_n_updates():
    lines = shown(START, *(step(update) for update in range(10, 101, 10)), plain_every=40).splitlines()
    for part in ("quickstart", "2.35 M", "devices 1", "updates 100", "epochs 5"):
        assert part in lines[0]
    assert [re.search(r"update (\d+)/100", line)[1] for line in lines[1:]] == ["10", "50", "90", "100"]
    fields = [re.search(r"\d.*", field)[0].strip() for field in lines[2].split("|")]
    assert fields == ["2/5", "50/100", "0.4123", "9.80e-04", "3,123.5 audio-s/s", "4.1 %", "0:01:40"]
    assert "remaining" not in lines[1]


def test_compilation_prints_its_time_its_memory_and_the_limit():
    stream = io.StringIO()
    view = ProgressView(console_for(stream), tick_s=0.01)
    view(event("compile_start", shapes=2))
    for _ in range(500):
        if "compiling for 0:00:00" in stream.getvalue():
            break
        time.sleep(0.01)
    view(event("compiled", number=1, shapes=2))
    rows, memory = (
        [{"seconds": 1.6, "memory_bytes": 10**9}],
        {"maximum_bytes": 1_200_000_000, "limit_bytes": 80 * 10**9},
    )
    view(event("compile", rows=rows, memory=memory))
    view(event("compile", rows=rows, memory=memory | {"limit_bytes": None}))
    view.close()
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("compiling 2 batch shapes (--data.batching.num-buckets 1 compiles a single one")
    assert "compiling for 0:00:00" in lines
    assert "compiled 1 of 2 in 0:00:00" in lines
    assert any("memory bytes" in line for line in lines)
    needed = "maximum memory, with the averaged parameters: 1.2 GB; "
    assert f"{needed}limit of the device: 80 GB" in lines
    assert f"{needed}the device reports no limit" in lines


def test_the_last_epoch_is_a_whole_number():
    start = START | {"data": START["data"] | {"num_epochs": 5.86}}
    assert shown(start, step(90, epoch=6)).splitlines()[1].startswith("epoch 6/6 |")


def test_the_first_line_has_the_devices_and_what_changed():
    changed = [
        {"setting": "devices", "old": "1 × cpu", "new": "2 × cpu"},
        {"setting": "training.precision", "old": "f32", "new": "bf16"},
    ]
    start = START["data"] | {"on": "2 CPU devices (4 cores)", "changed": changed}
    first = shown(event("run_start", **start)).splitlines()
    assert " ".join(first).endswith(
        "updates 100, epochs 5, on 2 CPU devices (4 cores); changed: devices: 1 × cpu before, 2 × cpu now; "
        "training.precision: f32 before, bf16 now"
    )


def test_the_end_counts_the_updates_that_were_seen_if_the_event_has_none():
    assert re.search(r"\b90 updates.*0:00:00", shown(START, step(90), event("run_complete")).splitlines()[-1])


def test_the_last_word_error_rate_stays_on_the_line():
    text = shown(START, step(20), event("validation", **VALIDATION), step(40), plain_every=1)
    assert text.splitlines()[-1].endswith("remaining 0:02:00 | WER 8.12 % at 30")


def test_time_left_counts_from_the_resume():
    events = [START, step(10), event("resumed", update=50, path="checkpoints/50"), step(60), step(70, elapsed_s=130.0)]
    lines = shown(*events, plain_every=1).splitlines()
    assert re.search(r"resumed.*\b50\b.*checkpoints/50", lines[2])
    assert "remaining" not in lines[3]
    assert "remaining 0:00:30" in lines[4]


def test_a_validation_by_its_loss_stays_on_the_line_with_the_accuracy():
    losses, metrics = {"pretrain/loss": 2.5, "pretrain/diversity": 0.0625}, {"pretrain/accuracy": 0.25}
    found = {"update": 30, "weights": "ema", "loss": 2.5625, "losses": losses, "metrics": metrics, "utterances": 7}
    text = shown(START, step(20), event("validation", **found), step(40, metrics=metrics), plain_every=1)
    assert re.search(r"ema.*\b30\b.*loss 2\.562.*loss 2\.5\b.*diversity 0\.0625.*accuracy 0\.25\b.*\b7\b", text)
    last = text.splitlines()[-1]
    assert "| accuracy 25.00 % |" in last
    assert last.endswith("| loss 2.562 at 30")
    both = shown(event("validation", **VALIDATION | found | {"samples": []}))
    assert re.search(r"1,542 words.*\b7 utterances.*loss 2\.562", both)


def test_several_sets_are_a_table():
    sets = {name: {key: VALIDATION[key] for key in ("wer", "cer", "words")} for name in ("dev-clean", "dev-other")}
    several = VALIDATION | {"sets": sets, "mean": {"wer": 0.1, "cer": 0.05}, "best_of": "mean", "normaliser": "none"}
    text = shown(START, step(20), event("validation", **several), step(40), plain_every=1)
    title, head, _, *rows = text.splitlines()[2:9]
    assert title == "validation (ema) at update 30  (training.saving.best_of mean, by WER)  (normaliser none)"
    assert head.split() == ["set", "wer", "cer", "S", "D", "I", "words", "utterances"]
    assert [re.split(r"\s{2,}", row.strip()) for row in rows] == [
        ["dev-clean", "8.12 %", "3.10 %", "-", "-", "-", "1,542", "-"],
        ["dev-other", "8.12 %", "3.10 %", "-", "-", "-", "1,542", "-"],
        ["mean", "10.00 %", "5.00 %", "-", "-", "-", "-", "-"],
        ["all", "8.12 %", "3.10 %", "31", "9", "4", "1,542", "120"],
    ]
    assert "  ref  turn on  the *** light" in text
    assert text.splitlines()[-1].endswith("| WER 10.00 % (mean) at 30")


def test_several_sets_without_error_rates_are_a_table_of_losses_and_metrics():
    of_set = {"loss": 2.5, "metrics": {"pretrain/accuracy": 0.25}, "utterances": 7}
    several = {"update": 30, **of_set, "sets": {"a": of_set, "b": {}}, "mean": {"loss": 2.5}, "best_of": "a"}
    _, head, _, *rows = shown(event("validation", **several)).splitlines()
    assert head.split() == ["set", "loss", "accuracy", "utterances"]
    assert [re.split(r"\s{2,}", row.strip()) for row in rows] == [
        ["a", "2.5", "25.00 %", "7"], ["b", "-", "-", "-"], ["mean", "2.5", "-", "-"], ["all", "2.5", "25.00 %", "7"],
    ]  # fmt: skip


def test_a_validation_with_its_counts_and_transcripts():
    lines = shown(event("validation", **VALIDATION)).splitlines()
    counts = r"WER 8\.12 %.*CER 3\.10 %.*S 31.*D 9.*I 4.*1,542 words.*120 utterances"
    assert re.search(rf"validation.*ema.*\b30\b.*{counts}", lines[0])
    assert lines[1:4] == [
        "  ref  turn on  the *** light",
        "  hyp  turn off the big light",
        "            S       I",
    ]
    assert lines[4:6] == ["  ref  [bold]x", "  hyp  ?[31mred"]
    assert len(shown(event("validation", **VALIDATION), num_samples=0).splitlines()) == 1


@pytest.mark.parametrize("stream", [io.StringIO, Latin])
def test_a_log_has_no_control_characters(stream):
    events = [
        START,
        event("compile", rows=[{"bucket": "é\t5 s", "memory_bytes": 1_530_000_000}]),
        event("rejected", count=3, reasons={"too\x1b long": 2, "no file": 1}),
        step(10, losses={"total": None}),
        event("validation_start"),
        event("validation", **VALIDATION | {"wer": None, "samples": [{"reference": "試験 a", "hypothesis": "試 a"}]}),
        event("checkpoint_saved", update=30, path="checkpoints/30"),
        event("warning", message="loss is not finite\n"),
        event("checkpoint_saved", update=31, path="31"),
        event("run_complete", update=100, elapsed_s=3725.4, reason="all epochs done"),
    ]
    text = shown(*events, stream=stream())
    assert all(char.isprintable() or char == "\n" for char in text)
    for part in ("loss nan", "WER nan", r"1\.53 GB", r"rejected 3\b.*2 too\? long.*1 no file",
                 r"checkpoint.*\b30\b.*checkpoints/30", "warning.*loss is not finite",
                 "all epochs done.*100 updates.*1:02:05"):  # fmt: skip
        assert re.search(part, text)


def test_a_terminal_gets_a_bar_with_the_same_numbers(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    text = shown(START, step(10), step(50), event("validation", **VALIDATION), stream=Terminal())
    assert "\x1b[?25l" in text and text.rstrip().endswith("\x1b[?25h")  # noqa: PT018  the cursor is hidden and given back
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert "━" in plain
    assert "50/100" in plain
    assert re.search(r"0\.4123 .*9\.80e-04 .*3,123\.5 audio-s/s .*4\.1 % .*0:01:40", plain)
    assert "hyp  turn off the big light" in plain
    assert "\x1b[31mred" not in text


def test_a_terminal_that_cannot_move_the_cursor_gets_lines(monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    assert "\x1b" not in shown(START, step(10), stream=Terminal())


def test_a_bar_is_taken_down_when_the_run_fails(tmp_path, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()

    def run():
        with EventLog(tmp_path / "e.jsonl", sinks=[ProgressView(console_for(stream))]) as log:
            log.write("run_start", run="a")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert stream.getvalue().rstrip().endswith("\x1b[?25h")


def test_other_processes_are_quiet(tmp_path, capsys):
    with EventLog(tmp_path / "e.jsonl", enabled=False, sinks=[ProgressView()]) as log:
        log.write(START["event"], **START["data"])
        log.write("train_step", **step(10)["data"])
    assert capsys.readouterr() == ("", "")


def test_a_table_of_rows_with_different_keys():
    stream = io.StringIO()
    rows = [
        {"bucket": "1.6 s", "batch_size": 1024, "flops": 1.2345e10, "padding_share": 0.051, "compile_s": 4.2049},
        {"bucket": "long [x]", "batch_size": 8, "wer": float("nan"), "big": 123456.7},
    ]
    print_table(rows, title="Buckets", console=console_for(stream))
    title, head, _, first, second = stream.getvalue().splitlines()
    assert title == "Buckets"
    assert re.split(r"\s{2,}", head.strip()) == [
        "bucket", "batch size", "flops", "padding share", "compile s", "wer", "big",
    ]  # fmt: skip
    assert re.split(r"\s{2,}", first.strip()) == ["1.6 s", "1,024", "12.3 GFLOP", "5.10 %", "4.205", "-", "-"]
    assert re.split(r"\s{2,}", second.strip()) == ["long [x]", "8", "-", "-", "-", "-", "123,457"]


@pytest.mark.parametrize("width", [30, 60, 80])
def test_a_narrow_terminal_folds_texts_but_no_numbers(width):
    stream = io.StringIO()
    row = {"set": "/data/librispeech/train-clean-100.jsonl", "utterances": 28539, "epoch hours": 100.59, "share": 0.25}
    print_table([row, row | {"set": "b"}], console=Console(file=stream, width=width, force_terminal=False))
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for number in ("28,539", "100.6", "25.00"):
        assert sum(number in line for line in lines) == 2
    if width == 30:  # pairs of names and values
        assert "utterances 28,539" in " ".join(lines)
    else:
        assert len([line for line in lines if "utterances" in line]) == 1  # a header


def test_a_table_in_a_file_is_not_folded():
    stream = io.StringIO()
    print_table([{"set": "/long" * 100, "utterances": 1}], console=console_for(stream))
    assert "/long" * 100 in stream.getvalue().splitlines()[2]


def test_an_empty_table_is_its_title():
    stream = io.StringIO()
    print_table([], title="Buckets", console=console_for(stream))
    assert stream.getvalue().strip() == "Buckets"


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (999.9, "1 kB"), (1.53e9, "1.53 GB"), (2e15, "2 PB")]
)
def test_quantities(value, text):
    assert quantity(value, "B") == text


def test_clock():
    assert [clock(seconds) for seconds in (0, 59.6, 3725, 360_000)] == ["0:00:00", "0:01:00", "1:02:05", "100:00:00"]
