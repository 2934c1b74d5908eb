"""Streams of icefall's zipformer, from its own weights: outputs of windows, and of whole recordings in chunks."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from support import GoldenCase, assert_within, cases_in, max_abs, part, slow_after_first

from asr_jax.core.pytrees import unflatten
from asr_jax.models.encoder import Context
from asr_jax.models.zipformer import Zipformer, ZipformerEncoder
from asr_jax.pretrained.icefall import ICEFALL, SETTINGS
from tests.models.streaming_suite import streamed, whole

pytestmark = pytest.mark.golden

CASES = slow_after_first(cases_in(Path(__file__).parent / "icefall_streaming"))


@dataclass(frozen=True)
class Run:
    """Our encoder with icefall's weights, the recordings, and icefall's outputs."""

    encoder: ZipformerEncoder
    variables: Any
    rows: list[np.ndarray]
    silence: float
    of_windows: list[np.ndarray]
    """Outputs of full windows, with silence at the end."""
    in_chunks: list[np.ndarray]
    """Outputs of each whole recording, without silence."""

    def with_silence(self) -> list[np.ndarray]:
        """Returns the recordings with as much silence as the windows of `of_windows` have."""
        window, rows = self.encoder.stream_window, []
        for row, outputs in zip(self.rows, self.of_windows, strict=True):
            size = (len(outputs) // window.outputs - 1) * window.shift + window.size
            rows.append(np.pad(row, ((0, size - len(row)), (0, 0)), constant_values=self.silence))
        return rows


@cache
def run_of(path: Path) -> Run:
    case = GoldenCase(path, json.loads(path.read_text(encoding="utf-8")))
    arrays, info = case.arrays(), case.info
    settings = Zipformer(
        num_mels=info["feature_dim"],
        embed_channels=tuple(info["embed_channels"]),
        positions_dim=info["pos_dim"],
        causal=True,
        contexts=(Context(info["chunk"], info["left"]),),
        **{ours: tuple(map(int, info[theirs].split(","))) for ours, theirs in SETTINGS.items()},
    )
    found, left = ICEFALL.find(part(arrays, "param/"), settings)
    assert left == []
    rows = [[arrays[f"{name}/{number}"] for number in range(3)] for name in ("features", "streaming", "chunked")]
    encoder = settings.build(dtype=jnp.float32)
    return Run(encoder, {"params": unflatten(found)["params"]["encoder"]}, rows[0], info["silence"], rows[1], rows[2])


@pytest.fixture
def run(request: pytest.FixtureRequest) -> Run:
    return run_of(request.param.path)


@pytest.mark.slow
@pytest.mark.parametrize("run", CASES, indirect=True)
def test_windows_of_streams(run: Run) -> None:
    found = streamed(run.encoder, run.variables, run.with_silence(), starts=[0, 1, 2])
    in_one_piece = whole(run.encoder, run.variables, run.with_silence())
    for ours, all_at_once, theirs in zip(found, in_one_piece, run.of_windows, strict=True):
        assert len(ours) == len(all_at_once) >= len(theirs)  # icefall does not use frames after the last full window
        scale = float(np.abs(theirs).max())
        assert_within(max_abs(ours[: len(theirs)], theirs), 1e-4, scale=min(scale, 1.0), what="windows")
        assert_within(max_abs(all_at_once[: len(theirs)], theirs), 1e-4, scale=min(scale, 1.0), what="whole")


@pytest.mark.parametrize("run", CASES, indirect=True)
def test_whole_recordings_in_chunks(run: Run) -> None:
    found = streamed(run.encoder, run.variables, run.rows)
    in_one_piece = whole(run.encoder, run.variables, run.rows)
    for ours, all_at_once, theirs in zip(found, in_one_piece, run.in_chunks, strict=True):
        assert ours.shape == all_at_once.shape == theirs.shape
        scale = float(np.abs(theirs).max())
        assert_within(max_abs(ours, theirs), 1e-4, scale=min(scale, 1.0), what="windows")
        assert_within(max_abs(all_at_once, theirs), 1e-4, scale=min(scale, 1.0), what="whole")
