"""Best measures of earlier jobs of a run, which count if they are comparable."""

from types import SimpleNamespace
from typing import Any

import pytest

from asr_jax.config import to_json
from asr_jax.training.saving import Saver
from configs.quickstart import experiment


def saver(**changes: Any) -> Saver:
    decoding = experiment().primary_decoding
    setup: Any = SimpleNamespace(
        **{"measure": "wer", "best_of": "all", "decoding_digest": decoding.digest() if decoding else ""} | changes,
        experiment=experiment(),
    )
    nothing: Any = None
    return Saver(setup, nothing, nothing, nothing, num_parameters=1)


@pytest.mark.parametrize(
    ("changes", "best", "message"),
    [
        ({}, 0.125, ""),
        ({"measure": "cer"}, None, "the best validation WER, 12.50 %, is not comparable with CER, which"),
        ({"best_of": "mean"}, None, "the best validation WER, 12.50 %, is that of training.saving.best_of all"),
        ({"decoding_digest": "beam"}, None, "the best validation WER, 12.50 %, is from another decoding"),
    ],
)
def test_a_best_measure_counts_if_it_is_comparable(changes: dict[str, str], best: float | None, message: str) -> None:
    found = saver(**changes)
    meta = {"experiment": to_json(experiment()), "measure": "wer", "best_wer": 0.125, "num_without_gain": 3}
    found._remember(meta)
    assert (found.best, found.num_without_gain) == (best, 3 if best else 0)
    assert found.forgets.startswith(message)
    assert bool(found.forgets) == bool(message)
