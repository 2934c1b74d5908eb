"""Rows that are parts of utterances: crops of training, whose place changes in every epoch, and pieces of evaluation.

Both divide an utterance into stretches of almost equal length. A piece is a whole stretch; a crop is a part of one at
a random place. Only utterances without labels can be divided.
"""

from dataclasses import replace

import numpy as np

from asr_jax.core.names import counted
from asr_jax.data.batching.index import WHOLE, Index, Stretches


def cropped(index: Index, longest: int) -> Index:
    """Divides utterances without labels into stretches, for crops of `longest` units of the index.

    The index has one row for each stretch, and an epoch has one crop of each. An utterance has as many
    stretches as crops fit into it. Each overlaps the next by the length of a crop, so that the beginnings of crops are
    anywhere in the utterance: with consecutive stretches, the crops of a long utterance would hardly move.
    """
    numbers, is_part = np.maximum(index.lengths // longest, 1), index.lengths > longest
    divided = _divided(index, numbers, is_part=is_part, overlap=longest)
    return replace(divided, lengths=np.minimum(divided.lengths, longest))


def in_pieces(index: Index, longest: float, length: int) -> Index:
    """Divides utterances without labels that are longer than `longest` units into consecutive pieces, a row each."""
    is_long = index.lengths > longest
    return _divided(index, np.where(is_long, -(-index.lengths // length), 1), is_part=is_long)


def num_divided(index: Index) -> tuple[int, int]:
    """Returns the number of divided utterances, and the number of their rows."""
    if index.stretches is None:
        return 0, 0
    is_part = index.stretches.begins != WHOLE
    return len(np.unique(index.utterances.rows[is_part])), int(is_part.sum())


def about_crops(index: Index, crop_s: float) -> str:
    """Returns a message on the utterances of a training set that are cropped; empty if there are none."""
    num, rows = num_divided(index)
    if not num:
        return ""
    return f"{longer_than(crop_s, num, index)} and {'has' if num == 1 else 'have'} {counted(rows, 'crop')} in an epoch"


def longer_than(seconds: float, num: int, index: Index) -> str:
    """Returns the beginning of a message: how many utterances of an index are longer."""
    verb = "is" if num == 1 else "are"
    return f"{num:,} of {counted(index.num_utterances, 'utterance')} {verb} longer than {seconds:g} s"


def _divided(index: Index, numbers: np.ndarray, *, is_part: np.ndarray, overlap: int = 0) -> Index:
    """Index with `numbers` rows for each utterance. The length of a row is that of its stretch.

    A stretch overlaps the next one by `overlap`. Rows of utterances that are not divided are whole utterances.
    """
    if not is_part.any():
        return index
    rows = np.repeat(np.arange(len(index)), numbers)
    number = np.arange(len(rows)) - np.repeat(np.cumsum(numbers) - numbers, numbers)
    whole, of_row = index.lengths[rows].astype(np.int64), numbers[rows].astype(np.int64)
    more = np.where(is_part[rows], overlap, 0)
    begins, ends = (whole - more) * number // of_row, (whole - more) * (number + 1) // of_row + more
    lengths = (ends - begins).astype(np.int32)
    stretches = Stretches(np.where(is_part[rows], begins, WHOLE), lengths)
    return replace(index.select(rows), lengths=lengths, stretches=stretches)
