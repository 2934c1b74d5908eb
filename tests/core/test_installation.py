"""Commands that install extras, in a checkout and in an installed package."""

import os

from asr_jax.core import installation
from asr_jax.core.installation import installing, is_checkout
from tests.support import ROOT


def test_a_checkout_has_a_script_that_installs_extras():
    assert is_checkout()
    command = installing("report")
    assert command == f"ASR_JAX_EXTRAS=report {ROOT / 'scripts/setup.sh'}"
    assert os.access(ROOT / "scripts/setup.sh", os.X_OK)


def test_an_installed_package_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(installation, "SETUP", tmp_path / "scripts/setup.sh")
    assert not is_checkout()
    assert installing("report") == "pip install 'asr-jax[report]'"
