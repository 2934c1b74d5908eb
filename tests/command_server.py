"""Runs commands of the package one after the other in one process, which starts JAX only once.

Each line of the input is a JSON list [command, folder, argument …]; each line of the output is [exit code, text].
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
    output, code = io.StringIO(), 0
    os.chdir(folder)
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        try:
            run_command(importlib.import_module(f"asr_jax.{command}").main, arguments)
        except SystemExit as end:
            code = end.code
        except BaseException:
            code = 1
            traceback.print_exc()
    return code, output.getvalue()


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(answer(*json.loads(line))), flush=True)
