"""Any manifest or data folder to our JSONL, or to fairseq's lists: `python -m asr_jax.convert IN … OUT`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from asr_jax.command_line import run_command
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
    options = parser.parse_args(arguments)

    from asr_jax.data.manifest import write_manifest
    from asr_jax.data.progress import in_threads
    from asr_jax.data.readers.fairseq import at_16_khz, write_fairseq
    from asr_jax.data.reading import read_once

    if options.out.suffix not in (".jsonl", ".tsv"):
        raise UserError(f"{options.out}: expected a name that ends in .jsonl, or in .tsv for fairseq's lists")
    options.out.parent.mkdir(parents=True, exist_ok=True)
    unpacked = options.out.with_suffix(".bytes").absolute()
    records = read_once(options.inputs, role=options.role, unpack_to=str(unpacked))
    if options.out.suffix == ".tsv":
        write_fairseq(str(options.out), in_threads(at_16_khz, list(records), "headers"))
    else:
        write_manifest(options.out, records)
    for entry in records.refused:
        print(f"left out {entry.id}: {entry.location}: {entry.reason}")
    kept = f"; their bytes in {unpacked}" if unpacked.exists() else ""
    print(f"{len(records)} records, {records.hours:.2f} h, to {options.out}{kept}; {len(records.refused)} left out")


if __name__ == "__main__":
    run_command(main)
