"""Segmentation of long audio: log-probabilities in windows, alignment with the text, and pieces as utterances."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int16

from asr_jax.alignment.ctc_segment import LongSearch, align_long
from asr_jax.alignment.cutting import LOW_SCORE, Cutting, Piece, TextWord, pieces
from asr_jax.alignment.emissions import emissions_of
from asr_jax.audio.io import AudioError
from asr_jax.core.errors import UserError
from asr_jax.core.frame_times import FrameTimes
from asr_jax.data.manifests.durations import UtteranceBlocks
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.inference.aligning import emitting, unlabelled
from asr_jax.inference.long_audio import LongAudio
from asr_jax.inference.trained import Trained
from asr_jax.text.base import OutOfVocabulary, Tokenizer
from asr_jax.text.segmentation import Word, joined, split, words_of
from asr_jax.text.spelling import Spelling
from asr_jax.transcripts.pauses import part_of
from asr_jax.transcripts.seams import FrameLogProbs


class UtterancePiece(NamedTuple):
    """A piece of a recording."""

    utterance: Utterance
    """The piece as an utterance, with its text."""
    score: float
    """NaN if none of its words was found with certainty."""
    reason: str
    """Why the piece is not reliable. Empty: it is."""


class Segmented(NamedTuple):
    """Result for one recording."""

    utterance: Utterance
    pieces: list[UtterancePiece]
    """All pieces in their order, reliable or not."""
    reason: str = ""
    """Why there are no pieces."""
    differing: Rejected | None = None
    """Difference between the duration of the audio and that of the manifest. None: it is tolerated."""


class Segmenter:
    """Cuts recordings of any length into pieces with their parts of a known text."""

    def __init__(self, trained: Trained, *, cutting: Cutting) -> None:
        decoder = emitting(trained)
        self._long = LongAudio(trained, decoder)
        self._tokenizer, self._cutting = trained.tokenizer, cutting
        self._spelling, self._times = decoder.search.writer.spelling, decoder.search.writer.times

    def __call__(self, utterances: Iterable[Utterance]) -> Iterator[Segmented]:
        """Yields the result for each recording in order.

        In memory are one batch of windows, and the log-probabilities of the labels of one text.
        """
        for utterance, frames in self._long.frames(utterances):
            try:
                pieces = list(self._pieces(utterance, frames))
                yield Segmented(utterance, pieces, differing=self._long.blocks[utterance.id].differing)
            except (AudioError, UserError) as error:
                yield Segmented(utterance, [], str(error))

    def _pieces(self, utterance: Utterance, frames: Iterable[FrameLogProbs]) -> Iterator[UtterancePiece]:
        """Returns the pieces of a recording."""
        words, labels = text_words(utterance.text, self._tokenizer, self._spelling)
        if not labels:
            raise UserError(
                f"utterance {utterance.id}: no word of its text has labels; expected the words that are spoken in it"
            )
        emissions, columns = emissions_of(frames, np.array(labels), self._spelling)
        starts = word_starts(words, labels, self._spelling)
        path = align_long(emissions, columns, starts, search=LongSearch())
        # The audio is read a second time, because the samples of long audio may not fit into memory.
        blocks = UtteranceBlocks(utterance, int(self._times.rate_hz))
        energies, num_samples = frame_energies(blocks, self._times, len(path.log_probs))
        found = pieces(words, path, energies, self._cutting, shift_s=self._times.shift_s)
        length_s = num_samples / self._times.rate_hz
        return (self._of(piece, number, utterance, length_s) for number, piece in enumerate(found))

    def _of(self, piece: Piece, number: int, utterance: Utterance, length_s: float) -> UtterancePiece:
        start_s, end_s = (min(self._times.seconds(frame), length_s) for frame in (piece.start, piece.end))
        cut = replace(part_of(utterance, number, start_s, end_s), text=piece.text)
        below = f"score {piece.score:.2f} below {self._cutting.min_score:g}"
        reasons = [below if reason == LOW_SCORE else reason for reason in piece.reasons]
        return UtterancePiece(cut, piece.score, "; ".join(reasons))


def text_words(text: str, tokenizer: Tokenizer, spelling: Spelling) -> tuple[list[TextWord], list[int]]:
    """Splits a text into words with their original spelling. Returns also the labels of all words, with borders.

    Words without spaces between them that share a label are one word.
    """
    words: list[TextWord] = []
    labels: list[int] = []
    for problem, together in groupby(split(text), key=lambda word: unlabelled(word.text, tokenizer)[0]):
        if problem:
            words += (TextWord(word.text, len(labels), len(labels), problem, word.space) for word in together)
            continue
        for word, own in _with_labels(list(together), tokenizer, spelling):
            if not any(spelling.texts[label] for label in own):  # punctuation is added to the preceding word
                if words:
                    words[-1] = words[-1]._replace(text=joined((words[-1], word)))
                continue
            if labels and word.space and not spelling.opens[own[0]] and spelling.border is not None:
                labels.append(spelling.border)
            first = next(place for place, label in enumerate(own) if spelling.texts[label])
            words.append(TextWord(word.text, len(labels) + first, len(labels) + len(own), space=word.space))
            labels += own
    return words, labels


def word_starts(words: Sequence[TextWord], labels: Sequence[int], spelling: Spelling) -> Bool[np.ndarray, " U"]:
    """Returns whether a word begins with each label of `text_words`."""
    starts = spelling.boundaries(labels) | (np.arange(len(labels)) == 0)
    starts[[word.first for word in words if not word.space and not word.problem]] = True
    return starts


def _with_labels(words: Sequence[Word], tokenizer: Tokenizer, spelling: Spelling) -> Iterator[tuple[Word, list[int]]]:
    """Yields words with their labels, between spaces those of the whole text."""
    first = 0
    for end in range(1, len(words) + 1):
        if end == len(words) or words[end].space:
            yield from _labelled(words[first:end], tokenizer, spelling)
            first = end


def _labelled(words: Sequence[Word], tokenizer: Tokenizer, spelling: Spelling) -> Iterator[tuple[Word, list[int]]]:
    """Yields words without spaces between them, with their labels. Words that share a label are yielded together."""
    try:
        labels = tokenizer.encode(joined(words))
    except OutOfVocabulary:  # labels are words
        labels = []
    lengths = [len(spelling.texts[label]) for label in labels]
    ends = np.cumsum([len(word) for word in words_of("".join(spelling.texts[label] for label in labels))]).tolist()
    if len(ends) != len(words):  # the normaliser changes the number of words, or labels are bytes
        for word in words:
            own = tokenizer.encode(word.text)
            yield word, own[not word.space and own[:1] == [spelling.border] :]
        return
    place, begin = 0, 0
    for stop, end in enumerate(np.cumsum(lengths).tolist(), 1):
        if end in ends[place:]:
            last = ends.index(end, place) + 1
            yield Word(joined(words[place:last]), words[place].space), labels[begin:stop]
            place, begin = last, stop


def frame_energies(
    blocks: Iterable[Int16[np.ndarray, "_"]], times: FrameTimes, num_frames: int
) -> tuple[Float[np.ndarray, " T"], int]:
    """Returns the mean square of the samples of each frame, and the total number of samples."""
    sums, counts, num_samples = np.zeros(num_frames), np.zeros(num_frames), 0
    for block in blocks:
        frames = (np.arange(num_samples, num_samples + len(block)) - round(times.first)) // times.shift
        is_in = (frames >= 0) & (frames < num_frames)
        sums += np.bincount(frames[is_in], np.square(block[is_in], dtype=np.float64), minlength=num_frames)
        counts += np.bincount(frames[is_in], minlength=num_frames)
        num_samples += len(block)
    return sums / np.maximum(counts, 1), num_samples
