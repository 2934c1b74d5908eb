"""Runs `python -m asr_jax.merge`: see asr_jax/cli/merge.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.merge import main

if __name__ == "__main__":
    run_command(main)
