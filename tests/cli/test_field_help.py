import re

import pytest

from asr_jax.cli.command_line import field_flags, load_config, parse_experiment, parse_with_experiment
from asr_jax.cli.field_help import MOST_USED, described, help_text
from asr_jax.cli.train import TrainOptions

CONFIG = "configs/read_speech.py"
QUARTZNET = load_config("configs/quartznet_librispeech.py")


def text(*, shows_all, width=None):
    return help_text(QUARTZNET, of="it", shows_all=shows_all, width=width)


def test_a_line_each_in_groups_the_most_used_first():
    lines = text(shows_all=False).splitlines()
    first = [line.split()[0] for line in lines[3 : 3 + len(MOST_USED)]]
    assert first == [f"--{name.replace('_', '-')}" for name in MOST_USED]
    assert len(lines) < 160
    assert not any(line.endswith("…") for line in lines)
    assert max(map(len, lines)) > 130
    assert max(map(len, text(shows_all=False, width=130).splitlines())) == 130
    assert max(map(len, text(shows_all=False, width=80).splitlines())) == 120
    assert "[0.01] Highest learning rate" in text(shows_all=False)


def test_rarely_used_fields_are_counted_and_listed_on_demand():
    fields = {field.name for field in described(QUARTZNET)}
    short, whole = text(shows_all=False), text(shows_all=True)
    assert "--data.filters.min-chars " not in short
    assert "more with --help-all" in short
    assert all(f"--{name.replace('_', '-')} " in whole for name in fields)


def test_short_forms_and_groups():
    shown = help_text(
        QUARTZNET, of="it", shows_all=False, short={"--updates": "--training.num-updates"}, groups=("Data",)
    )
    assert "\n  --updates, --training.num-updates int " in shown
    assert "\n  --data.workers " in shown
    assert re.search(r"\nTraining and validation: \d+ fields with --help-all\n", shown)


def test_repeated_blocks_are_listed_once():
    flags = {flag for flag in field_flags(QUARTZNET) if flag.startswith("--model.encoder.blocks.")}
    shown = [line for line in text(shows_all=True).splitlines() if "model.encoder.blocks." in line]
    assert len(shown) < len(flags) / 4
    assert "--model.encoder.blocks.{0…" in shown[0]


def test_every_field_of_every_config_has_a_text():
    for name in ("zipformer", "quartznet_librispeech", "wav2vec2_pretrain", "w2v_bert_finetune", "digits"):
        for field in described(load_config(f"configs/{name}.py")):
            assert field.text, field.name


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
    assert lines[0] == f"Settings with {word!r}:"
    assert any(line.startswith(f"  {found} ") for line in lines)
    assert len([line for line in lines if line.startswith("  --")]) < 20


def test_help_on_a_word_has_the_whole_text(capsys):
    with pytest.raises(SystemExit):
        parse_experiment(["--config", CONFIG, "--help", "tokenizer.normaliser"], prog="")
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "  --data.tokenizer.normaliser str [lower.v1]"
    assert " ".join(map(str.strip, lines[2:])).endswith("whisper_english.v1 (Whisper's normalisers for scoring).")
    assert max(map(len, lines)) <= 120


def test_help_without_a_config_has_the_fields_of_an_example(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the example is found from any folder
    for arguments, found in ((["--help"], "Most used:"), (["--help", "lr"], "  --optim.schedule.peak-lr float [")):
        with pytest.raises(SystemExit):
            parse_with_experiment(TrainOptions, arguments, prog="asr_jax.train", about="It trains.")
        output = capsys.readouterr().out
        assert output.count("usage: asr_jax.train --config FILE [--field.name VALUE …]") == (len(arguments) == 1)
        assert found in output


def test_help_on_words_with_advice_or_within_others(capsys):
    def help_lines(config, *words):
        with pytest.raises(SystemExit):
            parse_experiment(["--config", config, "--help", *words], prog="")
        return capsys.readouterr().out.splitlines()

    assert help_lines(CONFIG, "gpus") == [
        "gpus: --devices 0,2 selects devices by their numbers; by default, all devices are used"
    ]
    assert not any("low-hz" in line for line in help_lines(CONFIG, "wer"))  # "lower" contains the word
    assert help_lines(CONFIG, "peak", "lr")[1].startswith("  --optim.schedule.peak-lr ")
    assert "in other configs" in help_lines(CONFIG, "spec_augment")[0]


def test_help_on_an_unknown_word(capsys):
    with pytest.raises(SystemExit):
        parse_experiment(["--config", CONFIG, "--help", "acumulate"], prog="")
    assert "no setting has 'acumulate' in its name or text; did you mean 'accumulate'?" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        parse_experiment(["--config", CONFIG, "--help", "umlaut"], prog="")
    assert "did you mean" not in capsys.readouterr().out
