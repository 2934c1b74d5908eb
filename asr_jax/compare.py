"""Runs `python -m asr_jax.compare`: see asr_jax/cli/compare.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.compare import main

if __name__ == "__main__":
    run_command(main)
