"""Utterances that the training set and the validation set have in common."""

from dataclasses import replace

from asr_jax.data.batching.overlap import find_overlap
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance

LONG = "a text of more than twenty characters"
TRAIN = [Utterance(f"t{i}", f"/train/{i}.wav", f"{LONG} {i}", 2.0 + i / 10) for i in range(5)]


def test_the_same_audio_and_the_same_text_with_the_same_duration():
    validation = [
        replace(TRAIN[1], id="audio", text="other"),
        replace(TRAIN[2], id="copy", location="/validation/copy.wav"),
        replace(TRAIN[3], id="longer", location="/validation/longer.wav", duration_s=2.31),
        replace(TRAIN[4], id="part", location="/train/1.wav#seconds=0.5+1.0", text="part"),
        Utterance("short", "/validation/short.wav", "yes", 2.0),
    ]
    overlap = find_overlap(Utterances.of([*TRAIN, Utterance("s", "/s.wav", "yes", 2.0)]), Utterances.of(validation))
    assert overlap.of_audio == ("audio",)
    assert overlap.of_texts == ("copy",)
    assert [line[:36] for line in overlap.lines()] == ["1 of 5 validation utterances have th"] * 2
    assert "(copy)" in overlap.lines()[1]


def test_rows_of_subsets():
    utterances = Utterances.of(TRAIN)
    assert not find_overlap(utterances.select(slice(0, 2)), utterances.select(slice(2, 5))).lines()
    assert find_overlap(utterances.select(slice(0, 3)), utterances.select(slice(2, 5))).of_audio == ("t2",)


def test_sets_without_utterances():
    assert not find_overlap(Utterances.of(TRAIN), Utterances.of([])).lines()
