"""The examples of docs/migration.md: their files, commands, printed lines and configs."""

import re
import shlex

import pytest

from asr_jax.cli.command_line import load_config
from asr_jax.cli.migrate import main
from tests.support import ROOT

PAGE = (ROOT / "docs" / "migration.md").read_text()
SECTIONS = dict(re.findall(r"(?ms)^## (.*?)\n(.*?)(?=^## |\Z)", PAGE))


def blocks(section, kind):
    return re.findall(rf"(?ms)^```{kind}\n(.*?)^```$", SECTIONS[section])


def check_in_order(expected, lines):
    """Checks that lines stand in a text in this order; between them may be others."""
    place = 0
    for line in expected.splitlines():
        assert line in lines[place:], line
        place = lines.index(line, place) + 1


@pytest.mark.parametrize("section", SECTIONS)
def test_examples(section, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for text in blocks(section, "yaml"):
        (tmp_path / re.match("# (.*)", text)[1]).write_text(text)
    [console], [excerpt] = blocks(section, "console"), blocks(section, "text")
    command, _, printed = console.replace("\\\n", "").partition("\n")
    arguments = shlex.split(command.removeprefix("$ python -m asr_jax.migrate "))
    main(arguments)
    check_in_order(printed.replace("…\n", ""), capsys.readouterr().out.splitlines())
    out = arguments[arguments.index("--out") + 1]
    check_in_order(excerpt, (tmp_path / out).read_text().splitlines())
    assert load_config(out).data.train
