"""Runs `python -m asr_jax.init`: see asr_jax/cli/init.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.init import main

if __name__ == "__main__":
    run_command(main)
