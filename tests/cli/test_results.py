"""Tables of error rates: they name the normaliser, and warn of removed characters and of mixed normalisers."""

from typing import Any

import pytest

from asr_jax.cli.results import about_refinement, show
from asr_jax.data.batching.removals import count_removed
from asr_jax.data.batching.round_trip import count_round_trip
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.metrics.scoring import Recognised, score
from asr_jax.text.characters import CharacterTokenizer


def result(normaliser: str) -> dict[str, Any]:
    text = "der zug nach köln fährt"
    tokenizer = CharacterTokenizer(symbols=(*" abcdefghijklmnopqrstuvwxyz", None), normaliser=normaliser)
    utterances = Utterances.of([Utterance("u", "/u.wav", text, 2.0)])
    removed = count_removed(utterances, tokenizer)
    counts = score([Recognised("u", text, "der zug nach k ln f hrt")], normaliser=normaliser)
    confidence = {"words": 0}
    of_set = counts | {"rejected": 0, "windowed_ids": [], "confidence": confidence, "removed": removed.to_json()}
    of_set |= {"round_trip": count_round_trip(utterances, tokenizer, scoring=normaliser).to_json()}
    return {
        "run": "runs/a", "checkpoint": 1, "weights": "averaged", "precision": "f32", "head": "ctc", "calibrated": False,
        "decoding": "greedy", "normaliser": normaliser, "labels": "characters", "sets": {"test": of_set},
    }  # fmt: skip


def printed(capsys: pytest.CaptureFixture[str], *normalisers: str) -> str:
    show([result(normaliser) for normaliser in normalisers], by="source")
    return capsys.readouterr().out


def test_the_share_of_refined_labels_is_named():
    before = {"wer": 0.5, "cer": 0.25, "refined": 0.125, "changed": 0.0625}
    rates = "test: before refinement 50.00 % WER and 25.00 % CER; "
    assert about_refinement("test", before) == f"{rates}12.50 % of the labels were refined, 6.25 % of the words changed"
    assert about_refinement("test", before | {"changed": None}) == f"{rates}12.50 % of the labels were refined"
    without = about_refinement("test", before | {"refined": None, "changed": None})
    assert without == f"{rates}no labels were recognised, and none were refined"


def test_removed_characters_are_named_below_the_table(capsys):
    output = printed(capsys, "english_letters.v1")
    assert "text normalised by english_letters.v1" in output
    assert "test   0.00 %" in output
    assert (
        "warning: test: english_letters.v1 removes or replaces 8.70 % of the references' characters ('ö' 1 ×, 'ä' 1 ×)"
        in output
    )
    assert "for example in u: 'der zug nach köln fährt'" in output
    assert "what the labels write" not in output


def test_references_that_labels_write_otherwise_are_named_below_the_table(capsys):
    output = printed(capsys, "lower.v1")
    assert "warning: test: 1 of 1 reference is not what the labels write ('ö' 1 ×, 'ä' 1 ×): even if" in output
    assert "every label is right, WER is 40.00 % and CER 8.70 %; for example in u: 'der zug" in output
    assert "no normaliser ends this without a loss of letters or digits" in output
    assert "removes or replaces" not in output


def test_token_errors_have_a_column_unless_labels_are_characters(capsys):
    found = result("lower.v1")
    found["sets"]["test"] |= {"ter": 0.125}
    show([found], by="source")
    assert " ter " not in capsys.readouterr().out
    show([found | {"labels": "sentencepiece"}], by="source")
    output = capsys.readouterr().out
    assert " ter " in output
    assert " 12.50 % " in output


def test_the_worst_utterances(capsys):
    found = result("lower.v1")
    row = {"id": "u7", "location": "/u7.wav", "reference": "a b c", "hypothesis": "a x c d", "words": 3}
    found["sets"]["test"]["worst"] = [row | {"substitutions": 1, "deletions": 0, "insertions": 1}]
    show([found], by="source")
    output = capsys.readouterr().out
    assert "test: 1 utterance with the most word errors:" in output
    assert "u7: S 1  D 0  I 1  of 3 words, /u7.wav" in output
    assert "ref" in output


def test_a_table_never_mixes_normalisers_in_silence(capsys):
    output = printed(capsys, "english_letters.v1", "lower.v1")
    assert "warning: the rates are not comparable" in output
    assert "(english_letters.v1, lower.v1); --normaliser english_letters.v1 scores all" in output
    rows = [line.split() for line in output.splitlines() if " test " in line and "%" in line and "│" not in line]
    assert [row[2] for row in rows[:2]] == ["english_letters.v1", "lower.v1"]
