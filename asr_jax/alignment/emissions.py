"""Log-probabilities of a recording, reduced to the labels of a text."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Integer

from asr_jax.text.spelling import Spelling
from asr_jax.transcripts.seams import FrameLogProbs


@dataclass(frozen=True)
class Emissions:
    """Log-probabilities of long audio for the labels of its text."""

    labels: Float[np.ndarray, "T K"]
    """Log-probabilities of the K distinct labels of the text."""
    blanks: Float[np.ndarray, " T"]
    """Log-probabilities of the blank."""
    silences: Float[np.ndarray, " T"]
    """Maximum over all symbols without text, which are the blank and word boundaries."""
    others: Float[np.ndarray, " T"]
    """Maximum over all symbols with text."""


def emissions_of(
    parts: Iterable[FrameLogProbs], labels: Integer[np.ndarray, " U"], spelling: Spelling
) -> tuple[Emissions, Int[np.ndarray, " U"]]:
    """Returns the emissions of a recording, and the column of each label in `Emissions.labels`.

    Memory is one part and `T × (K + 3)` numbers, and the same amount again while the parts are joined.
    """
    distinct, columns = np.unique(labels, return_inverse=True)
    has_text = np.array([bool(text) for text in spelling.texts])
    has_text[spelling.blank_id] = False
    found = []
    for part in parts:
        logps = part.logps
        silences, others = logps[:, ~has_text].max(1), logps[:, has_text].max(1)
        blanks = logps[:, spelling.blank_id].copy()  # a view would keep the whole part in memory
        found.append((logps[:, distinct], blanks, silences, others))
    return Emissions(*map(np.concatenate, zip(*found, strict=True))), columns
