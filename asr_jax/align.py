"""Runs `python -m asr_jax.align`: see asr_jax/cli/align.py."""

from asr_jax.cli.align import main
from asr_jax.cli.command_line import run_command

if __name__ == "__main__":
    run_command(main)
