"""A package imports only lower layers, and siblings do not import each other (the layers are in README.md)."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "asr_jax"
LAYERS = [
    {"core"},
    {"kernels", "audio", "text"},
    {"nn", "losses", "metrics"},
    {"heads", "data", "optim"},
    {"models"},
    {"checkpoints", "pretrained", "decoding", "observe"},
    {"config", "command_line"},
    {"training"},
]
COMMANDS = len(LAYERS)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
FILES = sorted(PACKAGE.rglob("*.py"))


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
        for name in names:
            if name.startswith("asr_jax."):
                yield name.split(".")[1]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_only_go_down(path):
    own = path.relative_to(PACKAGE).with_suffix("").parts[0]
    for imported in imports(path):
        if imported == own or (own, imported) == ("command_line", "config"):
            continue
        level = LEVEL.get(own, COMMANDS)
        assert LEVEL.get(imported, COMMANDS) < level or level == COMMANDS, f"{own} imports {imported}"


def test_only_files_that_define_modules_use_flax():
    allowed = {"core", "nn", "heads", "models", "training", "kernels", "data"}
    for path in FILES:
        if "flax" in path.read_text():
            own = path.relative_to(PACKAGE).parts[0]
            assert own in allowed or "linen" not in path.read_text(), path
