"""Words of other systems lead to the settings of this one."""

from pathlib import Path

import pytest

from asr_jax.cli.align import AlignOptions
from asr_jax.cli.command_line import flags_of_experiment, load_config, parse_experiment
from asr_jax.cli.evaluate import EvaluateOptions
from asr_jax.cli.recognition_options import parse_recognition
from asr_jax.cli.transcribe import TranscribeOptions
from asr_jax.core.errors import UserError
from asr_jax.core.flags import flags_of, known
from asr_jax.core.foreign_words import matching, meant_by, rows
from asr_jax.core.options import parse

CONFIGS = Path(__file__).parents[2] / "configs"
CONFIG = str(CONFIGS / "read_speech.py")


def fields_of(path):
    return {flag.name for flag in flags_of_experiment(load_config(str(path)))}


FIELDS = {path.stem: fields_of(path) for path in CONFIGS.glob("*.py")}
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("MODEL", "paraformer")
    FIELDS["paraformer"] = fields_of(CONFIGS / "digits.py")
WORDS = {word for row in rows() if row.flag for word in row.words}
ADVICE = [word for row in rows() if not row.flag for word in row.words]


def error_of(*arguments, config="read_speech"):
    with pytest.raises(UserError) as error:
        parse_experiment(["--config", str(CONFIGS / f"{config}.py"), *arguments], prog="")
    return str(error.value)


def test_every_suggested_flag_exists():
    everywhere = {field for fields in FIELDS.values() for field in fields} | {"--config"}
    options = [flag for kind in (EvaluateOptions, TranscribeOptions, AlignOptions) for flag in flags_of(kind)]
    assert [row.flag for row in rows() if row.flag and not matching(row.flag, everywhere | known(options))] == []
    assert {f"--{word}" for word in {*WORDS, *ADVICE}} & everywhere == {"--config", "--run-dir"}  # of other commands
    assert len(ADVICE) == len({*ADVICE})
    assert len({*WORDS, *ADVICE}) > 700


@pytest.mark.parametrize("config", FIELDS)
def test_no_config_suggests_a_setting_that_it_does_not_have(config):
    """The words that users of most systems begin with have a suggestion in every config."""
    fields = FIELDS[config]
    for word in WORDS:
        text = meant_by(f"--{word}", fields)
        named = text.partition("did you mean ")[2].partition(" (")[0].rstrip("?").split(" or ")
        assert (
            "of other commands or configs" in text
            or text.startswith(": ")
            or {*named} <= {*fields, "--device", "--devices"}
        ), (word, text)
    for word in (
        "lr", "learning-rate", "batch-size", "epochs", "max-epochs", "max-steps", "num-workers", "warmup-steps",
        "weight-decay", "accumulate-grad-batches", "max-grad-norm", "precision", "train-manifest", "output-dir",
        "init-from-nemo-model", "seed", "vocab-size", "max-duration", "save-total-limit", "logging-steps",
    ):  # fmt: skip
        known = word in ("epochs", "seed") or "did you mean" in meant_by(f"--{word}", fields)
        assert known, word


MESSAGES = [
    ("--lr", "--lr is not a flag; did you mean --optim.schedule.peak-lr?"),
    ("--batch_size", "did you mean --data.batching.budget (seconds of audio of a batch, over all devices)?"),
    ("--num-workers", "did you mean --data.workers (0: threads of the training process read the audio)?"),
    ("--ctc-label-smoothing", "--ctc-label-smoothing is not a flag: there is none; the CTC loss has no label smooth"),
    ("--gpus", "--gpus is not a flag; did you mean --devices (numbers of devices, such as 0,2; by default, all are"),
    ("--trainer.max_epochs", "did you mean --training.num-epochs?"),
    ("--lr=1e-4", "--lr is not a flag; did you mean --optim.schedule.peak-lr?"),
    ("--Learning_Rate", "did you mean --optim.schedule.peak-lr?"),
    ("model.optim.lr=1e-4", "model.optim.lr=1e-4 is not a flag; did you mean --optim.schedule.peak-lr?"),
    ("+trainer.precision=16", "+trainer.precision=16 is not a flag; did you mean --training.precision (f32, "),
    ("++exp_manager.exp_dir=x", "++exp_manager.exp_dir=x is not a flag; did you mean --run-dir"),
    ("optimization.lr=[0.1]", "did you mean --optim.schedule.peak-lr?"),
    ("-b", "-b is not a flag; did you mean --data.batching.budget"),
    ("optim.clip_at=3", "optim.clip_at=3 is not a flag; did you mean --optim.clip-at=3?"),
    ("epochs=3", "epochs=3 is not a flag; did you mean --training.num-epochs=3?"),
    ("--peak-lr", "--peak-lr is not a flag; did you mean --optim.schedule.peak-lr?"),
    ("--config-name", "--config-name is not a flag; did you mean --config (a Python file of settings"),
    (
        "--spec-augment",
        "it is --model.augment.*.num-freq-masks of other commands or configs",
    ),
]


