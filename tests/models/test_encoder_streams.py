"""Every encoder that streams: its windows have the outputs of whole recordings, for any batch of streams."""

import jax.numpy as jnp
import numpy as np
import pytest
from streaming_suite import ENCODERS, drawn, streamed, whole
from support import assert_within, max_abs

from asr_jax.models.encoder import EncoderSettings


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=name, marks=[pytest.mark.slow] * name.startswith("zipformer, "))
        for name, settings in ENCODERS.items()
    ],
)
def test_windows_have_the_outputs_of_whole_recordings(settings: EncoderSettings) -> None:
    """Recordings end in each kind of place, and begin at different windows. `streamed` checks the sizes of the state,
    and that one program computes all windows."""
    encoder = settings.build(dtype=jnp.float32)
    variables, window = drawn(encoder), encoder.stream_window
    end = window.size - window.before  # of the first window
    # They end in a later window, with it, in its first frame, before its last one, and in the first window.
    lengths = (end + 5 * window.shift + 3, end + 2 * window.shift, end + window.shift + 1, end + window.shift - 1,
               end + 5, end - 1, 9, 8, 3, 1, 0)  # fmt: skip
    rng = np.random.default_rng(2)
    rows = [rng.normal(size=(length, settings.num_mels)).astype(np.float32) for length in lengths]
    expected = whole(encoder, variables, rows)
    found = streamed(encoder, variables, rows, starts=[0, 3, 2, 0, 5, 1, 1, 0, 2, 0, 1])
    scale = min(max_abs(expected[0][1:], expected[0][:-1]), 1.0)  # how much outputs depend on the recording
    assert scale > 0.01
    for ours, theirs, length in zip(found, expected, lengths, strict=True):
        assert len(ours) == len(theirs) == encoder.output_length(length)
        assert_within(max_abs(ours, theirs), 1e-4, scale=scale, what="outputs of windows")
