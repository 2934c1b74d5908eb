"""Runs `python -m asr_jax.evaluate`: see asr_jax/cli/evaluate.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.evaluate import main

if __name__ == "__main__":
    run_command(main)
