"""Runs `python -m asr_jax.ngram`: see asr_jax/cli/ngram.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.ngram import main

if __name__ == "__main__":
    run_command(main)
