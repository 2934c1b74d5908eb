"""Runs `python -m asr_jax.feature_statistics`: see asr_jax/cli/feature_statistics.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.feature_statistics import main

if __name__ == "__main__":
    run_command(main)
