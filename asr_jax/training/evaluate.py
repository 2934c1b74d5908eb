"""Evaluation and transcription: the forward pass in the shapes of training, and greedy decoding on the device."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh
from jaxtyping import Array, Int

from asr_jax.core.batch import Batch
from asr_jax.core.meshes import abstract, by_rows, global_batch, replicated
from asr_jax.core.pytrees import Tree
from asr_jax.data.buckets import Bucket
from asr_jax.data.dataset import PlannedData
from asr_jax.data.source import BatchSource, LoadedBatch, open_batches
from asr_jax.decoding.greedy import greedy_ids, to_texts
from asr_jax.metrics.errors import score
from asr_jax.models.base import Recogniser
from asr_jax.text.normalise import normalise
from asr_jax.text.tokenizer import Tokenizer
from asr_jax.training.compile import abstract_batch


@dataclass(frozen=True)
class Hypotheses:
    """What was recognised, by row of the index; None for a row whose audio could not be read."""

    texts: list[str | None]
    skipped: list[dict[str, Any]]


class Decoder:
    """Compiled greedy decoding of one head, by bucket; each shape is compiled once, in the background if asked to."""

    def __init__(self, model: Recogniser, tokenizer: Tokenizer, *, mesh: Mesh, variables: Tree, head: str = "") -> None:
        self.model, self.tokenizer, self.mesh = model, tokenizer, mesh
        self.head = head or next(iter(model.heads))
        self._variables = abstract(variables, replicated(mesh))
        rows = by_rows(mesh)
        self._jitted = jax.jit(self._decode, out_shardings=(rows, rows))
        self._compiled: dict[tuple[int, int], Future[Any]] = {}
        self._pool = ThreadPoolExecutor(1)

    def prepare(self, buckets: Iterable[Bucket]) -> None:
        """Begins to compile the shapes of buckets."""
        for bucket in buckets:
            key = (bucket.batch_size, bucket.num_samples)
            if key not in self._compiled:
                batch = without_labels(abstract_batch(bucket, self.mesh))
                self._compiled[key] = self._pool.submit(self._compile, batch)

    def __call__(self, variables: Tree, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Label ids (-1 beyond the end) and their number for every row of the global batch."""
        assert batch.audio is not None
        decode = self._compiled[batch.audio.shape].result()
        found = decode(variables, without_labels(batch))
        if jax.process_count() > 1:
            found = multihost_utils.process_allgather(found, tiled=True)
        ids, lengths = jax.device_get(found)
        return ids, lengths

    def _compile(self, batch: Batch) -> Any:
        return self._jitted.lower(self._variables, batch).compile()

    def _decode(self, variables: Tree, batch: Batch) -> tuple[Int[Array, "B T"], Int[Array, " B"]]:
        emitted: Any = self.model.apply(variables, batch, method="emit")
        frames = emitted[self.head]
        return greedy_ids(frames.values, frames.lengths, blank_id=self.tokenizer.blank_id)


def without_labels(batch: Batch) -> Batch:
    """The batch with label arrays of no width: what decoding does not read does not shape what is compiled."""

    def empty(labels: Any) -> Any:
        shape = (labels.shape[0], 0)
        if isinstance(labels, jax.ShapeDtypeStruct):
            return jax.ShapeDtypeStruct(shape, labels.dtype, sharding=labels.sharding)
        return labels[:, :0]

    return batch.replace(tokens=empty(batch.tokens))


def recognise(
    decoder: Decoder, variables: Tree, data: PlannedData, *, workers: int = 0, threads: int = 2
) -> Iterator[tuple[int, str | None]]:
    """Row of the index and its text, batch by batch; None where the audio could not be read."""
    for loaded, texts in _decoded(decoder, variables, data, workers=workers, threads=threads):
        unread = {entry["id"] for entry in loaded.skipped}
        rows = data.plan[loaded.position].rows
        for row, text in zip(rows, texts, strict=True):
            if row >= 0:
                yield int(row), None if data.index.ids.text(int(row)) in unread else text


def _decoded(
    decoder: Decoder, variables: Tree, data: PlannedData, *, workers: int, threads: int
) -> Iterator[tuple[LoadedBatch, list[str]]]:
    decoder.prepare(data.plan.buckets[bucket] for bucket in _used(data))
    source = BatchSource(data.index, data.plan, process_index=jax.process_index(), num_processes=jax.process_count())
    with open_batches(source, stop=data.plan.batches_per_epoch, workers=workers, threads=threads) as batches:
        for loaded in batches:
            ids, lengths = decoder(variables, global_batch(loaded.batch, decoder.mesh))
            yield loaded, to_texts(ids, lengths, decoder.tokenizer)


def _used(data: PlannedData) -> list[int]:
    return sorted({data.plan[position].bucket for position in range(data.plan.batches_per_epoch)})


def evaluate(
    decoder: Decoder, variables: Tree, data: PlannedData, *, workers: int = 0, threads: int = 2
) -> tuple[dict[str, Any], Hypotheses]:
    """Word and character error rates of a set, in all and by source, and what was recognised.

    References and hypotheses go through the normaliser that the labels were made with.
    """
    texts: list[str | None] = [None] * len(data.index)
    for row, text in recognise(decoder, variables, data, workers=workers, threads=threads):
        texts[row] = text
    skipped = list(data.dropped.entries)
    tidy = functools.partial(normalise, name=decoder.tokenizer.normaliser)
    rows = [row for row, text in enumerate(texts) if text is not None]
    counts = score(
        [tidy(data.index.texts.text(row)) for row in rows],
        [tidy(texts[row] or "") for row in rows],
        [data.index.source(row) for row in rows],
    )
    skipped += [
        {"id": data.index.ids.text(row), "audio_path": data.index.audio_paths.text(row), "reason": "unreadable audio"}
        for row, text in enumerate(texts)
        if text is None
    ]
    return counts | {"skipped": len(skipped)}, Hypotheses(texts, skipped)


def samples(data: PlannedData, hypotheses: Hypotheses, number: int) -> list[dict[str, str]]:
    """Some transcripts to show: the same rows every time, spread over the set."""
    rows: Sequence[int] = [row for row, text in enumerate(hypotheses.texts) if text is not None]
    rows = rows[:: max(len(rows) // max(number, 1), 1)][:number]
    return [
        {
            "id": data.index.ids.text(row),
            "reference": data.index.texts.text(row),
            "hypothesis": hypotheses.texts[row] or "",
        }
        for row in rows
    ]


def predictions(data: PlannedData, hypotheses: Hypotheses) -> Iterator[dict[str, Any]]:
    """A row per recording that was read: id, reference and hypothesis as they are, source."""
    for row, text in enumerate(hypotheses.texts):
        if text is not None:
            names = {"id": data.index.ids.text(row), "audio_path": data.index.audio_paths.text(row)}
            yield names | {
                "reference": data.index.texts.text(row),
                "hypothesis": text,
                "source": data.index.source(row),
            }
