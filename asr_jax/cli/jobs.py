"""The option --job of commands whose work is spread over independent jobs; `asr_jax.merge` joins their outputs."""

import hashlib
from dataclasses import replace
from typing import Annotated, Any

from tyro.conf import arg

from asr_jax.core.jobs import Job
from asr_jax.core.settings import command_options


@command_options
class JobOptions:
    """Part of the work that a command does."""

    job: Annotated[str, arg(metavar="I/N")] = ""
    """Do only part I of N, with I from 0 to N - 1, and write it to files of its own; python -m asr_jax.merge OUT joins
    them (documentation: divided-work)."""

    @property
    def own_job(self) -> Job | None:
        return Job.parse(self.job) if self.job else None


def digest_of(options: JobOptions, *more: Any) -> str:
    """Digest of the work of all jobs: the options without those that differ between jobs, and `more`."""
    same: Any = replace(options, job="", **({"force": False} if hasattr(options, "force") else {}))
    return hashlib.sha256(repr((same, more)).encode()).hexdigest()[:16]
