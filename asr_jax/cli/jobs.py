"""The option --job of commands whose work is spread over independent jobs; `asr_jax.merge` joins their outputs."""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from asr_jax.core.jobs import Job, is_finished, write_receipt
from asr_jax.core.names import counted
from asr_jax.core.paths import quoted
from asr_jax.core.settings import command_options
from asr_jax.data.manifests.utterances import Rejected, Utterance


@command_options
class JobOptions:
    """Part of the work that a command does."""

    job: Annotated[str, arg(metavar="I/N")] = ""
    """Do only part I of N, with I from 0 to N - 1, and write it to files of its own; python -m asr_jax.merge OUT joins
    them (docs/divided-work.md)."""

    @property
    def own_job(self) -> Job | None:
        return Job.parse(self.job) if self.job else None


def digest_of(options: JobOptions, *more: Any) -> str:
    """Digest of the work of all jobs: the options without those that differ between jobs, and `more`."""
    same: Any = replace(options, job="", **({"force": False} if hasattr(options, "force") else {}))
    return hashlib.sha256(repr((same, more)).encode()).hexdigest()[:16]


def names_digest(entries: Iterable[Utterance | Rejected]) -> str:
    """Digest of the ids and locations of all recordings, which every job must list in the same order."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(f"{entry.id}\0{entry.location}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def says_finished(out: Path, job: Job, digest: str, inputs: str = "") -> bool:
    """Whether a job is finished; if so, says it.

    Args:
        out: Output of all jobs.
        digest: Digest of the work, which is equal for all of its jobs.
        inputs: Digest of the recordings of this job.

    Raises:
        UserError: As `is_finished`.
    """
    if not is_finished(out, job, digest, inputs):
        return False
    print(f"job {job} of {out} is finished (--force repeats it)", file=sys.stderr)
    return True


def finish(
    out: Path,
    job: Job,
    *,
    digest: str,
    inputs: str = "",
    files: Mapping[Path, Path],
    recordings: int,
    rejected: int,
    kind: str = "",
) -> None:
    """Writes the receipt of a job and says how to join the jobs.

    A job with rejected recordings is finished too, because launchers repeat jobs that fail; `asr_jax.merge` fails.

    Args:
        out: Output of all jobs.
        digest: Digest of the work, which is equal for all of its jobs.
        inputs: Digest of the recordings of this job.
        files: Files of the job by outputs of the command.
        recordings: Number of recordings of the job.
        rejected: Number of recordings of the job without a result.
        kind: How `asr_jax.merge` joins the files. Empty: one after the other.
    """
    write_receipt(
        out, job, digest=digest, inputs=inputs, files=files, recordings=recordings, rejected=rejected, kind=kind
    )
    print(
        f"job {job} is finished: {counted(recordings, 'recording')}, {rejected} rejected; after all {job.of}: "
        f"python -m asr_jax.merge {quoted(out)}",
        file=sys.stderr,
    )
