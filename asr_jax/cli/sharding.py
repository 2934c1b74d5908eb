"""The option --shard of commands whose work is spread over independent jobs; `asr_jax.merge` joins their outputs."""

import hashlib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import arg

from asr_jax.core.names import counted
from asr_jax.core.settings import command_options
from asr_jax.core.shards import Shard, is_finished, write_receipt
from asr_jax.data.manifests.utterances import Rejected, Utterance


@command_options
class ShardOptions:
    """Part of the work that a command does."""

    shard: Annotated[str, arg(metavar="I/N")] = ""
    """Do only part I of N, with I from 0 to N - 1, and write it to files of its own; python -m asr_jax.merge OUT joins
    them (docs/sharded-work.md)."""

    @property
    def part(self) -> Shard | None:
        return Shard.parse(self.shard) if self.shard else None


def digest_of(options: ShardOptions, *more: Any) -> str:
    """Digest of the work of all shards: the options without those that differ between jobs, and `more`."""
    same: Any = replace(options, shard="", **({"force": False} if hasattr(options, "force") else {}))
    return hashlib.sha256(repr((same, more)).encode()).hexdigest()[:16]


def names_digest(entries: Iterable[Utterance | Rejected]) -> str:
    """Digest of the ids and locations of all recordings, which every shard must list in the same order."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(f"{entry.id}\0{entry.location}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def says_finished(out: Path, shard: Shard, digest: str) -> bool:
    """Whether a shard is finished; if so, says it.

    Args:
        out: Output of all shards.
        digest: Digest of the work, which is equal for all of its shards.

    Raises:
        UserError: As `is_finished`.
    """
    if not is_finished(out, shard, digest):
        return False
    print(f"shard {shard} of {out} is finished (--force repeats it)", file=sys.stderr)
    return True


def finish(
    out: Path, shard: Shard, *, digest: str, files: Mapping[Path, Path], recordings: int, rejected: int, kind: str = ""
) -> None:
    """Writes the receipt of a shard and says how to join the shards.

    A shard with rejected recordings is finished too, because launchers repeat jobs that fail; `asr_jax.merge` fails.

    Args:
        out: Output of all shards.
        digest: Digest of the work, which is equal for all of its shards.
        files: Files of the shard by outputs of the command.
        recordings: Number of recordings of the shard.
        rejected: Number of recordings of the shard without a result.
        kind: How `asr_jax.merge` joins the files. Empty: one after the other.
    """
    write_receipt(out, shard, digest=digest, files=files, recordings=recordings, rejected=rejected, kind=kind)
    print(
        f"shard {shard} is finished: {counted(recordings, 'recording')}, {rejected} rejected; after all {shard.of}: "
        f"python -m asr_jax.merge {out}",
        file=sys.stderr,
    )
