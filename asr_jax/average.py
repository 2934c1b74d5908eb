"""Runs `python -m asr_jax.average`: see asr_jax/cli/average.py."""

from asr_jax.cli.average import main
from asr_jax.cli.command_line import run_command

if __name__ == "__main__":
    run_command(main, on_cpu=True)
