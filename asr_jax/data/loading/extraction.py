"""Extraction of frames of audio to Parquet, in parts. An interrupted extraction is resumed."""

import hashlib
import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool, Int16, Int32, Shaped

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.io import AudioError
from asr_jax.core import devices
from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.core.files import held, temporary_path, write_whole
from asr_jax.core.jobs import Job
from asr_jax.core.names import counted
from asr_jax.core.paths import state_of
from asr_jax.core.text_files import json_line, read_lines, read_text
from asr_jax.data.batching.batch_plan import BatchPlan, PlannedBatch
from asr_jax.data.batching.buckets import Buckets
from asr_jax.data.batching.filters import LONGEST_S, Filters, Rejections
from asr_jax.data.batching.index import Index, build_index, scale_of
from asr_jax.data.batching.limits import BatchLimits, shapes_of, with_labels
from asr_jax.data.loading.extraction_report import ExtractionReport
from asr_jax.data.loading.source import BatchSource, LoadedBatch, open_batches
from asr_jax.data.manifests.durations import UtteranceBlocks
from asr_jax.data.manifests.locations import UNPACKED, Location
from asr_jax.data.manifests.progress import in_threads, with_bar
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.reading import read_utterances
from asr_jax.data.manifests.utterances import Rejected
from asr_jax.text.tokenizers import Tokenizer

PART_RECORDS = 1000
"""Utterances per part."""
THREADS = 2
"""Number of threads that read audio, in this process or in each worker process."""


@dataclass(frozen=True)
class Extractor:
    """Function from audio to frames at a front-end's rate: the front-end itself, or a model with a front-end."""

    front_end: FrontEnd
    compute: Callable[[Int16[np.ndarray, "B S"], Int32[np.ndarray, " B"]], Frames]
    """Computes frames from samples [B, S] and their lengths [B]."""
    made_of: str
    """Description of the function. Equal descriptions mean equal frames."""
    dtype: Literal["float32", "int32"] = "float32"
    """Type of the frames' values."""
    limits: BatchLimits = field(default_factory=lambda: BatchLimits(seconds=math.inf))
    """Limits of the batches."""
    in_windows: Callable[[Iterable[Int16[np.ndarray, " _"]]], Shaped[np.ndarray, "T F"]] | None = None
    """Computes the frames of a recording of any length from its blocks, for audio that is longer than the limit."""
    windows: str = ""
    """Description of the windows."""

    @classmethod
    def of_front_end(cls, front_end: FrontEnd) -> "Extractor":
        """Extractor of ready features, as training computes them."""
        return cls(front_end, jax.jit(front_end), repr(front_end))

    def schema(self) -> pa.Schema:
        """Columns of the Parquet file. `features` contains rows × cols values, frame by frame."""
        values = pa.list_(pa.from_numpy_dtype(np.dtype(self.dtype)))
        return pa.schema(
            [
                ("id", pa.string()),
                ("text", pa.string()),
                ("rows", pa.int64()),
                ("cols", pa.int64()),
                ("duration_ms", pa.int64()),
                ("features", values),
                ("tokens", pa.list_(pa.int64())),
                ("speaker", pa.string()),
                ("source", pa.string()),
            ]
        )


class Extracted(NamedTuple):
    """Result of `extract`."""

    digest: str
    """Digest of everything that the frames of all jobs depend on."""
    recordings: int
    """Number of utterances."""
    rejected: int
    """Number of rejected utterances, without those that are outside of a limit."""


