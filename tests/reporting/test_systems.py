"""Figures of reports, compared with those of `score` and `compare` on the same predictions."""

import json
import re

import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.metrics.comparison import compare
from asr_jax.metrics.confidence import confidence_report
from asr_jax.metrics.scoring import score
from asr_jax.reporting.predictions import read_predictions
from asr_jax.reporting.systems import (
    MOST_GROUPS,
    confidence,
    edits,
    groups,
    matched,
    number,
    utterance_rates,
    words_of,
    worst,
)
from tests.reporting.made import predictions
from tests.support import assert_close


@pytest.fixture
def files(tmp_path):
    paths = predictions(tmp_path / "a.jsonl", 0.3), predictions(tmp_path / "b.jsonl", 0.1, seed=1)
    return {path.stem: read_predictions(path) for path in paths}


def test_figures_are_those_of_score(files):
    [system], compared, only = matched({"a": files["a"]}, "lower.v1")
    expected = score(files["a"].recognised, normaliser="lower.v1")
    rates = system.rates()
    assert expected == expected | rates
    assert (compared, only) == (None, {})
    of = {group["by"]: {row["name"]: row["rates"][0] for row in group["rows"]} for group in groups([system])}
    assert set(of) == {"set", "source", "speaker", "duration"}
    for by, key in (("source", "by_source"), ("speaker", "by_speaker"), ("duration", "by_length")):
        assert set(of[by]) == set(expected[key])
        for name, row in of[by].items():
            assert row == row | expected[key][name]
            assert row["wer_interval"][0] <= row["wer"] <= row["wer_interval"][1]
    own = [each for each in files["a"].recognised if each.set == "set1.jsonl"]
    assert score(own, normaliser="lower.v1")["wer_interval"] == of["set"]["set1.jsonl"]["wer_interval"]


def test_kinds_of_errors_sum_to_the_errors(files, monkeypatch):
    monkeypatch.setattr("asr_jax.reporting.systems.MOST_EDITS", 1000)
    [system], _, _ = matched({"a": files["a"]}, "lower.v1")
    rates = system.rates()
    found = edits([system])
    assert found["left_out"] == 0
    assert {row["mark"] for row in found["rows"]} == {"S", "D", "I"}
    for mark, name in (("S", "substitutions"), ("D", "deletions"), ("I", "insertions")):
        assert sum(row["times"][0] for row in found["rows"] if row["mark"] == mark) == rates[name]
    assert found["rows"][0]["times"][0] == max(row["times"][0] for row in found["rows"])
    characters = edits([system], str.strip)["rows"]
    for mark, name in (("S", "substitutions"), ("D", "deletions"), ("I", "insertions")):
        assert sum(row["times"][0] for row in characters if row["mark"] == mark) == rates[f"character_{name}"]
    assert {len(row["reference"]) + len(row["hypothesis"]) for row in characters if row["mark"] == "S"} == {2}
    monkeypatch.setattr("asr_jax.reporting.systems.MOST_EDITS", 3)
    few = edits([system])
    assert few == {"rows": found["rows"][:3], "left_out": len(found["rows"]) - 3}


def test_two_systems_are_compared_on_common_utterances(files):
    first, second = files.values()
    del first.recognised[3], first.rows[3]
    second.recognised.reverse()
    second.rows.reverse()
    systems, compared, only = matched(files, "lower.v1")
    expected = compare(first.recognised, second.recognised, normaliser="lower.v1")
    assert compared == expected
    assert only == {"b": 1}
    assert [each.rates()["wer"] for each in systems] == [expected[name]["wer"] for name in ("first", "second")]
    ids = [[each.id for each in system.recognised] for system in systems]
    assert ids[0] == ids[1] == [row["id"] for row in systems[1].rows]
    total = systems[0].errors + systems[1].errors
    order = worst(systems, 5)
    assert [total[row] for row in order] == sorted(total.tolist(), reverse=True)[:5]


def test_confidence_of_words(files):
    [system], _, _ = matched({"a": files["a"]}, "lower.v1")
    report = confidence(system)
    expected = confidence_report(np.full(4, 0.5), np.array([True, True, False, False]))
    assert expected.keys() | {"bins"} == report.keys()
    words, confidences, right = report["bins"].T
    rates = system.rates()
    assert words.sum() == report["words"] == rates["words"] - rates["deletions"] + rates["insertions"]
    assert right.sum() == rates["words"] - rates["deletions"] - rates["substitutions"]
    assert_close(np.abs(confidences - right).sum() / words.sum(), report["calibration_error"], 1e-9)
    for row in system.rows:
        row["words"] = [{"text": "a"}]
    assert confidence(system) is None
    assert words_of({"words": [{"text": "a", "confidence": True}]}) == [("a", None)]


def test_numbers_of_lines_are_finite():
    assert [number(value) for value in (1, 0.5, "1", None, True, float("nan"))] == [1.0, 0.5, None, None, None, None]


def test_empty_references_have_no_rate(tmp_path):
    path = predictions(tmp_path / "a.jsonl", 0.0, num=3, reference="")
    [system], _, _ = matched({"a": read_predictions(path)}, "lower.v1")
    assert np.isnan(utterance_rates(system)).all()
    assert worst([system], 9) == [0, 1, 2]


def test_few_groups_are_shown(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"id": f"u{row}", "reference": "a", "hypothesis": "b" if row % 2 else "a", "speaker": f"s{row:03}"}
            for row in range(2 * MOST_GROUPS)]  # fmt: skip
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    [system], _, _ = matched({"a": read_predictions(path)}, "none")
    [group] = groups([system])
    assert (group["by"], len(group["rows"]), group["left_out"]) == ("speaker", MOST_GROUPS, MOST_GROUPS)
    assert all(row["rates"][0]["wer"] == 1 for row in group["rows"])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"words": [{"text": "a"}, 7]}, "words has 7, not an object with text"),
        ({"n_best": [{"score": 1}]}, "n_best has {'score': 1}, not an object with text"),
        ({"words": 5}, "TypeError"),
        ({"confidence": "high"}, "confidence is 'high', not a number"),
    ],
    ids=["word", "n_best", "words", "confidence"],
)
def test_fields_of_another_type_are_refused(tmp_path, wrong, message):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": "u", "reference": "a", "hypothesis": "a"} | wrong) + "\n")
    with pytest.raises(UserError, match=rf"a\.jsonl:1: .* is not a prediction .*{re.escape(message)}"):
        read_predictions(path)


def test_files_without_lines_and_repeated_ids_are_refused(tmp_path, files):
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(UserError, match=r"empty\.jsonl has no predictions"):
        read_predictions(tmp_path / "empty.jsonl")
    path = predictions(tmp_path / "twice.jsonl", 0.1, num=5)
    path.write_text(2 * path.read_text())
    with pytest.raises(UserError, match=r"a: of 5 ids, 5 occur more than once in a set, such as 'u0'"):
        matched({"a": read_predictions(path)}, "none")
    files["b"].recognised[:] = files["b"].recognised[:1] * 2
    with pytest.raises(UserError, match=r"a \(first\) and b \(second\): .*comes twice"):
        matched(files, "none")
