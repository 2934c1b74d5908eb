import re

import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.data.dataset import Data, PlannedData, plan_training
from asr_jax.data.manifest import Record
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.training.setup import check_labels

TOKENIZER = CharacterTokenizer(symbols=("a", None, "b"), normaliser="none")


def planned(labels: dict[str, list[int]]) -> PlannedData:
    """Training data whose texts encode to the labels given."""
    return plan_training(
        [Record(f"id-{text}", f"/{text}.flac", text, 1.0) for text in labels],
        Data(train=("t",), validation=("v",)),
        encode=lambda text: labels[text],
        output_length=lambda samples: np.asarray(samples) // 160,
        rate_hz=16000,
        hop_samples=160,
        seed=0,
        num_devices=1,
    )


def test_labels_of_the_vocabulary_pass():
    check_labels(planned({"x": [0, 2], "y": [2]}), TOKENIZER)


@pytest.mark.parametrize("label", [1, 3])
def test_a_target_with_the_blank_or_beyond_the_vocabulary_names_its_record(label):
    with pytest.raises(UserError, match=re.escape(f"record id-y: label {label} of 'y' is the blank (1) or outside")):
        check_labels(planned({"x": [0, 2], "y": [0, label], "z": [2]}), TOKENIZER)
