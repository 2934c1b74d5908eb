"""Runs `python -m asr_jax COMMAND …`, and lists the commands without arguments: see asr_jax/cli/commands.py."""

from asr_jax.cli.commands import run

run()
