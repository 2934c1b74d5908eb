"""Runs `python -m asr_jax.clean`: see asr_jax/cli/clean.py."""

from asr_jax.cli.clean import main
from asr_jax.cli.command_line import run_command

if __name__ == "__main__":
    run_command(main)
