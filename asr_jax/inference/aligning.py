"""Forced alignment of recordings with their texts.

One program computes the forward pass and the Viterbi search. Audio that is much longer than that of training is
computed in windows, and the search uses the joined frames.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Integer

from asr_jax.alignment.ctc_segment import FORCED, align_long
from asr_jax.alignment.emissions import emissions_of
from asr_jax.audio.io import AudioError
from asr_jax.core.batch import Batch
from asr_jax.core.layout import Layout
from asr_jax.core.meshes import abstract, global_batch, replicated
from asr_jax.core.pytrees import Tree
from asr_jax.core.timed_tokens import TokenSequence
from asr_jax.data.batching.dataset import PlannedData, check_labels
from asr_jax.data.batching.evaluation import NoUtterances, plan_with_labels
from asr_jax.data.batching.filters import Rejections
from asr_jax.data.loading.source import BatchSource, open_batches
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.inference.by_shape import abstract_batch
from asr_jax.inference.decoder import Decoder
from asr_jax.inference.long_audio import LongAudio
from asr_jax.inference.model import programs_of
from asr_jax.inference.recognition import used_buckets
from asr_jax.inference.trained import Trained
from asr_jax.inference.transcription import Transcribed
from asr_jax.losses.ctc_align import Alignment, align
from asr_jax.search.ctc import CTCDecoding
from asr_jax.text.base import OutOfVocabulary, Tokenizer
from asr_jax.transcripts.seams import FrameLogProbs
from asr_jax.transcripts.words import Writer

NO_PATH = "no path: there are fewer frames than the labels need, or the model gives the labels no probability"


def plan(trained: Trained, utterances: Utterances) -> PlannedData:
    """Plans utterances with labels.

    Utterances are rejected if the normaliser removes letters or digits of their text, or if characters of it have no
    label or only the unknown label.

    Raises:
        NoUtterances: If no utterance is left.
        UserError: If token ids are not ids of the tokenizer.
    """
    model = trained.model
    kept, rejections = _with_whole_text(utterances, trained.tokenizer)
    try:
        data = plan_with_labels(
            kept,
            trained.for_sets(),
            front_end=model.front_end,
            tokenizer=trained.tokenizer,
            takes_ids=trained.experiment.data.tokenizer.takes_ids,
            output_length=model.length_of(model.aligning),
            num_devices=trained.mesh.size,
            frames_needed=trained.experiment.model.heads[model.aligning].frames_needed,
        )
    except NoUtterances as error:
        error.rejections.merge(rejections)
        raise NoUtterances(error.what, error.rejections) from None
    data.rejections.merge(rejections)
    check_labels(data, trained.tokenizer)
    return data


def unlabelled(text: str, tokenizer: Tokenizer) -> tuple[str, str]:
    """Returns the reason why a text cannot be aligned, and its kind. Both are empty if all of the text has labels.

    The kind is also empty if `encode` raises an error, which the planning of labels reports.
    """
    if lost := tokenizer.removed_from(text):
        reason = f"{lost!r} has no labels ({tokenizer.normaliser} leaves it out): expected the text as it is spoken"
        return f"{reason}, in words", "text that the normaliser leaves out"
    try:
        has_unknown = tokenizer.unknown_id in tokenizer.encode(text)
    except OutOfVocabulary as error:
        return str(error), ""
    if has_unknown and (missing := "".join(sorted(tokenizer.without_label(text)))):
        reason = f"{missing!r} has no labels: expected a text in characters of the vocabulary"
        return reason, "text outside of the vocabulary"
    return "", ""


def _with_whole_text(utterances: Utterances, tokenizer: Tokenizer) -> tuple[Utterances, Rejections]:
    rejections, is_kept = Rejections(), np.ones(len(utterances), bool)
    for place, text in enumerate(utterances.texts()):
        reason, kind = unlabelled(text, tokenizer)
        if not kind:
            continue
        utterance, is_kept[place] = utterances[place], False
        rejected = Rejected(utterance.id, utterance.location, reason, "result")
        rejections.add(rejected, duration_s=utterance.duration_s, kind=kind)
    return utterances.select(is_kept), rejections


def aligned_utterances(trained: Trained, data: PlannedData) -> Iterator[Transcribed]:
    """Yields every utterance of a plan: first batch by batch, then those that are computed in windows."""
    yield from _of_batches(trained, data)
    if data.windowed_rows:
        yield from _of_windows(trained, data)


def _of_windows(trained: Trained, data: PlannedData) -> Iterator[Transcribed]:
    """Aligns long recordings. In memory are the log-probabilities of the text's labels and the back-pointers."""
    decoder = emitting(trained)
    writer = decoder.search.writer
    # Ids of a manifest need not be unique, so rows serve as ids.
    utterances = [replace(data.index.utterances[row], id=str(row)) for row in data.windowed_rows]
    long = LongAudio(trained, decoder)
    for known, frames in long.frames(utterances):
        utterance, labels = data.index.utterances[int(known.id)], data.index.labels_of(int(known.id))
        try:
            aligned = _of_frames(utterance, labels, frames, writer)
            differing = long.blocks[known.id].differing
            decoded = replace(utterance, duration_s=long.blocks[known.id].num_samples / long.blocks[known.id].rate_hz)
            differing = replace(differing, id=utterance.id) if differing else None
            yield replace(aligned, utterance=decoded, differing=differing)
        except AudioError as error:
            yield Transcribed(utterance, None, reason=error.reason)


