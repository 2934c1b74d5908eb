"""Runs of these tests draw no curves, which would take half of their time; those of tests/cli/test_commands.py do."""

import pytest

from asr_jax.training import loop


@pytest.fixture(autouse=True)
def without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "draw_curves", lambda events, picture: None)
