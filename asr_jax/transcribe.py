"""Runs `python -m asr_jax.transcribe`: see asr_jax/cli/transcribe.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.transcribe import main

if __name__ == "__main__":
    run_command(main)
