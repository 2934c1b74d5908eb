"""Helpers for goldens of beam searches: emissions, searches with the reference's settings, comparison of lists."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from support import GOLDENS, assert_within, slow_after_first

from asr_jax.search.ctc_beam import CTCBeamSearch
from asr_jax.search.hypotheses import Hypothesis, Search
from asr_jax.search.word_scores import Fusion
from asr_jax.text.spelling import Spelling
from tests.search.ctc_beam_reference import beam_search
from tests.search.unchecked import unchecked

WHERE = GOLDENS / "decoding"
TOLERANCE = 1e-4
"""Tolerance of scores, which are of order 100 in float32."""
WHERE_SEARCHED = ["device", "host", pytest.param("host, all", marks=pytest.mark.slow)]
"""Implementations to test. The host search takes up to a second per utterance. It therefore searches only the shortest
utterance of cases with narrow beams or a language model of labels; the slow tests search all of them."""
WIDE = 30

Lists = list[list[Hypothesis]]


def goldens() -> dict[str, Any]:
    path = WHERE / "decoding.json"
    return json.loads(path.read_text()) if path.is_file() else {}


def emissions() -> dict[str, np.ndarray]:
    return load_file(WHERE / "emissions.safetensors")


def cases(peer: str) -> list[Any]:
    """Returns pytest parameters, one per case of a reference system, with the entries of its utterances."""
    named: dict[str, list[dict[str, Any]]] = {}
    for entry in goldens().get(peer, []):
        named.setdefault(entry["case"], []).append(entry)
    if not named:
        reason = f"no {peer} in decoding.json under {WHERE}: set ASR_JAX_GOLDENS to the folder of goldens"
        return [pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))]
    return slow_after_first([pytest.param(entries, id=name) for name, entries in named.items()], options)


def options(entries: list[dict[str, Any]]) -> tuple[bool, ...]:
    """Returns whether a case has a language model, sums over alignments and hot words."""
    found = entries[0].get("opts") or {**entries[0]["decoder"], **entries[0]["decode"]}
    return (
        "kenlm_model_path" in found or found.get("lm_weight", 0) != 0,
        found.get("log_add", True),
        "hotwords" in found,
    )


def most_texts(peer: str) -> int:
    """Returns the largest length of the reference's n-best lists."""
    return max(len(entry["nbest"]) for entry in goldens()[peer])


def word_list(name: str, folder: Path) -> str:
    """Writes a golden's list of words as a file for our settings and returns its path."""
    path = folder / "words.txt"
    path.write_text("\n".join(json.loads((WHERE / name).read_text())) + "\n")
    return str(path)


@dataclass(frozen=True)
class Asked:
    """A search with the settings of a case, and the emissions of its utterances."""

    spelling: Spelling
    search: Search
    fusion: Fusion
    log_probs: list[np.ndarray]

    @unchecked()
    def found(self, where: str) -> tuple[list[int], Lists]:
        """Returns the indices of the utterances that were searched, and their n-best lists."""
        numbers = sorted(range(len(self.log_probs)), key=lambda i: len(self.log_probs[i]))
        if where == "host":
            if self.search.beam_width > WIDE and self.fusion.unit == "words":
                pytest.skip(f"a beam of {self.search.beam_width} takes the host long: see the slow tests")
            numbers = numbers[:1]
        scores, each = self.fusion.build(), [self.log_probs[i] for i in numbers]
        if where != "device":
            return numbers, [beam_search(x, self.spelling, search=self.search, scores=scores) for x in each]
        lengths = np.array(list(map(len, each)))
        batch = np.full((len(each), lengths.max(), len(self.spelling.texts)), np.nan, np.float32)
        for row, log_probs in zip(batch, each, strict=True):
            row[: len(log_probs)] = log_probs
        return numbers, CTCBeamSearch(self.spelling, search=self.search, scores=scores)(batch, lengths)


@dataclass(frozen=True)
class Theirs:
    """A hypothesis of a golden's n-best list."""

    name: Any
    """Text or labels of the hypothesis."""
    score: float
    entry: dict[str, Any]


def compare(
    found: Lists,
    expected: Sequence[Sequence[Theirs]],
    *,
    name: Callable[[Hypothesis], Any],
    check: Callable[[Hypothesis, dict[str, Any]], float],
    what: str,
) -> None:
    """Checks that n-best lists are equal.

    Hypotheses with equal scores may be in another order, and one that ties with the last hypothesis may replace it.

    Args:
        found: Our lists.
        expected: Lists of the reference.
        name: Returns the identity of a hypothesis, its text or labels.
        check: Compares further fields and returns the largest difference of further scores.
        what: Name of the lists in messages.
    """
    worst = 0.0
    for ours, theirs in zip(found, expected, strict=True):
        assert [hypothesis.score for hypothesis in ours] == sorted(
            (hypothesis.score for hypothesis in ours), reverse=True
        )
        by_name = {name(hypothesis): hypothesis for hypothesis in ours}
        assert len(by_name) == len(ours) == len(theirs)
        cut = min(each.score for each in theirs)
        scores = {each.name: each.score for each in theirs} | {name(each): each.score for each in ours}
        for other in by_name.keys() ^ {each.name for each in theirs}:
            # If scores differ by less than the tolerance, hypotheses within twice the tolerance may be exchanged.
            assert_within(
                abs(scores[other] - cut), 2 * TOLERANCE, what=f"{other}, in only one list: distance from the last score"
            )
        for each in (each for each in theirs if each.name in by_name):
            hypothesis = by_name[each.name]
            worst = max(worst, abs(hypothesis.score - each.score), check(hypothesis, each.entry))
    assert_within(worst, TOLERANCE, what=f"{what}: largest difference of a score")
