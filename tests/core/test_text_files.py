"""Text files: their encoding and lines in any locale, and a walk over the source for other ways to open them."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from asr_jax.core.files import write_whole
from asr_jax.core.text_files import (
    MARK,
    OtherText,
    TextError,
    json_line,
    json_text,
    open_text,
    read_lines,
    read_text,
    split_lines,
)

ROOT = Path(__file__).parents[2]
NOT_LINES = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r"
"""Characters at which `str.splitlines` divides a text, and which do not end lines."""


def otherwise(path):
    """Yields each place of a source file that opens or divides text in another way."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            keywords = {each.arg: each.value for each in node.keywords}
            if (
                (name == "open" and opens_text(node, keywords))
                or (name in ("read_text", "write_text", "splitlines") and isinstance(node.func, ast.Attribute))
                or (name == "TextIOWrapper" and "encoding" not in keywords)
                or (name in ("run", "Popen", "check_output") and keywords.keys() & {"text", "universal_newlines"})
                or "ensure_ascii" in keywords
            ):
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)[:60]}"


def opens_text(node, keywords):
    """Whether a call of a function or method `open` opens text without an encoding."""
    of = getattr(getattr(node.func, "value", None), "id", "")
    if "encoding" in keywords or of in ("os", "tarfile", "av"):
        return False
    given = [each.value for each in (*node.args[:2], keywords.get("mode")) if isinstance(each, ast.Constant)]
    modes = [each for each in given if isinstance(each, str) and re.fullmatch("[rwaxbt+]+", each)]
    is_default = not modes and len(node.args) == (not isinstance(node.func, ast.Attribute))
    return is_default or any("b" not in mode for mode in modes)


def test_all_text_is_read_and_written_by_one_module():
    paths = [*ROOT.glob("asr_jax/**/*.py"), *ROOT.glob("scripts/corpora/*.py"), *ROOT.glob("examples/*.py")]
    found = [place for path in paths if path.name != "text_files.py" for place in otherwise(path)]
    assert not found, "use asr_jax.core.text_files:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\r", ["a"]),
        (b"a\r\nb\r\r\n\nc\r", ["a", "b", "", "c"]),
        (MARK + b"a\n" + MARK + b"b\n", ["a", "\ufeffb"]),
        (f"a{NOT_LINES}b\nc{NOT_LINES}d".encode(), [f"a{NOT_LINES}b", f"c{NOT_LINES}d"]),
        (b"\x00\n\x00", ["\x00", "\x00"]),
    ],
)
def test_a_newline_ends_a_line_and_nothing_else(content, lines, tmp_path):
    (tmp_path / "a").write_bytes(content)
    assert list(read_lines(tmp_path / "a")) == lines
    assert split_lines(read_text(tmp_path / "a")) == lines


@pytest.mark.parametrize(
    ("content", "kind", "reason"),
    [
        ("a\nb".encode("utf-16"), OtherText, "the text is UTF-16; expected UTF-8: iconv"),
        (b"a\rb\rc\r", OtherText, r"carriage returns alone end its lines; .* tr '\\r' '\\n'"),
        (
            b"caf\xe9\n",
            TextError,
            "not UTF-8 (byte 0xe9 at 3); save it as UTF-8; from Latin-1: iconv -f LATIN1 -t UTF-8 IN > OUT".replace(
                "(", r"\("
            ).replace(")", r"\)"),
        ),
        (b"a\ncaf\xc3", TextError, r"not UTF-8 \(byte 0xc3 at 3\)"),
    ],
)
def test_other_text_is_refused_with_the_fix(content, kind, reason, tmp_path):
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(kind, match=reason):
        list(read_lines(tmp_path / "a"))


@pytest.mark.parametrize("text", ["", "a\n", "\ufeffa", "\ufeff\ufeff", "é中😀\r\n", NOT_LINES, "\x00"])
def test_a_text_is_read_as_it_was_written(text, tmp_path):
    write_whole(tmp_path / "a", text)
    assert read_text(tmp_path / "a") == text


def test_lone_surrogates_end_no_writing(tmp_path):
    write_whole(tmp_path / "a", "a\udcff")
    with open_text(tmp_path / "b") as file:
        file.write("a\udcff")
    assert read_text(tmp_path / "a") == read_text(tmp_path / "b") == r"a\udcff"


def test_all_readers_divide_json_into_the_same_lines():
    text = NOT_LINES + "\n\udcff\x00é中😀\ufeff\\u2028"
    line = json_line({text: [text]})
    assert line.splitlines() == line.split("\n")[:1]
    assert json.loads(line.encode()) == {text: [text]}
    assert "é中😀" in line
    assert json.loads(json_text([text], indent=2)) == [text]


def test_a_file_of_the_longest_name_a_link_and_a_pipe_are_written(tmp_path):
    longest = tmp_path / ("x" * 255)
    write_whole(longest, "long")
    (tmp_path / "link").symlink_to("target")
    write_whole(tmp_path / "link", "a")
    write_whole(tmp_path / "link", "b")
    ours, theirs = os.pipe()
    write_whole(Path(f"/dev/fd/{theirs}"), "piped")
    assert (read_text(longest), read_text(tmp_path / "target"), os.read(ours, 9)) == ("long", "b", b"piped")
    assert (tmp_path / "link").is_symlink()
    with pytest.raises(FileNotFoundError, match="'gone/file'"):
        write_whole(Path("gone/file"), "")
    assert len(list(tmp_path.iterdir())) == 3


PRINTS = """
import sys
from asr_jax.core.text_files import use_utf8
use_utf8()
print(sys.argv[1], "\\udcff", sys.getfilesystemencoding(), open(sys.argv[1]).read(), file=sys.stdout)
print("\\u4e2d", file=sys.stderr)
"""


def test_every_command_has_utf8():
    texts = {path: path.read_text("utf-8") for path in ROOT.glob("asr_jax/**/*.py")}
    commands = {path: text for path, text in texts.items() if re.search("^if __name__ ==", text, re.MULTILINE)}
    assert commands
    assert not [
        path for path, text in commands.items() if not re.search(r"\b(run_command|run_report|use_utf8)\(", text)
    ]


@pytest.mark.parametrize(
    "locale",
    [
        {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"},
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONUTF8": "1", "LC_ALL": "C"},
    ],
)
def test_a_command_has_utf8_in_every_locale(locale, tmp_path):
    (tmp_path / "é中").write_text("ü", "utf-8")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("LC_", "PYTHON", "LANG"))}
    done = subprocess.run(
        [sys.executable, "-c", PRINTS, "é中"], cwd=tmp_path, capture_output=True, check=False,
        env=environment | {"PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"} | locale,
    )  # fmt: skip
    assert done.stdout.decode() == "é中 \\udcff utf-8 ü\n", done.stderr.decode()
    assert done.stderr.decode() == "中\n"
