"""Reads shell scripts of other systems: assignments, conditions, loops and the call of the training program.

Nothing is run. What the values of variables depend on, such as `$(command)`, is empty.
"""

import ast
import operator
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from asr_jax.core.errors import UserError
from asr_jax.core.text_files import read_text, split_lines

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?=)(.*)", re.DOTALL)
EXPANSION = re.compile(r"\$(\w+|[@*#?])")
PROGRAM = re.compile(r"[\w./-]*\.py")
QUIET = {
    "echo", "printf", "mkdir", "sleep", "set", "cd", "exit", "true", "date", "pip", "trap", "ulimit", "wait", ".",
    "source", "shift", "local", "declare",
}  # fmt: skip
"""Commands without an effect on the settings."""
WRAPPERS = re.compile(
    r"(.*/)?(python[\d.]*|torchrun|accelerate|srun|mpirun|nohup|env|time|exec|horovodrun|bash|sh|nice)"
)
OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Lt: operator.lt, ast.Gt: operator.gt,
    ast.LtE: operator.le, ast.GtE: operator.ge, ast.Eq: operator.eq, ast.NotEq: operator.ne,
}  # fmt: skip
TESTS = {
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "-eq": operator.eq, "-ne": operator.ne,
    "-lt": operator.lt, "-gt": operator.gt, "-le": operator.le, "-ge": operator.ge,
}  # fmt: skip