def extract(
    out: Path,
    paths: Sequence[str],
    *,
    extractor: Extractor,
    tokenizer: Tokenizer | None,
    reject_above_s: float = LONGEST_S,
    max_samples: int = 0,
    workers: int = 0,
    allow_pipes: bool = False,
    job: Job | None = None,
    force: bool = False,
    write: Callable[..., None] = lambda *_, **__: None,
) -> Extracted:
    """Writes the frames of all utterances of some inputs, or of a job of them, to one file.

    Rejected utterances are written to `OUT.rejected.jsonl`. If the file already exists, nothing is done
    without `force`.

    Args:
        paths: Manifests, folders and glob patterns.
        tokenizer: Tokenizer of the column `tokens`. None: texts may be missing.
        reject_above_s: Maximum duration of an utterance in seconds; longer ones are rejected.
        max_samples: Maximum number of utterances of each input, from its start. 0: all.
        workers: Number of processes that read audio. 0: threads of this process read it.
        allow_pipes: Whether commands in the place of files are run.
        job: Job of the utterances; `out` is the file of this job. The first one has the utterances that are
            rejected without opening their audio. None: all.
        write: Function that writes an event, as `EventLog.write`.

    Raises:
        UserError: If no utterance is left, if the existing file has other features, or if another process writes it.
    """
    options = ReadOptions(texts_may_lack=tokenizer is None, allow_pipes=allow_pipes)
    index, rejections = _index(paths, extractor.front_end, tokenizer, reject_above_s, max_samples, options)
    is_long = index.lengths > np.ceil(extractor.limits.longest_s * index.scale.per_s)
    made_of = extractor.made_of + f" {extractor.windows}" * bool(is_long.any())
    of_all, digest = _digests(made_of, index, tokenizer, rejections.entries)
    own = range(len(index))[job.rows(len(index)) if job else slice(None)]
    of_index = rejections.entries if job is None or job.number == 0 else []
    rejected_path, parts = out.with_suffix(".rejected.jsonl"), temporary_path(out, f".{out.stem}-{digest}.parts")
    if was_done := not force and _is_done(out, digest):
        print(f"{out} already exists")
    else:
        parts.mkdir(parents=True, exist_ok=True)
        with held(parts / "lock", f"{out} is being written"):
            names, rejected = _extract_parts(parts, index, own, is_long, extractor, workers, out, write, of_index)
            rejected = of_index + rejected
            write_whole(rejected_path, "".join(json_line(each.to_json()) for each in rejected))
            join_parquet([parts / name for name in names], out, extractor.schema().with_metadata({"asr_jax": digest}))
            shutil.rmtree(parts)
    lines = list(read_lines(rejected_path)) if rejected_path.exists() else []
    if not lines:
        rejected_path.unlink(missing_ok=True)
    entries = list(map(json.loads, lines))
    num_filtered = sum(entry.get("limit") is not None for entry in entries)
    num_differing = sum(entry.get("stage") == "used" for entry in entries)
    if num_differing:
        print(
            f"{out}: {counted(num_differing, 'utterance')} used with remarks on the audio; all are listed in "
            f"{rejected_path} (stage used)"
        )
    if num_filtered:
        print(
            f"{out}: {num_filtered} utterances are longer than --reject-above {reject_above_s:g}; they are listed in "
            f"{rejected_path}"
        )
    num_rejected = len(entries) - num_filtered - num_differing
    if not was_done:
        write("extracted", output=out, utterances=len(own), rejected=num_rejected, skipped_long=num_filtered)
    return Extracted(of_all, len(own) + len(of_index), num_rejected)


def _index(
    paths: Sequence[str],
    front_end: FrontEnd,
    tokenizer: Tokenizer | None,
    reject_above_s: float,
    max_samples: int,
    options: ReadOptions,
) -> tuple[Index, Rejections]:
    utterances = read_utterances(paths, options=options)
    if max_samples:
        input_of = utterances.columns.input_of[utterances.rows]
        first = np.searchsorted(input_of, input_of)  # utterances are in the order of the inputs
        utterances = utterances.select(np.arange(len(utterances)) - first < max_samples)
    index, rejections = build_index(
        utterances,
        scale=scale_of(front_end, of_features=False),
        tokenizer=tokenizer,
        given_labels=True,
        filters=replace(Filters.none(), max_duration_s=min(reject_above_s, LONGEST_S)),
    )
    if not len(index):
        raise UserError(f"{', '.join(paths)}: no utterance is left: {'; '.join(rejections.lines())}")
    return index, rejections


