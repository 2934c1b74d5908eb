"""Transcription of recordings of any length: short ones in batches of the shapes of training, long ones in windows."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import batched

import jax.numpy as jnp
import numpy as np

from asr_jax.audio.io import AudioError
from asr_jax.core.batch import Frames
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.inference.decoder import Decoder
from asr_jax.inference.log_probs import LogProbs
from asr_jax.inference.long_audio import LongAudio
from asr_jax.inference.recognition import Recognition, recognise
from asr_jax.inference.trained import Trained
from asr_jax.transcripts.seams import FrameLogProbs, joined_parts, together
from asr_jax.transcripts.transcript import Transcript, joined
from asr_jax.transcripts.windows import pieces

AT_ONCE = 1024
"""Largest number of recordings that are planned and returned as a group."""
BATCHES_AT_ONCE = 32
"""Number of batches that complete a group earlier."""


@dataclass(frozen=True)
class Transcribed:
    """Result for one recording."""

    utterance: Utterance
    """The recording, with the duration of the audio that was decoded."""
    transcript: Transcript | None
    """None if the audio could not be read."""
    reason: str = ""
    """Why there is no transcript."""
    differing: Rejected | None = None
    """Difference between the duration of the audio and that of its manifest or header. None: it is tolerated."""


class Transcriber:
    """A trained run with a decoder, for recordings of any length."""

    def __init__(
        self,
        trained: Trained,
        decoder: Decoder,
        *,
        window_s: float = 0.0,
        overlap_s: float | None = None,
        tell: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        """Initialises without compiling.

        Args:
            trained: The run.
            decoder: Decoder of the run.
            window_s: Length of a window of long audio in seconds. 0: the longest length of training.
            overlap_s: Overlap of windows in seconds. None: a third of a window.
            tell: Called with the seconds of audio that were computed since the last call.

        Raises:
            UserError: If the overlap does not fit the windows.
        """
        self.trained, self.decoder, self._tell = trained, decoder, tell
        self._long = LongAudio(trained, decoder, window_s=window_s, overlap_s=overlap_s, tell=tell)
        self.windows, self.longest_s = self._long.windows, self._long.longest_s
        """Sizes of windows, and the length in seconds above which audio is computed in windows."""
        self._batch_s = self._long.bucket.batch_size * self.longest_s

    def __call__(self, utterances: Iterable[Utterance]) -> Iterator[Transcribed]:
        """Yields the result for each recording in order.

        Recordings are processed in groups that fill some batches. The short ones of a group are computed before any
        result of the group is returned. Utterances need durations and different ids.
        """
        for group in self._groups(utterances):
            short = self._short([utterance for utterance in group if not self._is_long(utterance)])
            long = self.of_windows(filter(self._is_long, group))
            for utterance in group:
                yield next(long) if self._is_long(utterance) else short[utterance.id]

    def _groups(self, utterances: Iterable[Utterance]) -> Iterator[list[Utterance]]:
        """Yields groups of recordings. An interruption loses at most one group."""
        group, seconds = list[Utterance](), 0.0
        for utterance in utterances:
            group.append(utterance)
            seconds += utterance.duration_s if utterance.duration_s > 0 else 0.0
            if seconds >= BATCHES_AT_ONCE * self._batch_s or len(group) == AT_ONCE:
                yield group
                group, seconds = [], 0.0
        if group:
            yield group

    def _is_long(self, utterance: Utterance) -> bool:
        return not utterance.num_frames and utterance.duration_s > self.longest_s

    def _short(self, utterances: Sequence[Utterance]) -> dict[str, Transcribed]:
        """Returns the results of short recordings by id."""
        found = {utterance.id: Transcribed(utterance, None, "no samples") for utterance in utterances}
        # Labels and texts of a manifest are not needed, and could cause rejections.
        plain = [replace(utterance, text="", labels=None) for utterance in utterances if utterance.duration_s > 0]
        if plain:
            data = self.trained.plan(Utterances.of(plain))
            result = recognise(self.decoder, self.trained.variables, data)
            reasons = {each.id: each.reason for each in result.rejected + data.rejections.entries}
            differing = {each.id: each for each in result.differing}
            rows = {data.index.utterances[row].id: row for row in range(len(data.index))}
            for utterance in utterances:
                if utterance.duration_s > 0:
                    row = rows.get(utterance.id, -1)
                    decoded = self._decoded(utterance, result.decoded_s.get(row, utterance.duration_s))
                    found[utterance.id] = Transcribed(
                        decoded, result.transcripts.get(row), reasons.get(utterance.id, ""), differing.get(utterance.id)
                    )
            self._tell(sum(each.utterance.duration_s for each in found.values() if each.transcript))
        return found

    def of_windows(
        self, utterances: Iterable[Utterance], *, take: Callable[[Utterance, FrameLogProbs], None] | None = None
    ) -> Iterator[Transcribed]:
        """Transcribes recordings in windows.

        The tokens of windows are joined. If the search has a stage on the host that takes frames (see `HostStage`), the
        log-probabilities of windows are joined instead, and searched in batches of pieces.

        Args:
            utterances: The recordings.
            take: Called with the log-probabilities of each recording. They are then in memory as a whole.
        """
        search = self.decoder.search
        for utterance, windows in self._long.emissions(utterances):
            try:
                held = list(windows) if take else None
                if take and held:
                    take(utterance, together(self._long.joined(held)))
                if not search.takes_frames:
                    transcript = search.transcript([joined_parts(each.part for each in held or windows)])
                else:
                    transcript = self._searched_in_pieces(self._long.joined(held or windows))
                blocks = self._long.blocks.pop(utterance.id)
                decoded = self._decoded(utterance, blocks.num_samples / blocks.rate_hz)
                yield Transcribed(decoded, transcript, differing=blocks.differing)
            except AudioError as error:
                yield Transcribed(utterance, None, error.reason)

    @staticmethod
    def _decoded(utterance: Utterance, decoded_s: float) -> Utterance:
        """Utterance with the duration of the audio that was decoded. Features keep theirs."""
        return utterance if utterance.num_frames else replace(utterance, duration_s=decoded_s)

    def _searched_in_pieces(self, frames: Iterator[FrameLogProbs]) -> Transcript:
        """Searches the log-probabilities of a recording in pieces."""
        bucket, spelling = self._long.bucket, self.decoder.search.writer.spelling
        most = self._long.num_frames(bucket.length)
        parts = [
            transcript
            for group in batched(pieces(frames, spelling, most_frames=most), bucket.batch_size)
            for transcript in self._searched(group, most)
        ]
        return joined(parts)

    def _searched(self, group: Sequence[FrameLogProbs], num_frames: int) -> Iterator[Transcript]:
        """Searches pieces as a batch, in the shape for which the search is compiled."""
        values = np.zeros((self._long.bucket.batch_size, num_frames, group[0].logps.shape[1]), np.float32)
        lengths = np.zeros(len(values), np.int32)
        for row, piece in enumerate(group):
            values[row, : len(piece.path)], lengths[row] = piece.logps, len(piece.path)
        search, given = self.decoder.search, Frames(jnp.asarray(values), jnp.asarray(lengths))
        for piece, hypotheses in zip(group, search.sequences(given, range(len(group))), strict=True):
            yield search.transcript(hypotheses, first_frame=piece.first_frame)


def recognise_all(
    trained: Trained,
    decoder: Decoder,
    data: PlannedData,
    *,
    threads: int = 2,
    log_probs: LogProbs | None = None,
) -> Recognition:
    """Recognises all recordings of a set; audio that is too long for the batches is computed in windows.

    Args:
        trained: The run.
        decoder: Decoder of the run.
        data: Set planned by `Trained.plan`.
        threads: Number of threads that load data.
        log_probs: Writer that gets the log-probabilities of all recordings. None: they are not written.
    """
    take = functools.partial(log_probs.take, data=data) if log_probs else lambda emitted: None
    found = recognise(decoder, trained.variables, data, threads=threads, take=take)
    if not data.windowed_rows:
        return found
    utterances = data.index.utterances
    # Ids of a manifest need not be unique, so rows serve as ids.
    of_rows = (replace(utterances[row], id=str(row)) for row in data.windowed_rows)

    def add(utterance: Utterance, whole: FrameLogProbs) -> None:
        if log_probs:
            log_probs.add(utterances[int(utterance.id)], whole.logps)

    transcripts, rejected, differing = dict(found.transcripts), list(found.rejected), list(found.differing)
    for each in Transcriber(trained, decoder).of_windows(of_rows, take=add if log_probs else None):
        row = int(each.utterance.id)
        if each.transcript:
            transcripts[row] = each.transcript
            differing += [replace(each.differing, id=utterances[row].id)] if each.differing else []
        else:
            rejected.append(Rejected(utterances[row].id, each.utterance.location, each.reason, "audio"))
    return replace(found, transcripts=transcripts, rejected=rejected, differing=tuple(differing))
