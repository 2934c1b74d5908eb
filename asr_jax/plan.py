"""Runs `python -m asr_jax.plan`: see asr_jax/cli/plan.py."""

from asr_jax.cli.command_line import run_command
from asr_jax.cli.plan import main

if __name__ == "__main__":
    run_command(main)
