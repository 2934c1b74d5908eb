"""How much SpecAugment and Cutout mask, against many draws of NVIDIA's and NeMo's own code.

Shares must agree within three standard errors of both: theirs is the mean of as many draws of a batch as the case says.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.audio.specaugment import Cutout, SpecAugment
from tests.support import golden_cases

pytestmark = pytest.mark.golden

STEP = jnp.int32(0)


def settings_of(name, args):
    """Ours, by the peer's own names."""
    if "masks" in args:
        return Cutout(
            num=args["masks"], min_freq_bins=args["min_freq"], max_freq_bins=args["max_freq"],
            min_time_frames=args["min_time"], max_time_frames=args["max_time"],
        )  # fmt: skip
    common = {
        "probability": 1.0, "max_time_share": 1.0, "fill": "zero", "draws_last_start": False,
        "num_freq_masks": args["freq_masks"], "num_time_masks": args["time_masks"],
    }  # fmt: skip
    if "freq_width" in args:  # NeMo
        width = args["time_width"]
        adaptive = {"max_time_frames": 100_000, "max_width_share": width}
        fixed = {"max_time_frames": width}
        common |= adaptive if isinstance(width, float) else fixed
        return SpecAugment(max_freq_bins=args["freq_width"], draws_widest=False, **common)
    return SpecAugment(
        min_freq_bins=args.get("min_freq", 0), max_freq_bins=args["max_freq"], min_time_frames=args.get("min_time", 0),
        max_time_frames=args["max_time"], within="padded", **common,
    )  # fmt: skip


CASES = [*golden_cases("dle_quartznet", "specaugment_statistics*"), *golden_cases("nemo", "specaugment_statistics*")]


@pytest.mark.parametrize("case", CASES)
def test_shares_of_what_is_masked(case, record_property):
    rows, bins, frames = case.info["shape_BFT"]
    draws, stats = case.info["draws"], case.info["stats"]
    assert stats
    for name, theirs in stats.items():
        settings = settings_of(name, theirs["args"])
        values, lengths = jnp.ones((rows, frames, bins)), jnp.full(rows, frames)
        call = jax.jit(lambda key, s=settings, v=values, n=lengths: s(v, n, key, step=STEP, sounds={}) == 0)
        masked = np.stack([call(jax.random.key(number)) for number in range(4 * draws)])
        shares = masked.mean(axis=(1, 2, 3))
        both = theirs["std_batch_zero_fraction"] / np.sqrt(draws) + shares.std() / np.sqrt(len(shares))
        record_property(name, abs(shares.mean() - theirs["mean_zero_fraction"]) / both)
        assert abs(shares.mean() - theirs["mean_zero_fraction"]) < 3 * both
        assert 0.8 < shares.std() / theirs["std_batch_zero_fraction"] < 1.25
        for axis, theirs_mean, theirs_max in (
            (3, "mean_fully_masked_time_fraction", "max_time"),
            (2, "mean_fully_masked_freq_fraction", "max_freq"),
        ):
            whole = masked.all(axis=axis).mean(axis=2)
            error = whole.std() / np.sqrt(whole.size) + whole.std() / np.sqrt(draws * rows)
            assert abs(whole.mean() - theirs[theirs_mean]) <= 3 * error
            assert whole.max() <= theirs[theirs_max] + 3 * whole.std() + 1e-9