def test_the_messages():
    """All are reported by one command."""
    lines = error_of(*(part for flag, _ in MESSAGES for part in (flag, *["1"] * ("=" not in flag)))).splitlines()
    assert len(lines) == len(MESSAGES) + 1
    for flag, message in MESSAGES:
        assert any(message in line for line in lines), flag


def test_suggestions_depend_on_the_config():
    assert "did you mean --optim.schedule.warmup-updates" in error_of("--warmup-steps", "3")
    assert "did you mean --optim.schedule.warmup-epochs?" in error_of("--warmup-steps", "3", config="zipformer_rust")
    assert "did you mean --optim.schedule.warmup-share?" in error_of("--warmup-steps", "3", config="wav2vec2_finetune")
    assert "did you mean --model.augment.1.num-freq-masks?" in error_of("--freq-masks", "2", config="zipformer")


@pytest.mark.parametrize(
    ("word", "field"),
    [
        ("lsm-weight", "smoothing"),
        ("label-smoothing", "smoothing"),
        ("sampling-ratio", "sampling"),
        ("predictor-weight", "quantity-scale"),
    ],
)
def test_words_of_funasr_are_fields_of_the_paraformer_head(word, field):
    assert meant_by(f"--{word}", FIELDS["paraformer"]) == f"; did you mean --model.heads.paraformer.{field}?"


def test_the_alignment_is_that_of_paraformer_heads():
    message = error_of("--paraformer-alignment-mode", "uniform")
    assert "it is --model.heads.*.alignment (of Paraformer-v2 heads: viterbi, uniform or greedy) of other" in message


def test_a_value_is_not_taken_for_a_setting(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=3").mkdir()
    found = parse_experiment(["--config", CONFIG, "--name", "epochs=3", "--data.train", "a", "lr=3"], prog="")
    assert (found.name, found.data.train) == ("epochs=3", ("a", "lr=3"))


def test_unknown_words_have_no_suggestion():
    assert meant_by("--zebra", FIELDS["digits"]) == ""
    assert meant_by("--model.zebra", FIELDS["digits"]) == ""


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        (EvaluateOptions, ["--lr", "3"], "--lr is not a flag: it is --optim.schedule.peak-lr of other"),
        (EvaluateOptions, ["--bs", "3"], "--bs is not a flag; did you mean --batch-size?"),
        (EvaluateOptions, ["--test-manifest", "x"], "--test-manifest is not a flag; did you mean --data?"),
        (
            EvaluateOptions,
            ["--beam-size=3"],
            "did you mean --decoding.search.beam-width?",
        ),
        (TranscribeOptions, ["--audio_dir", "x"], "--audio_dir is not a flag: INPUT is given without a flag"),
        (TranscribeOptions, ["model_path=x"], "model_path=x is not a flag: RUN is given without a flag"),
        (TranscribeOptions, ["--cuda"], "--cuda is not a flag; did you mean --device (cpu, gpu"),
        (TranscribeOptions, ["ctc_decoding.beam.kenlm_path=x"], "did you mean --decoding.fusion.kenlm?"),
    ],
)
def test_other_commands(kind, arguments, message):
    with pytest.raises(UserError) as error:
        parse_recognition(kind, arguments, prog="it", about="")
    assert message in str(error.value)


def test_alignment_has_no_search():
    with pytest.raises(UserError, match=r"--beam is not a flag: it is --decoding.search.beam-width of other commands"):
        parse(AlignOptions, ["run", "--beam", "3"], prog="it", about="")
