"""Settings of Sphinx: `sphinx-build -W -n -b html docs OUT` builds these pages and the reference."""

import itertools
import os
import re
import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx
from sphinx.ext.napoleon import GoogleDocstring

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent / "scripts"), str(DOCS.parent)]
os.environ.setdefault("JAX_PLATFORMS", "cpu")

project = "asr_jax"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_ext", "_static"]
html_theme = "furo"
html_title = "asr_jax"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["wide.css"]
highlight_language = "text"
smartquotes = False  # it would change the dashes of flags
html_show_copyright = False
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
# Signatures name types of other packages and of modules that have no page.
nitpick_ignore_regex = [(r"py:\w+", ".*")]
linkcheck_ignore = [r"http://localhost.*"]


def setup(app: Sphinx) -> None:
    app.connect("builder-inited", generate)
    app.connect("autodoc-process-docstring", as_rst)
    app.connect("source-read", prepare)


def generate(app: Sphinx) -> None:
    """Writes the pages that are made from the code to docs/generated."""
    import message_pages  # imported here because they import the package
    import reference_pages
    import zoo_pages

    shutil.rmtree(DOCS / "generated", ignore_errors=True)
    for name, text in itertools.chain(reference_pages.pages(), zoo_pages.pages(), message_pages.pages()):
        page = DOCS / "generated" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"{text}\n", encoding="utf-8")


def as_rst(app: Sphinx, what: str, name: str, documented: object, options: object, lines: list[str]) -> None:
    """Converts a docstring in Google style, with code between single backticks."""
    for number, line in enumerate(lines):
        if not line.lstrip().startswith(">>>"):
            pieces = re.split(r"`([^`]+)`", line)
            pieces[::2] = [re.sub(r"([*|\\_])", r"\\\1", each) for each in pieces[::2]]
            pieces[1::2] = [f"``{each}``" for each in pieces[1::2]]
            lines[number] = "".join(pieces)
    if what != "attribute":
        lines[:] = GoogleDocstring(lines, what=what, name=name, obj=documented).lines()


def prepare(app: Sphinx, name: str, texts: list[str]) -> None:
    """Changes what is right in the repository alone: links to files outside of docs/, and patterns for future pages."""
    text = re.sub(r"\[([^]]+)\]\(\.\./([^)]+)\)", _named, texts[0])
    if name == "index":
        text = re.sub(
            r"^[\w-]+\*$\n", lambda found: found[0] * any(DOCS.glob(found[0].strip() + ".md")), text, flags=re.M
        )
    texts[0] = text


def _named(link: re.Match[str]) -> str:
    """Returns the text of a link with the path of the file, which the built pages do not have."""
    words, path = link.groups()
    return f"`{path}`" if words == path else f"{words} (`{path}`)"
