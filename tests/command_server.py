"""Runs commands of the package one after the other in one process, which starts JAX once for all of them.

Reads a JSON list a line, [command, folder, argument …]; writes [exit code, what was said] a line.
"""

import contextlib
import importlib
import io
import json
import os
import sys
import traceback

from asr_jax.cli.command_line import run_command


def answer(command, folder, *arguments):
    said, code = io.StringIO(), 0
    os.chdir(folder)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            run_command(importlib.import_module(f"asr_jax.{command}").main, arguments)
        except SystemExit as end:
            code = end.code
        except BaseException:
            code = 1
            traceback.print_exc()
    return code, said.getvalue()


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)
