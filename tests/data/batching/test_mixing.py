"""Mixing: shares of CAIMAN-ASR's four rules, and strata that use every utterance before any is repeated."""

import numpy as np
import pytest

from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.mixing import Mixing, Stratum, epoch_shares, num_drawn, strata
from tests.support import approx, assert_close

NUM = np.array([1000, 4000, 250])
HOURS = np.array([10.0, 20.0, 5.0])


def expected(kind: str, weights: tuple[float, ...], exponent: float) -> np.ndarray:
    """Sampling weight of each source, by its utterances u and hours n (total T)."""
    return {
        "none": NUM,
        "absolute": np.array(weights or (1, 1, 1)),
        "relative": np.array(weights or (1, 1, 1)) * NUM,
        "temperature": NUM / HOURS * (HOURS / HOURS.sum()) ** exponent,
    }[kind]


@pytest.mark.parametrize(
    "mixing",
    [
        Mixing("none"),
        Mixing("absolute", weights=(1.0, 1.0, 1.0)),
        Mixing("absolute", weights=(0.5, 0.3, 0.2)),
        Mixing("relative", weights=(1.0, 2.0, 4.0)),
        Mixing("temperature"),
        Mixing("temperature", exponent=0.2),
        Mixing("temperature", exponent=1.0),
    ],
    ids=str,
)
def test_an_epoch_is_the_longest_without_a_repeat(mixing: Mixing) -> None:
    shares = epoch_shares(mixing, NUM, HOURS)
    assert shares.max() == 1
    assert shares.min() > 0
    drawn, wanted = shares * NUM, expected(mixing.kind, mixing.weights, mixing.exponent)
    assert_close(drawn / drawn.sum(), wanted / wanted.sum(), rtol=1e-12)


def test_towards_exponent_0_all_sources_get_as_many_hours() -> None:
    hours = epoch_shares(Mixing("temperature", exponent=1e-9), NUM, HOURS) * HOURS
    assert_close(hours, hours[0], rtol=1e-6)


def test_a_source_that_is_empty_gets_nothing() -> None:
    num, hours = np.array([0, 10, 30]), np.array([0.0, 1.0, 2.0])
    kinds = {"absolute": (5.0, 1.0, 1.0), "relative": (5.0, 1.0, 0.5), "temperature": (), "none": ()}
    shares = {kind: epoch_shares(Mixing(kind, weights), num, hours).tolist() for kind, weights in kinds.items()}
    assert shares["absolute"] == [0, 1, approx(1 / 3)]
    assert shares["relative"] == [0, 1, 0.5]
    assert shares["none"] == [0, 1, 1]
    assert shares["temperature"][0] == 0
    assert shares["temperature"][1] == 1


def test_weights_for_another_number_of_sources_are_refused() -> None:
    with pytest.raises(ValueError, match=r"mixing\.weights has 2 numbers for 3 entries of train"):
        Data(train=("a", "b", "c"), mixing=Mixing("absolute", weights=(1.0, 2.0)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "absolute"}, "expected weights for absolute and relative"),
        ({"weights": (1.0,)}, "expected weights for absolute and relative"),
        ({"kind": "temperature", "weights": (1.0,)}, "no weights for other kinds"),
        ({"kind": "relative", "weights": (1.0, 0.0)}, "expected each above 0"),
        ({"kind": "temperature", "exponent": 0.0}, "exponent is 0.0"),
        ({"kind": "temperature", "exponent": 1.1}, "exponent is 1.1"),
    ],
)
def test_impossible_settings_are_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Mixing(**options)


@pytest.mark.parametrize("num_drawn", [1, 3, 7, 10])
def test_every_entry_gets_its_turn_before_any_comes_again(num_drawn: int) -> None:
    stratum = Stratum(np.random.default_rng(0).permutation(10).astype(np.int32), num_drawn)
    epochs = [stratum.of_epoch(epoch).tolist() for epoch in range(20)]
    assert all(len(set(epoch)) == num_drawn for epoch in epochs)
    stream = [entry for epoch in epochs for entry in epoch]
    for first in range(0, len(stream) - 9, 10):
        assert sorted(stream[first : first + 10]) == list(range(10))
    far = 10**15
    assert stratum.of_epoch(far).tolist() == epochs[far % 10]


def test_a_source_has_its_share_in_all_and_at_least_one_in_each_bucket() -> None:
    rng = np.random.default_rng(0)
    num, shares = rng.integers(0, 30, (40, 5)), np.array([1.0, 0.55, 0.5, 0.031, 0.999])
    num[:, 4] *= 100
    drawn = num_drawn(num, shares)
    assert (drawn <= num).all()
    assert ((drawn > 0) == (num > 0)).all()
    assert (np.abs(drawn - num * shares) <= 1).all()
    assert drawn[:, 0].tolist() == num[:, 0].tolist()
    for source in (0, 1, 2, 4):
        at_least_one = np.sum((num[:, source] > 0) & (num[:, source] * shares[source] < 1))
        assert abs(drawn[:, source].sum() - (num[:, source] * shares[source]).sum()) <= 0.5 + at_least_one
    assert drawn[:, 3].tolist() == (num[:, 3] > 0).tolist()


def test_strata_are_by_source_and_shuffled_where_some_are_drawn() -> None:
    entries = np.arange(110, dtype=np.int32)
    source_of = np.repeat([0, 2, 3], [5, 100, 5]).astype(np.int32)
    parts = strata(entries, source_of, np.array([5, 0, 25, 1]), np.random.default_rng(0))
    assert [(len(part.entries), part.num_drawn) for part in parts] == [(5, 5), (100, 25), (5, 1)]
    assert [sorted(part.entries.tolist()) for part in parts] == [
        list(range(5)), list(range(5, 105)), list(range(105, 110))
    ]  # fmt: skip
    assert parts[0].entries.tolist() == list(range(5))
    assert parts[1].entries.tolist() != sorted(parts[1].entries.tolist())
