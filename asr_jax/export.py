"""Runs `python -m asr_jax.export`: see asr_jax/cli/export.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.export import main

if __name__ == "__main__":
    run_command(main, on_cpu=True)
