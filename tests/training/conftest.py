"""Disables curves, which take half of the time of these tests. Runs in tests/cli/test_commands.py draw them."""

import pytest

from asr_jax.training import loop


@pytest.fixture(autouse=True)
def without_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "draw_curves", lambda events, picture: None)
