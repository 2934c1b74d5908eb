"""Independent jobs that divide the work of a command, and receipts of the finished ones."""

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.names import counted
from asr_jax.core.paths import quoted
from asr_jax.core.text_files import json_line, read_text

MADE_OF = "made_of.jsonl"
"""Name of the file in a folder of transcripts that says what each was made of."""
FIELDS = {"digest", "inputs", "files", "rejected", "recordings", "kind"}
"""Fields of a receipt."""
_JOB = re.compile(r"(\d{1,9})/(\d{1,9})")


@dataclass(frozen=True)
class Job:
    """One of several jobs, which does a consecutive part of the recordings of a command.

    The outputs of all jobs, one after the other, are the output of the whole.
    """

    number: int
    """From 0 to `of` - 1."""
    of: int
    """Number of jobs."""

    @classmethod
    def parse(cls, text: str) -> "Job":
        """Parses `I/N`.

        Raises:
            UserError: If it has another form, or I is not less than N.
        """
        found = _JOB.fullmatch(text)
        if not found or int(found[1]) >= int(found[2]):
            raise UserError(f"--job is {text}: expected I/N with I from 0 to N - 1, such as 0/5 for the first of five")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def suffix(self) -> str:
        return f"{self.number:05}-of-{self.of:05}"

    def rows(self, num: int) -> slice:
        """The rows of this job, of `num` recordings."""
        return slice(self.number * num // self.of, (self.number + 1) * num // self.of)

    def path(self, out: Path) -> Path:
        """File of this job for an output, such as `out-00002-of-00005.jsonl` for `out.jsonl`."""
        return out.with_name(f"{out.stem}-{self.suffix}{out.suffix}")

    def receipt(self, out: Path) -> Path:
        """File that exists if this job of an output is finished."""
        return out.with_name(f"{out.name}.{self.suffix}.done")


def path_of(out: Path, job: Job | None) -> Path:
    """File of an output, or of a job of it."""
    return job.path(out) if job else out


def is_finished(out: Path, job: Job, digest: str, inputs: str = "") -> bool:
    """Whether a job is finished and its files exist; if so, says it.

    Args:
        digest: Digest of the work, which is equal for all of its jobs.
        inputs: Digest of the recordings of this job.

    Raises:
        UserError: If it is finished with other inputs or settings.
    """
    path = job.receipt(out)
    if not path.exists():
        return False
    receipt, what = read_receipt(path), ""
    if receipt["digest"] != digest:
        what = " is of other inputs, weights or settings"
    elif receipt["inputs"] != inputs:
        what = ": recordings of this job have changed since, or are others of the same names"
    if what:
        raise UserError(f"{path}{what}: choose another output, delete it, or overwrite with --force")
    if not all((out.parent / own).exists() for own in receipt["files"].values()):
        return False
    print(f"job {job} of {out} is finished (--force repeats it)", file=sys.stderr)
    return True


def read_receipt(path: Path) -> dict[str, Any]:
    """Reads what `finish` wrote. Raises a UserError if it is damaged."""
    try:
        receipt = json.loads(read_text(path))
        if isinstance(receipt, dict) and receipt.keys() >= FIELDS:
            return receipt
        reason = "fields are missing"
    except (OSError, ValueError) as error:
        reason = str(error)
    raise UserError(f"{path} is not the receipt of a job ({reason}): delete it and repeat the job")


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
    """Writes the receipt of a job, after all of its files are written, and says how to join the jobs.

    A job with rejected recordings is finished too, because launchers repeat jobs that fail; `asr_jax.merge` fails.

    Args:
        files: Files of the job by outputs of the command. Files that do not exist stand for empty ones.
        recordings: Number of recordings of the job.
        rejected: Number of recordings of the job without a result.
        kind: How `asr_jax.merge` joins the files. Empty: one after the other.
    """
    relative = {
        os.path.relpath(whole, out.parent): os.path.relpath(own, out.parent)
        for whole, own in files.items()
        if own.exists()
    }
    receipt: dict[str, Any] = {"digest": digest, "inputs": inputs, "files": relative, "kind": kind}
    receipt |= {"recordings": recordings, "rejected": rejected}
    write_whole(job.receipt(out), json_line(receipt))
    print(
        f"job {job} is finished: {counted(recordings, 'recording')}, {rejected} rejected; after all {job.of}: "
        f"python -m asr_jax.merge {quoted(out)}",
        file=sys.stderr,
    )
