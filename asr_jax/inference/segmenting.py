"""Segmentation of long audio: log-probabilities in windows, alignment with the text, and pieces as utterances."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int16

from asr_jax.alignment.ctc_segment import LongSearch, align_long
from asr_jax.alignment.cutting import LOW_SCORE, Cutting, Piece, TextWord, pieces
from asr_jax.alignment.emissions import emissions_of
from asr_jax.audio.io import AudioError
from asr_jax.core.errors import UserError
from asr_jax.core.frame_times import FrameTimes
from asr_jax.data.manifests.durations import UtteranceBlocks
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.inference.aligning import emitting, no_labels, unknown_characters, unknown_labels
from asr_jax.inference.long_audio import LongAudio
from asr_jax.inference.trained import Trained
from asr_jax.text.base import OutOfVocabulary, Tokenizer
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
    """Cuts recordings of any length into pieces with their parts of a known text.

    Args:
        trained: The run.
        cutting: Settings of the pieces.
        search: Settings of the alignment. None: the defaults.
    """

    def __init__(self, trained: Trained, *, cutting: Cutting, search: LongSearch | None = None) -> None:
        decoder = emitting(trained)
        self._long = LongAudio(trained, decoder)
        self._tokenizer, self._cutting, self._search = trained.tokenizer, cutting, search or LongSearch()
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
        """Returns the pieces of a recording.

        Raises:
            AudioError: If the audio cannot be read.
            UserError: If no word of the text has labels.
        """
        words, labels = text_words(utterance.text, self._tokenizer, self._spelling)
        if not labels:
            raise UserError(
                f"utterance {utterance.id}: no word of its text has labels; expected the words that are spoken in it"
            )
        emissions, columns = emissions_of(frames, np.array(labels), self._spelling)
        opens = self._spelling.boundaries(labels) | (np.arange(len(labels)) == 0)
        path = align_long(emissions, columns, opens, search=self._search)
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
    """Splits a text into words with their original spelling. Returns also the labels of all words, with borders."""
    words: list[TextWord] = []
    labels: list[int] = []
    for word in text.split():
        if lost := tokenizer.removed_from(word):
            words.append(TextWord(word, len(labels), len(labels), problem=no_labels(lost, tokenizer)))
            continue
        if unknown := unknown_characters(word, tokenizer):
            words.append(TextWord(word, len(labels), len(labels), problem=unknown_labels(unknown)))
            continue
        try:
            own = tokenizer.encode(word)
        except OutOfVocabulary as error:
            words.append(TextWord(word, len(labels), len(labels), problem=str(error)))
            continue
        if not any(spelling.texts[label] for label in own):  # punctuation is added to the preceding word
            if words:
                words[-1] = words[-1]._replace(text=f"{words[-1].text} {word}")
            continue
        if labels and not spelling.opens[own[0]] and spelling.border is not None:
            labels.append(spelling.border)
        first = next(place for place, label in enumerate(own) if spelling.texts[label])
        words.append(TextWord(word, len(labels) + first, len(labels) + len(own)))
        labels += own
    return words, labels


def frame_energies(
    blocks: Iterable[Int16[np.ndarray, "_"]], times: FrameTimes, num_frames: int
) -> tuple[Float[np.ndarray, " T"], int]:
    """Returns the mean square of the samples of each frame, and the total number of samples.

    Args:
        blocks: Consecutive blocks of samples.
    """
    sums, counts, num_samples = np.zeros(num_frames), np.zeros(num_frames), 0
    for block in blocks:
        frames = (np.arange(num_samples, num_samples + len(block)) - round(times.first)) // times.shift
        is_in = (frames >= 0) & (frames < num_frames)
        sums += np.bincount(frames[is_in], np.square(block[is_in], dtype=np.float64), minlength=num_frames)
        counts += np.bincount(frames[is_in], minlength=num_frames)
        num_samples += len(block)
    return sums / np.maximum(counts, 1), num_samples
