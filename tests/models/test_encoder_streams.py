"""Every encoder that streams: its windows have the outputs of whole recordings, for any batch of streams."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from streaming_suite import CONFORMER, ENCODERS, ONE_STACK, drawn, streamed, whole
from support import assert_within, max_abs

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import icefall, nemo, rnnt
from asr_jax.audio.stages import NormaliseByDataSet
from asr_jax.core.batch import Frames
from asr_jax.heads.ctc import CTC
from asr_jax.models.base import Model
from asr_jax.models.encoder import Context, EncoderSettings, StreamingEncoder
from asr_jax.models.lstm import LSTMEncoder
from tests.inference import streams

QUICK = {"lstm"}  # tests/goldens/test_nemo_streaming.py and test_icefall_streaming.py have others
ENCODERS_OF_SOUND: dict[str, tuple[EncoderSettings, FrontEnd]] = {
    "zipformer": (ONE_STACK, icefall(num_mels=16)),
    "conformer": (CONFORMER, replace(nemo(num_mels=9), then=(NormaliseByDataSet((-8.0,) * 9, (4.0,) * 9),))),
    "lstm": (
        LSTMEncoder(num_mels=240, dim=16, layers_before=1, layers_after=1),
        rnnt(NormaliseByDataSet((-8.0,) * 80, (4.0,) * 80)),
    ),
}


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(settings, id=name, marks=[pytest.mark.slow] * (name not in QUICK))
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("encoder", "front_end"), [pytest.param(*each, id=name) for name, each in ENCODERS_OF_SOUND.items()]
)
def test_streams_have_the_transcripts_of_whole_recordings(
    encoder: EncoderSettings, front_end: FrontEnd, tmp_path: Path
) -> None:
    """The streams of one batch arrive in any pieces and begin at different times. Two of them have few frames."""
    trained = streams.trained_of(Model(encoder, {"ctc": CTC()}, front_end=front_end, augment=()), tmp_path)
    recordings = [streams.sound(seconds, seed) for seed, seconds in enumerate((3.0, 1.13, 0.2, 2.5, 0.02))]
    expected = streams.whole(trained, "ctc", recordings)
    streamer = streams.streamer_of(trained, "ctc", num_rows=3)
    found = streams.recognised_together(streamer, recordings, num_rows=3)
    for results, transcript in zip(found, expected, strict=True):
        assert bool(results) == bool(transcript.words)
        if results:
            streams.assert_same(results[-1].transcript, transcript)
    assert len(expected[0].tokens) > 5
    assert len(set(expected[0].tokens)) > 2


@pytest.mark.parametrize(
    "settings", [ONE_STACK, pytest.param(CONFORMER, marks=pytest.mark.slow)], ids=["zipformer", "conformer"]
)
def test_evaluation_uses_the_first_context(settings: StreamingEncoder) -> None:
    several, programs = replace(settings, contexts=(Context(4, 8), Context(2, 4), Context())), list[str]()
    frames = Frames(jax.ShapeDtypeStruct((2, 64, settings.num_mels), np.float32), np.int32([64, 50]))
    for each in (several, several.with_context(several.contexts[0]), several.with_context(several.contexts[1])):
        encoder = each.build(dtype=jnp.float32)
        program = jax.jit(lambda variables, frames, encoder=encoder: encoder.apply(variables, frames, step=None).frames)
        programs.append(program.lower(drawn(encoder), frames).as_text())
    assert programs[0] == programs[1] != programs[2]
