"""Pages of all messages: templates of errors and warnings with the function that writes them, and all events."""

import ast
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
    "config": "training", "core": "several-machines", "data": "data", "exporting": "export", "heads": "models",
    "inference": "transcription", "kernels": "accelerators", "losses": "explanation-losses", "metrics": "decoding",
    "models": "models", "nn": "models", "observe": "training", "optim": "training", "pretrained": "published-models",
    "reporting": "report", "search": "decoding", "serving": "serving", "text": "data", "training": "training",
    "transcripts": "transcription", "watching": "watch",
}  # fmt: skip
"""Page that explains the part of the package that a message comes from; otherwise that of failures."""
ABOUT = """# Messages

Errors, problems of settings and warnings, as in the code: a word in braces stands for a value. A message has the value,
what was expected, and what to do; this list is for searching, from a line of a log to the page that explains it.
[Troubleshooting](/troubleshooting.md) begins with symptoms. There are {number} messages.

Not in the list are messages that are composed of parts. Those on types and ranges of settings have one form,
`FIELD is VALUE: expected RANGE`. Reasons of rejected utterances are in `rejected.jsonl`, each with its utterance."""


class Message(NamedTuple):
    """A message in the code."""

    kind: str
    """error, problem (of settings) or warning."""
    place: str
    """Module and function."""
    template: str


def pages() -> Iterator[tuple[str, str]]:
    """Yields the path and the text of each page."""
    from asr_jax.observe.event_fields import EVENTS  # not at the top, so that a test can read the messages quickly

    rooms = defaultdict[str, list[Message]](list)
    for message in messages():
        rooms[room_of(message)].append(message)
    links = {room: "[{0}](/{0}.md)".format(PAGES.get(room, "failures")) for room in rooms}
    rows = [[f"[{room}]({room}.md)", str(len(of)), links[room]] for room, of in rooms.items()]
    number = sum(map(len, rooms.values()))
    about = ABOUT.format(number=f"{number:,}")
    yield (
        "messages/index.md",
        "\n\n".join([about, table("part | messages | explained in", rows), toctree([*rooms, "events"])]),
    )
    for room, of in rooms.items():
        lines = [f"- {shown(each.template)}\n  {each.kind}, `{each.place}`" for each in of]
        yield (
            f"messages/{room}.md",
            "\n".join([f"# Messages of asr_jax.{room}\n", f"See also {links[room]}.\n", *lines]),
        )
    events = [[f"`{name}`", markdown(kind.meaning)] for name, kind in EVENTS.items()]
    yield "messages/events.md", "# Events\n\nLines of `events.jsonl`.\n\n" + table("event | meaning", events)


def room_of(message: Message) -> str:
    """Package that a message comes from."""
    return message.place.split(".")[1]


def shown(template: str) -> str:
    """A template as code, on one line."""
    text = " ".join(template.split())
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def messages() -> list[Message]:
    """Returns all messages, sorted by their place. Those without a text of their own, such as `str(error)`, are not."""
    found = set[Message]()
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(("asr_jax", *path.relative_to(PACKAGE).with_suffix("").parts))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        found |= set(_in(tree, module, constants))
    return sorted(found, key=lambda message: message[1:])


def detectors() -> set[str]:
    """Names of all warnings in `events.jsonl`."""
    found = set[str]()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                values = [each.value for each in node.keywords if each.arg == "detector"]
                values += node.args[:1] if getattr(node.func, "attr", "") == "_report" else []
                found |= {str(each.value) for each in values if isinstance(each, ast.Constant)}
    return found


def _in(node: ast.AST, place: str, constants: dict[str, ast.expr]) -> Iterator[Message]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        place = f"{place}.{node.name}"
    for child in ast.iter_child_nodes(node):
        yield from _in(child, place, constants)
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
        yield Message(kind, place, template)


def _keyword(node: ast.Call) -> ast.expr | None:
    return next((each.value for each in node.keywords if each.arg == "message"), None)


def _template(node: ast.expr, constants: dict[str, ast.expr]) -> str:
    """Text of an expression; values in it are names in braces, or dots if they have no name."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part, constants) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left, constants) + _template(node.right, constants)
    if isinstance(node, ast.Name) and node.id in constants:
        return _template(constants[node.id], {})
    value = node.value if isinstance(node, ast.FormattedValue) else node
    return "{" + (ast.unparse(value) if isinstance(value, ast.Name | ast.Attribute) else "…") + "}"
