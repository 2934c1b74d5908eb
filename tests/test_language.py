"""Prose and names: words of docs/glossary.md that are not used, first words of docstrings, arguments.

`python tests/test_language.py asr_jax/data` lists what is wrong in a folder.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("asr_jax", "configs", "scripts", "benchmarks", "examples", "docs")
PAGES = ("README.md", "CHANGELOG.md", "BUILD_NOTES.md", "CONTRIBUTING.md", "SECURITY.md")
UNUSED = (
    "heard", "told", "anew", "mend", "mends", "mended", "seldom", "wherever", "nobody", "by name", "what is said",
    "of those that", "of those which", "as it is called", "in its place stands", "SEC_NEW", "SEC_OLD", "FIXME",
)  # fmt: skip
FORMER_NAMES = (
    "Record", "Records", "read_records", "make_records", "Refused", "Dropped", "Unusable", "Unread", "Broken", "Heard",
    "broken_rules", "batch_weights", "added_weights", "report_skipped", "append_skipped",
    "unread", "broken", "TODO", "TBD",
)  # fmt: skip
"""Names and nouns of earlier versions: see utterance, rejected and denominator in the glossary."""
FIRST = ("What", "Whose", "Of", "Who", "How")
NOT_CHECKED = ("docs/glossary.md",)
FILLERS = set(re.findall(r"\w+", "the of a an to are and or in for with that it each by on from be at if"))


def files(*places):
    for place in places:
        path = ROOT / place
        found = [path] if path.is_file() else [each for ending in ("py", "md") for each in path.rglob(f"*.{ending}")]
        yield from (each for each in sorted(found) if str(each.relative_to(ROOT)) not in NOT_CHECKED)


def unused_words(path):
    pattern = re.compile(rf"\b(?<!--)({'|'.join(UNUSED)})\b", re.IGNORECASE)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for word in pattern.findall(line):
            yield f"{path.relative_to(ROOT)}:{number}: {word!r}"


def docstrings(tree):
    """Docstrings of modules, classes and functions, and the strings behind fields, with their line."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else ():
            text = getattr(getattr(statement, "value", None), "value", None)
            if isinstance(statement, ast.Expr) and isinstance(text, str):
                yield statement.lineno, text


def former_names(path):
    pattern = re.compile(rf"\b({'|'.join(FORMER_NAMES)})\b(?! (?:the|a|an)\b)")  # "Records the …" is a verb
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for word in pattern.findall(line):
            yield f"{path.relative_to(ROOT)}:{number}: {word!r}"


def first_words(path):
    for number, text in docstrings(ast.parse(path.read_text())):
        word = re.match(r"\W*(\w*)", text)[1]
        if word in FIRST:
            yield f"{path.relative_to(ROOT)}:{number}: a docstring begins with {word!r}"


def content(text):
    """Words of a text or of a name in any case, in the singular, without articles and prepositions."""
    words = re.findall("[a-z]+", re.sub("([a-z])([A-Z])", r"\1 \2", text).lower())
    return {word.rstrip("s") for word in words} - FILLERS


def empty_arguments(path):
    """Yields arguments whose description adds at most one word to their name, their type and the function's name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.FunctionDef) or "\nArgs:\n" not in (text := ast.get_docstring(node) or ""):
            continue
        section = re.search(r"\nArgs:\n((?: +.*\n|\n)+)", text + "\n")[1]
        own = node.args
        for each in (*own.posonlyargs, *own.args, *own.kwonlyargs):
            found = re.search(rf"^    {each.arg}: (.*(?:\n      +.*)*)", section, re.MULTILINE)
            if not found or re.search(r"\d|None|[Ee]mpty|[:;\[`]", found[1]):  # a default, a shape or a reference
                continue
            known = f"{each.arg} {node.name} {ast.unparse(each.annotation) if each.annotation else ''}"
            if len(content(found[1]) - content(known)) < 2:
                yield f"{path.relative_to(ROOT)}:{node.lineno}: {node.name} describes {each.arg} as {found[1]!r}"


def problems(*places):
    for path in files(*places):
        yield from unused_words(path)
        if path.suffix == ".py":
            yield from former_names(path)
            yield from first_words(path)
            if path.is_relative_to(ROOT / "asr_jax"):
                yield from empty_arguments(path)


def test_words_that_are_not_used():
    found = [line for path in files(*FOLDERS, *PAGES) for line in unused_words(path)]
    assert not found, "\n".join(found)


def test_former_names():
    found = [line for path in files(*FOLDERS) if path.suffix == ".py" for line in former_names(path)]
    assert not found, "\n".join(found)


def test_first_words_of_docstrings():
    found = [line for path in files(*FOLDERS) if path.suffix == ".py" for line in first_words(path)]
    assert not found, "\n".join(found)


def test_descriptions_of_arguments_say_more_than_the_signature():
    found = [line for path in files("asr_jax") if path.suffix == ".py" for line in empty_arguments(path)]
    assert not found, "\n".join(found)


if __name__ == "__main__":
    print("\n".join(problems(*sys.argv[1:])))
