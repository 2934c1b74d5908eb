"""Results of a set: sums in total and by group, ids of empty texts, the normaliser, and the interval."""

import json
import math
import random
from dataclasses import replace

import pytest

from asr_jax.core.errors import UserError
from asr_jax.metrics.bootstrap import Bootstrap
from asr_jax.metrics.errors import EDITS, ErrorCounts, word_errors
from asr_jax.metrics.scoring import COUNTS, Recognised, score
from tests.support import approx, character_errors

READ = Recognised("1", "a b", "a b", source="read", speaker="ann", duration_s=1.9)
PHONE = Recognised("2", "c d", "c x y", source="phone", speaker="bob", duration_s=2.0)
CUT = Recognised("3", "e", "", source="read", speaker="ann", duration_s=30.0)


def made(num, *, speakers=7, seed=0):
    """Utterances with errors, with some empty texts."""
    choose = random.Random(seed)
    words = ["a", "b", "ab", "née"]
    return [
        Recognised(
            str(row),
            *(" ".join(choose.choices(words, k=choose.randint(0, 6))) for _ in range(2)),
            source=choose.choice(("x", "y", "")),
            speaker=f"speaker {choose.randrange(speakers)}" if speakers else "",
            duration_s=choose.choice((0.5, 3.0, 12.0, 100.0, math.nan)),
        )
        for row in range(num)
    ]


def test_a_set_is_summed_in_all_and_by_group():
    found = score([READ, PHONE, CUT], normaliser="none")
    row = dict.fromkeys(COUNTS, 0) | {"words": 3, "deletions": 1, "characters": 4, "character_deletions": 1}
    row |= {"utterances": 2, "utterances_with_errors": 1, "empty_hypotheses": 1}
    row |= {"wer": 1 / 3, "cer": 1 / 4, "ter": None, "mer": 1 / 3, "wil": 1 - 2 / 3}
    assert found["by_source"]["read"] == approx(row, nan_ok=True)
    assert found["by_speaker"]["ann"] == found["by_source"]["read"]
    assert found["by_speaker"]["bob"] == found["by_source"]["phone"]
    assert (list(found["by_source"]), list(found["by_speaker"])) == (["phone", "read"], ["ann", "bob"])
    assert (found["wer"], found["cer"]) == (3 / 5, 4 / 7)
    assert [found[name] for name in EDITS[:4]] == [1, 1, 1, 5]
    assert (found["utterances"], found["utterances_with_errors"]) == (3, 2)
    assert found["normaliser"] == "none"
    json.dumps(found, allow_nan=False)


def edit_distance(first, second):
    """Levenshtein distance by its recurrence."""
    row = list(range(len(second) + 1))
    for number, one in enumerate(first, start=1):
        before, row = row, [number]
        for place, other in enumerate(second):
            row.append(min(before[place] + (one != other), before[place + 1] + 1, row[place] + 1))
    return row[-1]


def test_token_errors_are_edits_of_label_ids_by_group():
    choose = random.Random(3)
    recognised = [
        replace(
            utterance,
            reference_tokens=tuple(choose.choices((-1, 0, 1, 2), k=choose.randint(1, 12))),
            hypothesis_tokens=tuple(choose.choices((0, 1, 2), k=choose.randint(0, 12))),
        )
        for utterance in made(150)
    ]
    found = score(recognised, normaliser="none")
    for speaker, row in [*found["by_speaker"].items(), (None, found)]:
        theirs = [u for u in recognised if speaker in (None, u.speaker)]
        errors = sum(edit_distance(u.reference_tokens, u.hypothesis_tokens) for u in theirs)
        assert sum(row[f"token_{name}"] for name in ("substitutions", "deletions", "insertions")) == errors
        assert row["tokens"] == sum(len(u.reference_tokens) for u in theirs)
        assert row["ter"] == errors / row["tokens"]


def test_every_grouping_adds_up_to_the_utterances():
    recognised = made(200)
    found = score(recognised, normaliser="none")
    for by in ("source", "speaker", "length"):
        groups = found[f"by_{by}"].values()
        assert {name: sum(group[name] for group in groups) for name in COUNTS} == {n: found[n] for n in COUNTS}, by
    for speaker, row in found["by_speaker"].items():
        theirs = [u for u in recognised if u.speaker == speaker]
        words = sum((word_errors(u.reference, u.hypothesis) for u in theirs), ErrorCounts())
        characters = sum((character_errors(u.reference, u.hypothesis) for u in theirs), ErrorCounts())
        assert (row["wer"], row["cer"]) == (words.rate, characters.rate)


def test_classes_of_length_are_half_open_and_in_order():
    assert list(score([CUT, PHONE, READ], normaliser="none")["by_length"]) == ["under 2 s", "2 to 5 s", "30 s and more"]
    unknown = Recognised("4", "f", "f")
    assert list(score([READ, unknown], normaliser="none")["by_length"]) == ["", "under 2 s"]


def test_empty_texts_are_counted_and_named_after_normalising():
    noise = Recognised("noise", "...", "uh", source="noise")
    found = score([READ, CUT, noise], normaliser="english_letters.v1")
    assert (found["empty_references"], found["empty_reference_ids"]) == (1, ["noise"])
    assert (found["empty_hypotheses"], found["empty_hypothesis_ids"]) == (1, ["3"])
    assert found["by_source"]["noise"]["wer"] is None
    assert found["by_source"]["noise"]["insertions"] == 1
    assert found["wer"] == 2 / 3  # insertions of an utterance with an empty reference count


def test_both_sides_are_normalised_by_the_name_in_the_result():
    spoken = [Recognised("1", "Hello, World", "hello world"), Recognised("2", "A", "b")]
    assert [score(spoken, normaliser=name)["wer"] for name in ("none", "lower.v1", "english_letters.v1")] == [
        1.0,
        2 / 3,
        1 / 3,
    ]
    assert score(spoken, normaliser="lower.v1")["normaliser"] == "lower.v1"
    with pytest.raises(UserError, match=r"'lower'.*lower\.v1"):
        score(spoken, normaliser="lower")


def test_without_words_there_is_no_rate():
    found = score([], normaliser="none")
    assert (found["wer"], found["cer"], found["wer_interval"], found["by_source"]) == (None, None, None, {})
    assert all(found[name] == 0 for name in COUNTS)
    noise = score([Recognised("1", "", "x y"), Recognised("2", "", "")], normaliser="none")
    assert (noise["wer"], noise["insertions"], noise["wer_interval"]) == (None, 2, None)


def test_the_interval_says_what_it_is_over():
    known, unknown = made(50), made(50, speakers=0)
    for recognised, over, units in (
        (known, "speakers", 7),
        (unknown, "utterances", 50),
        (known + unknown, "speakers, and utterances without one", 57),
        (made(50, speakers=1), "utterances", 50),
    ):
        found = score(recognised, normaliser="none", bootstrap=Bootstrap(level=0.9, resamples=300, seed=3))
        assert found["bootstrap"] == {"level": 0.9, "resamples": 300, "seed": 3, "over": over, "units": units}
        for rate in ("wer", "cer"):
            low, high = found[f"{rate}_interval"]
            assert 0 < low < found[rate] < high
    assert score([READ], normaliser="none")["wer_interval"] is None
    assert score(known, normaliser="none") == score(known, normaliser="none")
