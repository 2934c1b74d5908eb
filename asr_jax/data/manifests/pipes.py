"""Commands in the place of files, as in Kaldi's wav.scp: `ffmpeg -i a.m4a -f wav - |`.

Commands that only decode a file are replaced by the file. Others are run if the user allows it: without a shell, if all
of their programs are in PROGRAMS, and with one input file. Their standard output is the audio.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from typing import BinaryIO

from asr_jax.audio.errors import AudioError

_C = r"-[a-zA-Z0-9]*c[a-zA-Z0-9]*|--stdout|--to-stdout"
PROGRAMS = {
    "bunzip2": _C,
    "bzcat": "",
    "cat": "",
    "ffmpeg": r"-|pipe:1?",
    "flac": _C,
    "gunzip": _C,
    "gzip": _C,
    "lame": "-",
    "mpg123": "-",
    "opusdec": "-",
    "shorten": "-",
    "sox": "-",
    "sph2pipe": "",
    "wvunpack": "-",
    "xzcat": "",
    "zcat": "",
}
"""Programs that are run, each with the word that makes it write to standard output. Empty: it always does. Without
the word, some of them replace the input file."""
HARMLESS = {
    "flac": r"-[cds]+|--stdout|--decode|--silent",
    "cat": r"",
    "sox": r"-t (wav|flac|sph)|-r (16k|16000)|-b (16|24|32)|-e signed(-integer)?|-c 1|-G|-R|-",
    "sph2pipe": r"-f (wav|rif|sph)|-p|-c ?[12]",
}
"""Arguments of programs that change only the format and the rate of one file."""
INPUT = "@"
"""Word of a command that stands for its input file."""
TIMEOUT_S = 600.0
"""Time in seconds after which a command is ended."""
SHOWN = 300
"""Number of characters of a program's error output that are shown."""
ALLOWING = "allow it with --allow-pipes (from Python: ReadOptions(allow_pipes=True))"
_NUMBER = re.compile(r"\d+(\.\d+)?[a-zA-Z]{0,2}")
_ENDING = re.compile(r"\.\w*[a-zA-Z]\w*$")
_SHELL = ";&|<>()"


@dataclass(frozen=True)
class Pipe:
    """A command with its input file."""

    path: str
    """The input file."""
    command: str = ""
    """The command, with INPUT as its input file. Empty: the command only decodes the file."""
    channel: int | None = None
    """Channel of the file that is decoded, from 0. None: all channels."""


def is_pipe(path: str) -> bool:
    return path.rstrip().endswith("|")


def parsed(text: str, *, is_allowed: bool) -> Pipe:
    """Parses a command.

    Raises:
        ValueError: If the command cannot be run, or is not allowed.
    """
    words = _words(text)
    found = _decoding(words)
    # sph2pipe also decodes shorten, which libsndfile does not.
    if found and not (is_allowed and os.path.basename(words[0]) == "sph2pipe" and shutil.which("sph2pipe")):
        return found
    stages = _stages(text)
    path = _input(text, stages)
    if not is_allowed:
        raise ValueError(f"the command {text!r} is not run: {ALLOWING}, or run it and give the path of its output")
    stages[0] = [INPUT if word == path else word for word in stages[0]]
    return Pipe(path, " | ".join(map(shlex.join, stages)))


def written(command: str, path: str) -> str:
    """Returns the command of a `Pipe` as it is written in a manifest."""
    stages = [[path if word == INPUT else word for word in stage] for stage in _split(command)]
    return " | ".join(map(shlex.join, stages)) + " |"


def output(command: str, path: str) -> bytes:
    """Runs the command of a `Pipe` and returns its standard output.

    Raises:
        AudioError: If the input file is missing, a program is missing, fails or takes longer than TIMEOUT_S.
    """
    if not os.path.exists(path):
        raise AudioError(path, "no such file")
    stages = [[path if word == INPUT else word for word in stage] for stage in _split(command)]
    processes = list[subprocess.Popen[bytes]]()
    with ExitStack() as stack:
        errors = [stack.enter_context(tempfile.TemporaryFile()) for _ in stages]
        try:
            for words, error in zip(stages, errors, strict=True):
                before = processes[-1].stdout if processes else subprocess.DEVNULL
                processes.append(subprocess.Popen(words, stdin=before, stdout=subprocess.PIPE, stderr=error))
                if len(processes) > 1 and (pipe := processes[-2].stdout):
                    pipe.close()  # the program then ends with the one that reads from it
            content, _ = processes[-1].communicate(timeout=TIMEOUT_S)
            codes = [process.wait(TIMEOUT_S) for process in processes]
        except FileNotFoundError as error:
            raise AudioError(path, f"{error.filename} is not installed, or its folder is not in PATH") from None
        except subprocess.TimeoutExpired:
            raise AudioError(path, f"the command took longer than {TIMEOUT_S:g} s: {written(command, path)}") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
                if process.stdout:
                    process.stdout.close()
        failed = [place for place, code in enumerate(codes) if code]
        # A program whose reader has ended is ended by SIGPIPE, and the reader has the reason.
        failed = [place for place in failed if codes[place] != -signal.SIGPIPE] or failed
        if failed:
            program, code = stages[failed[0]][0], codes[failed[0]]
            raise AudioError(path, f"{program} failed with exit code {code}: {_said(errors[failed[0]])}")
    return content


