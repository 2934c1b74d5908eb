"""Measures memory and time of the transducer losses: `python benchmarks/transducer_loss.py [--json OUT]`.

The measured function is the joint network with its loss: loss and gradients with respect to its parameters, the
embeddings of the labels and the encoder's output. Memory is the temporary memory of XLA's program, without inputs and
outputs. The variants and the losses of torchaudio and fast_rnnt take turns. These run in the environment of
scripts/setup_reference.sh, to which torchaudio's native library, as in its builds for the CPU, and fast_rnnt, compiled
from its source, must be added; a loss that cannot be imported is left out with a message. Programs that need more than
--limit GB are compiled but not run.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.core.batch import Batch, Encoded, Frames
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.losses.lattice import lattice_loss
from asr_jax.nn.recurrent.prediction import StatelessPrediction

ROOT = Path(__file__).resolve().parent.parent
BASE = Transducer(
    prediction=StatelessPrediction(512, 1, regularise=False), joint_dim=512, dropout=0.0, tile_frames=-1
)  # fmt: skip
VARIANTS = {
    "plain": BASE,
    **{f"split {number}": replace(BASE, split=number) for number in (2, 4, 8, 16)},
    "tiled": replace(BASE, tile_frames=0),
    "pruned": replace(BASE, pruning=Pruning()),
    "pruned, tiled": replace(BASE, pruning=Pruning(), tile_frames=0),
}


PEERS = ("torchaudio", "fast_rnnt", "fast_rnnt, pruned")
"""Losses of transducer_side.py."""


class Shape(NamedTuple):
    """Sizes of a batch."""

    rows: int
    frames: int
    labels: int
    vocabulary: int
    joint_dim: int
    encoder_dim: int


SHAPES = {
    "small": Shape(16, 375, 75, 1024, 512, 1024),
    "base": Shape(16, 375, 75, 8704, 768, 1024),
    "base, 2 rows": Shape(2, 375, 75, 8704, 768, 1024),
}
LOSS_ALONE = ((4, 100, 25), (8, 200, 50), (16, 375, 75), (16, 750, 150))


def batch_of(shape: Shape) -> tuple[Any, Any]:
    """Returns random encoder frames and a batch of labels; all rows have the full length."""
    random = np.random.default_rng(0)
    frames = jnp.asarray(random.normal(size=(shape.rows, shape.frames, shape.encoder_dim)), jnp.float32)
    labels = jnp.asarray(random.integers(0, shape.vocabulary - 1, (shape.rows, shape.labels)), jnp.int32)
    return frames, labels


def gradient_of(settings: Transducer, shape: Shape) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """Returns a function of parameters, frames and labels, and arguments for it."""
    head = replace(settings, joint_dim=shape.joint_dim).build(
        vocab_size=shape.vocabulary, blank_id=shape.vocabulary - 1, dtype=jnp.float32
    )
    frames, labels = batch_of(shape)
    rows = shape.rows

    def apply(variables: Any, frames: Any, labels: Any, method: Any = None) -> Any:
        lengths, num_labels = jnp.full(rows, frames.shape[1]), jnp.full(rows, labels.shape[1])
        encoded = Encoded(Frames(frames, lengths))
        batch = Batch(None, frames, lengths, labels, num_labels, jnp.ones(rows), jnp.arange(rows))
        return (
            head.init(jax.random.key(0), encoded, batch, step=None)
            if variables is None
            else head.apply(variables, encoded, batch, step=None)
        )

    def loss(variables: Any, frames: Any, labels: Any) -> Any:
        sums = apply(variables, frames, labels)
        return sum(sums[name].total for name in ("loss", "simple") if name in sums)

    few = jax.jit(lambda frames, labels: apply(None, frames, labels))(frames[:, :8], labels[:, :4])
    return jax.value_and_grad(loss, argnums=(0, 1)), (few, frames, labels)


def compiled_of(settings: Transducer, shape: Shape) -> tuple[Any, tuple[Any, ...]]:
    function, arguments = gradient_of(settings, shape)
    return jax.jit(function).lower(*arguments).compile(), arguments


def seconds(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - started


def peer(python: str, loss: str, shape: Shape, repeats: int) -> list[float] | None:
    """Times of another project's loss in seconds; None, with a message, if it cannot be imported."""
    given = json.dumps({"loss": loss, **shape._asdict(), "repeats": repeats, "threads": os.cpu_count()})
    side = [python, str(ROOT / "benchmarks/transducer_side.py"), given]
    done = subprocess.run(side, check=False, capture_output=True, text=True)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode and re.match(r"\w*ImportError|ModuleNotFoundError|AttributeError: '_OpNamespace'", last):
        print(f"{loss} is left out: {last}", flush=True)
        return None
    if done.returncode:
        raise RuntimeError(f"{loss} ended with {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)["times_s"]


def compare(name: str, shape: Shape, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures all variants of one shape."""
    programs, rows = {}, []
    for variant, settings in VARIANTS.items():
        if settings.split > shape.rows:
            continue
        program, arguments = compiled_of(settings, shape)
        temporary = program.memory_analysis().temp_size_in_bytes
        rows.append({"shape": name, "variant": variant, "temporary_mb": temporary / 1e6, "times_s": []})
        if temporary < options.limit * 1e9:
            programs[variant] = (program, arguments, rows[-1]["times_s"])
        print(json.dumps(rows[-1]), flush=True)
    fits = 4 * 4 * shape.rows * shape.frames * (shape.labels + 1) * shape.vocabulary < options.limit * 1e9
    theirs: dict[str, list[float]] = {loss: [] for loss in PEERS if options.peer and (fits or "pruned" in loss)}
    for _ in range(options.repeats):
        for program, arguments, times in programs.values():
            if not times:
                jax.block_until_ready(program(*arguments))
            times.append(seconds(lambda program=program, arguments=arguments: program(*arguments)))
        for loss in [*theirs]:
            if (found := peer(options.peer, loss, shape, 1)) is None:
                del theirs[loss]
            else:
                theirs[loss] += found
        ours = {variant: times for variant, (_, _, times) in programs.items()}
        print(name, {each: round(min(times), 2) for each, times in (ours | theirs).items() if times}, flush=True)
    return [*rows, *({"shape": name, "variant": loss, "times_s": times} for loss, times in theirs.items() if times)]


def loss_alone(repeats: int) -> list[dict[str, Any]]:
    """Measures the recursion without the joint network at several sizes."""
    found = []
    for rows, frames, labels in LOSS_ALONE:
        random = np.random.default_rng(0)
        blank, label = (
            jnp.asarray(random.normal(size=(1, rows, frames, size)) - 3, jnp.float32) for size in (labels + 1, labels)
        )
        lengths, num_labels = jnp.full(rows, frames), jnp.full(rows, labels)

        def total(blank: Any, label: Any, lengths: Any = lengths, num_labels: Any = num_labels) -> Any:
            return lattice_loss(blank, label, lengths, num_labels).sum()

        program = jax.jit(jax.value_and_grad(total, argnums=(0, 1))).lower(blank, label).compile()
        jax.block_until_ready(program(blank, label))
        times = [
            seconds(lambda program=program, blank=blank, label=label: program(blank, label)) for _ in range(9 * repeats)
        ]
        nodes = rows * frames * (labels + 1)
        found.append(
            {
                "rows": rows, "frames": frames, "labels": labels, "nodes": nodes, "times_s": times,
                "temporary_mb": program.memory_analysis().temp_size_in_bytes / 1e6,
                "ns_per_node": 1e9 * statistics.median(times) / nodes,
            }
        )  # fmt: skip
        print(json.dumps({**found[-1], "times_s": min(times)}), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--repeats", type=int, default=3, help="number of calls of each variant")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES), help="shapes to measure")
    parser.add_argument("--limit", type=float, default=8.0, help="largest memory of a program that runs, in GB")
    parser.add_argument(
        "--peer",
        default=str(ROOT / ".venv-reference/bin/python"),
        help="Python with torchaudio and fast_rnnt; empty: none",
    )
    options = parser.parse_args()
    load = os.getloadavg()[0]
    result = {
        "load": load, "alone": loss_alone(options.repeats),
        "joint": [row for name in options.shapes for row in compare(name, SHAPES[name], options)],
    }  # fmt: skip
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
