"""Pages of all messages: templates of errors, warnings and texts with the function that writes them, and all events."""

import ast
import functools
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from markdown_text import markdown, table, toctree

PACKAGE = Path(__file__).resolve().parent.parent.parent / "asr_jax"
ERRORS = ("UserError", "RunError", "AudioError", "NoUtterances", "NotGiven", "StorageError", "Stopped")
"""Errors that commands print without a traceback."""
WARNINGS = ("warning", "warn")
PAGES = {
    "alignment": "transcription", "api": "python", "audio": "data", "checkpoints": "failures", "cli": "quickstart",
    "cli.align": "transcription", "cli.augment": "front-ends", "cli.average": "training", "cli.benchmark": "results",
    "cli.clean": "training", "cli.compare": "decoding", "cli.context_options": "streaming", "cli.convert": "data",
    "cli.evaluate": "decoding", "cli.extract_features": "front-ends", "cli.feature_statistics": "front-ends",
    "cli.init": "init", "cli.merge": "divided-work", "cli.migrate": "migration", "cli.ngram": "decoding",
    "cli.over_runs": "decoding", "cli.plan": "explanation-plan", "cli.plan_remarks": "explanation-plan",
    "cli.plan_target": "accelerators", "cli.recognition_options": "decoding", "cli.report": "report",
    "cli.results": "decoding", "cli.serve": "serving", "cli.tokenizer": "data", "cli.train": "training",
    "cli.transcribe": "transcription", "cli.transcribe_stream": "streaming", "cli.upload": "upload",
    "cli.watch": "watch", "config": "training", "core": "several-machines", "core.flags": "quickstart",
    "core.foreign_words": "migration", "core.jobs": "divided-work", "core.targets": "accelerators",
    "core.text_files": "data", "data": "data", "data.batching": "explanation-plan", "data.batching.sets": "data",
    "exporting": "export", "heads": "models", "inference": "transcription", "kernels": "accelerators",
    "metrics": "decoding", "migration": "migration", "models": "models", "nn": "models", "observe": "training",
    "observe.forward": "upload", "optim": "training", "pretrained": "published-models", "pretrained.hub": "upload",
    "reporting": "report", "search": "decoding", "serving": "serving", "text": "data", "training": "training",
    "training.run": "explanation-resuming", "transcripts": "transcription", "watching": "watch",
}  # fmt: skip
"""Page that explains the module or package that a message comes from; of others, that of failures."""
ABOUT = """# Messages

The texts of the code: errors, problems of settings, warnings, and other texts of four words or more, such as printed
lines and parts of errors. A word in braces stands for a value. This list is for searching, from a line of a log to the
page that explains it: search for the words without the values. A message has the value, what was expected, and what to
do. [Troubleshooting](/troubleshooting.md) begins with symptoms, and has remedies for frequent messages. There are
{number} texts.

Messages on types and ranges of settings have one form, `FIELD is VALUE: expected RANGE`. Messages of Python, XLA and
CUDA are not in the list. Reasons of rejected utterances are in `rejected.jsonl`, each with its utterance."""


class Message(NamedTuple):
    """A message in the code."""

    kind: str
    """error, problem (of settings), warning, or text: any other, which may be a part of one."""
    module: str
    """Its module."""
    place: str
    """Module and function."""
    template: str


