"""Pictures of a report for docs: `python scripts/report_pictures.py report.html docs/images`.

Chromium of the system takes them. Sections that would make the pictures long are hidden, and so are most utterances.
"""

import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

HIDDEN = (
    "nav, section:has(> #kinds), section:has(> #training), h3:not([id]), .wide:has(> table:not(#utterances)), "
    ".sections details, article:nth-of-type(n + 2), #utterances tbody tr:nth-child(n + 5), .pages, noscript"
)


def main(report: Path, folder: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": 1200, "height": 900}, color_scheme=scheme)
            page.goto(report.absolute().as_uri())
            page.get_by_role("button", name="Errors").first.click()  # sorts
            page.add_style_tag(content=f"{HIDDEN} {{ display: none; }}")
            out = folder / f"report-{scheme}.png"
            page.screenshot(path=out, full_page=True)
            Image.open(out).quantize(256).save(out, optimize=True)
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
