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

from asr_jax.core.text_files import read_text

ROUND = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
CURLY = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
"""Brackets with at most two levels of brackets in them."""
EXPANSION = (
    rf"\\(?P<escaped>[^\n])|\\\n|\$\((?P<formula>{ROUND})\)|(?P<command>\${ROUND}|`[^`]*`)"
    rf"|\$(?P<parameter>{CURLY})|\$(?P<name>\w+|[@*#?])"
)
IN_QUOTES = re.compile(EXPANSION)
PIECE = re.compile(rf"{EXPANSION}|'(?P<literal>[^']*)'|\"(?P<quoted>(?:\\.|\${ROUND}|\${CURLY}|[^\"\\])*)\"", re.DOTALL)
TOKEN = re.compile(
    rf"(?:[ \t\r]|\\\n)+|#[^\n]*|(?P<operator>\n|&&|\|\|?|;|\d?[<>]+&?|&>?)"
    rf"|(?P<word>(?:{re.sub(r'[?]P<.*?>', '?:', PIECE.pattern)}|{ROUND}|[^\s;&|<>'\"])+)|.",
    re.DOTALL,
)
HEREDOC = re.compile(r"(?ms)(?<!<)(<<(-)?[ \t]*(['\"]?)(\w+)\3[^\n]*\n)(?:.*?\n)??(?(2)\t*)\4$")
"""A redirection from the lines after it, which are no commands; after `<<-`, tabs may be before the last one."""
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?=)(.*)", re.DOTALL)
PROGRAM = re.compile(r"[\w./-]*\.py")
QUIET = {
    "echo", "printf", "mkdir", "sleep", "set", "cd", "exit", "true", "date", "pip", "trap", "ulimit", "wait", ".",
    "source", "shift", "local", "declare", "cat",
}  # fmt: skip
"""Commands without an effect on the settings."""
WRAPPERS = re.compile(
    r"(.*/)?(python[\d.]*|torchrun|accelerate|srun|mpirun|nohup|env|time|exec|horovodrun|bash|sh|nice)"
)
OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv,
    ast.Mod: operator.mod, ast.Lt: operator.lt, ast.Gt: operator.gt, ast.LtE: operator.le, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
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
        before = {name: self.variables.pop(name) for name in "123456789@" if name in self.variables}
        numbered = {str(number): each for number, each in enumerate(arguments, 1)}
        self.variables |= numbered | {"@": shlex.join(arguments)}
        self.run_text(read_text(path))
        for name in (*numbered, "@"):
            self.variables.pop(name, None)
        self.variables |= before

    def run_text(self, script: str) -> None:
        """Reads commands, except those of branches that are not taken."""
        branches: list[tuple[bool, bool]] = []
        """For each open `if` and loop: whether its commands are read now, and whether a branch was read before."""
        for words in _commands(HEREDOC.sub(r"\1", script)):
            while words and words[0] in ("then", "do", "else", "{"):
                match words.pop(0):
                    case "else":
                        branches[-1] = (not branches[-1][1], True)
                    case "{":
                        branches.append((True, True))
            is_read = all(now for now, _ in branches)
            match words[:1]:
                case ["fi" | "done" | "esac" | "}"] if branches:
                    branches.pop()
                case [str() as name] if "{" in words and (name == "function" or name.endswith("()")):
                    self.notes += [f"not read: {shlex.join(words)}"] * is_read
                    branches.append((False, True))
                case ["elif"]:
                    is_next = not branches[-1][1] and self._holds(words[1:])
                    branches[-1] = (is_next, branches[-1][1] or is_next)
                case ["for"]:
                    branches.append((is_read and self._turn(words), True))
                case ["if" | "while" | "until" | "case"]:
                    is_taken = words[0] == "if" and is_read and self._holds(words[1:])
                    branches.append((is_taken, is_taken))
                    if is_read and words[0] != "if":
                        self.notes.append(f"not read: {' '.join(words)[:80]} …")
                case ["|"]:
                    branches.append((False, False))
                    if is_read and words[1] != "{":
                        self.notes.append(f"not read: {' '.join(words[1:])[:80]} …")
                case _ if is_read:
                    self._run_all(words)

    def _turn(self, words: list[str]) -> bool:
        """Sets the variable of `for NAME in …` to its first value; returns whether there is one."""
        values = [each for word in words[3:] for each in self.expand(word).split()]
        if len(values) > 1:
            self.notes.append(f"of the loop over {', '.join(values)}, only {words[1]}={values[0]} is read")
        self.variables |= {words[1]: values[0]} if values else {}
        return bool(values)

    def _run_all(self, words: list[str]) -> None:
        """Reads commands with && between them; those after a condition that does not hold are left out."""
        place = words.index("&&") if "&&" in words else len(words)
        first, others = words[:place], words[place + 1 :]
        is_condition = first[:1] in (["["], ["[["], ["test"])
        if not is_condition:
            self.run(first)
        if others and (not is_condition or self._holds(first)):
            self._run_all(others)

    def run(self, words: list[str]) -> None:
        """Reads one command: assignments, and a script or a program after them."""
        words = [word for word in words if word not in ("export", "readonly")]
        assigned = dict[str, str]()
        while words and (found := ASSIGNMENT.fullmatch(words[0])):
            name, is_more, value = found[1], found[2] == "+=", self.expand(found[3])
            if found[3].startswith("("):  # an array, perhaps on several lines
                value = " " + shlex.join(self._words([word for each in _commands(found[3][1:-1]) for word in each]))
            assigned[name] = assigned.get(name, self.variables.get(name, "")) * is_more + value
            words = words[1:]
        self.variables |= assigned
        expanded = self._words(words)
        if expanded and expanded[0] not in QUIET and expanded[0] != ":":
            self._call(expanded)

    def _words(self, words: list[str]) -> list[str]:
        """Returns words with the values of their variables; a value without quotes is several words."""
        expanded = list[str]()
        for word in words:
            is_open = re.fullmatch(r'"\$(@|\{\w+\[@\]\})"', word) or ("$" in word and not word.startswith(("'", '"')))
            expanded += _split(self.expand(word)) if is_open else [self.expand(word)]
        return expanded

    def _call(self, words: list[str]) -> None:
        """Finds the script or the program in a call, after launchers such as torchrun with their options."""
        if words[0] == "cargo":
            place = words.index("--") if "--" in words else len(words)
            named = words[words.index("--bin") + 1] if "--bin" in words else "train"
            self.arguments = words[place + 1 :]
            is_named = self.arguments and not self.arguments[0].startswith("-")
            self.programs.append(f"cargo run {self.arguments[0] if is_named else named}")
            self.variables["--cargo"] = shlex.join(words[:place])
            return
        place = next((n for n, word in enumerate(words) if PROGRAM.fullmatch(word) or word.endswith(".sh")), -1)
        if place < 0 and (words[0].startswith(("-", "+")) or "=" in words[0]):  # flags alone
            self.arguments = words
        elif place < 0 or (place and not WRAPPERS.fullmatch(words[0])):
            self.notes.append(f"not read: {shlex.join(words[:place] if place > 0 else words)[:80]}")
        if place < 0:
            return
        program, arguments = words[place], words[place + 1 :]
        if program.endswith(".sh") and (path := self.find(program)):
            self.run_file(path, arguments)
        else:
            self.programs.append(program)
            self.arguments = arguments

    def _holds(self, words: list[str]) -> bool:
        """Whether a condition holds; one that cannot be read does not."""
        parts = [self.expand(word) for word in words if word not in ("[", "]", "[[", "]]", "test")]
        match parts:
            case ["!", *_]:
                return not self._holds([word for word in words if word != "!"])
            case ["-n" | "-z" as test, value]:
                return bool(value) == (test == "-n")
            case [left, test, right] if test in TESTS:
                is_number = test.startswith("-") and all(re.fullmatch(r"-*\d+", each) for each in (left, right))
                return bool(TESTS[test](int(left), int(right)) if is_number else TESTS[test](left, right))
        self.notes.append(f"condition not read: {shlex.join(words)[:80]}")
        return False

    def expand(self, word: str) -> str:
        """Returns a word without quotes, with the values of its variables."""
        return PIECE.sub(self._expanded, word)

    def _expanded(self, found: re.Match[str]) -> str:
        text = found[found.lastgroup] if found.lastgroup else ""
        match found.lastgroup:
            case "quoted":
                return IN_QUOTES.sub(self._expanded, text)
            case "formula":
                return self._calculated(text[1:-1])
            case "parameter":
                return self._parameter(text[1:-1])
            case "name":
                self.used.add(text)
                return self.variables.get(text, "")
        return text if found.lastgroup in ("escaped", "literal") else ""

    def _parameter(self, inner: str) -> str:
        """Returns the value of `${inner}`; `:=` and `=` set a variable that has none."""
        found = re.fullmatch(r"([\w@]+)(?:\[[@*]\])?(?:(:?[=+?-])(.*))?", inner, re.DOTALL)
        if not found:
            self.notes.append(f"not read: ${{{inner}}}")
            return ""
        name, how, default = found[1], found[2] or "", found[3] or ""
        value = self.variables.get(name)
        if how.endswith("+"):
            return self.expand(default) if value else ""
        if value is None or (how.startswith(":") and not value):
            value = self.expand(default)
            if how.endswith("="):
                self.variables[name] = value
                return value
        self.used.add(name)
        return value

    def _calculated(self, formula: str) -> str:
        """Returns the value of whole numbers with + - * / % and comparisons; empty if there is more in it."""
        plain = self.expand(re.sub(r"(?<![\w$])[A-Za-z_]\w*", lambda found: f"${found[0]}", formula)).strip()
        plain = re.sub(r"(.+)\?(.+):(.+)", r"(\2) if (\1) else (\3)", plain)
        try:
            return str(int(_value(ast.parse(plain.strip(), mode="eval").body)))
        except (SyntaxError, ValueError, KeyError, ZeroDivisionError):
            self.notes.append(f"not calculated: {formula.strip()}")
            return ""


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.IfExp():
            return _value(node.body if _value(node.test) else node.orelse)
        case ast.UnaryOp(op=ast.USub()):
            return -_value(node.operand)
        case ast.BinOp(left=left, op=op, right=right) | ast.Compare(left=left, ops=[op], comparators=[right]):
            return int(OPERATORS[type(op)](_value(left), _value(right)))
    raise ValueError(ast.unparse(node))


def _split(value: str) -> list[str]:
    """Returns the words of a value; without pairs of quotes, it is one."""
    try:
        return shlex.split(value)
    except ValueError:
        return [value]


def _commands(script: str) -> Iterator[list[str]]:
    """Yields the words of each command with their quotes, without redirections and what follows a pipe."""
    words, is_left_out, at_command = list[str](), False, False
    for token in TOKEN.finditer(f"{script}\n"):
        if token["operator"] in ("\n", ";"):
            if words:
                yield words
            words, is_left_out = [], False
        elif token["operator"] not in (None, "&&"):
            is_left_out = True
        elif is_left_out and at_command and token[0] in ("{", "while", "until", "for", "if", "case"):
            yield words
            words, is_left_out = ["|", token[0]], False  # a block that is not read
        elif token.lastgroup and not is_left_out:
            words.append(token[0])
        if token["operator"] or token["word"]:
            at_command = token["operator"] in ("|", "||", "&&")
