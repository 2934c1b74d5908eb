"""Runs `python -m asr_jax.train`: see asr_jax/cli/train.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.train import main

if __name__ == "__main__":
    run_command(main, reserves_memory=True)
