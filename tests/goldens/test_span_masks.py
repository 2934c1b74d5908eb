"""How many frames are masked and where, against many draws of fairseq's and Hugging Face's own code.

Means and shares must agree within standard errors of both: three for the mean of all rows; four and a half for single
rows and positions, of which there are more than a thousand.
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.nn.span_masks import SpanMask
from tests.support import GOLDENS, golden_cases

pytestmark = pytest.mark.golden

DRAWS = 2000


def cases():
    found = golden_cases("fairseq_w2v2", "mask_statistics*")
    if found[0].values[0] is None:
        return found
    return [
        pytest.param(theirs, case.values[0].info["draws"], name, id=name)
        for case in found
        for name, theirs in case.values[0].info["stats"].items()
    ]


def test_there_are_cases_where_goldens_are():
    if (GOLDENS / "fairseq_w2v2").exists():
        assert cases()


@pytest.mark.parametrize(("theirs", "draws", "name"), cases())
def test_masks_have_the_statistics_of_the_peer(theirs, draws, name, record_property):
    peer, num_rows, size, probability, length = re.match(r"(\w+)\|B(\d+)T(\d+)p([\d.]+)l(\d+)\|", name).groups()
    settings = SpanMask(
        probability=float(probability), length=int(length), min_spans=0, same_count=peer == "fairseq_same",
        draws_last_start=peer == "hf",
    )  # fmt: skip
    lengths = np.array(theirs["lengths"], np.int32)
    assert len(lengths) == int(num_rows)
    keys = jax.random.split(jax.random.key(0), DRAWS)
    masks = np.asarray(jax.jit(jax.vmap(lambda key: settings(key, jnp.asarray(lengths), int(size))))(keys))
    assert not (masks & (np.arange(int(size)) >= lengths[:, None])).any()
    counts = masks.sum(axis=2)
    share_alike = (counts == counts[:, :1]).all(axis=1).mean()
    alike = theirs["all_rows_equal_fraction"]
    assert abs(share_alike - alike) <= 3 * np.sqrt(max(alike * (1 - alike), 1e-4) * (1 / draws + 1 / DRAWS))
    deviations = np.array(theirs["std"])
    error = deviations * np.sqrt(1 / draws + 1 / DRAWS)
    off = (counts.mean(axis=0) - theirs["mean_masked_frames_per_row"]) / error
    record_property("standard errors", off.tolist())
    together = off[0] if settings.same_count else off.sum() / np.sqrt(len(off))  # rows of one count are one statistic
    assert abs(together) < 3
    assert (np.abs(off) < 4.5).all()
    assert (np.abs(np.log(counts.std(axis=0) / deviations)) < 0.1).all()
    shares = masks[:, 0].mean(axis=0)
    for there, here in (("row0_position_prob_first12", shares[:12]), ("row0_position_prob_last12", shares[-12:])):
        expected = np.array(theirs[there])
        error = np.sqrt(np.maximum(expected * (1 - expected), 1e-3) * (1 / draws + 1 / DRAWS))
        assert (np.abs(here - expected) < 4.5 * error).all(), there
