import re

import pytest

from asr_jax.cli.command_line import (
    ALIASES,
    MOST_USED,
    flags_of_experiment,
    load_config,
    parse_experiment,
    parse_with_experiment,
)
from asr_jax.cli.train import TrainOptions
from asr_jax.core.flags import flags_of
from asr_jax.core.help import show_help

CONFIG = "configs/read_speech.py"
QUARTZNET = flags_of_experiment(load_config("configs/quartznet_librispeech.py"))


def text(capsys, flag):
    with pytest.raises(SystemExit):
        show_help([flag], flags_of(TrainOptions), QUARTZNET, prog="it", about="", most_used=MOST_USED.split(), of="it")
    return capsys.readouterr().out


def flags_in(lines):
    return [name for line in lines if re.match("  -", line) for name in re.findall(r"(?:^  |, )(--[^\s,]+)", line)]


def test_the_short_help_has_the_options_and_the_most_used_settings(capsys):
    lines = text(capsys, "--help").splitlines()
    options = ["--show", "--plot", "--smoke", "--tui", "--device", "--devices"]
    assert flags_in(lines)[:8] == [*options, "--data.train", "--data"]
    assert {*flags_in(lines)} <= {*options, *MOST_USED.split(), *ALIASES}
    assert len(lines) < 120
    assert max(map(len, lines)) <= 120
    assert "  --optim.schedule.peak-lr FLOAT  [0.01] Highest learning rate." in lines
    assert "  --data, --data.train TEXT …" not in lines
    assert "optim.schedule (" in " ".join(lines)


def test_the_whole_help_has_all_settings_and_repeated_blocks_once(capsys):
    lines = text(capsys, "--help-all").splitlines()
    shown = {*flags_in(lines)}
    blocks = {flag.name for flag in QUARTZNET if flag.name.startswith("--model.encoder.blocks.")}
    assert {flag.name for flag in QUARTZNET} - blocks <= shown
    assert 0 < len(blocks & shown) < len(blocks) / 4
    assert any(line.startswith("model.encoder.blocks.0 to model.encoder.blocks.") for line in lines)


def test_every_field_of_every_config_has_a_text():
    for name in ("zipformer", "quartznet_librispeech", "wav2vec2_pretrain", "w2v_bert_finetune", "digits"):
        for flag in flags_of_experiment(load_config(f"configs/{name}.py")):
            assert flag.text, flag.name


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("WARMUP", "--optim.schedule.warmup-updates"),
        ("learning-rate", "--optim.schedule.peak-lr"),
        ("num_workers", "--data.workers"),  # a word of another system
        ("highest learning rate", "--optim.schedule.peak-lr"),
        ("batch size", "--data.batching.budget"),  # words of another system
        ("trainer.max_epochs", "--training.num-epochs"),
        ("memory", "--model.encoder.remat"),
        ("memory", "--data.batching.budget"),
        ("memory", "--data.filters.max-duration-s"),
        ("seconds bucket", "--data.batching.edges-s"),  # all words, in any order
    ],
)
def test_help_on_a_word(word, found, capsys):
    with pytest.raises(SystemExit):
        parse_experiment(["--config", CONFIG, "--help", word], prog="python -m asr_jax.train")
    lines = capsys.readouterr().out.splitlines()
    assert found in flags_in(lines)
    assert len(flags_in(lines)) < 30


def test_help_on_a_word_has_the_whole_text(capsys):
    with pytest.raises(SystemExit):
        parse_experiment(["--config", CONFIG, "--help", "tokenizer.normaliser"], prog="")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "  --data.tokenizer.normaliser TEXT"
    assert " ".join(map(str.strip, lines[1:])).startswith("[lower.v1] Normaliser of all texts")
    assert " ".join(map(str.strip, lines)).endswith("Invisible characters are always removed.")
    assert max(map(len, lines)) <= 120


def test_help_without_a_config_has_the_fields_of_an_example(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the example is found from any folder
    for arguments, found in ((["--help"], "Most used settings of --config"), (["--help", "lr"], "FLOAT  [0.0")):
        with pytest.raises(SystemExit):
            parse_with_experiment(TrainOptions, arguments, prog="asr_jax.train", about="It trains.")
        output = capsys.readouterr().out
        assert output.count("usage: asr_jax.train --config FILE [FLAGS]") == (len(arguments) == 1)
        assert found in output


def test_help_on_words_with_advice_or_within_others(capsys):
    def help_lines(config, *words):
        with pytest.raises(SystemExit):
            parse_experiment(["--config", config, "--help", *words], prog="")
        return capsys.readouterr().out.splitlines()

    assert help_lines(CONFIG, "gpus")[0].startswith("  --devices TEXT ")
    assert help_lines(CONFIG, "inf-check") == ["inf-check: every batch shape is compiled before the first update"]
    assert not any("low-hz" in line for line in help_lines(CONFIG, "wer"))  # "lower" contains the word
    assert help_lines(CONFIG, "peak", "lr")[0].startswith("  --optim.schedule.peak-lr ")
    assert "of other commands or configs" in help_lines(CONFIG, "spec_augment")[0]


def test_help_on_an_unknown_word(capsys):
    with pytest.raises(SystemExit):
        parse_experiment(["--config", CONFIG, "--help", "acumulate"], prog="")
    assert "no flag has 'acumulate' in its name or text; did you mean 'accumulate'?" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parse_experiment(["--config", CONFIG, "--help", "umlaut"], prog="")
    assert "did you mean" not in capsys.readouterr().out
