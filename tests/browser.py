"""Browser of the tests of pages."""

import shutil
from contextlib import contextmanager

import pytest

api = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[dev]'")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs a browser: apt-get install chromium")


@contextmanager
def browsing(*flags):
    """Yields Chromium without a window, started with flags."""
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--mute-audio", *flags])
        try:
            yield browser
        finally:
            browser.close()
