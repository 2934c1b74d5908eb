"""Scores against jiwer and editdistance on the same pairs, and against reports of NIST sclite."""

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from asr_jax.metrics.bootstrap import Bootstrap
from asr_jax.metrics.errors import EDITS, ErrorCounts, word_errors
from asr_jax.metrics.scoring import Recognised, score
from tests.support import GOLDENS, approx, character_errors, golden_cases

pytestmark = pytest.mark.golden

WHERE = GOLDENS / "wer"
COLUMNS = ("utterances", "words", "hits", "substitutions", "deletions", "insertions", "errors", "wrong")
"""Columns of sclite's tables by speaker."""


def alignment(counts: ErrorCounts) -> tuple[int, ...]:
    return counts.hits, counts.substitutions, counts.deletions, counts.insertions


@pytest.mark.parametrize("case", golden_cases("wer", "wer*"))
def test_every_pair_equals_jiwer(case):
    for pair in case.info["pairs"]:
        words, characters = (count(pair["ref"], pair["hyp"]) for count in (word_errors, character_errors))
        assert alignment(words) == tuple(pair[name] for name in ("hits", "sub", "del_", "ins")), pair
        assert alignment(characters) == tuple(pair[name] for name in ("c_hits", "c_sub", "c_del", "c_ins")), pair
        assert words.errors == pair["editdistance_words"]
        assert characters.errors == pair["editdistance_chars"]
        for counts, rate in ((words, pair["wer"]), (characters, pair["cer"])):
            assert (counts.rate if counts.words else counts.insertions) == approx(rate, abs=1e-12)
        assert words.match_error_rate == approx(pair["mer"], abs=1e-12)
        assert words.information_lost == approx(pair["wil"], abs=1e-12)


@pytest.mark.parametrize("case", golden_cases("wer", "wer*"))
def test_the_corpus_equals_jiwer(case):
    recognised = [Recognised(str(n), pair["ref"], pair["hyp"]) for n, pair in enumerate(case.info["pairs"])]
    total, corpus = score(recognised, normaliser="none"), case.info["corpus"]
    names = {"substitutions": "sub", "deletions": "del_", "insertions": "ins"}
    assert {name: total[name] for name in names} == {name: corpus[key] for name, key in names.items()}
    assert total["words"] == corpus["hits"] + corpus["sub"] + corpus["del_"]
    for rate in {"wer", "cer", "mer", "wil"} & corpus.keys():
        assert total[rate] == approx(corpus[rate], abs=1e-12), rate
    sums = Counter()
    for pair in case.info["pairs"]:
        sums.update({name: pair[name] for name in ("c_hits", "c_sub", "c_del", "c_ins")})
    assert [total[name] for name in EDITS[4:7]] == [sums["c_sub"], sums["c_del"], sums["c_ins"]]
    assert total["characters"] == sums["c_hits"] + sums["c_sub"] + sums["c_del"]


def folded(text: str) -> str:
    """Lowers the case of ASCII letters, as sclite does."""
    return "".join(char.lower() if char.isascii() else char for char in text)


def transcripts(name: str) -> dict[str, str]:
    """Returns texts by id from a file with lines `text (id)`."""
    lines = [line.rstrip() for line in (WHERE / name).read_text().splitlines() if line.strip()]
    parts = [line[:-1].rpartition("(") for line in lines]
    return {key: folded(text) for text, _, key in parts}


def utterance_report() -> dict[str, tuple[str, ErrorCounts]]:
    """Returns speaker and counts of each utterance by id, from sclite.pra."""
    found = {}
    for speaker, part in re.findall(
        r"^Speaker sentences +\d+: +(\S+) .*\n((?:(?!^Speaker sentences).*\n?)*)", report_file("pra"), re.MULTILINE
    ):
        for name, scores in re.findall(r"^id: \((.+)\)\nScores: \(#C #S #D #I\) (.+)$", part, re.MULTILINE):
            hits, *edits = (int(number) for number in scores.split())
            found[name] = speaker, ErrorCounts(*edits, words=hits + edits[0] + edits[1], utterances=1)
    return found


