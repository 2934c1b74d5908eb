"""Fractions that SpecAugment and Cutout mask, against many draws of NVIDIA's, NeMo's and lhotse's code.

Fractions must agree within three standard errors of both; each is the mean over the case's number of draws of a batch.
"""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax
import numpy as np
import pytest

from asr_jax.audio.features import KaldiFbank
from asr_jax.audio.specaugment import Cutout, SpecAugment
from tests.support import ROUNDING, GoldenCase, assert_within, golden_cases

pytestmark = pytest.mark.golden

STEP = jax.device_put(np.int32(0))


def settings_of(args):
    """Returns our settings for those of the reference: a preset with the numbers of the case."""
    if "masks" in args:
        return Cutout(
            num=args["masks"],
            freq_bins=(args["min_freq"], args["max_freq"]),
            time_frames=(args["min_time"], args["max_time"]),
        )
    if "frames_mask_size" in args:  # lhotse; these rows have no padding
        return SpecAugment(
            probability=args["p"], num_freq_masks=args["num_feature_masks"], max_freq_bins=args["features_mask_size"],
            num_time_masks=args["num_frame_masks"], max_time_frames=args["frames_mask_size"],
            max_time_share=args["max_frames_mask_fraction"],
        )  # fmt: skip
    masks = {"num_freq_masks": args["freq_masks"], "num_time_masks": args["time_masks"]}
    if "freq_width" in args:  # NeMo
        width = args["time_width"]
        share = (
            {"max_width_share": width}
            if isinstance(width, float)
            else {"max_width_share": 1.0, "max_time_frames": width}
        )
        return replace(SpecAugment.nemo(), max_freq_bins=args["freq_width"], **masks, **share)
    assert {args.get("min_freq", 0), args.get("min_time", 0)} == {0}
    return replace(SpecAugment.quartznet(max_freq_bins=args["max_freq"], max_time_frames=args["max_time"]), **masks)


OWN = [
    pytest.param(GoldenCase(path, json.loads(path.read_text())), id="lhotse")
    for path in (Path(__file__).parent / "statistics").glob("specaugment_statistics.json")
]
CASES = [
    *OWN,
    *golden_cases("dle_quartznet", "specaugment_statistics*"),
    *golden_cases("nemo", "specaugment_statistics*"),
]


@partial(jax.jit, static_argnames=("each", "draws"))
def masked(each, values, lengths, *, draws):
    """Returns the masks of all draws for each of the settings."""

    def of_key(key):
        given = {"step": STEP, "front_end": KaldiFbank(), "sounds": {}}
        return [settings(values, lengths, key, **given) != values for settings in each]

    return jax.lax.map(of_key, jax.random.split(jax.random.key(0), draws))


@pytest.mark.parametrize("case", CASES)
def test_shares_of_what_is_masked(case):
    rows, bins, frames = case.info["shape_BFT"]
    draws, stats = case.info["draws"], case.info["stats"]
    assert stats
    # Masked values become 0 or the mean, and no value is 0 or the mean.
    values = np.where(np.random.default_rng(0).random((rows, frames, bins)) < 0.5, np.float32(1), np.float32(3))
    lengths, each = np.full(rows, frames, np.int32), tuple(settings_of(theirs["args"]) for theirs in stats.values())
    found = jax.device_get(masked(each, values, lengths, draws=draws))
    for theirs, masks in zip(stats.values(), found, strict=True):
        shares = masks.mean(axis=(1, 2, 3))
        both = theirs["std_batch_zero_fraction"] / np.sqrt(draws) + shares.std() / np.sqrt(len(shares))
        assert abs(shares.mean() - theirs["mean_zero_fraction"]) < 3 * both
        assert 0.8 < shares.std() / theirs["std_batch_zero_fraction"] < 1.25
        for axis, theirs_mean, theirs_max in (
            (3, "mean_fully_masked_time_fraction", "max_time"),
            (2, "mean_fully_masked_freq_fraction", "max_freq"),
        ):
            whole = masks.all(axis=axis).mean(axis=2)
            error = whole.std() / np.sqrt(whole.size) + whole.std() / np.sqrt(draws * rows)
            assert abs(whole.mean() - theirs[theirs_mean]) <= 3 * error
            excess = max(float(whole.max()) - theirs[theirs_max] - 3 * float(whole.std()), 0.0)
            assert_within(excess, 4 * ROUNDING, what="largest share")  # means of up to 1 in float32
