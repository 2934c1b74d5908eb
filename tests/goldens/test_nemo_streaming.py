"""Outputs of NeMo's cache-aware streaming ConformerEncoder, from its own weights."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import GoldenCase, assert_outputs, cases_in, fast_jit, part, slow_after_first

from asr_jax.core.batch import Frames
from asr_jax.core.pytrees import unflatten
from asr_jax.models.conformer import Conformer
from asr_jax.pretrained.conformer import NEMO, settings_of_nemo
from tests.models.streaming_suite import streamed

pytestmark = pytest.mark.golden

CASES = slow_after_first(
    [
        pytest.param(case.values[0], number, id=f"{case.id}-{number}")
        for case in cases_in(Path(__file__).parent / "nemo_streaming")
        for number in range(len(case.values[0].info["config"]["att_context_size"]))
    ]
)


def settings_of(case: GoldenCase) -> Conformer:
    settings = settings_of_nemo(case.info["config"], case.path)
    return replace(settings, input_dropout=0.0, dropout=0.0, position_dropout=0.0, attention_dropout=0.0)


@pytest.mark.parametrize(("case", "number"), CASES)
def test_streams_and_whole_utterances(case: GoldenCase, number: int) -> None:
    arrays, settings = case.arrays(), settings_of(case)
    found, left = NEMO.find(part(arrays, "state/", "encoder."), settings)
    assert left == []
    key = "_".join(map(str, case.info["config"]["att_context_size"][number]))
    theirs, info = part(arrays, f"{key}/"), case.info[key]
    encoder = settings.with_context(settings.contexts[number]).build(dtype=jnp.float32)
    variables = {
        name: tree["encoder"] for name, tree in unflatten({k: jnp.asarray(v) for k, v in found.items()}).items()
    }
    features, lengths = arrays["input/features"].transpose(0, 2, 1), np.int32(arrays["input/lengths"])
    whole = fast_jit(lambda frames: encoder.apply(variables, frames, step=None).frames)(
        Frames(*jax.device_put((features, lengths)))
    )
    np.testing.assert_array_equal(whole.lengths, theirs["whole/lengths"])
    chunks = [part(theirs, f"stream/{index}/") for index in range(sum("stream" in name for name in theirs) // 2)]
    rows = [row[:length] for row, length in zip(features, lengths, strict=True)]
    for row, output in enumerate(streamed(encoder, variables, rows)):
        expected = theirs["whole/output"][row, : theirs["whole/lengths"][row]]
        assert_outputs(np.asarray(whole.values)[row, : len(expected)], expected, what="whole")
        assert_outputs(output, expected, what="stream")
        of_chunks = np.concatenate([chunk["output"][row, : chunk["lengths"][row]] for chunk in chunks])
        assert len(of_chunks) == len(expected) - info["lost"][row]
        assert_outputs(output[: len(of_chunks)], of_chunks, what="stream and NeMo's chunks")
