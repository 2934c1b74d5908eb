"""Page of a report: one HTML file with its style, script, data and pictures, which opens without network."""

import hashlib
import math
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from asr_jax.core.names import counted
from asr_jax.core.text_files import bytes_of, json_text, text_of
from asr_jax.metrics.measure import NAMES
from asr_jax.observe.tables import percent
from asr_jax.reporting import charts
from asr_jax.reporting.predictions import Predictions
from asr_jax.reporting.recordings import Embedded, embedded
from asr_jax.reporting.systems import (
    System,
    confidence,
    edits,
    groups,
    matched,
    measure,
    number,
    utterance_rates,
    words_of,
    worst,
)

KINDS = {"S": "substitution", "D": "deletion", "I": "insertion"}
NAMED = ("set", "source", "speaker")
LETTERS = ("A", "B")
"""Short names of two systems."""
SPACE = "␣"
"""Sign for a space in tables of characters."""


def page(
    runs: Mapping[str, Path],
    files: Mapping[str, Predictions],
    *,
    normaliser: str,
    num_worst: int,
    most_bytes: int,
    locations: Mapping[str, str],
) -> str:
    """Returns the HTML of a report.

    Args:
        runs: `events.jsonl` by the name of the run; none, one or two.
        files: Predictions by the name of the system; none, one or two.
        normaliser: Name of the normaliser for references and hypotheses.
        num_worst: Number of utterances with the most errors that are shown with audio.
        most_bytes: Largest number of bytes of audio and spectrograms in the page.
        locations: Locations of recordings by id, for predictions without a readable one.

    Raises:
        UserError: If events cannot be read, or as `systems.matched`.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("asr_jax.reporting", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["letters"] = LETTERS
    environment.filters |= {"percent": _percent, "counted": counted, "interval": _interval, "points": _points}
    names = [*files] or [*runs]
    own = resources.files("asr_jax.reporting")
    style, script = (text_of(own.joinpath(f"report.{kind}").read_bytes()) for kind in ("css", "js"))
    return environment.get_template("report.html").render(
        title=" and ".join(names),
        style=Markup(style),
        script=Markup(script),
        script_hash=b64encode(hashlib.sha256(bytes_of(script)).digest()).decode(),
        runs=[*runs],
        curves=_drawn(charts.curves(runs), "curves") if runs else "",
        scores=_scores(files, normaliser, num_worst, most_bytes, locations) if files else None,
    )


def _scores(
    files: Mapping[str, Predictions], normaliser: str, num_worst: int, most_bytes: int, locations: Mapping[str, str]
) -> dict[str, Any]:
    """Values of the template for everything but the training curves."""
    systems, compared, only = matched(files, normaliser)
    names, rate = list(files), measure(systems)
    found = groups(systems)
    for group in found:
        chart = charts.bars(group["rows"], names, rate)
        group["chart"] = _drawn(chart, f"bars {group['by']}") if len(group["rows"]) > 1 else ""
        group["left_undrawn"] = max(len(group["rows"]) - charts.MOST_BARS, 0)
    reports = {each.name: report for each in systems if (report := confidence(each))}
    rows = worst(systems, num_worst)
    recordings = _recordings(systems[0], rows, most_bytes, locations)
    return {
        "names": names,
        "normaliser": normaliser,
        "rate": rate,
        "rate_name": NAMES[rate],
        "systems": [each.about() | {"name": each.name, "rates": each.rates()} for each in systems],
        "num": len(systems[0].recognised),
        "compared": compared,
        "only": only,
        "groups": found,
        "edits": {"words": edits(systems), "characters": _with_spaces(edits(systems, str.strip))},
        "kinds": KINDS,
        "lengths": _drawn(charts.lengths(systems), "lengths"),
        "reliability": _drawn(charts.reliabilities(reports), "reliability") if reports else "",
        "reports": reports,
        "worst": [_worst(systems, row, recording) for row, recording in zip(rows, recordings, strict=True)],
        "num_wrong": int((np.sum([each.errors for each in systems], axis=0) > 0).sum()),
        "most_mb": most_bytes / 1e6,
        "table": _in_script(_table(systems, rows)),
    }


def _drawn(figure: Figure, name: str) -> Markup:
    return Markup(charts.svg_of(figure, name))  # Matplotlib escapes texts


def _recordings(system: System, rows: Sequence[int], most_bytes: int, locations: Mapping[str, str]) -> list[Embedded]:
    """Returns the recordings of utterances, up to a number of bytes."""
    found, left = list[Embedded](), most_bytes
    for row in rows:
        recording = embedded(str(system.rows[row].get("location") or ""), most_bytes=left)
        if recording.missing and (other := locations.get(system.recognised[row].id)):
            recording = embedded(other, most_bytes=left)
        left -= recording.num_bytes
        found.append(recording)
    return found


def _worst(systems: Sequence[System], row: int, recording: Embedded) -> dict[str, Any]:
    """Values of one of the utterances with the most errors."""
    utterance = systems[0].recognised[row]
    return {
        "id": utterance.id,
        "about": [f"{name} {value}" for name in NAMED if (value := getattr(utterance, name))],
        "duration_s": recording.duration_s or number(utterance.duration_s) or 0.0,
        "recording": recording,
        "reference": systems[0].normalised(row)[0],
        "systems": [
            {
                "name": each.name,
                "hypothesis": each.normalised(row)[1],
                "errors": int(each.errors[row]),
                "words": int(each.words[row]),
                "pairs": each.aligned(row),
                "confidence": _confidence(each.rows[row]),
                "confidences": words_of(each.rows[row]),
                "n_best": _n_best(each.rows[row]),
            }
            for each in systems
        ],
    }


def _n_best(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the texts of the n-best list with their scores, if a line has several."""
    found = [{"text": each["text"], "score": number(each.get("score"))} for each in row.get("n_best") or ()]
    return found if len(found) > 1 else []


