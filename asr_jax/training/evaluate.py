"""Evaluation and transcription: the forward pass in the shapes of training, and greedy decoding on the device."""

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Float32, Int, Int32

from asr_jax.core.batch import Batch
from asr_jax.core.meshes import abstract, global_batch, replicated
from asr_jax.core.processes import gathered
from asr_jax.core.programs import lower
from asr_jax.core.pytrees import Tree
from asr_jax.data.buckets import Bucket, Scale
from asr_jax.data.dataset import PlannedData
from asr_jax.data.records import Record
from asr_jax.data.source import BatchSource, open_batches
from asr_jax.decoding.greedy import greedy_ids, to_texts
from asr_jax.metrics.scoring import Recognised, score
from asr_jax.models.base import Recogniser
from asr_jax.text.tokenizer import Tokenizer
from asr_jax.training.compile import abstract_batch


@dataclass(frozen=True)
class Hypotheses:
    """What was recognised, by row of the index; rows whose audio could not be read are not among them."""

    texts: dict[int, str]
    skipped: list[dict[str, Any]]
    """`{id, location, reason}` of those."""


class Decoded(NamedTuple):
    """A batch, decoded, on the host."""

    ids: Int32[np.ndarray, "B T"]
    """Labels, -1 beyond the end."""
    lengths: Int32[np.ndarray, " B"]
    """How many labels."""
    weights: Float32[np.ndarray, " B"]
    """0 for padding and for rows that could not be read."""
    records: Int32[np.ndarray, " B"]
    """Row of the index."""


class Decoder:
    """Compiled greedy decoding of one head, by bucket; each shape is compiled once, in the background if asked to.

    `made_of`: see `core.programs.lower`.
    """

    def __init__(
        self,
        model: Recogniser,
        tokenizer: Tokenizer,
        *,
        mesh: Mesh,
        variables: Tree,
        head: str = "",
        made_of: str | None = None,
    ) -> None:
        self.model, self.tokenizer, self.mesh, self.made_of = model, tokenizer, mesh, made_of
        self.head = head or next(iter(model.heads))
        self._variables = abstract(variables, replicated(mesh))
        self._compiled: dict[tuple[int, ...], Future[Any]] = {}
        self._pool = ThreadPoolExecutor(1)

    def prepare(self, buckets: Iterable[Bucket], scale: Scale) -> None:
        """Begins to compile the shapes of buckets."""
        for bucket in buckets:
            batch = without_labels(abstract_batch(bucket, self.mesh, scale))
            key = batch.signal.shape
            if key not in self._compiled:
                program = lower(
                    f"decode_{self.head}", self._decode, self._variables, batch, made_of=self.made_of,
                    out_shardings=replicated(self.mesh),
                )  # fmt: skip
                self._compiled[key] = self._pool.submit(program.lowered.compile)

    def wait(self) -> None:
        """Returns when all shapes that were prepared are compiled."""
        for compiled in self._compiled.values():
            compiled.result()

    def __call__(self, variables: Tree, batch: Batch) -> Decoded:
        """Every row of a global batch without labels."""
        return Decoded(*jax.device_get(self._compiled[batch.signal.shape].result()(variables, batch)))

    def _decode(
        self, variables: Tree, batch: Batch
    ) -> tuple[Int[Array, "B T"], Int[Array, " B"], Float[Array, " B"], Int[Array, " B"]]:
        emitted: Any = self.model.apply(variables, batch, method="emit")
        frames = emitted[self.head]
        ids, lengths = greedy_ids(frames.values, frames.lengths, blank_id=self.tokenizer.blank_id)
        return ids, lengths, batch.weights, batch.records


