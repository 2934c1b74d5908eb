"""Parts of texts that are refused, and the flag that a message on the labels of a run names."""

import pytest

from asr_jax.data.batching.removals import count_removed
from asr_jax.data.batching.round_trip import count_round_trip
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.tokenizers import TokenizerSettings
from asr_jax.training.run_data import about_round_trips, refused_by

LETTERS = CharacterTokenizer(symbols=(*" abcdefghijklmnopqrstuvwxyz", None), normaliser="lower.v1")
SET = Utterances.of([Utterance("u", "/u.wav", "a 5, b", 1.0)])
NAMES = ("training", "validation")


@pytest.fixture
def round_trips():
    return {name: count_round_trip(SET, LETTERS) for name in NAMES}


def test_parts_without_a_label_are_limited_in_the_training_set_alone(round_trips):
    removed = refused_by({name: count_removed(SET, LETTERS) for name in NAMES}, round_trips)
    assert {name: each.share for name, each in removed.items()} == {"training": 1 / 6, "validation": 0}


def test_the_normaliser_of_a_saved_tokenizer_is_changed_in_its_file(round_trips, tmp_path):
    path = str(tmp_path / "labels.txt")
    messages = about_round_trips(round_trips, TokenizerSettings(path=path))
    assert "  --data.tokenizer.normaliser english.v1 ends this" in messages["training"]
    assert "WER is 33.33 %" in messages["validation"]
    LETTERS.save(tmp_path)
    messages = about_round_trips(round_trips, TokenizerSettings(path=str(tmp_path)))
    assert f"  in {tmp_path}/tokenizer.json, the normaliser english.v1 ends this" in messages["training"]
