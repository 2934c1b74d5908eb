"""The documentation is built without warnings, and has every page, command, option and setting."""

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest
from message_pages import PAGES, detectors, link, messages, texts
from zoo_pages import NEEDED, sections

from asr_jax.cli.command_line import flags_of_experiment, load_config
from asr_jax.cli.commands import COMMANDS
from asr_jax.core.flags import flags_of
from tests.cli.test_options_of_commands import MODULES, options_of

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"


def entries():
    """Entries of the tables of contents of docs/index.md."""
    text = (DOCS / "index.md").read_text()
    return [line for block in re.findall(r"```{toctree}\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]


def test_every_page_is_in_one_table_of_contents():
    for page in DOCS.glob("*.md"):
        if page.stem != "index":
            assert sum(fnmatch.fnmatch(page.stem, entry) for entry in entries() if entry) == 1, page.stem


@pytest.mark.parametrize("config", sorted(path.stem for path in (ROOT / "configs").glob("*.py")))
def test_every_config_has_the_sections_of_its_page(config):
    summary, parts = sections(config)
    assert summary.endswith(".")
    assert {*NEEDED} <= {name for name, text in parts.items() if text}


@pytest.mark.slow
def test_pages_are_built_without_warnings(tmp_path):
    """Links and anchors are checked in the build; it fails if one is missing."""
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-n", "--keep-going", "docs", tmp_path / "html"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    names = {path.stem for path in (tmp_path / "html/generated/commands").glob("*.html")}
    assert names == {*COMMANDS, "index"}
    commands = "".join(path.read_text() for path in (DOCS / "generated/commands").glob("*.md"))
    for kind in [kind for module in MODULES for kind in options_of(module) if kind.__name__ != "NoOptions"]:
        assert not [flag.name for flag in flags_of(kind) if f"`{flag.name}" not in commands]
    for config in (ROOT / "configs").glob("*.py"):
        for flag in flags_of_experiment(load_config(str(config))):
            page = (DOCS / f"generated/settings/{flag.owner.__module__.split('.')[1]}.md").read_text()
            section = page.partition(f"\n## {flag.owner.__name__}\n")[2].partition("\n## ")[0]
            assert f"\n`{flag.place[-1]}`: " in section, flag.name


def test_every_warning_of_a_run_is_explained():
    text = (DOCS / "troubleshooting.md").read_text()
    assert len(detectors()) >= 15
    assert not {name for name in detectors() if f"| {name} |" not in text}


def test_messages_are_listed_with_pages_that_exist():
    found = messages()
    assert all((DOCS / f"{page}.md").exists() for page in PAGES.values())
    templates = {each.template for each in found}
    assert "--plot {options.plot}: expected --show schedule, and a name that ends in .png" in templates
    assert "{each.detail}" not in templates  # a message without words of its own
    assert len(found) >= 500
    assert link("asr_jax.cli.serve") == "[serving](/serving.md)"
    assert link("asr_jax.cli.new") == link("asr_jax.cli")
    assert link("asr_jax.new") == "[failures](/failures.md)"


@pytest.mark.slow  # all texts of the package are compared
def test_parts_of_composed_messages_are_listed_and_frequent_ones_have_a_remedy():
    listed = [each.template for each in [*messages(), *texts()]]
    page = (DOCS / "troubleshooting.md").read_text().partition("## Frequent messages")[2].partition("\n## ")[0]
    for message in (
        "is not a flag; did you mean",
        "exceed the budget",
        "the run ends before the warm-up of the learning rate",
        "no word was recognised in",
        "audio files, but no texts",
        "has a run with other settings",
        "utterances that cannot be used",
        "not audio that libsndfile can read",
    ):
        assert any(message in template for template in listed), message
        assert message in page
    assert "got an unexpected keyword argument" in page  # Python's words


def test_messages_name_no_pages_of_a_checkout():
    """An installed package has no folder docs; messages have the name of a page instead."""
    named = [(path.name, page) for path in (ROOT / "asr_jax").rglob("*.py")
             for page in re.findall(r"docs/[\w-]+\.md", path.read_text())]  # fmt: skip
    assert not named
    pages = {page for path in (ROOT / "asr_jax").rglob("*.py")
             for page in re.findall(r"\(documentation: ([\w-]+)", path.read_text())}  # fmt: skip
    assert len(pages) > 5
    assert all((DOCS / f"{page}.md").exists() for page in pages)
