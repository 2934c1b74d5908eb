"""Runs `python -m asr_jax.quickstart`: see asr_jax/cli/quickstart.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.quickstart import main

if __name__ == "__main__":
    run_command(main)