def _with_spaces(found: dict[str, Any]) -> dict[str, Any]:
    """Returns `edits` of characters with a sign for spaces."""
    spaced = [row | {name: row[name].replace(" ", SPACE) for name in ("reference", "hypothesis")} for row in
              found["rows"]]  # fmt: skip
    return found | {"rows": spaced}


def _table(systems: Sequence[System], worst_rows: Sequence[int]) -> dict[str, Any]:
    """Returns the table of all utterances.

    Returns:
        `columns` with their `name` and `kind` (`id`, `text`, `name` or `number`), `values` with a list for each column,
        and the rows in `worst`. Columns of names and numbers that are equal in all rows are left out.
    """
    first = systems[0]
    ends = [f" {letter}" for letter in LETTERS] if len(systems) > 1 else [""]
    by_end = list(zip(ends, systems, strict=True))
    columns: list[tuple[str, str, list[Any]]] = [
        ("Id", "id", [each.id for each in first.recognised]),
        ("Reference", "text", [each.reference for each in first.recognised]),
        *((f"Hypothesis{end}", "text", [each.hypothesis for each in of.recognised]) for end, of in by_end),
        *((f"Errors{end}", "number", of.errors.tolist()) for end, of in by_end),
        *(("B less A", "number", (of.errors - first.errors).tolist()) for of in systems[1:]),
        ("Words", "number", first.words.tolist()),
        *((f"WER{end} (%)", "number", _percents(utterance_rates(of).tolist())) for end, of in by_end),
        *((f"Confidence{end} (%)", "number", _percents(map(_confidence, of.rows))) for end, of in by_end),
        ("Seconds", "number", [_rounded(number(each.duration_s)) for each in first.recognised]),
        *((name.capitalize(), "name", [getattr(each, name) for each in first.recognised]) for name in NAMED),
    ]
    kept = [
        each for each in columns if each[0].startswith("Errors") or each[1] in ("id", "text") or len(set(each[2])) > 1
    ]
    return {
        "columns": [{"name": name, "kind": kind} for name, kind, _ in kept],
        "values": [values for _, _, values in kept],
        "worst": list(worst_rows),
    }


def _confidence(row: Mapping[str, Any]) -> float | None:
    return number(row.get("confidence"))


def _percent(share: float | None, *, digits: int = 2) -> str:
    return "–" if share is None else percent(share, digits=digits)


def _percents(shares: Iterable[float | None]) -> list[float | None]:
    return [None if share is None or math.isnan(share) else round(100 * share, 1) for share in shares]


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _in_script(value: Any) -> Markup:
    """Returns JSON that cannot end the script element that contains it, or begin a comment in it."""
    return Markup(json_text(value).replace("<", "\\u003c"))


def _interval(bounds: Sequence[float] | None) -> str:
    return f"{100 * bounds[0]:.1f}–{100 * bounds[1]:.1f}" if bounds else ""


def _points(share: float | None) -> str:
    return "" if share is None else f"{100 * share:+.2f}".replace("-", "−")
