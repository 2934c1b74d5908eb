"""Figures of sets from what was recognised of them: of a whole set, or of its jobs together."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from jaxtyping import Int

from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.batching.removals import count_removed
from asr_jax.data.batching.round_trip import count_round_trip
from asr_jax.data.manifests.reading import Utterances
from asr_jax.inference.recognition import Recognition, judged_rows, predictions, recognised, word_counts
from asr_jax.metrics.confidence import confidence_report
from asr_jax.metrics.errors import Alignment
from asr_jax.metrics.scoring import Recognised, score
from asr_jax.text.normalise import normalise
from asr_jax.text.tokenizers import Tokenizer

Findings = dict[str, Any]
"""JSON object of what was recognised of a set or of a job of it. `rows` has the row of each utterance in the set, by
which the findings of jobs are joined. `utterances`, `locations`, `words` (confidences, and whether they are right)
and `lines` (predictions) have an entry for each of them."""
BY_ROW = ("utterances", "locations", "words", "lines")


def scored(
    data: PlannedData,
    found: Recognition,
    tokenizer: Tokenizer,
    *,
    normaliser: str = "",
    alignment: Alignment = "fewest_edits",
) -> dict[str, Any]:
    """Error rates and counts of a planned set, as `figures_of`.

    Args:
        normaliser: Name of the normaliser for references and hypotheses. Empty: that of the tokenizer.
    """
    how: dict[str, Any] = {"normaliser": normaliser or tokenizer.normaliser, "alignment": alignment}
    return figures_of(findings_of(data, found, tokenizer, rows=np.arange(len(data.index)), **how), **how)


def findings_of(
    data: PlannedData,
    found: Recognition,
    tokenizer: Tokenizer,
    *,
    normaliser: str,
    alignment: Alignment,
    rows: Int[np.ndarray, " R"],
    has_lines: bool = False,
) -> Findings:
    """Collects what was recognised of a planned set, or of a job of it.

    Args:
        rows: Row in the whole set of each row of `data`.
        has_lines: Whether `lines` are needed; otherwise they are empty objects.
    """
    own = sorted(found.transcripts)
    rejected = data.rejections.entries + found.rejected
    lines = predictions(data, found, tokenizer, normaliser=normaliser, alignment=alignment)
    return {
        "rows": rows[own].tolist(),
        "utterances": [asdict(each) for each in recognised(data, found, tokenizer, has_tokens=True)],
        "locations": [data.index.utterances[row].location for row in own],
        "words": list(judged_rows(data, found, tokenizer, normaliser)),
        "lines": list(lines) if has_lines else [{} for _ in own],
        "windowed": [data.index.utterances[row].id for row in data.windowed_rows if row in found.transcripts],
        "rejected": len(rejected),
        "differing": len(found.differing),
    }


def joined_findings(parts: Sequence[Findings]) -> Findings:
    """Joins the findings of all jobs of a set, in the order of its rows."""
    order = np.argsort([row for part in parts for row in part["rows"]], kind="stable").tolist()
    whole: Findings = {"rows": sorted(row for part in parts for row in part["rows"])}
    for name in BY_ROW:
        values = [each for part in parts for each in part[name]]
        whole[name] = [values[place] for place in order]
    whole["windowed"] = [name for part in parts for name in part["windowed"]]
    return whole | {name: sum(part[name] for part in parts) for name in ("rejected", "differing")}


def figures_of(findings: Findings, *, normaliser: str, alignment: Alignment, num_worst: int = 0) -> dict[str, Any]:
    """Error rates and counts of a set, as in the JSON of `asr_jax.evaluate`.

    These are the figures of `metrics.scoring.score`, `confidence` of the words (`metrics.confidence`), the numbers of
    utterances that are `rejected` and that are used with remarks (`differing`), and `windowed_ids`.

    Args:
        num_worst: Number of utterances with the most word errors to name. 0: none.
    """
    ids = ("reference_tokens", "hypothesis_tokens")
    utterances = [Recognised(**(each | {name: tuple(each[name]) for name in ids})) for each in findings["utterances"]]
    counts = score(utterances, normaliser=normaliser, alignment=alignment)
    confidences, is_right = judged_of(findings)
    figures = counts | {
        "confidence": confidence_report(confidences, is_right),
        "rejected": findings["rejected"],
        "differing": findings["differing"],
        "windowed_ids": findings["windowed"],
    }
    if num_worst > 0:
        figures["worst"] = _worst(utterances, findings["locations"], normaliser, alignment)[:num_worst]
    return figures


def changed_texts(utterances: Utterances, tokenizer: Tokenizer, normaliser: str) -> dict[str, Any]:
    """Parts of the references of a set that a normaliser removes, and that labels write otherwise."""
    return {
        "removed": count_removed(utterances, replace(tokenizer, normaliser=normaliser)).to_json(),
        "round_trip": count_round_trip(utterances, tokenizer, scoring=normaliser).to_json(),
    }


def judged_of(findings: Findings) -> tuple[np.ndarray, np.ndarray]:
    """Confidence of each recognised word, and whether it is right."""
    confidences, is_right = ([each for row in findings["words"] for each in row[part]] for part in (0, 1))
    return np.array(confidences, np.float64), np.array(is_right, bool)


def _worst(
    utterances: Sequence[Recognised], locations: Sequence[str], normaliser: str, alignment: Alignment
) -> list[dict[str, Any]]:
    """Utterances with word errors, the one with the most first, with normalised texts and their `word_counts`."""
    rows = list[dict[str, Any]]()
    for each, location in zip(utterances, locations, strict=True):
        counts = word_counts(each, normaliser, alignment)
        if counts["substitutions"] + counts["deletions"] + counts["insertions"]:
            texts = {name: normalise(getattr(each, name), normaliser) for name in ("reference", "hypothesis")}
            rows.append({"id": each.id, "location": location, **texts, **counts})
    return sorted(rows, key=lambda row: -(row["substitutions"] + row["deletions"] + row["insertions"]))
