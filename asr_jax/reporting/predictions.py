"""Files of predictions, as `asr_jax.evaluate --predictions` writes them."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.core.text_files import TextError, read_lines
from asr_jax.metrics.scoring import Recognised


@dataclass(frozen=True)
class Predictions:
    """Predictions of a file, in its order."""

    recognised: list[Recognised]
    rows: list[dict[str, Any]]
    """JSON object of each line, with further fields: `location`, `words`, `n_best`, `confidence`, `decoding`."""

    @property
    def normalisers(self) -> set[str]:
        """Names of the normalisers in the lines; empty for a line without one."""
        return {str(row.get("normaliser") or "") for row in self.rows}


def read_predictions(path: Path) -> Predictions:
    """Reads a file of predictions.

    Raises:
        UserError: If the file cannot be read or has no line, a line lacks id, reference or hypothesis, or `words`,
            `n_best` or `confidence` has another type.
    """
    try:
        lines = list(read_lines(path))
    except (OSError, TextError) as error:
        raise UserError(f"{path} cannot be read: {error}; expected a file of evaluate --predictions") from error
    pairs = [_row(line, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line.strip()]
    if not pairs:
        raise UserError(f"{path} has no predictions: expected at least one line")
    return Predictions([recognised for recognised, _ in pairs], [row for _, row in pairs])


def one_normaliser(files: Mapping[Path, Predictions]) -> str:
    """Returns the normaliser that all lines name.

    Raises:
        UserError: If there are several, or a file names none.
    """
    named = {path: predictions.normalisers - {""} for path, predictions in files.items()}
    names = set().union(*named.values())
    if len(names) != 1 or not all(named.values()):
        names_of_files = "; ".join(f"{path}: {', '.join(sorted(found)) or 'none'}" for path, found in named.items())
        files_do = "the files do" if len(files) > 1 else "the file does"
        raise UserError(
            f"{files_do} not name one normaliser ({names_of_files}): expected the same in all lines, or --normaliser "
            "NAME"
        )
    return names.pop()


def _row(line: str, place: str) -> tuple[Recognised, dict[str, Any]]:
    try:
        row = json.loads(line)
        duration_s = row.get("duration_s")
        recognised = Recognised(
            str(row["id"]),
            str(row["reference"]),
            str(row["hypothesis"]),
            source=str(row.get("source") or ""),
            speaker=str(row.get("speaker") or ""),
            duration_s=math.nan if duration_s is None else float(duration_s),
            set=str(row.get("set") or ""),
        )
        _check_types(row)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{place}: {line[:60]!r} is not a prediction ({type(error).__name__}: {error}); expected an object with "
            "id, reference and hypothesis, as written by evaluate --predictions"
        ) from error
    return recognised, row


def _check_types(row: Mapping[str, Any]) -> None:
    for name in ("words", "n_best"):
        for each in row.get(name) or ():
            if not isinstance(each, dict) or not isinstance(each.get("text"), str):
                raise TypeError(f"{name} has {each!r:.40}, not an object with text")
    if not isinstance(confidence := row.get("confidence"), int | float | None):
        raise TypeError(f"confidence is {confidence!r:.40}, not a number")
