"""Runs `python -m asr_jax.upload`: see asr_jax/cli/upload.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.upload import main

if __name__ == "__main__":
    run_command(main, on_cpu=True)
