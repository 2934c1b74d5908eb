"""Recognition of sets: the forward pass in batches, transcripts and their error rates."""

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import Mesh

from asr_jax.core.environment import READING_THREADS
from asr_jax.core.layout import Layout
from asr_jax.core.meshes import global_batch
from asr_jax.core.pytrees import Tree
from asr_jax.data.batching.buckets import Bucket
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.loading.source import BatchSource, LoadedBatch, open_batches
from asr_jax.data.manifests.utterances import Rejected, Utterance, rejected_everywhere
from asr_jax.inference.decoder import Decoder, Emitted, without_labels
from asr_jax.metrics.confidence import judged_words
from asr_jax.metrics.errors import Alignment, word_errors
from asr_jax.metrics.scoring import Recognised
from asr_jax.text.normalise import normalise
from asr_jax.text.tokenizers import Tokenizer
from asr_jax.transcripts.transcript import Transcript, to_json


@dataclass(frozen=True)
class Recognition:
    """Transcripts by index row. Rows whose audio cannot be read are missing."""

    transcripts: dict[int, Transcript]
    rejected: list[Rejected]
    """Utterances without a transcript."""
    differing: tuple[Rejected, ...] = ()
    """Utterances with remarks on their audio, as of `LoadedBatch`."""
    decoded_s: Mapping[int, float] = field(default_factory=dict)
    """Duration in seconds of the audio that was decoded, by row, of this process."""


class BrokenOff(Exception):
    """Raised if evaluation is asked to stop."""


def batches_of(
    data: PlannedData, mesh: Mesh, *, threads: int, is_stopped: Callable[[], bool]
) -> Generator[LoadedBatch]:
    """Yields this process's rows of all batches of an evaluation set. The generator must be closed.

    Args:
        is_stopped: Called before each batch; True stops the evaluation.

    Raises:
        BrokenOff: If `is_stopped` returns True.
    """
    source = BatchSource(data.index, data.plan, Layout.of(mesh))
    with open_batches(source, stop=data.plan.batches_per_epoch, threads=threads) as batches:
        for loaded in batches:
            if is_stopped():
                raise BrokenOff
            yield loaded


def recognise(
    decoder: Decoder,
    variables: Tree,
    data: PlannedData,
    *,
    threads: int = READING_THREADS,
    is_stopped: Callable[[], bool] = lambda: False,
    take: Callable[[Emitted], None] = lambda emitted: None,
) -> Recognition:
    """Recognises all recordings of a set. The result is the same on all processes.

    Args:
        is_stopped: Called before each batch; True stops the evaluation.
        take: Called with the device's output for each batch.

    Raises:
        BrokenOff: If `is_stopped` returns True.
    """
    decoder.prepare(used_buckets(data), data.index.scale)
    transcripts: dict[int, Transcript] = {}
    rejected, differing, decoded_s = list[Rejected](), list[Rejected](), dict[int, float]()
    before: Emitted | None = None
    with closing(batches_of(data, decoder.mesh, threads=threads, is_stopped=is_stopped)) as batches:
        for loaded in batches:
            rejected += loaded.rejected
            differing += loaded.differing
            batch = loaded.batch
            rows, lengths = (each[batch.weights > 0].tolist() for each in (batch.utterances, batch.lengths))
            decoded_s |= {row: length / data.index.scale.per_s for row, length in zip(rows, lengths, strict=True)}
            emitted = decoder(variables, global_batch(without_labels(loaded.batch), decoder.mesh))
            if before:  # while the device computes this batch
                transcripts |= decoder.finish(before)
            take(emitted)
            before = emitted
    if before:
        transcripts |= decoder.finish(before)
    return Recognition(
        decoder.whole(transcripts), rejected_everywhere(rejected), tuple(rejected_everywhere(differing)), decoded_s
    )


def used_buckets(data: PlannedData) -> list[Bucket]:
    """Returns the buckets that a set's batches have."""
    used = {data.plan[position].bucket for position in range(data.plan.batches_per_epoch)}
    return [data.plan.buckets[number] for number in sorted(used)]


