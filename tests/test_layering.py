"""A package imports only lower layers, and siblings do not import each other (layers: docs/architecture.md)."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "asr_jax"
LAYERS = [
    {"core"},
    {"kernels", "audio", "text"},
    {"nn", "losses", "metrics", "search"},
    {"heads", "data", "optim"},
    {"models"},
    {"checkpoints", "pretrained", "transcripts", "observe"},
    {"alignment", "reporting", "watching"},
    {"config"},
    {"inference", "migration"},
    {"training", "exporting", "serving"},
    {"cli"},
    {"api"},
]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ORDER_IN_DATA = ["manifests", "batching", "loading", "corpora"]
FLAX = {"core", "nn", "heads", "models", "training", "kernels", "data"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: a relative import"
            names = [f"asr_jax.{alias.name}" for alias in node.names] if node.module == "asr_jax" else [node.module]
        yield from (name.split(".")[1:] for name in names if name.startswith("asr_jax."))


def test_imports_only_go_down():
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).with_suffix("").parts
        for imported in imports(path):
            where = f"{'/'.join(own)} imports {'.'.join(imported)}"
            if imported[0] not in LEVEL:
                wrong.append(f"{where}, which is only a command: python -m asr_jax.{imported[0]}")
            elif own[0] not in LEVEL:  # asr_jax/__init__.py and the commands, which import only these
                wrong += [where] if imported[0] not in ("api", "cli", "core") else []
            elif own[0] == imported[0]:
                rank = ORDER_IN_DATA.index
                if own[0] == "data" and rank(imported[1]) > rank(own[1]):
                    wrong.append(where)
            elif LEVEL[imported[0]] >= LEVEL[own[0]]:
                wrong.append(where)
        if "flax import linen" in path.read_text() and own[0] not in FLAX:
            wrong.append(f"{'/'.join(own)} defines Flax modules")
    assert not wrong, "\n".join(wrong)
