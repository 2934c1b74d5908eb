"""Numbers and positions of masked frames, against many draws of fairseq's and Hugging Face's code.

Means, deviations and fractions must agree within a number of standard errors of both: 4 for the mean of all rows, for
the fraction of draws whose rows have equal counts and for deviations; 4.5 for single rows and positions, because there
are more than a thousand.
"""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest

from asr_jax.nn.wav2vec.span_masks import SpanMask
from tests.support import GOLDENS, assert_within, golden_cases, slow_after_first

pytestmark = pytest.mark.golden

DRAWS = 1000
STANDARD_ERRORS = 4
"""Chance alone exceeds this bound with a probability of 6e-5. With two such statistics in each of 18 cases, a false
alarm has a probability of 0.2 %; three standard errors would make it 9 %."""


def cases():
    found = golden_cases("fairseq_w2v2", "mask_statistics*")
    if found[0].values[0] is None:
        return [pytest.param(None, None, None, id=found[0].id, marks=found[0].marks)]
    each = [
        pytest.param(name, theirs, case.values[0].info, id=name)
        for case in found
        for name, theirs in case.values[0].info["stats"].items()
    ]
    return slow_after_first(each, lambda name: name.partition("|")[0])


def test_there_are_cases_where_goldens_are():
    if (GOLDENS / "fairseq_w2v2").exists():
        assert cases()


PEERS = {
    "fairseq_same": {"same_count": True},
    "fairseq_nosame": {"same_count": False},
    "hf": {"same_count": False, "draws_last_start": True},
}


@cache
def program(settings, size):
    """Returns a program that draws masks with the options of each reference, which share most of the computation."""
    each = {peer: replace(settings, **options) for peer, options in PEERS.items()}
    of_key = lambda key, lengths: {peer: spans(key, lengths, size) for peer, spans in each.items()}  # noqa: E731
    of_keys = jax.vmap(of_key, in_axes=(0, None))
    return jax.jit(lambda lengths: of_keys(jax.random.split(jax.random.key(0), DRAWS), lengths))


@cache
def drawn(settings, lengths, size):
    return jax.device_get(program(settings, size)(np.array(lengths, np.int32)))


@pytest.mark.parametrize(("name", "theirs", "info"), cases())
def test_masks_have_the_statistics_of_the_peer(name, theirs, info):
    peer, num_rows, size, probability, length = re.match(r"(\w+)\|B(\d+)T(\d+)p([\d.]+)l(\d+)\|", name).groups()
    draws, size, lengths = info["draws"], int(size), np.array(theirs["lengths"])
    settings = SpanMask(probability=float(probability), length=int(length), min_spans=info.get("min_masks", 0))
    assert len(lengths) == int(num_rows)
    masks = drawn(settings, tuple(lengths.tolist()), size)[peer]
    assert not (masks & (np.arange(size) >= lengths[:, None])).any()
    counts, of_both = masks.sum(axis=2), 1 / draws + 1 / DRAWS
    share_alike = (counts == counts[:, :1]).all(axis=1).mean()
    alike = theirs["all_rows_equal_fraction"]
    assert_within(abs(share_alike - alike), STANDARD_ERRORS * np.sqrt(max(alike * (1 - alike), 1e-4) * of_both))
    deviations, ours = np.array(theirs["std"]), counts.std(axis=0)
    varies = np.maximum(deviations, ours) > 0  # few spans without room to overlap always have one count
    np.testing.assert_array_equal(counts.mean(axis=0)[~varies], np.array(theirs["mean_masked_frames_per_row"])[~varies])
    off = (counts.mean(axis=0) - theirs["mean_masked_frames_per_row"])[varies] / (deviations * np.sqrt(of_both))[varies]
    if PEERS[peer]["same_count"]:
        off = off[:1]  # rows with equal counts are one statistic
    assert abs(off.sum()) < STANDARD_ERRORS * np.sqrt(max(len(off), 1))
    assert (np.abs(off) < 4.5).all()
    fourth = ((counts - counts.mean(axis=0)) ** 4).mean(axis=0)[varies] / ours[varies] ** 4
    error = np.sqrt((fourth - 1) / 4 * of_both)
    assert (np.abs(np.log(ours[varies] / deviations[varies])) < STANDARD_ERRORS * error).all()
    shares = masks[:, 0].mean(axis=0)
    for there, here in (("row0_position_prob_first12", shares[:12]), ("row0_position_prob_last12", shares[-12:])):
        expected = np.array(theirs[there])
        error = np.sqrt(np.maximum(expected * (1 - expected), 1e-3) * of_both)
        assert (np.abs(here - expected) < 4.5 * error).all(), there


APART = json.loads((Path(__file__).parent / "statistics" / "span_masks.json").read_text())
FIELDS = {
    "mask_prob": "probability", "mask_length": "length", "mask_type": "selection", "mask_other": "other",
    "min_masks": "min_spans", "min_space": "min_space", "require_same_masks": "same_count", "mask_dropout": "dropout",
}  # fmt: skip


@pytest.mark.parametrize("name", slow_after_first([pytest.param(name, id=name) for name in APART["stats"]]))
def test_masks_without_overlap_and_with_dropout_have_the_statistics_of_fairseq(name):
    """Counts of masked frames, numbers of runs of masked frames, and shares of each position of the first row."""
    theirs, draws = APART["stats"][name], APART["draws"]
    given = {FIELDS[key]: value for key, value in theirs["settings"].items() if key in FIELDS}
    if not theirs["settings"]["no_overlap"]:
        given["min_space"] = None
    settings = SpanMask(**given)
    lengths, size = np.array(theirs["lengths"], np.int32), max(theirs["lengths"])
    draw = jax.vmap(lambda key, lengths: settings(key, lengths, size), in_axes=(0, None))
    masks = np.asarray(jax.jit(lambda lengths: draw(jax.random.split(jax.random.key(1), draws), lengths))(lengths))
    counts = masks.sum(axis=2)
    runs = (np.diff(np.pad(masks, ((0, 0), (0, 0), (1, 0))).astype(int), axis=2) == 1).sum(axis=2)
    for what, ours in (("count", counts), ("runs", runs)):
        error = np.hypot(ours.std(axis=0), theirs[f"{what}_std"]) / np.sqrt(draws)
        off = (ours.mean(axis=0) - theirs[f"{what}_mean"]) / np.maximum(error, 1e-9)
        assert (np.abs(off) < 4.5).all(), what
        spread = np.array(theirs[f"{what}_std"])
        varies = np.maximum(spread, ours.std(axis=0)) > 0
        fourth = ((ours - ours.mean(axis=0)) ** 4).mean(axis=0)[varies] / ours.std(axis=0)[varies] ** 4
        of_spread = np.log(ours.std(axis=0)[varies] / spread[varies])
        assert (np.abs(of_spread) < STANDARD_ERRORS * np.sqrt((fourth - 1) / 2 / draws)).all(), what
    shares, expected = masks[:, 0].mean(axis=0), np.array(theirs["position_share"])
    error = np.sqrt(np.maximum(expected * (1 - expected), 1e-3) * 2 / draws)
    assert (np.abs(shares - expected) < 4.5 * error).all()
