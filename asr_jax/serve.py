"""Runs `python -m asr_jax.serve`: see asr_jax/cli/serve.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.serve import main

if __name__ == "__main__":
    run_command(main)
