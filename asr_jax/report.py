"""Runs `python -m asr_jax.report`: see asr_jax/cli/report.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.report import main

if __name__ == "__main__":
    run_command(main)