def recognised(
    data: PlannedData, found: Recognition, tokenizer: Tokenizer, *, has_tokens: bool = False
) -> Iterator[Recognised]:
    """Yields reference and hypothesis of every recording that was read, in the order of the index."""
    for row, transcript in sorted(found.transcripts.items()):
        utterance = data.index.utterances[row]
        text = reference(utterance, tokenizer)
        tokens = (reference_tokens(utterance, tokenizer), transcript.tokens) if has_tokens else ((), ())
        yield Recognised(
            utterance.id,
            text,
            transcript.text,
            source=utterance.source,
            speaker=utterance.speaker,
            duration_s=utterance.duration_s,
            reference_tokens=tokens[0],
            hypothesis_tokens=tokens[1],
        )


def judged_rows(
    data: PlannedData, found: Recognition, tokenizer: Tokenizer, normaliser: str
) -> Iterator[tuple[list[float], list[bool]]]:
    """Yields the confidences of each utterance's recognised words, and whether they are right, as `judged_words`."""
    for row, transcript in sorted(found.transcripts.items()):
        words = ((word.text, word.confidence) for word in transcript.words)
        yield judged_words(words, reference(data.index.utterances[row], tokenizer), normaliser)


def samples(data: PlannedData, found: Recognition, tokenizer: Tokenizer, number: int) -> list[dict[str, str]]:
    """Returns some transcripts to show: always of the same rows, which are spread over the set."""
    rows = sorted(found.transcripts)
    chosen = [
        (data.index.utterances[row], found.transcripts[row]) for row in rows[:: max(len(rows) // max(number, 1), 1)]
    ]
    return [
        {"id": utterance.id, "reference": reference(utterance, tokenizer), "hypothesis": transcript.text}
        for utterance, transcript in chosen[:number]
    ]


def predictions(
    data: PlannedData,
    found: Recognition,
    tokenizer: Tokenizer,
    *,
    normaliser: str,
    alignment: Alignment = "fewest_edits",
) -> Iterator[dict[str, Any]]:
    """Yields a JSON object per recording that was read: original texts, word errors, words and n-best list.

    The errors are `substitutions`, `deletions`, `insertions`, `reference_words` (their number) and `wer` (None without
    reference words), after normalising. `words` are the recognised words.
    """
    rows = sorted(found.transcripts)
    for row, each in zip(rows, recognised(data, found, tokenizer), strict=True):
        counts = word_counts(each, normaliser, alignment)
        num_words, num_errors = counts.pop("words"), sum(counts.values())
        yield {
            "id": each.id,
            "location": data.index.utterances[row].location,
            "reference": each.reference,
            "hypothesis": each.hypothesis,
            "source": each.source,
            "speaker": each.speaker,
            "duration_s": None if math.isnan(each.duration_s) else each.duration_s,
            "normaliser": normaliser,
            **counts,
            "reference_words": num_words,  # `words` has the recognised ones
            "wer": round(num_errors / num_words, 6) if num_words else None,
            **to_json(found.transcripts[row]),
        }


def word_counts(recognised: Recognised, normaliser: str, alignment: Alignment = "fewest_edits") -> dict[str, int]:
    """Returns the word errors of an utterance after normalising: substitutions, deletions, insertions and words."""
    reference, hypothesis = (normalise(text, normaliser) for text in (recognised.reference, recognised.hypothesis))
    counts = word_errors(reference, hypothesis, alignment)
    return {name: getattr(counts, name) for name in ("substitutions", "deletions", "insertions", "words")}


def reference(utterance: Utterance, tokenizer: Tokenizer) -> str:
    """Returns the reference text. Token ids are decoded if there is no text, or if the tokenizer is of ids."""
    labels = _labels_that_count(utterance, tokenizer)
    return utterance.text if labels is None else tokenizer.decode(labels)


def reference_tokens(utterance: Utterance, tokenizer: Tokenizer) -> Sequence[int]:
    """Returns the label ids of the reference; -1 for parts that are not in the vocabulary."""
    labels = _labels_that_count(utterance, tokenizer)
    return tokenizer.scored_ids(utterance.text) if labels is None else labels


def _labels_that_count(utterance: Utterance, tokenizer: Tokenizer) -> tuple[int, ...] | None:
    """Returns the token ids of the manifest that are used instead of the text; None: the text is used."""
    ids_count = not utterance.text or tokenizer.kind == "ids"
    return utterance.labels if ids_count else None
