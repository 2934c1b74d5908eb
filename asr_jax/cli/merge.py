"""Joins the outputs of the jobs of a command with --job: `python -m asr_jax.merge OUT …`.

An OUT is an output of the command as if one job had done all: the --out of transcribe and align (or --to-manifest of
transcribe without --out), the --json of evaluate, the --output of extract_features, the OUT of convert. The result
equals that of one job. If a job is not finished, nothing is written; the message names the jobs to repeat. The exit
code is 1 if recordings were rejected, as for one job.
"""

import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import temporary_path
from asr_jax.core.jobs import MADE_OF, Job, read_receipt
from asr_jax.core.names import counted
from asr_jax.core.options import parse
from asr_jax.core.settings import command_options
from asr_jax.core.text_files import json_line
from asr_jax.observe.events import events_beside

RECEIPT = re.compile(r"(?P<out>.+)\.(?P<number>\d{5,})-of-(?P<of>\d{5,})\.done")


@command_options
class MergeOptions:
    """Options of `asr_jax.merge`."""

    outs: Annotated[Positional[tuple[Path, ...]], arg(metavar="OUT …")]
    """Outputs of commands that ran with --job."""
    keep: bool = False
    """Keep the files of the jobs."""
    force: bool = False
    """Overwrite existing outputs."""


def main(arguments: Sequence[str]) -> None:
    options = parse(MergeOptions, arguments, prog="python -m asr_jax.merge", about=__doc__)
    num = rejected = 0
    for out in (each for given in options.outs for each in outputs_of(given)):
        receipts = receipts_of(out)
        num += sum(receipt["recordings"] for receipt in receipts.values())
        rejected += sum(receipt["rejected"] for receipt in receipts.values())
        join(out, receipts, force=options.force, keep=options.keep)
    if rejected:
        raise RunError(
            f"{rejected} of {counted(num, 'recording')} were rejected; the output of the jobs has the reasons"
        )


def outputs_of(given: Path) -> list[Path]:
    """The output itself, or all outputs in a folder that extract_features wrote to.

    Raises:
        UserError: If there is no receipt of a job.
    """
    for folder, name in ((given.parent, given.name), (given, "")):
        found = (RECEIPT.fullmatch(path.name) for path in folder.glob("*.done")) if folder.is_dir() else ()
        outs = {match["out"] for match in found if match and (not name or match["out"] == name)}
        if outs:
            return [folder / each for each in sorted(outs)]
    raise UserError(f"{given}: no job with --job is finished; expected an output of a command with --job")


def receipts_of(out: Path) -> dict[Path, dict[str, Any]]:
    """Receipts of all jobs in order, by path.

    Raises:
        UserError: If one is missing, or if they are of different work.
    """
    found = {path: match for path in out.parent.glob("*.done") if (match := RECEIPT.fullmatch(path.name))}
    found = {path: match for path, match in found.items() if match["out"] == out.name}
    numbers = {int(match["of"]) for match in found.values()}
    if len(numbers) > 1:
        raise UserError(
            f"{out} has jobs of {' and of '.join(map(str, sorted(numbers)))} jobs: delete the files of one division "
            f"({out.name}.*.done and the files that they name)"
        )
    (of,) = numbers
    paths = [Job(number, of).receipt(out) for number in range(of)]
    if missing := [f"--job {number}/{of}" for number, path in enumerate(paths) if path not in found]:
        raise UserError(
            f"{out}: {len(missing)} of {of} jobs are not finished; repeat the command with {', '.join(missing)}"
        )
    receipts = {path: read_receipt(path) for path in paths}
    first = next(iter(receipts.values()))
    if others := [path.name for path, receipt in receipts.items() if receipt["digest"] != first["digest"]]:
        raise UserError(
            f"{', '.join(others)}: of other inputs, weights or settings than {paths[0].name}; delete them and repeat "
            "these jobs"
        )
    return receipts


def join(out: Path, receipts: dict[Path, dict[str, Any]], *, force: bool, keep: bool) -> None:
    """Joins the files of all jobs, and removes them.

    Raises:
        UserError: If an output exists, or if a file of a job is missing.
    """
    names = dict.fromkeys(name for receipt in receipts.values() for name in receipt["files"])
    files = {
        out.parent / name: [
            out.parent / receipt["files"][name] for receipt in receipts.values() if name in receipt["files"]
        ]
        for name in names
    }
    if gone := [str(file) for parts in files.values() for file in parts if not file.exists()]:
        raise UserError(f"{', '.join(gone)}: a file of a job is missing; repeat the command for this job")
    if there := [str(whole) for whole in files if whole.exists() and whole.name != MADE_OF and not force]:
        raise UserError(f"{', '.join(there)} already exists: delete it, or overwrite it with --force")
    failed = None
    kind = next(iter(receipts.values()))["kind"]
    for whole, parts in files.items():
        try:
            join_files(whole, parts, kind)
        except RunError as error:  # rejected recordings
            failed = error
        print(f"{whole}: joined from {counted(len(parts), 'file')}", file=sys.stderr)
    if not keep:
        for path in [file for parts in files.values() for file in parts] + list(receipts):
            path.unlink()
            events_beside(path).unlink(missing_ok=True)
    if failed:
        raise failed


def join_files(whole: Path, parts: Sequence[Path], kind: str) -> None:
    """Joins files in order.

    Args:
        kind: Kind of the receipts. Empty: the content of the files, one after the other.
    """
    if kind == "evaluation":
        from asr_jax.cli.evaluate import merge_jobs

        merge_jobs(parts, whole)
    elif whole.suffix == ".parquet":
        import pyarrow.parquet as pq

        from asr_jax.data.loading.extraction import join_parquet

        with parts[0].open("rb") as file:
            schema = pq.read_schema(file)
        join_parquet(parts, whole, schema)
    elif whole.name == MADE_OF:  # it may have lines of other files
        with whole.open("ab") as file:
            file.writelines(part.read_bytes() for part in parts)
    else:
        partial = temporary_path(whole, f"{whole.name}.partial")
        with partial.open("wb") as file:
            if kind == "manifest":
                file.writelines(_with_unique_ids(parts))
            else:
                for part in parts:
                    with part.open("rb") as content:
                        shutil.copyfileobj(content, file)
        partial.replace(whole)


def _with_unique_ids(parts: Sequence[Path]) -> Iterator[bytes]:
    """Yields the lines of manifests with ids that are unique, as if they had been read together."""
    from asr_jax.data.manifests.gathering import unique_ids

    def lines() -> Iterator[bytes]:  # read twice, because only ids fit into memory
        for part in parts:
            with part.open("rb") as file:
                yield from file

    ids = [json.loads(line)["id"] for line in lines()]
    for line, old, new in zip(lines(), ids, unique_ids(ids), strict=True):
        yield line if old == new else json_line(json.loads(line) | {"id": new}).encode()
