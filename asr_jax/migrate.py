"""Runs `python -m asr_jax.migrate`: see asr_jax/cli/migrate.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.migrate import main

if __name__ == "__main__":
    run_command(main)