def without_labels(batch: Batch) -> Batch:
    """The batch with label arrays of no width: what decoding does not read does not shape what is compiled."""

    def empty(labels: Any) -> Any:
        shape = (labels.shape[0], 0)
        if isinstance(labels, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(shape, labels.dtype, sharding=labels.sharding)
        return labels[:, :0]

    return batch.replace(tokens=empty(batch.tokens))


class BrokenOff(Exception):
    """Recognition was asked to stop."""


def recognise(
    decoder: Decoder,
    variables: Tree,
    data: PlannedData,
    *,
    workers: int = 0,
    threads: int = 2,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Hypotheses:
    """The text of every recording of a set; the same on all processes.

    Raises: BrokenOff where `is_stopped`, asked before each batch, says so.
    """
    decoder.prepare(used_buckets(data), data.index.scale)
    texts: dict[int, str] = {}
    skipped: list[dict[str, Any]] = []
    source = BatchSource(data.index, data.plan, process_index=jax.process_index(), num_processes=jax.process_count())
    with open_batches(source, stop=data.plan.batches_per_epoch, workers=workers, threads=threads) as batches:
        for loaded in batches:
            if is_stopped():
                raise BrokenOff
            skipped += loaded.skipped
            found = decoder(variables, global_batch(without_labels(loaded.batch), decoder.mesh))
            read = found.weights > 0
            words = to_texts(found.ids[read], found.lengths[read], decoder.tokenizer)
            texts.update(zip(found.records[read].tolist(), words, strict=True))
    return Hypotheses(texts, [entry for entries in gathered(skipped) for entry in entries])


def used_buckets(data: PlannedData) -> list[Bucket]:
    """The shapes that a set's batches have."""
    used = {data.plan[position].bucket for position in range(data.plan.batches_per_epoch)}
    return [data.plan.buckets[number] for number in sorted(used)]


def evaluate(
    decoder: Decoder,
    variables: Tree,
    data: PlannedData,
    *,
    workers: int = 0,
    threads: int = 2,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[dict[str, Any], Hypotheses]:
    """Error rates of a set, as `metrics.scoring.score` gives them, and what was recognised.

    References and hypotheses go through the normaliser that the labels were made with. Raises: as `recognise`.
    """
    found = recognise(decoder, variables, data, workers=workers, threads=threads, is_stopped=is_stopped)
    counts = score(list(recognised(data, found, decoder.tokenizer)), normaliser=decoder.tokenizer.normaliser)
    skipped = data.dropped.entries + found.skipped
    return counts | {"skipped": len(skipped)}, Hypotheses(found.texts, skipped)


def recognised(data: PlannedData, hypotheses: Hypotheses, tokenizer: Tokenizer) -> Iterator[Recognised]:
    """Every recording that was read, in the order of the index."""
    for row, text in sorted(hypotheses.texts.items()):
        record = data.index.records[row]
        yield Recognised(
            record.id, reference(record, tokenizer), text,
            source=record.source, speaker=record.speaker, duration_s=record.duration_s,
        )  # fmt: skip


def samples(data: PlannedData, hypotheses: Hypotheses, tokenizer: Tokenizer, number: int) -> list[dict[str, str]]:
    """Some transcripts to show: the same rows every time, spread over the set."""
    rows = sorted(hypotheses.texts)
    chosen = [(data.index.records[row], hypotheses.texts[row]) for row in rows[:: max(len(rows) // max(number, 1), 1)]]
    return [
        {"id": record.id, "reference": reference(record, tokenizer), "hypothesis": text}
        for record, text in chosen[:number]
    ]


def predictions(data: PlannedData, hypotheses: Hypotheses, tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """A row per recording that was read: texts as they are, and the normaliser to compare them by."""
    for row, found in zip(sorted(hypotheses.texts), recognised(data, hypotheses, tokenizer), strict=True):
        yield {
            "id": found.id,
            "location": data.index.records[row].location,
            "reference": found.reference,
            "hypothesis": found.hypothesis,
            "source": found.source,
            "speaker": found.speaker,
            "duration_s": None if math.isnan(found.duration_s) else found.duration_s,
            "normaliser": tokenizer.normaliser,
        }


def reference(record: Record, tokenizer: Tokenizer) -> str:
    """What was said: the text or, where there is none or ids are what is recognised, what the token ids stand for."""
    ids_count = not record.text or tokenizer.kind == "ids"
    return tokenizer.decode(record.labels) if record.labels is not None and ids_count else record.text