def pages() -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each page."""
    from asr_jax.observe.event_fields import EVENTS  # not at the top, so that a test can read the messages quickly

    rooms = defaultdict[str, list[Message]](list)
    for message in [*messages(), *texts()]:
        rooms[message.module.split(".")[1].replace("__init__", "api")].append(message)
    rows = [[f"[{room}]({room}.md)", str(len(of)), link(f"asr_jax.{room}")] for room, of in rooms.items()]
    number = sum(map(len, rooms.values()))
    about = ABOUT.format(number=f"{number:,}")
    yield (
        "messages/index.md",
        "\n\n".join([about, table("part | texts | explained in", rows), toctree([*rooms, "events"])]),
    )
    for room, of in rooms.items():
        parts = [f"# Messages of asr_jax.{room}"]
        for module, group in itertools.groupby(sorted(of, key=lambda each: each.module), key=lambda each: each.module):
            parts.append(f"## {module}\n\nSee {link(module)}.")
            lines = sorted(group, key=lambda each: (each.kind == "text", each.place))
            parts.append("\n".join(f"- {shown(each.template)}\n  {each.kind}, `{each.place}`" for each in lines))
        yield f"messages/{room}.md", "\n\n".join(parts)
    events = [[f"`{name}`", markdown(kind.meaning)] for name, kind in EVENTS.items()]
    yield "messages/events.md", "# Events\n\nLines of `events.jsonl`.\n\n" + table("event | meaning", events)


def link(module: str) -> str:
    """A link to the page that explains a module: that of its own, or of the nearest package that has one."""
    words = module.split(".")[1:]
    names = (".".join(words[:number]) for number in range(len(words), 0, -1))
    return "[{0}](/{0}.md)".format(next((PAGES[name] for name in names if name in PAGES), "failures"))


def shown(template: str) -> str:
    """A template as code, on one line."""
    text = " ".join(template.split())
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def messages() -> list[Message]:
    """Returns all messages, sorted by their place. Those without a text of their own, such as `str(error)`, are not."""
    found = {each for module, tree in trees().items() for each in _in(tree, module, module, _constants(tree))}
    return sorted(found, key=lambda message: message[1:])


def texts() -> list[Message]:
    """Returns the other texts of four words or more, without docstrings and without parts of longer ones."""
    whole = "\n".join(each.template for each in messages())
    found = list[Message]()
    for module, tree in trees().items():
        of_module = sorted({*_texts(tree, module, module)}, key=lambda each: -len(each.template))
        for number, each in enumerate(of_module):
            longer = (other.template for other in of_module[:number])
            if each.template not in whole and not any(each.template in other for other in longer):
                found.append(each)
    return found


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Returns the syntax tree of each module."""
    return {
        ".".join(("asr_jax", *path.relative_to(PACKAGE).with_suffix("").parts)): ast.parse(
            path.read_text(encoding="utf-8")
        )
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    return {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def detectors() -> set[str]:
    """Names of all warnings in `events.jsonl`."""
    found = set[str]()
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                values = [each.value for each in node.keywords if each.arg == "detector"]
                values += node.args[:1] if getattr(node.func, "attr", "") == "_report" else []
                found |= {str(each.value) for each in values if isinstance(each, ast.Constant)}
    return found


def _in(node: ast.AST, module: str, place: str, constants: dict[str, ast.expr]) -> Iterator[Message]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        place = f"{place}.{node.name}"
    for child in ast.iter_child_nodes(node):
        yield from _in(child, module, place, constants)
    kind, text = "", None
    if isinstance(node, ast.Call) and (name := getattr(node.func, "id", getattr(node.func, "attr", ""))):
        if name in ERRORS:
            kind, text = "error", next(iter(node.args), None)
        elif name in WARNINGS:
            kind, text = "warning", next(iter(node.args), _keyword(node))
        elif name == "_report" and len(node.args) > 3:  # of a detector
            kind, text = "warning", node.args[3]
        elif name == "print" and node.args and (printed := _template(node.args[0], {})).startswith("warning: "):
            kind, text = "warning", ast.Constant(printed.removeprefix("warning: "))
        elif name == "write" and node.args and getattr(node.args[0], "value", "") == "warning":
            kind, text = "warning", _keyword(node)
    elif isinstance(node, ast.Yield) and place.endswith(".problems"):
        kind, text = "problem", node.value
    template = _template(text, constants) if text is not None else ""
    if len(re.findall(r"[a-z]{3,}", re.sub(r"\{.*?\}", "", template))) > 1:  # others have no words of their own
        yield Message(kind, module, place, template)


def _texts(node: ast.AST, module: str, place: str) -> Iterator[Message]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return  # a docstring
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        place = f"{place}.{node.name}"
    for child in ast.iter_child_nodes(node):
        yield from _texts(child, module, place)
    if isinstance(node, ast.JoinedStr | ast.BinOp | ast.Constant):
        template = _template(node, {})
        if len(re.findall(r"(?<!\S)[a-z]{2,}(?=[\s,.;:]|$)", template)) > 3:
            yield Message("text", module, place, template)


def _keyword(node: ast.Call) -> ast.expr | None:
    return next((each.value for each in node.keywords if each.arg == "message"), None)


def _template(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    """Text of an expression; values in it are names in braces, or dots if they have no name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part, constants) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _template(node.value, constants)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left, constants) + _template(node.right, constants)
    if isinstance(node, ast.Name) and node.id in constants:
        return _template(constants[node.id], {})
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "counted" and len(node.args) == 2:
        return f"{{…}} {_template(node.args[1], constants)}s"  # the name of what is counted
    return "{" + (ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else "…") + "}"
