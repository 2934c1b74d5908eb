"""What a search for a text needs of a recording's log-probabilities: those of the labels that the text has, alone."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int, Integer

from asr_jax.text.spelling import Spelling
from asr_jax.transcripts.seams import FrameLogProbs


@dataclass(frozen=True)
class Emissions:
    """Log-probabilities of long audio, of the labels that its text has."""

    labels: Float[np.ndarray, "T K"]
    blanks: Float[np.ndarray, " T"]
    silences: Float[np.ndarray, " T"]
    """Of each frame's likeliest symbol of the whole vocabulary that has no text: the blank, or a border of words."""
    others: Float[np.ndarray, " T"]
    """Of its likeliest symbol with text."""


def emissions_of(
    parts: Iterable[FrameLogProbs], labels: Integer[np.ndarray, " U"], spelling: Spelling
) -> tuple[Emissions, Int[np.ndarray, " U"]]:
    """Those of a recording whose frames come in parts, with log-probabilities of all symbols, and the column of each
    label. No more is held than a part beside them: `T × (K + 3)` numbers, and as many again while they are joined.
    """
    distinct, columns = np.unique(labels, return_inverse=True)
    has_text = np.array([bool(text) for text in spelling.texts])
    has_text[spelling.blank_id] = False
    found = []
    for heard in parts:
        logps = heard.logps
        silences, others = logps[:, ~has_text].max(1), logps[:, has_text].max(1)
        blanks = logps[:, spelling.blank_id].copy()  # a view would hold the whole part
        found.append((logps[:, distinct], blanks, silences, others))
    return Emissions(*map(np.concatenate, zip(*found, strict=True))), columns
