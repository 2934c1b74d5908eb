"""Resampling on the device against torchaudio."""

import re

import jax
import numpy as np
import pytest

from asr_jax.audio.resample import resample
from tests.support import assert_within, golden_cases, max_abs

pytestmark = pytest.mark.golden


resampled = jax.jit(resample, static_argnums=(1, 2))


@pytest.mark.parametrize("case", golden_cases("features", "resample*"))
def test_equals_torchaudio(case):
    arrays = case.arrays()
    found = [re.fullmatch(r"ta_sinc/(\d+)_(\d+)/(\d+)", name) for name in arrays]
    assert any(found)
    for match in filter(None, found):
        from_hz, to_hz, number = map(int, match.groups())
        actual = np.asarray(resampled(arrays[f"wav_{number}"][None], from_hz, to_hz))[0]
        assert actual.shape == arrays[match[0]].shape
        assert_within(max_abs(actual, arrays[match[0]]), 1e-5, what=match[0])