def emitting(trained: Trained) -> Decoder:
    """Returns a decoder that computes the log-probabilities of the head that texts are aligned with.

    Raises:
        UserError: If the model has no CTC head.
    """
    return trained.decoder(CTCDecoding(), head=trained.model.aligning, is_raw=True, gives_log_probs=True)


def _of_frames(
    utterance: Utterance, labels: Integer[np.ndarray, " U"], frames: Iterable[FrameLogProbs], writer: Writer
) -> Transcribed:
    """Aligns one recording from its frames. Raises an AudioError if the audio cannot be read to its end."""
    emissions, columns = emissions_of(frames, labels, writer.spelling)
    path = align_long(emissions, columns, np.zeros(len(labels), bool), search=FORCED)
    if (path.starts < 0).any():
        return Transcribed(utterance, None, reason=NO_PATH)
    best = np.array([path.log_probs[start:end].max() for start, end in zip(path.starts, path.ends, strict=True)])
    found = TokenSequence.of(labels, path.starts, path.ends, best, score=float(path.log_probs.sum()))
    return Transcribed(utterance, writer.transcript([found]), tokens=writer.tokens(found))


def _of_batches(trained: Trained, data: PlannedData) -> Iterator[Transcribed]:
    programs = _compiled(trained, data)
    model = trained.model
    writer = Writer(trained.tokenizer, times=model.frame_times(tap=model.heads[model.aligning].tap))
    source = BatchSource(data.index, data.plan, Layout.of(trained.mesh))
    with open_batches(source, stop=data.plan.batches_per_epoch) as batches:
        for loaded in batches:
            batch = loaded.batch
            program = programs[batch.signal.shape[1]]
            found: Alignment = jax.device_get(program(trained.variables, global_batch(batch, trained.mesh)))
            differing = {each.id: each for each in loaded.differing}
            for i in np.flatnonzero(batch.weights > 0):
                utterance = data.index.utterances[int(batch.utterances[i])]
                if not data.index.scale.of_features:
                    utterance = replace(utterance, duration_s=float(batch.lengths[i]) / data.index.scale.per_s)
                if not found.is_possible[i]:
                    yield Transcribed(utterance, None, reason=NO_PATH)
                    continue
                num = int(batch.token_lengths[i])
                row = (each[i, :num] for each in (batch.tokens, found.starts, found.ends, found.log_probs))
                sequence = TokenSequence.of(*row, score=float(found.scores[i]))
                transcript, tokens = writer.transcript([sequence]), writer.tokens(sequence)
                yield Transcribed(utterance, transcript, differing=differing.get(utterance.id), tokens=tokens)
            for rejected in loaded.rejected:
                yield Transcribed(Utterance(rejected.id, rejected.location), None, reason=rejected.reason)


def _compiled(trained: Trained, data: PlannedData) -> dict[int, Any]:
    """Compiles a program for each shape of the batches. The keys are lengths."""
    model, head, blank_id = trained.model, trained.model.aligning, trained.tokenizer.blank_id

    def program(variables: Tree, batch: Batch) -> Alignment:
        emitted: Any = model.apply(variables, batch, head=head, method="emit")
        frames = emitted[head]
        return align(frames.values, frames.lengths, batch.tokens, batch.token_lengths, blank_id=blank_id)

    same, programs = replicated(trained.mesh), programs_of(trained.experiment, trained.tokenizer).given(head=head)
    variables = abstract(trained.variables, same)
    lowered = {
        bucket.length: programs.lower(
            f"align_{head}",
            program,
            variables,
            abstract_batch(bucket, trained.mesh, data.index.scale),
            out_shardings=same,
        ).lowered
        for bucket in used_buckets(data)
    }
    return {length: each.compile() for length, each in lowered.items()}
