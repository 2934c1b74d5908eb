"""Runs `python -m asr_jax.tokenizer`: see asr_jax/cli/tokenizer.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.tokenizer import main

if __name__ == "__main__":
    run_command(main)
