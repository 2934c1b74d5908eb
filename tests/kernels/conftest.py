"""Fixtures for kernels of TPUs."""

from functools import partial

import pytest
from jax.experimental import pallas as pl

from asr_jax.core.devices import TracedFor
from asr_jax.kernels import implementations


@pytest.fixture
def on_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for TPUs can be chosen."""
    monkeypatch.setattr(implementations, "traced_for", lambda: TracedFor("tpu", 1))


@pytest.fixture
def interpreted(on_tpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for TPUs are computed in Pallas' interpreter."""
    monkeypatch.setattr(pl, "pallas_call", partial(pl.pallas_call, interpret=True))
