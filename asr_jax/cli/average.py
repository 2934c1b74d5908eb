"""Mean of the weights of several checkpoints: `python -m asr_jax.average RUN --out DIR [--last N | --from A --to B]`.

DIR becomes a run with one checkpoint, which evaluate, transcribe, export and --init-from accept. To keep several
checkpoints of a run, train with --training.saving.keep-last N or --training.saving.milestones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from asr_jax.core.errors import UserError
from asr_jax.core.options import parse
from asr_jax.core.settings import NonNegativeInt, command_options


@command_options
class AverageOptions:
    """Options of `asr_jax.average`."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Folder of a run."""
    out: Path
    """Folder to write."""
    last: Annotated[NonNegativeInt, arg(metavar="N")] = 0
    """Number of newest checkpoints to average; 0: all."""
    first: Annotated[NonNegativeInt, arg(name="from", metavar="A")] = 0
    """First update whose checkpoint is averaged."""
    to: Annotated[NonNegativeInt, arg(metavar="B")] = 0
    """Last update whose checkpoint is averaged; 0: no limit."""
    weights: Literal["ema", "live"] = "ema"
    """Weights of each checkpoint: the exponential moving average (ema) or the live parameters."""


def main(arguments: Sequence[str]) -> None:
    options = parse(AverageOptions, arguments, prog="python -m asr_jax.average", about=__doc__)
    if options.out.exists():
        raise UserError(f"--out {options.out} already exists: choose another name")
    if options.out.suffix in (".safetensors", ".pt", ".nemo"):
        raise UserError(
            f"--out {options.out}: expected a folder, which becomes a run; python -m asr_jax.export writes its weights "
            "to a file"
        )

    from asr_jax.core.devices import say_devices
    from asr_jax.inference.averaging import choose, mean_weights, save_run
    from asr_jax.inference.importing import run_and_checkpoint

    say_devices()
    run = run_and_checkpoint(options.run)[0]
    chosen = choose(run, last=options.last, first=options.first, to=options.to)
    save_run(run, chosen[-1], mean_weights(run, chosen, live=options.weights == "live"), options.out)
    kind = {"ema": "averaged", "live": "live"}[options.weights]
    print(f"{options.out}: the mean of the {kind} parameters of checkpoints {', '.join(map(str, chosen))}")
