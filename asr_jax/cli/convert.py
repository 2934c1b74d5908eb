"""Any manifest or data folder to our JSONL, or to fairseq's lists: `python -m asr_jax.convert IN … OUT`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from asr_jax.core.errors import UserError


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m asr_jax.convert", description=__doc__)
    parser.add_argument("inputs", nargs="+", metavar="IN", help="files, folders or patterns of any format that is read")
    parser.add_argument(
        "out", type=Path, metavar="OUT",
        help="OUT.jsonl, or OUT.tsv for fairseq's lists (with OUT.ltr, OUT.wrd and, where there is none, dict.ltr.txt)",
    )  # fmt: skip
    parser.add_argument(
        "--role", choices=("train", "validation"), default="train", help="which set of a folder that has both"
    )
    parser.add_argument("--force", action="store_true", help="write over an OUT that is there")
    options = parser.parse_args(arguments)
    _check(options)

    from asr_jax.data.manifests.manifest import write_manifest
    from asr_jax.data.manifests.progress import in_threads
    from asr_jax.data.manifests.readers.fairseq import at_16_khz, write_fairseq
    from asr_jax.data.manifests.reading import read_once

    options.out.parent.mkdir(parents=True, exist_ok=True)
    unpacked = _new(options.out)
    try:
        records = read_once(options.inputs, role=options.role, unpack_to=str(unpacked))
        if options.out.suffix == ".tsv":
            write_fairseq(str(options.out), in_threads(at_16_khz, list(records), "headers"))
        else:
            write_manifest(options.out, records)
    except BaseException:
        unpacked.unlink(missing_ok=True)  # no manifest names it
        raise
    for entry in records.refused:
        print(f"left out {entry.id}: {entry.location}: {entry.reason}")
    kept = f"; their bytes in {unpacked}" if unpacked.exists() else ""
    print(f"{len(records)} records, {records.hours:.2f} h, to {options.out}{kept}; {len(records.refused)} left out")


def _check(options: argparse.Namespace) -> None:
    """Raises: UserError for an OUT that is no manifest, that is an input, or that is there already."""
    out: Path = options.out
    if out.suffix not in (".jsonl", ".tsv"):
        raise UserError(f"{out}: expected a name that ends in .jsonl, or in .tsv for fairseq's lists")
    if any(out.exists() and Path(path).exists() and out.samefile(path) for path in options.inputs):
        raise UserError(f"{out} is an input as well: give another name to what is written")
    if out.exists() and not options.force:
        raise UserError(f"{out} is there already, and OUT, the last argument, is written: give another, or --force")


def _new(out: Path) -> Path:
    """Where bytes that lie in tables go: a file that is not there yet, since manifests may name the others."""
    names = (f"{out.name}.bytes", *(f"{out.name}.{number}.bytes" for number in range(2, 10_000)))
    return next(path for path in map(out.absolute().with_name, names) if not path.exists())
