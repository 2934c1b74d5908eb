"""Converts manifests or data folders to JSONL, or to fairseq's lists: `python -m asr_jax.convert IN … OUT`."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from asr_jax.cli.jobs import JobOptions, digest_of
from asr_jax.core.errors import UserError
from asr_jax.core.files import check_no_input
from asr_jax.core.jobs import finish, is_finished, path_of
from asr_jax.core.names import counted
from asr_jax.core.options import parse
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import command_options

KIND = "manifest"
"""Kind of the receipts of jobs."""


@command_options
class ConvertOptions(JobOptions):
    """Options of `asr_jax.convert`."""

    paths: Annotated[Positional[tuple[UserPath, ...]], arg(metavar="IN … OUT")]
    """Files, folders or patterns of any supported format; then OUT.jsonl, or OUT.tsv for fairseq's lists (with OUT.ltr,
    OUT.wrd and, if it does not exist, dict.ltr.txt)."""
    role: Literal["train", "validation", "test"] = "train"
    """Set to convert if an input is a folder with both sets."""
    check: bool = False
    """Open the audio of all utterances and name each that cannot be read or has another duration."""
    allow_pipes: bool = False
    """Run commands in the place of files, as `ffmpeg -i a.m4a -f wav - |` in Kaldi's wav.scp. OUT.jsonl contains the
    commands."""
    force: bool = False
    """Overwrite an existing OUT."""

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.paths[:-1]

    @property
    def out(self) -> Path:
        return Path(self.paths[-1])


def main(arguments: Sequence[str]) -> None:
    options = parse(ConvertOptions, arguments, prog="python -m asr_jax.convert", about=__doc__)
    _check(options)

    from asr_jax.data.manifests.cache import digest_of_files
    from asr_jax.data.manifests.checking import check_audio
    from asr_jax.data.manifests.inputs import described, resolve
    from asr_jax.data.manifests.manifest import write_manifest
    from asr_jax.data.manifests.progress import in_threads
    from asr_jax.data.manifests.readers.base import ReadOptions
    from asr_jax.data.manifests.readers.fairseq import at_16_khz, write_fairseq
    from asr_jax.data.manifests.reading import read_once

    how = ReadOptions(allow_pipes=options.allow_pipes)
    job, out, digest = options.own_job, options.out, ""
    if job:
        digest = digest_of(options, digest_of_files(resolve(options.inputs, options.role, how), how))
    if job and not options.force and is_finished(options.out, job, digest):
        return
    out = path_of(out, job)
    out.parent.mkdir(parents=True, exist_ok=True)
    unpacked = _new(out)
    try:
        utterances = read_once(options.inputs, role=options.role, unpack_to=str(unpacked), options=how, job=job)
        if job and unpacked.exists():
            raise UserError(
                f"--job {options.job}: the inputs contain audio or features, which every job would unpack; give "
                "each job some of the files instead"
            )
        if out.suffix == ".tsv":
            write_fairseq(str(out), in_threads(at_16_khz, list(utterances), "headers"))
        else:
            write_manifest(out, utterances)
    except BaseException:
        unpacked.unlink(missing_ok=True)  # no manifest refers to it
        raise
    for line in described(options.inputs, options.role):
        print(line, file=sys.stderr)
    for entry in utterances.rejected:
        print(f"rejected {entry.line}")
    if options.check:
        for check in check_audio(utterances, options.inputs, role=options.role, opens_all=True):
            for line in check.named((*check.unreadable, *check.differing)):
                print(line)
            print(
                f"{check.path}: {counted(check.num_opened, 'utterance')} checked, {len(check.unreadable)} cannot be "
                f"read, {len(check.differing)} have another duration than in the manifest"
            )
    kept = f"; embedded data in {unpacked}" if unpacked.exists() else ""
    print(
        f"{counted(len(utterances), 'utterance')}, {utterances.hours:.2f} h, to {out}{kept}; "
        f"{len(utterances.rejected)} rejected"
    )
    if job:
        num = len(utterances) + len(utterances.rejected)
        finish(options.out, job, digest=digest, files={options.out: out}, recordings=num, rejected=0, kind=KIND)


def _check(options: ConvertOptions) -> None:
    """Checks that there are inputs, and that OUT has a known ending and is neither an input nor there."""
    out = options.out
    if not options.inputs:
        raise UserError(f"{out} is the only path: expected inputs and then the output, IN … OUT")
    if out.suffix not in (".jsonl", ".tsv"):
        raise UserError(f"OUT is {out}: expected a name that ends in .jsonl, or in .tsv for fairseq's lists")
    check_no_input("OUT, the last argument,", out, options.inputs)
    if options.own_job and out.suffix != ".jsonl":
        raise UserError(f"--job {options.job} with {out}: expected a name that ends in .jsonl")
    if out.exists() and not options.force and not options.own_job:
        raise UserError(
            f"OUT, the last argument, is {out}, which already exists: choose another name, or overwrite it with --force"
        )


def _new(out: Path) -> Path:
    """Path of a new file for audio and features that inputs embed; existing ones may be in use by other manifests."""
    names = (f"{out.name}.bytes", *(f"{out.name}.{number}.bytes" for number in range(2, 10_000)))
    return next(path for path in map(out.absolute().with_name, names) if not path.exists())