def table_report(kind: str) -> dict[str, list[float]]:
    """Returns the `COLUMNS` by speaker, from sclite.raw (counts) or sclite.sys (percent, except the first two)."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in report_file(kind).splitlines()]
    rows = [row for row in rows if len(row) == 3 and re.match(r"\d", row[1])]
    return {row[0]: [float(number) for number in f"{row[1]} {row[2]}".split()] for row in rows}


def report_file(kind: str) -> str:
    path = WHERE / f"sclite.{kind}"
    if not path.exists():
        pytest.skip(f"no {path}: set ASR_JAX_GOLDENS to the folder of goldens")
    return path.read_text()


PAIRS = json.loads((Path(__file__).parent / "scoring" / "sclite.json").read_text())["pairs"]
"""Random texts of few words, which have many alignments, with the counts that sclite reports."""


def test_every_split_of_random_texts_equals_sclites():
    others = {"other splits with the fewest errors": 0, "more errors than the fewest": 0}
    for reference, hypothesis, *edits in PAIRS:
        found = word_errors(reference, hypothesis, alignment="sclite")
        assert [found.substitutions, found.deletions, found.insertions] == edits, (reference, hypothesis)
        assert found.words == len(reference.split())
        fewest = word_errors(reference, hypothesis)
        others["other splits with the fewest errors"] += fewest != found
        others["more errors than the fewest"] += fewest.errors < found.errors
        assert fewest.errors <= found.errors
    assert all(others.values()), others
    total = score(
        [Recognised(str(n), *pair[:2]) for n, pair in enumerate(PAIRS)], normaliser="none", alignment="sclite"
    )
    sums = [sum(pair[column] for pair in PAIRS) for column in (2, 3, 4)]
    assert [total[name] for name in EDITS[:3]] == sums
    assert total["alignment"] == "sclite"


def cost(counts: ErrorCounts) -> int:
    """Returns the cost that sclite minimises instead of the number of edits."""
    return 4 * counts.substitutions + 3 * counts.deletions + 3 * counts.insertions


def test_every_utterance_equals_sclite():
    utterances, references, hypotheses = utterance_report(), transcripts("ref.trn"), transcripts("hyp.trn")
    assert utterances.keys() == references.keys()
    other_edits = 0
    for name, (_, expected) in utterances.items():
        found = word_errors(references[name], hypotheses[name])
        assert found.words == expected.words, name
        if found.errors != expected.errors:  # each must be minimal by its own cost
            assert found.errors < expected.errors, name
            assert cost(found) > cost(expected), name
        other_edits += found != expected
        assert word_errors(references[name], hypotheses[name], alignment="sclite") == expected, name


def test_speakers_and_the_corpus_equal_sclite():
    utterances, references, hypotheses = utterance_report(), transcripts("ref.trn"), transcripts("hyp.trn")
    recognised = [
        Recognised(name, references[name], hypotheses[name], speaker=speaker)
        for name, (speaker, _) in utterances.items()
    ]
    total = score(recognised, normaliser="none", bootstrap=Bootstrap(resamples=10))
    rows = total["by_speaker"] | {"Sum": total, "Sum/Avg": total}
    counts, percents = table_report("raw"), table_report("sys")
    assert total["by_speaker"].keys() | {"Sum"} <= counts.keys()
    for speaker in total["by_speaker"].keys() | {"Sum"}:
        row, expected = rows[speaker], dict(zip(COLUMNS, counts[speaker], strict=True))
        errors = row["substitutions"] + row["deletions"] + row["insertions"]
        assert (row["utterances"], row["words"]) == (expected["utterances"], expected["words"]), speaker
        assert errors == expected["errors"], speaker
        assert row["utterances_with_errors"] == expected["wrong"], speaker
    for speaker in total["by_speaker"].keys() | {"Sum/Avg"}:
        row, expected = rows[speaker], dict(zip(COLUMNS, percents[speaker], strict=True))
        if row["words"]:
            assert abs(100 * row["wer"] - expected["errors"]) < 0.0501, speaker  # one decimal is printed
        wrong = 100 * row["utterances_with_errors"] / row["utterances"]
        assert abs(wrong - expected["wrong"]) < 0.0501, speaker
