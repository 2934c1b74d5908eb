"""Word alignments of NIST's sclite: a substitution costs 4, a deletion or an insertion 3."""

from collections.abc import Sequence

import numpy as np

SUBSTITUTION, GAP = 4, 3
"""Costs of a substitution, and of a deletion or an insertion."""


def sclite_edits(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[int, int, int, int]:
    """Returns substitutions, deletions, insertions and the reference length of sclite's alignment.

    The alignment has the lowest cost, which may have more errors than the fewest: two deletions and two insertions cost
    as much as three substitutions. Of alignments with equal costs, the pair is preferred to the insertion, and the
    insertion to the deletion, from the end of the texts.

    Source: `Network_dpalign` and `wwd_WORD` in sclite's net_dp.c and word.c, SCTK at commit 9688a26. Differs from:
    sclite's alternatives and optionally deletable words, which texts here do not have.
    """
    ids: dict[str, int] = {}
    words, others = (
        np.array([ids.setdefault(word, len(ids)) for word in text], np.int64) for text in (reference, hypothesis)
    )
    paired = SUBSTITUTION * (words[:, None] != others[None])
    inserted = GAP * np.arange(len(others) + 1)
    costs = np.empty((len(words) + 1, len(others) + 1), np.int64)
    costs[0] = inserted
    for row in range(len(words)):
        best = costs[row] + GAP
        np.minimum(best[1:], costs[row, :-1] + paired[row], out=best[1:])
        costs[row + 1] = np.minimum.accumulate(best - inserted) + inserted
    pair, deletion, insertion = costs[:-1, :-1] + paired, costs[:-1, 1:] + GAP, costs[1:, :-1] + GAP
    is_pair, is_deletion = (pair <= deletion) & (pair <= insertion), deletion < insertion
    row, column = len(words), len(others)
    substitutions = deletions = insertions = 0
    while row and column:
        if is_pair[row - 1, column - 1]:
            row, column = row - 1, column - 1
            substitutions += bool(paired[row, column])
        elif is_deletion[row - 1, column - 1]:
            row, deletions = row - 1, deletions + 1
        else:
            column, insertions = column - 1, insertions + 1
    return substitutions, deletions + row, insertions + column, len(words)
