"""Runs `python -m asr_jax.benchmark NAME`: see asr_jax/cli/benchmark/command.py."""

from asr_jax.cli.benchmark.command import main
from asr_jax.cli.command_line import run_command

if __name__ == "__main__":
    run_command(main, reserves_memory=True)
