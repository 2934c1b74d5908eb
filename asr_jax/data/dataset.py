"""What a run reads: its settings, and the index and plan made from them."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from asr_jax.core.errors import UserError
from asr_jax.data.buckets import Bucket, Buckets, make_buckets
from asr_jax.data.filters import Dropped, Filters
from asr_jax.data.index import Index, OutputLength, build_index
from asr_jax.data.manifest import Record, read_manifests
from asr_jax.data.plan import BatchPlan
from asr_jax.text.tokenizer import TokenizerSettings


@dataclass(frozen=True)
class Data:
    """Manifests, tokenizer, filters and batches of a run."""

    train: tuple[str, ...]
    """Manifests of the training set."""
    validation: tuple[str, ...]
    """Manifests of the validation set; the best checkpoint is chosen on it."""
    tokenizer: TokenizerSettings = field(default_factory=TokenizerSettings)
    """From text to labels; made from the training set's texts at the start of a run."""
    filters: Filters = field(default_factory=Filters)
    """Which training records are used."""
    buckets: Buckets = field(default_factory=Buckets)
    """Shapes and sizes of the batches."""
    speeds: tuple[float, ...] = (1.0,)
    """An epoch holds every record once at each of these speeds; 1.1 is faster and shorter."""
    workers: int = 0
    """Processes that read audio; 0 reads in threads of the training process."""
    threads: int = 2
    """Reading threads of each process."""

    def __post_init__(self) -> None:
        if not self.speeds or min(self.speeds) <= 0 or len(set(self.speeds)) < len(self.speeds):
            raise ValueError(f"speeds {self.speeds}: expected at least one, all above 0, each once")
        if self.workers < 0 or self.threads < 1:
            raise ValueError(f"workers {self.workers}, threads {self.threads}: expected workers ≥ 0 and threads ≥ 1")


@dataclass(frozen=True)
class PlannedData:
    """Records by row, the batches they make, and what was left out."""

    index: Index
    plan: BatchPlan
    dropped: Dropped

    def fingerprint(self) -> str:
        """Equal where every batch at every position holds the same records with the same labels."""
        return f"{self.index.fingerprint()}-{self.plan.fingerprint()}"


def read_training_records(data: Data) -> list[Record]:
    """Raises: UserError that gives the three ways on where the manifests are missing."""
    sets = {"train": data.train, "validation": data.validation}
    problems = [
        f"data.{name} is empty: expected at least one manifest (--data.{name} FILE.jsonl)"
        for name, manifests in sets.items()
        if not manifests
    ]
    problems += [
        f"data.{name}: {path} does not exist (relative paths start at {Path.cwd()})"
        for name, manifests in sets.items()
        for path in manifests
        if not os.path.exists(path)
    ]
    if problems:
        raise UserError(
            "\n".join(problems) + "\nThree ways on:\n"
            "  prepare LibriSpeech, or spoken digits, from a local copy: scripts/prepare_librispeech.py, "
            "scripts/prepare_digits.py\n"
            "  bring your own: --data.train TRAIN.jsonl --data.validation VALIDATION.jsonl, a line a recording: "
            '{"audio_path": "a.flac", "text": "hello", "duration": 1.5}\n'
            "  or see it work on made speech first: ./scripts/quickstart.sh"
        )
    return read_manifests(data.train)


def plan_training(
    records: Sequence[Record],
    data: Data,
    *,
    encode: Callable[[str], list[int]],
    output_length: OutputLength,
    rate_hz: int,
    hop_samples: int,
    seed: int,
    num_devices: int,
) -> PlannedData:
    """Index and plan of the training set: shuffled, at every speed, without what the filters drop."""
    index, dropped = build_index(
        records, encode=encode, output_length=output_length, filters=data.filters, rate_hz=rate_hz,
        max_speed=max(data.speeds),
    )  # fmt: skip
    if not len(index):
        raise UserError(
            f"no training record is left: {'; '.join(dropped.lines())}. The limits are those of --data.filters: "
            f"durations from {data.filters.min_duration_s:g} to {data.filters.max_duration_s:g} s, "
            f"{data.filters.min_chars_per_s:g} to {data.filters.max_chars_per_s:g} characters a second"
        )
    num_labels = index.labels.lengths()
    buckets = make_buckets(
        index.samples, num_labels, data.buckets, rate_hz=rate_hz, hop_samples=hop_samples, speeds=data.speeds,
        num_devices=num_devices,
    )  # fmt: skip
    return PlannedData(index, BatchPlan(index.samples, num_labels, buckets, seed=seed, speeds=data.speeds), dropped)


def plan_evaluation(
    records: Sequence[Record], buckets: Sequence[Bucket], *, rate_hz: int, hop_samples: int, num_devices: int
) -> PlannedData:
    """Index and plan of an evaluation set: every record once, in the shapes of training and, for longer ones, more.

    Nothing is dropped for its length or text, since that would change what an error rate means; only records without
    a readable duration are, and counted.
    """
    index, dropped = build_index(records, encode=None, filters=Filters.none(), rate_hz=rate_hz)
    if not len(index):
        raise UserError("no record can be read: " + "; ".join(dropped.lines()))
    longest = int(index.samples.max())
    shapes = evaluation_buckets(buckets, longest, hop_samples=hop_samples, num_devices=num_devices)
    return PlannedData(index, BatchPlan(index.samples, index.labels.lengths(), shapes, shuffle=False), dropped)


def evaluation_buckets(
    buckets: Sequence[Bucket], longest: int, *, hop_samples: int, num_devices: int
) -> tuple[Bucket, ...]:
    """The buckets, and as many more as records of up to `longest` samples need, each half as long again, with fewer
    rows, down to one per device."""
    shapes = list(buckets)
    while shapes[-1].longest < longest:
        last = shapes[-1]
        num_samples = -(-last.num_samples * 3 // 2 // hop_samples) * hop_samples
        rows = max(last.batch_size * last.num_samples // num_samples // num_devices, 1) * num_devices
        shapes.append(Bucket(num_samples, last.num_tokens, rows, num_samples - hop_samples))  # manifests round
    return tuple(shapes)
