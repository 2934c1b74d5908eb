"""Words of other systems lead to the settings of this one."""

from pathlib import Path

import pytest

from asr_jax.cli.command_line import DECODING, field_flags, load_config, parse_experiment
from asr_jax.cli.synonyms import MEANT, NO_SETTING, NOTES, meant_by
from asr_jax.core.errors import UserError

CONFIG = str(Path(__file__).parents[2] / "configs" / "read_speech.py")


def test_every_suggested_setting_exists():
    experiment = load_config(CONFIG)
    flags = {*field_flags(experiment), *field_flags(experiment.primary_decoding, DECODING)}
    assert set(MEANT.values()) <= flags
    assert set(NOTES) <= flags
    assert not {f"--{word}" for word in (*MEANT, *NO_SETTING)} & flags
    assert len(MEANT) + len(NO_SETTING) > 50


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--lr", "--lr is not a field; did you mean --optim.schedule.peak-lr?"),
        ("--batch_size", "did you mean --data.buckets.batch-seconds (seconds of audio of a batch, over all devices)?"),
        ("--num-workers", "did you mean --data.workers?"),
        ("--gpus", "--gpus is not a field: --devices 0,2 selects devices by their numbers"),
        ("--trainer.max_epochs", "did you mean --training.num-epochs?"),
    ],
)
def test_the_message(flag, message):
    with pytest.raises(UserError) as error:
        parse_experiment(["--config", CONFIG, flag, "1"], prog="")
    assert message in str(error.value)


def test_unknown_words_have_no_suggestion():
    assert meant_by("--zebra") == ""