def _said(error: BinaryIO) -> str:
    """Last words of a program's error output."""
    error.seek(0)
    text = " ".join(error.read().decode(errors="replace").split())
    text = "".join(each for each in text if each.isprintable())
    return ("…" + text[-SHOWN:] if len(text) > SHOWN else text) or "without a message"


def _split(text: str) -> list[list[str]]:
    """Words of the programs of a command, in order.

    Raises:
        ValueError: If a quote is not closed.
    """
    stages: list[list[str]] = [[]]
    for word in _words(text):
        if word == "|":
            stages.append([])
        else:
            stages[-1].append(word)
    return stages


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text.rstrip().removesuffix("|"), posix=True, punctuation_chars=_SHELL)
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError as error:
        message = f"the command {text!r} cannot be run: {str(error).lower()}; expected quotes in pairs"
        raise ValueError(message) from None


def _stages(text: str) -> list[list[str]]:
    """Words of the programs of a command, whose names are without a folder."""
    for word in _words(text):
        if word != "|" and (set(word) <= set(_SHELL) or word.startswith("|") or set(word) & set("$`")):
            raise ValueError(
                f"the command {text!r} cannot be run: {word!r} needs a shell, and commands are run without one; run it "
                "and give the path of its output"
            )
    stages = _split(text)
    for stage in stages:
        # A program is found by its name, because a folder of data may have a program of its own.
        stage[:1] = [os.path.basename(name) for name in stage[:1]]
        name = stage[0] if stage else ""
        if name not in PROGRAMS:
            raise ValueError(
                f"the command {text!r} cannot be run: {name or 'nothing'!r} is not among the programs that "
                f"--allow-pipes runs ({', '.join(PROGRAMS)}); run it and give the path of its output"
            )
        if PROGRAMS[name] and not any(re.fullmatch(PROGRAMS[name], word) for word in stage[1:]):
            raise ValueError(
                f"the command {text!r} cannot be run: {name} does not write to standard output; expected "
                f"{'-c' if PROGRAMS[name] == _C else '-'} among its arguments"
            )
    return stages


def _input(text: str, stages: list[list[str]]) -> str:
    """Input file among the words of a command, which is one of its first program."""
    values = [word for word in stages[0][1:] if not word.startswith("-")]
    files = _files(values) or values * (len(values) == 1)
    others = [name for stage in stages[1:] for name in _files(stage[1:])]
    if len(files) != 1 or others:
        found = ", ".join(map(repr, files + others)) or "none"
        raise ValueError(
            f"the command {text!r} cannot be run: expected one input file, as an argument of its first program; found "
            f"{found}"
        )
    return files[0]


def _files(words: list[str]) -> list[str]:
    found = [
        word
        for word in words
        if not word.startswith("-") and not _NUMBER.fullmatch(word) and ("/" in word or _ENDING.search(word))
    ]
    return found if len(found) == 1 else [word for word in found if "=" not in word]  # = is in arguments of filters


def _decoding(words: list[str]) -> Pipe | None:
    """The file of a command that only decodes it. None for other commands."""
    program = os.path.basename(words[0]) if words else ""
    paths = [word for word in words[1:] if not word.startswith("-") and "." in os.path.basename(word)]
    flags = "".join(f"{word} " for word in words[1:] if word not in paths)
    if len(paths) != 1 or program not in HARMLESS or not re.fullmatch(rf"(?:(?:{HARMLESS[program]}) )*", flags):
        return None
    channel = re.search(r"-c ?(\d)", flags) if program == "sph2pipe" else None
    return Pipe(paths[0], channel=int(channel[1]) - 1 if channel else None)
