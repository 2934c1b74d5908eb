"""Evaluation and transcription: the forward pass in the shapes of training, and what a decoder makes of it."""

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Bool, Float

from asr_jax.core.meshes import global_batch
from asr_jax.core.pytrees import Tree
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.loading.source import BatchSource, LoadedBatch, open_batches
from asr_jax.data.manifests.utterances import Rejected, Utterance, rejected_everywhere
from asr_jax.inference.decoder import Decoder, Emitted, without_labels
from asr_jax.metrics.confidence import confidence_report
from asr_jax.metrics.errors import right_words
from asr_jax.metrics.scoring import Recognised, score
from asr_jax.text.normalise import normalise
from asr_jax.text.tokenizers import Tokenizer
from asr_jax.transcripts.transcript import Transcript, to_json


@dataclass(frozen=True)
class Recognition:
    """What was recognised, by row of the index; rows whose audio could not be read are not among them."""

    transcripts: dict[int, Transcript]
    rejected: list[Rejected]
    """Those rows."""


class BrokenOff(Exception):
    """Evaluation was asked to stop."""


def batches_of(
    data: PlannedData, *, workers: int, threads: int, is_stopped: Callable[[], bool]
) -> Generator[LoadedBatch]:
    """All batches of a set that is evaluated, this process's rows of them; to be closed.

    Raises: BrokenOff where `is_stopped`, asked before each batch, says so.
    """
    source = BatchSource(data.index, data.plan, process_index=jax.process_index(), num_processes=jax.process_count())
    with open_batches(source, stop=data.plan.batches_per_epoch, workers=workers, threads=threads) as batches:
        for loaded in batches:
            if is_stopped():
                raise BrokenOff
            yield loaded


def recognise(
    decoder: Decoder,
    variables: Tree,
    data: PlannedData,
    *,
    workers: int = 0,
    threads: int = 2,
    is_stopped: Callable[[], bool] = lambda: False,
    take: Callable[[Emitted], None] = lambda emitted: None,
) -> Recognition:
    """The text of every recording of a set; the same on all processes. `take` gets what the device made of each batch.

    Raises: BrokenOff where `is_stopped`, asked before each batch, says so.
    """
    decoder.prepare(used_buckets(data), data.index.scale)
    transcripts: dict[int, Transcript] = {}
    rejected: list[Rejected] = []
    before: Emitted | None = None
    with closing(batches_of(data, workers=workers, threads=threads, is_stopped=is_stopped)) as batches:
        for loaded in batches:
            rejected += loaded.rejected
            emitted = decoder(variables, global_batch(without_labels(loaded.batch), decoder.mesh))
            if before:  # while the device has the next one to do
                transcripts |= decoder.finish(before)
            take(emitted)
            before = emitted
    if before:
        transcripts |= decoder.finish(before)
    return Recognition(decoder.whole(transcripts), rejected_everywhere(rejected))


def used_buckets(data: PlannedData) -> list[Bucket]:
    """The shapes that a set's batches have."""
    used = {data.plan[position].bucket for position in range(data.plan.batches_per_epoch)}
    return [data.plan.buckets[number] for number in sorted(used)]


def evaluate(
    decoder: Decoder, variables: Tree, data: PlannedData, **options: Any
) -> tuple[dict[str, Any], Recognition]:
    """What `scored` gives of what `recognise` finds. `options`: of `recognise`, which says what it raises."""
    return scored(data, recognise(decoder, variables, data, **options), decoder.tokenizer)


def scored(data: PlannedData, found: Recognition, tokenizer: Tokenizer) -> tuple[dict[str, Any], Recognition]:
    """Error rates of a set, as `metrics.scoring.score` gives them, `confidence`, as `metrics.confidence` reports it of
    the words, and what was recognised, with those that the plan rejected among the rejected.

    References and hypotheses go through the normaliser that the labels were made with.
    """
    counts = score(list(recognised(data, found, tokenizer)), normaliser=tokenizer.normaliser)
    rejected = data.rejections.entries + found.rejected
    confidence = confidence_report(*judged_words(data, found, tokenizer))
    return counts | {"confidence": confidence, "rejected": len(rejected)}, Recognition(found.transcripts, rejected)


def recognised(data: PlannedData, found: Recognition, tokenizer: Tokenizer) -> Iterator[Recognised]:
    """Every recording that was read, in the order of the index."""
    for row, transcript in sorted(found.transcripts.items()):
        utterance = data.index.utterances[row]
        yield Recognised(
            utterance.id, reference(utterance, tokenizer), transcript.text,
            source=utterance.source, speaker=utterance.speaker, duration_s=utterance.duration_s,
        )  # fmt: skip


def judged_words(
    data: PlannedData, found: Recognition, tokenizer: Tokenizer
) -> tuple[Float[np.ndarray, " N"], Bool[np.ndarray, " N"]]:
    """The confidence of every recognised word, and whether it is right, after the normaliser on both sides; words that
    it leaves nothing of are not among them, and one that it makes several of is right where all of these are.
    """
    confidences, is_right = list[float](), list[bool]()
    for row, transcript in sorted(found.transcripts.items()):
        parts = [normalise(word.text, tokenizer.normaliser).split() for word in transcript.words]
        expected = normalise(reference(data.index.utterances[row], tokenizer), tokenizer.normaliser).split()
        right = iter(right_words(expected, [part for each in parts for part in each]).tolist())
        for word, each in zip(transcript.words, parts, strict=True):
            if each:
                confidences.append(word.confidence)
                of_word = [next(right) for _ in each]
                is_right.append(all(of_word))
    return np.array(confidences, np.float64), np.array(is_right, bool)


def samples(data: PlannedData, found: Recognition, tokenizer: Tokenizer, number: int) -> list[dict[str, str]]:
    """Some transcripts to show: the same rows every time, spread over the set."""
    rows = sorted(found.transcripts)
    chosen = [
        (data.index.utterances[row], found.transcripts[row]) for row in rows[:: max(len(rows) // max(number, 1), 1)]
    ]
    return [
        {"id": utterance.id, "reference": reference(utterance, tokenizer), "hypothesis": transcript.text}
        for utterance, transcript in chosen[:number]
    ]


def predictions(data: PlannedData, found: Recognition, tokenizer: Tokenizer) -> Iterator[dict[str, Any]]:
    """A row per recording that was read: texts as they are, the normaliser to compare them by, words and n-best."""
    rows = sorted(found.transcripts)
    for row, each in zip(rows, recognised(data, found, tokenizer), strict=True):
        yield {
            "id": each.id,
            "location": data.index.utterances[row].location,
            "reference": each.reference,
            "hypothesis": each.hypothesis,
            "source": each.source,
            "speaker": each.speaker,
            "duration_s": None if math.isnan(each.duration_s) else each.duration_s,
            "normaliser": tokenizer.normaliser,
            **to_json(found.transcripts[row]),
        }


def reference(utterance: Utterance, tokenizer: Tokenizer) -> str:
    """What was said: the text or, where there is none or ids are what is recognised, what the token ids stand for."""
    ids_count = not utterance.text or tokenizer.kind == "ids"
    return tokenizer.decode(utterance.labels) if utterance.labels is not None and ids_count else utterance.text
