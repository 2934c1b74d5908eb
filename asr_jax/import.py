"""Runs `python -m asr_jax.import`: see asr_jax/cli/import_model.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.import_model import main

if __name__ == "__main__":
    run_command(main, on_cpu=True)