def _digests(
    made_of: str, index: Index, tokenizer: Tokenizer | None, rejections: Sequence[Rejected]
) -> tuple[str, str]:
    """Digests of everything that the frames and the rejected utterances depend on, for all jobs and for this machine.

    They include settings, utterances, and the base name and state of audio files. In the first one, which is equal for
    copies of the audio on other machines, the state is the size and the time of the content. Bytes in the cache are
    identified by their position, because they are unpacked again when they are out of date.
    """
    places = [Location.parse(index.utterances.columns.locations.text(row)) for row in index.utterances.rows.tolist()]
    paths = sorted({place.path for place in places})
    states = dict(zip(paths, in_threads(state_of, paths, "times of audio"), strict=True))
    parts = [made_of, index.fingerprint(), tokenizer and tokenizer.digest(), [each.to_json() for each in rejections]]
    of_all, here = (hashlib.sha256(json.dumps(parts).encode()) for _ in range(2))
    for place in places:
        name, part = os.path.basename(place.path), str(replace(place, path=""))
        state = () if name == UNPACKED else states[place.path]
        of_all.update(os.fsencode(f"{name}{part} {state[:2]}\n"))
        here.update(os.fsencode(f"{name}{part} {state}\n"))
    return of_all.hexdigest()[:12], here.hexdigest()[:12]


class _PlanOfParts:
    """Batches of several parts, one after the other. `rows` has the rows of each of the `plans`."""

    def __init__(self, plans: Sequence[BatchPlan], rows: Sequence[np.ndarray]) -> None:
        self.buckets, self._plans, self._rows = plans[0].buckets, plans, rows
        self._starts = np.cumsum([0, *(plan.batches_per_epoch for plan in plans)])

    def __getitem__(self, position: int) -> PlannedBatch:
        part = int(np.searchsorted(self._starts, position, side="right")) - 1
        planned = self._plans[part][position - int(self._starts[part])]
        of_plan = np.append(self._rows[part], -1).astype(np.int32)  # -1 for padding rows
        return replace(planned, rows=of_plan[planned.rows])


def _extract_parts(
    parts: Path,
    index: Index,
    own: range,
    is_long: Bool[np.ndarray, " R"],
    extractor: Extractor,
    workers: int,
    out: Path,
    write: Callable[..., None],
    of_index: Sequence[Rejected],
) -> tuple[list[str], list[Rejected]]:
    """Writes missing parts of the own rows, in the shapes of all rows. Long rows are computed in windows."""
    shapes = shapes_of(index.lengths[~is_long], extractor.limits, scale=index.scale, num_devices=1)
    buckets = with_labels(shapes, index.lengths[~is_long], index.num_labels()[~is_long])
    firsts = range(own.start, own.stop, PART_RECORDS)
    ends = {first: min(first + PART_RECORDS, own.stop) for first in firsts}
    names = [f"{first:09}.parquet" for first in firsts]
    missing = [first for first, name in zip(firsts, names, strict=True) if not (parts / name).exists()]
    rows = [first + np.flatnonzero(~is_long[first : ends[first]]) for first in missing]
    plans = [BatchPlan(index.select(of).entries(), Buckets(buckets), is_shuffled=False) for of in rows]
    num_done = len(own) - sum(ends[first] - first for first in missing)
    write(
        "extraction_start",
        output=out,
        utterances=len(own),
        done=num_done,
        skipped_long=sum(each.limit is not None for each in of_index),
        workers=workers or THREADS,
        kind="processes" if workers else "threads",
        on=devices.description(),
    )
    report = ExtractionReport(write, out, num_utterances=len(own), num_done=num_done)
    with ExitStack() as stack:
        if missing:
            source = BatchSource(index, _PlanOfParts(plans, rows))
            num = sum(plan.batches_per_epoch for plan in plans)
            batches = stack.enter_context(open_batches(source, stop=num, workers=workers, threads=THREADS))
        for first, plan in zip(missing, plans, strict=True):
            of_part = itertools.islice(batches, plan.batches_per_epoch)
            long = first + np.flatnonzero(is_long[first : ends[first]])
            report.begin(f"{first:09}.parquet")
            _write_part(
                parts / f"{first:09}.parquet", index, of_part, long.tolist(), ends[first] - first, extractor, report
            )
            report.flush()
            print(f"{out}: {ends[first] - own.start:,} of {len(own):,} utterances", flush=True)
    lists = [json.loads(read_text((parts / name).with_suffix(".json"))) for name in names]
    rejected = [Rejected(**each) for listed in lists for each in listed]
    return names, rejected


