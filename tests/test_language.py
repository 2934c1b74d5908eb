"""Prose and names: words of docs/glossary.md that are not used, first words of docstrings, documented arguments.

`python tests/test_language.py asr_jax/data` lists what is wrong in a folder.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
KERNELS = ROOT / "asr_jax/kernels"
FOLDERS = ("asr_jax", "configs", "scripts", "benchmarks", "examples", "docs")
PAGES = ("README.md", "CHANGELOG.md", "BUILD_NOTES.md")
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
OWN = {"self", "cls"}


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


def undocumented_arguments(path):
    """Arguments that `Args:` of a public function or method with more than two of them lacks. A method without a
    docstring, in a class with a base, has that of the base. An implementation of a kernel has the arguments of the
    function of `api` or `reference` that its docstring names."""
    tree = ast.parse(path.read_text())
    inherited = {
        id(method)
        for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.bases
        for method in node.body if isinstance(method, ast.FunctionDef) and not ast.get_docstring(method)
    }  # fmt: skip
    nested = {
        id(inner)
        for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        for inner in ast.walk(node) if isinstance(inner, ast.FunctionDef) and inner is not node
    }  # fmt: skip
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or id(node) in inherited | nested:
            continue
        own = node.args
        names = [each.arg for each in (*own.posonlyargs, *own.args, *own.kwonlyargs) if each.arg not in OWN]
        text = ast.get_docstring(node) or ""
        missing = [name for name in names if not re.search(rf"^\s*\*?{name}( \(.*?\))?:", text, re.MULTILINE)]
        is_overload = any("overload" in ast.unparse(each) for each in node.decorator_list)
        is_implementation = path.is_relative_to(KERNELS) and re.match(r"Computes `(api|reference)\.\w+`", text)
        if len(names) > 2 and not is_overload and not is_implementation and ("Args:" not in text or missing):
            place = f"{path.relative_to(ROOT)}:{node.lineno}"
            yield f"{place}: {node.name} does not document {', '.join(missing) or 'Args:'}"


def problems(*places):
    for path in files(*places):
        yield from unused_words(path)
        if path.suffix == ".py":
            yield from former_names(path)
            yield from first_words(path)
            if path.is_relative_to(ROOT / "asr_jax"):
                yield from undocumented_arguments(path)


def test_words_that_are_not_used():
    found = [line for path in files(*FOLDERS, *PAGES) for line in unused_words(path)]
    assert not found, "\n".join(found)


def test_former_names():
    found = [line for path in files(*FOLDERS) if path.suffix == ".py" for line in former_names(path)]
    assert not found, "\n".join(found)


def test_first_words_of_docstrings():
    found = [line for path in files(*FOLDERS) if path.suffix == ".py" for line in first_words(path)]
    assert not found, "\n".join(found)


def test_arguments_are_documented():
    found = [line for path in files("asr_jax") if path.suffix == ".py" for line in undocumented_arguments(path)]
    assert not found, "\n".join(found)


if __name__ == "__main__":
    print("\n".join(problems(*sys.argv[1:])))
