"""Beam search with a beam that holds all prefixes against the sum over all paths."""

import re

import numpy as np
import pytest
from beam_lists import WHERE, emissions, goldens
from support import approx, assert_within

from asr_jax.search.ctc_beam import CTCBeamSearch
from asr_jax.search.hypotheses import Search
from asr_jax.text.spelling import Spelling
from tests.search.ctc_beam_reference import beam_search
from tests.search.unchecked import unchecked

pytestmark = pytest.mark.golden

TOLERANCE = 1e-5
MOST_ON_DEVICE = 4000
"""Maximum number of prefixes on the device, because memory grows with their pairs."""
NAMES = [
    (found[0], *found.groups()) for key in goldens() if (found := re.fullmatch(r"exhaustive_(\w+)_blank(\d+)", key))
]


@pytest.mark.parametrize("where", ["host", pytest.param("device", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("key", "sizes", "blank_id"),
    NAMES or [pytest.param("", "", "", marks=pytest.mark.skip(reason=f"no exhaustive goldens under {WHERE}"))],
)
def test_all_paths(key, sizes, blank_id, where):
    log_probs, blank_id = emissions()[f"exhaustive_logprobs_{sizes}"], int(blank_id)
    num_frames, num_symbols = log_probs.shape
    spelling = Spelling.of_surfaces([str(i) for i in range(num_symbols)], blank_id=blank_id)
    num_prefixes = sum((num_symbols - 1) ** n for n in range(num_frames + 1))
    if where == "device" and num_prefixes > MOST_ON_DEVICE:
        pytest.skip(f"{num_prefixes} prefixes are too many for the device")
    search = Search(
        beam_width=num_prefixes, num_best=num_prefixes, beam_prune_logp=-np.inf, token_min_logp=-np.inf
    )  # fmt: skip
    if where == "host":
        with unchecked():
            found = beam_search(log_probs, spelling, search=search)
    else:
        found = CTCBeamSearch(spelling, search=search)(log_probs[None], np.array([num_frames]))[0]
    expected = {tuple(each["labels"]): each["logp"] for each in goldens()[key]}
    ours = {each.labels: each.log_prob for each in found}
    best = {each.labels for each in found[: len(expected)]}
    assert len(best) == len(expected)
    for labels in best ^ expected.keys():  # ties at the end of a list may be exchanged
        score = expected.get(labels, ours[labels])
        distance = abs(score - min(expected.values()))
        assert_within(distance, 2 * TOLERANCE, what=f"{labels}, in only one list: distance from the last score")
    worst = max(abs(ours[labels] - logp) for labels, logp in expected.items())
    assert_within(worst, TOLERANCE, what=f"{where}: largest difference of a log-probability")
    assert np.logaddexp.reduce([each.log_prob for each in found]) == approx(0.0, abs=1e-5)
