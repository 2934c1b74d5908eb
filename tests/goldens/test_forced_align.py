"""Forced alignment against the paths of torchaudio (scripts/goldens/forced_align.py)."""

from pathlib import Path

import jax
import numpy as np
import pytest
from margins import path_margin, skip_ties

from asr_jax.losses.ctc_align import align
from tests.losses import ctc_align_reference
from tests.support import assert_close, assert_within, cases_in, max_abs

pytestmark = pytest.mark.golden

aligned = jax.jit(align, static_argnames="blank_id")


def padded(rows):
    """Returns rows of different lengths as one padded array, and the lengths."""
    lengths = np.array([len(row) for row in rows], np.int32)
    room = np.zeros((len(rows), lengths.max(), *rows[0].shape[1:]), rows[0].dtype)
    for row, array in zip(room, rows, strict=True):
        row[: len(array)] = array
    return room, lengths


@pytest.mark.parametrize("case", cases_in(Path(__file__).parent / "alignments"))
def test_paths_are_torchaudios(case):
    arrays, blank_id = case.arrays(), case.info["blank_id"]
    rows = [{key: arrays[f"{key}_{i}"] for key in ("log_probs", "labels", "path", "scores", "spans")}
            for i in range(case.info["rows"])]  # fmt: skip
    skip_ties(path=min(path_margin(row["log_probs"], row["labels"], blank_id=blank_id) for row in rows))
    log_probs, lengths = padded([row["log_probs"] for row in rows])
    labels, num = padded([row["labels"] for row in rows])
    found = jax.device_get(aligned(log_probs, lengths, labels, num, blank_id=blank_id))
    assert found.is_possible.all()
    differences = []
    for i, row in enumerate(rows):
        spans = np.stack([found.starts[i, : num[i]], found.ends[i, : num[i]]], axis=1)
        np.testing.assert_array_equal(spans, row["spans"])
        total = row["scores"].sum(dtype=np.float64)
        differences.append(max_abs(found.scores[i], total) / abs(total))
        best = [row["scores"][start:end].max() for start, end in row["spans"]]
        assert_close(found.log_probs[i, : num[i]], best, atol=1e-6)
        plain = ctc_align_reference.align(row["log_probs"], row["labels"].tolist(), blank_id=blank_id)
        assert [[span.start, span.end] for span in plain[1]] == row["spans"].tolist()
    assert_within(max(differences), 1e-6, what="score, relative")
