"""Runs `python -m asr_jax.watch`: see asr_jax/cli/watch.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.watch import main

if __name__ == "__main__":
    run_command(main)
