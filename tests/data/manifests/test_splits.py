"""Split: approximately the share, whole speakers if they are known, the same for the same seed, no utterance twice."""

import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.splits import split
from asr_jax.data.manifests.utterances import Utterance
from tests.support import assert_within


def made(num: int, speakers: int, seed: int = 0) -> Utterances:
    rng = np.random.default_rng(seed)
    return Utterances.of(
        Utterance(f"u{i}", f"/{i}.wav", "a", float(rng.uniform(1, 20)), f"s{i % speakers}" if speakers else "")
        for i in range(num)
    )


@pytest.mark.parametrize("share", [0.02, 0.1, 0.5])
@pytest.mark.parametrize(("num", "speakers"), [(1000, 0), (1000, 50), (1000, 2), (400, 400)])
def test_about_the_share_and_no_speaker_in_both(num: int, speakers: int, share: float) -> None:
    utterances = made(num, speakers)
    train, validation = split(utterances, share=share, seed=1)
    assert sorted([*train.rows, *validation.rows]) == list(range(num))
    assert_within(abs(validation.hours / utterances.hours - share), 0.02)
    if speakers >= 3:
        assert not {utterance.speaker for utterance in train} & {utterance.speaker for utterance in validation}


def test_by_the_seed_alone() -> None:
    utterances = made(300, 30)
    first, again, other = (split(utterances, share=0.1, seed=seed)[1].rows.tolist() for seed in (1, 1, 2))
    assert first == again != other


def test_a_speaker_of_most_hours_does_not_become_the_validation_set() -> None:
    utterances = Utterances.of(
        Utterance(f"u{i}", f"/{i}", "a", 10.0, "big" if i < 280 else f"s{i}") for i in range(300)
    )
    for seed in range(10):
        train, validation = split(utterances, share=0.1, seed=seed)
        assert 0 < validation.hours < 0.2 * utterances.hours
        assert len(train) + len(validation) == 300


def test_records_without_a_known_speaker_are_split_one_by_one() -> None:
    utterances = Utterances.of(Utterance(f"u{i}", f"/{i}", "a", 1.0, f"s{i % 5}" if i else "") for i in range(100))
    assert len(split(utterances, share=0.1, seed=0)[1]) == 10


@pytest.mark.parametrize("speakers", [0, 10])
def test_an_utterance_at_several_speeds_is_in_one_of_both(speakers: int) -> None:
    names = [f"u{i}{number}" for i in range(60) for number in ("", "#2", "#3")]
    for seed in range(5):
        utterances = Utterances.of(
            Utterance(name, f"/{name}", "a", 1.0, f"s{i // 3 % speakers}" if speakers else "")
            for i, name in enumerate(names)
        )
        train, validation = split(utterances, share=0.1, seed=seed)
        assert abs(len(validation) - 18) <= 1
        assert not {of.id.partition("#")[0] for of in train} & {of.id.partition("#")[0] for of in validation}


def test_a_part_of_the_columns_is_split_as_it_is() -> None:
    utterances = made(100, 10).select(slice(20, 60))
    train, validation = split(utterances, share=0.1, seed=0)
    assert sorted([*train.rows, *validation.rows]) == list(range(20, 60))


@pytest.mark.parametrize("num", [0, 1])
def test_what_cannot_be_split_is_named(num: int) -> None:
    with pytest.raises(UserError, match=rf"{num} utterances? .*validation set"):
        split(made(num, 0), share=0.1, seed=0)


def test_two_records_are_one_each() -> None:
    train, validation = split(made(2, 0), share=0.1, seed=0)
    assert (len(train), len(validation)) == (1, 1)