def _write_part(
    part: Path,
    index: Index,
    batches: Iterator[LoadedBatch],
    long: Sequence[int],
    num_rows: int,
    extractor: Extractor,
    report: ExtractionReport,
) -> None:
    """Writes frames in the order of the index, for the rows of batches and for `long` rows.

    Utterances that could not be read are written to a .json file beside the part, before the part itself.
    """
    found: dict[int, dict[str, Any]] = {}
    rejected: list[Rejected] = []
    are_long = set(long)
    computed = (
        features_of(report.timed(batches), extractor, rejected),
        _features_of_long(index, long, extractor, rejected),
    )
    for row, features in with_bar(itertools.chain(*computed), num_rows, "utterances"):
        utterance = index.utterances[row]
        found[row] = {
            "id": utterance.id,
            "text": utterance.text,
            "rows": len(features),
            "cols": features.shape[1],
            "duration_ms": round(utterance.duration_s * 1000),
            "features": features.ravel(),
            "tokens": index.labels_of(row).tolist() or utterance.labels,
            "speaker": utterance.speaker,
            "source": utterance.source,
        }
        report.add(utterance, is_long=row in are_long, num_rejected=sum(each.stage != "used" for each in rejected))
    table = pa.Table.from_pylist([found[row] for row in sorted(found)], schema=extractor.schema())
    write_whole(part.with_suffix(".json"), json.dumps([each.to_json() for each in rejected]))
    partial = part.with_suffix(f".{os.getpid()}.partial")
    with partial.open("wb") as file:  # Arrow would read more in a path than a name
        pq.write_table(table, file, compression="zstd")
    partial.replace(part)


def features_of(
    batches: Iterable[LoadedBatch], extractor: Extractor, rejected: list[Rejected]
) -> Iterator[tuple[int, Shaped[np.ndarray, "T F"]]]:
    """Yields frames by row of the index. Utterances that cannot be read, and remarks, go to `rejected`."""
    for loaded in batches:
        rejected += [*loaded.rejected, *loaded.differing]
        assert loaded.batch.audio is not None, "expected an index of audio"
        frames = extractor.compute(loaded.batch.audio, loaded.batch.lengths)
        values, lengths = np.asarray(frames.values, extractor.dtype), np.asarray(frames.lengths)
        for i in np.flatnonzero(loaded.batch.weights):
            yield int(loaded.batch.utterances[i]), values[i, : lengths[i]]


def _features_of_long(
    index: Index, rows: Sequence[int], extractor: Extractor, rejected: list[Rejected]
) -> Iterator[tuple[int, Shaped[np.ndarray, "T F"]]]:
    """Yields frames that are computed in windows, as `features_of`."""
    for row in rows:
        utterance = index.utterances[row]
        assert extractor.in_windows, "the extractor has a limit and no windows"
        try:
            blocks = UtteranceBlocks(utterance, extractor.front_end.rate_hz)
            yield row, extractor.in_windows(blocks).astype(extractor.dtype)
            rejected += [blocks.differing] if blocks.differing else []
        except AudioError as error:
            rejected.append(Rejected(utterance.id, utterance.location, error.reason, "audio"))


def join_parquet(parts: Sequence[Path], out: Path, schema: pa.Schema) -> None:
    """Joins all parts into one file atomically, a group of rows at a time."""
    partial = temporary_path(out, f"{out.name}.{os.getpid()}.partial")
    with partial.open("wb") as file, pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for part in parts:
            with part.open("rb") as content:
                for batch in pq.ParquetFile(content).iter_batches(PART_RECORDS):
                    writer.write_table(pa.Table.from_batches([batch]).cast(schema), row_group_size=100)
    partial.replace(out)


def _is_done(out: Path, digest: str) -> bool:
    """Whether the file exists and has this digest.

    Raises:
        UserError: If the file has another digest.
    """
    if not out.exists():
        return False
    try:
        with out.open("rb") as file:
            there = (pq.read_schema(file).metadata or {}).get(b"asr_jax", b"").decode()
    except pa.ArrowException:
        there = ""
    if there != digest:
        raise UserError(
            f"{out} has features of other inputs or settings: choose another --output, or overwrite it with --force"
        )
    return True
