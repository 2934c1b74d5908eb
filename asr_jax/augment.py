"""Runs `python -m asr_jax.augment`: see asr_jax/cli/augment.py."""

from asr_jax.cli.augment import main
from asr_jax.cli.command_line import run_command

if __name__ == "__main__":
    run_command(main)