@dataclass
class Shell:
    """Variables, programs and arguments of a script or a command line, as far as they can be read."""

    variables: dict[str, str] = field(default_factory=dict)
    """Values of the variables at the end."""
    given: set[str] = field(default_factory=set)
    """Variables that were set on a command line, not by a script."""
    used: set[str] = field(default_factory=set)
    """Variables that others, flags or conditions have used."""
    programs: list[str] = field(default_factory=list)
    """Scripts and programs that were called, the outer ones first."""
    arguments: list[str] = field(default_factory=list)
    """Arguments of the last program."""
    notes: list[str] = field(default_factory=list)
    """Sentences on commands that were not read."""
    folders: list[Path] = field(default_factory=list)
    """Folders in which files may be."""

    def find(self, name: str) -> Path | None:
        """Returns the path of a file that a script names, from its folder or from the one above it."""
        places = [Path(name), *(folder / name for folder in self.folders)]
        return next((path for path in places if path.is_file()), None)

    def run_file(self, path: Path, arguments: list[str]) -> None:
        """Reads a script.

        Raises:
            UserError: If it is no text.
        """
        here = path.absolute().parent
        self.folders += [each for each in (here, here.parent) if each not in self.folders]
        self.programs.append(str(path))
        before = {name: self.variables.get(name) for name in "123456789@"}
        self.variables |= {str(number): each for number, each in enumerate(arguments, 1)}
        self.variables["@"] = shlex.join(arguments)
        self.run_text(read_text(path))
        for name, value in before.items():
            self.variables.pop(name, None) if value is None else self.variables.update({name: value})

    def run_text(self, script: str) -> None:
        """Reads commands; a line that begins with # or ends in a comment is not one."""
        lines = [re.sub(r"(^|\s)#(?![^'\"]*['\"][^'\"]*$).*", "", line) for line in split_lines(script)]
        branches: list[list[bool]] = []
        """For each open `if` and loop: whether its commands are read now, and whether a branch was read before."""
        for command in _commands(_joined(lines)):
            words = _words(command)
            while words and words[0] in ("then", "do", "else"):
                if words[0] == "else":
                    branches[-1] = [not branches[-1][1], True]
                words = words[1:]
            first = words[0] if words else ""
            if first in ("fi", "done", "esac"):
                branches.pop()
                words = []
            elif first == "elif":
                is_next = not branches[-1][1] and self._holds(words[1:])
                branches[-1] = [is_next, branches[-1][1] or is_next]
                words = []
            elif first == "for":
                branches.append([self._turn(words), True])
                words = []
            elif first in ("if", "while", "until", "case"):
                is_read = first == "if" and all(now for now, _ in branches) and self._holds(words[1:])
                branches.append([is_read, is_read])
                words = []
            if all(now for now, _ in branches):
                self._run(words)

    def _turn(self, words: list[str]) -> bool:
        """Sets the variable of `for NAME in …` to its first value; returns whether there is one."""
        values = [each for word in words[3:] for each in self.expand(word).split()]
        if len(values) > 1:
            self.notes.append(f"of the loop over {', '.join(values)}, only {words[1]}={values[0]} is read")
        self.variables |= {words[1]: values[0]} if values else {}
        return bool(values)

    def _run(self, words: list[str]) -> None:
        """Reads commands with && between them; those after a condition that does not hold are left out."""
        place = words.index("&&") if "&&" in words else len(words)
        if words[:1] and words[0] in ("[", "[[", "test"):
            if self._holds(words[:place]):
                self._run(words[place + 1 :])
        elif words:
            self.run(words[:place])
            self._run(words[place + 1 :])

    def run(self, words: list[str]) -> None:
        """Reads one command: assignments, and a script or a program after them."""
        words = [word for word in words if word not in ("export", "readonly")]
        assigned = dict[str, str]()
        while words and (found := ASSIGNMENT.fullmatch(words[0])):
            value = self.expand(found[3])
            assigned[found[1]] = assigned.get(found[1], self.variables.get(found[1], "")) * (found[2] == "+=") + value
            words = words[1:]
        self.variables |= assigned
        ends = [place for place, word in enumerate(words) if re.match(r"\d?>|\||&$|<", word)]
        words = words[: ends[0]] if ends else words
        if not words:
            return
        if words[0] == ":":
            for word in words[1:]:
                self.expand(word)
            return
        expanded = list[str]()
        for word in words:  # as in a shell, a value without quotes is several words
            value = self.expand(word)
            is_open = word == '"$@"' or ("$" in word and not word.startswith(("'", '"')))
            expanded += shlex.split(value) if is_open and _is_balanced(value) else [value]
        if expanded and expanded[0] not in QUIET:
            self._call(expanded)

    def _call(self, words: list[str]) -> None:
        """Finds the script or the program in a call, after launchers such as torchrun with their options."""
        if words[0] == "cargo":
            place = words.index("--") if "--" in words else len(words)
            self.arguments = words[place + 1 :]
            named = words[words.index("--bin") + 1] if "--bin" in words else "train"
            is_named = self.arguments and not self.arguments[0].startswith("-")
            self.programs.append(f"cargo run {self.arguments[0] if is_named else named}")
            self.variables["--cargo"] = shlex.join(words[:place])
            return
        place = next((n for n, word in enumerate(words) if PROGRAM.fullmatch(word) or word.endswith(".sh")), -1)
        if place < 0:
            if words[0].startswith(("-", "+")) or "=" in words[0]:  # flags alone
                self.arguments = words
            else:
                self.notes.append(f"not read: {shlex.join(words)[:80]}")
            return
        if place and not WRAPPERS.fullmatch(words[0]):
            self.notes.append(f"not read: {shlex.join(words[:place])[:80]}")
        program, arguments = words[place], words[place + 1 :]
        if not program.endswith(".sh"):
            self.programs.append(program)
            self.arguments = arguments
        elif path := self.find(program):
            self.run_file(path, arguments)
        else:
            self.programs.append(program)
            self.arguments = arguments

    def _holds(self, words: list[str]) -> bool:
        """Whether a condition holds; one that cannot be read does not."""
        parts = [self.expand(word) for word in words if word not in ("[", "]", "[[", "]]", "test")]
        if parts[:1] == ["!"]:
            return not self._holds(words[:1] + words[2:] if words[0] in ("[", "[[") else words[1:])
        if len(parts) == 2 and parts[0] in ("-n", "-z"):
            return bool(parts[1]) == (parts[0] == "-n")
        if len(parts) == 3 and parts[1] in TESTS:
            left, right = parts[0], parts[2]
            numeric = parts[1].startswith("-") and left.lstrip("-").isdigit() and right.lstrip("-").isdigit()
            return bool(TESTS[parts[1]](int(left), int(right)) if numeric else TESTS[parts[1]](left, right))
        self.notes.append(f"condition not read: {shlex.join(words)[:80]}")
        return False

    def expand(self, word: str) -> str:
        """Returns a word without quotes, with the values of its variables."""
        out, quote, i = "", "", 0
        while i < len(word):
            char, rest = word[i], word[i:]
            if char == "\\" and i + 1 < len(word) and quote != "'":
                out, i = out + word[i + 1], i + 2
            elif char in "'\"" and quote in ("", char):
                quote, i = "" if quote else char, i + 1
            elif quote != "'" and rest.startswith("$(("):
                end = _closing(word, i + 1)
                out, i = out + self._calculated(word[i + 3 : end - 1]), end + 1
            elif quote != "'" and rest.startswith(("$(", "`")):
                i = (_closing(word, i + 1) if char == "$" else word.index("`", i + 1)) + 1
            elif quote != "'" and rest.startswith("${"):
                end = _closing(word, i + 1)
                out, i = out + self._parameter(word[i + 2 : end]), end + 1
            elif quote != "'" and (found := EXPANSION.match(rest)):
                self.used.add(found[1])
                out, i = out + self.variables.get(found[1], ""), i + found.end()
            else:
                out, i = out + char, i + 1
        return out

    def _parameter(self, inner: str) -> str:
        """Returns the value of `${inner}`; `:=` and `=` set a variable that has none."""
        found = re.fullmatch(r"([\w@]+)(?:(:?[=+?-])(.*))?", inner, re.DOTALL)
        if not found:
            self.notes.append(f"not read: ${{{inner}}}")
            return ""
        name, how, default = found[1], found[2] or "", found[3] or ""
        value = self.variables.get(name)
        if how.endswith("+"):
            return self.expand(default) if value else ""
        if value is None or (how.startswith(":") and not value):
            value = self.expand(default) if how else ""
            if how.endswith("="):
                self.variables[name] = value
                return value
        self.used.add(name)
        return value

    def _calculated(self, formula: str) -> str:
        """Returns the value of whole numbers with + - * / % and comparisons; empty if there is more in it."""
        formula = re.sub(r"(?<![\w$])[A-Za-z_]\w*", lambda found: "$" + found[0], formula)
        plain = self.expand(formula)
        if choice := re.fullmatch(r"(.+)\?(.+):(.+)", plain):
            plain = f"({choice[2]}) if ({choice[1]}) else ({choice[3]})"
        try:
            return str(int(_value(ast.parse(plain.strip(), mode="eval").body)))
        except (SyntaxError, ValueError, KeyError, ZeroDivisionError):
            self.notes.append(f"not calculated: {formula.strip()}")
            return ""


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.IfExp):
        return _value(node.body if _value(node.test) else node.orelse)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp):
        return int(OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return int(OPERATORS[type(node.ops[0])](_value(node.left), _value(node.comparators[0])))
    raise ValueError(ast.unparse(node))


def _closing(word: str, start: int) -> int:
    """Returns the place of the bracket that closes the one at `start`."""
    depth, pair = 0, {"(": ")", "{": "}"}[word[start]]
    for place in range(start, len(word)):
        depth += (word[place] == word[start]) - (word[place] == pair)
        if not depth:
            return place
    raise UserError(f"{word}: expected {pair!r} after {word[start]!r}")


def _is_balanced(value: str) -> bool:
    try:
        shlex.split(value)
    except ValueError:
        return False
    return True


def _joined(lines: list[str]) -> str:
    """Joins lines that end in a backslash."""
    return "\n".join(lines).replace("\\\n", "")


def _commands(script: str) -> Iterator[str]:
    """Yields the commands of a script, which newlines and semicolons outside of quotes and brackets divide."""
    for piece in _split(script, "\n;"):
        if piece.strip():
            yield piece.strip()


def _words(command: str) -> list[str]:
    """Returns the words of a command, with their quotes."""
    return [word for word in _split(command, " \t\n") if word]


def _split(script: str, at: str) -> Iterator[str]:
    quote, depth, piece = "", 0, ""
    for place, char in enumerate(script):
        before = script[place - 1] if place else ""
        if char in "'\"" and quote in ("", char) and before != "\\":
            quote = "" if quote else char
        depth += 0 if quote == "'" else (char in "({") - (char in ")}")
        if char in at and not quote and depth <= 0:
            yield piece
            piece, depth = "", 0
        else:
            piece += char
    yield piece
