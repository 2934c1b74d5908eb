"""Error counts against jiwer's, utterance by utterance and for the corpus, and against NIST sclite's."""

import re

import pytest

from asr_jax.metrics.errors import ErrorCounts, character_errors, score, word_errors
from tests.support import golden_cases

pytestmark = pytest.mark.golden


@pytest.mark.parametrize("case", golden_cases("wer", "wer*"))
def test_equals_jiwer(case):
    pairs = [(pair["ref"], pair["hyp"]) for pair in case.info["pairs"]]
    for (reference, hypothesis), pair in zip(pairs, case.info["pairs"], strict=True):
        words, characters = word_errors(reference, hypothesis), character_errors(reference, hypothesis)
        found = (words.substitutions, words.deletions, words.insertions)
        assert found == (pair["sub"], pair["del_"], pair["ins"]), pair
        assert words.words == pair["hits"] + pair["sub"] + pair["del_"]
        assert words.rate == pytest.approx(pair["wer"])
        assert words.errors == pair["editdistance_words"]
        assert characters.errors == pair["editdistance_chars"]
        assert characters.errors == pair["c_sub"] + pair["c_del"] + pair["c_ins"]
        assert characters.rate == pytest.approx(pair["cer"])
    corpus, total = case.info["corpus"], score(*zip(*pairs, strict=True))
    names = {"wer": "wer", "cer": "cer", "substitutions": "sub", "deletions": "del_", "insertions": "ins"}
    assert {key: total[key] for key in names} == pytest.approx({key: corpus[name] for key, name in names.items()})


@pytest.mark.parametrize("case", golden_cases("wer", "wer*"))
def test_equals_sclite(case):
    """Its reports are of the same pairs, in the order of the utterances' numbers."""
    total = ErrorCounts()
    for utterance in case.info["sclite_utterances"]:
        pair = case.info["pairs"][int(re.search(r"u(\d+)$", utterance["id"]).group(1))]
        scores, found = utterance["scores"], word_errors(pair["ref"], pair["hyp"])
        assert found.errors == scores["S"] + scores["D"] + scores["I"], utterance
        assert found.words == scores["C"] + scores["S"] + scores["D"], utterance
        total += found
    numbers = [int(number) for number in re.findall(r"\d+", case.info["sclite_sum_line"][0])]
    assert [total.utterances, total.words, total.errors] == [numbers[0], numbers[1], numbers[6]]
