"""The message for settings that differ from those of a run: the way that fits the changes comes first."""

from pathlib import Path

import pytest

from asr_jax.config import Resume
from asr_jax.core.errors import UserError
from asr_jax.training.run import refuse_changes

FOLDER = Path("/none/run")
RATE, BUCKETS = ("optim.schedule.peak_lr", 1e-3, 1e-4), ("data.batching.num_buckets", 5, 2)
WEIGHTS = f"start a new run from its weights, with new optimizer state: --init-from {FOLDER} --run-dir {FOLDER}"


def ways(*changed: tuple[str, object, object]) -> list[str]:
    with pytest.raises(UserError) as error:
        refuse_changes(FOLDER, changed, Resume())
    return str(error.value).partition("Ways to go on:\n  ")[2].split("\n  ")


def test_changes_that_the_optimizer_state_fits():
    first, *others = ways(RATE)
    assert first == "continue it with these changes and its optimizer state: --resume.allow optim"
    assert others[0] == WEIGHTS
    assert not any("split" in way for way in others)


def test_changes_of_which_some_are_allowed():
    first, second, *_, last = ways(RATE, ("training.precision", "f32", "bf16"), BUCKETS)
    assert first == WEIGHTS
    assert second == (
        "continue it with the changes of optim.schedule.peak_lr, training.precision, and with the former "
        "data.batching.num_buckets: --resume.allow optim,precision"
    )
    assert last.startswith("continue it with less memory and the same utterances in each update: --training.split N")


def test_changes_of_which_none_is_allowed():
    assert ways(("model.encoder.dim", 256, 512))[0] == WEIGHTS
    assert ways(("optim.class", "AdamW", "Muon"), RATE)[0] == WEIGHTS
    assert not any("--resume.allow" in way for way in ways(("optim.class", "AdamW", "Muon"), RATE))
