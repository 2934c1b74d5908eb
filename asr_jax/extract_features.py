"""Runs `python -m asr_jax.extract_features`: see asr_jax/cli/extract_features.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.extract_features import main

if __name__ == "__main__":
    run_command(main)
