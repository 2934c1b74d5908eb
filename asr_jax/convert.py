"""Runs `python -m asr_jax.convert`: see asr_jax/cli/convert.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.convert import main

if __name__ == "__main__":
    run_command(main)
