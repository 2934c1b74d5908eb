"""Transcription of recordings of any length: short ones in batches of few shapes, long ones in windows."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import batched
from typing import Any

import jax
import numpy as np

from asr_jax.audio.io import AudioError
from asr_jax.core.batch import Frames
from asr_jax.core.devices import local_devices
from asr_jax.core.environment import READING_THREADS
from asr_jax.core.meshes import of_this_process
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.batching.evaluation import part_of
from asr_jax.data.manifests.durations import is_silent
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.utterances import Rejected, Utterance, rejected_everywhere
from asr_jax.inference.decoder import Decoder, whole_transcripts
from asr_jax.inference.log_probs import LogProbs
from asr_jax.inference.long_audio import LongAudio
from asr_jax.inference.recognition import BrokenOff, Recognition, recognise, used_buckets
from asr_jax.inference.trained import Trained
from asr_jax.transcripts.seams import FrameLogProbs, joined_parts, together
from asr_jax.transcripts.state_resets import joined_by_resets
from asr_jax.transcripts.transcript import Token, Transcript, joined
from asr_jax.transcripts.windows import pieces

AT_ONCE = 1024
"""Largest number of recordings that are planned and returned as a group."""
BATCHES_AT_ONCE = 32
"""Number of batches that complete a group earlier."""


@dataclass(frozen=True)
class Transcribed:
    """Result for one recording: its transcript, or its text with the times of the words."""

    utterance: Utterance
    """The recording, with the duration of the audio that was decoded."""
    transcript: Transcript | None
    """None if the audio could not be read, or the alignment failed."""
    reason: str = ""
    """Why there is no transcript."""
    differing: Rejected | None = None
    """Remarks on the audio: it is silent, truncated or clipped, or its duration differs from that of its manifest or
    header. None: there are none."""
    tokens: tuple[Token, ...] = ()
    """Labels of the text with their times, of an alignment."""

    def without_false_words(self) -> "Transcribed":
        """Returns the result without words if the audio is silent: a model may recognise some."""
        return replace(self, transcript=Transcript((), 0.0)) if self.transcript and is_silent(self.differing) else self


class Transcriber:
    """A trained run with a decoder, for recordings of any length."""

    def __init__(
        self,
        trained: Trained,
        decoder: Decoder,
        *,
        tell: Callable[[float], None] = lambda seconds: None,
        **windows: Any,
    ) -> None:
        """Initialises without compiling.

        Args:
            tell: Called with the seconds of audio that were computed since the last call.
            **windows: Sizes of the windows, as for `LongAudio`.

        Raises:
            UserError: As `LongAudio`.
        """
        self.trained, self.decoder, self._tell = trained, decoder, tell
        self.long_audio = LongAudio(trained, decoder, tell=tell, **windows)
        self.windows, self.longest_s = self.long_audio.windows, self.long_audio.longest_s
        """Sizes of windows, and the length in seconds above which audio is computed in windows."""

    def __call__(
        self, utterances: Sequence[Utterance], *, part_of: Sequence[Utterance] | None = None
    ) -> Iterator[Transcribed]:
        """Yields the result for each recording in order.

        The shapes of batches are chosen for all recordings. These are processed in groups that fill some batches. The
        short ones of a group are computed before any result of the group is returned. Utterances need durations and
        different ids.

        Args:
            part_of: All recordings of which these are a part. The shapes of batches are then chosen for all of them,
                and results do not depend on the division into parts.
        """
        short = self.prepare(utterances if part_of is None else part_of)
        self._row_of = {name: row for row, name in enumerate(short.index.utterances.ids())} if short else {}
        for group in self._groups(utterances):
            found = self._short([utterance for utterance in group if not self._is_long(utterance)], short)
            # Silence has no words here, whatever the text of a manifest is.
            long = self.of_windows(replace(each, text="", labels=None) for each in group if self._is_long(each))
            for utterance in group:
                each = next(long) if self._is_long(utterance) else found[utterance.id]
                decoded = replace(utterance, duration_s=each.utterance.duration_s)
                yield replace(each, utterance=decoded).without_false_words()

    def prepare(self, utterances: Sequence[Utterance]) -> PlannedData | None:
        """Starts to compile all shapes for recordings; returns the plan of short ones, None if there are none."""
        if long := list(filter(self._is_long, utterances)):
            self.long_audio.make_room(long)
            self.long_audio.prepare()
        planned = self._planned([utterance for utterance in utterances if not self._is_long(utterance)])
        if planned:
            self.decoder.prepare(used_buckets(planned), planned.index.scale)
        return planned

    def _groups(self, utterances: Iterable[Utterance]) -> Iterator[list[Utterance]]:
        """Yields groups of recordings. An interruption loses at most one group."""
        group, seconds = list[Utterance](), 0.0
        for utterance in utterances:
            group.append(utterance)
            seconds += utterance.duration_s if utterance.duration_s > 0 else 0.0
            if seconds >= BATCHES_AT_ONCE * self.trained.limits.seconds or len(group) == AT_ONCE:
                yield group
                group, seconds = [], 0.0
        if group:
            yield group

    def _is_long(self, utterance: Utterance) -> bool:
        return not utterance.num_frames and utterance.duration_s > self.longest_s

    def _planned(self, utterances: Sequence[Utterance]) -> PlannedData | None:
        """Returns the plan of short recordings; None if there are none with samples."""
        # Labels and texts of a manifest are not needed, and could cause rejections.
        plain = [replace(utterance, text="", labels=None) for utterance in utterances if utterance.duration_s > 0]
        limits = replace(self.trained.limits, longest_s=self.longest_s)
        return replace(self.trained, limits=limits).plan(Utterances.of(plain)) if plain else None

    def _short(self, utterances: Sequence[Utterance], planned: PlannedData | None) -> dict[str, Transcribed]:
        """Returns the results of short recordings, which are a part of a plan, by id."""
        found = {utterance.id: Transcribed(utterance, None, "no samples") for utterance in utterances}
        if planned is None:
            return found
        reasons = {each.id: each.reason for each in planned.rejections.entries}
        rows = np.array(sorted(self._row_of[name] for name in found if name in self._row_of), np.int64)
        result = Recognition({}, [])
        if len(rows):
            result = recognise(self.decoder, self.trained.variables, part_of(planned, rows))
        reasons |= {each.id: each.reason for each in result.rejected}
        differing = {each.id: each for each in result.differing}
        row_of = {planned.index.utterances[row].id: number for number, row in enumerate(rows.tolist())}
        for utterance in utterances:
            if utterance.duration_s > 0:
                row, name = row_of.get(utterance.id, -1), utterance.id
                decoded = self._decoded(utterance, result.decoded_s.get(row, utterance.duration_s))
                found[name] = Transcribed(
                    decoded, result.transcripts.get(row), reasons.get(name, ""), differing.get(name)
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
            take: Called with the log-probabilities of each recording. They are then in memory as a whole.
        """
        search = self.decoder.search
        for utterance, windows in self.long_audio.emissions(utterances):
            try:
                held = list(windows) if take else None
                if take and held:
                    take(utterance, together(self.long_audio.joined(held)))
                if not search.takes_frames:
                    join = joined_by_resets if self.trained.resets else joined_parts
                    transcript = search.transcript([join(each.part for each in held or windows)])
                else:
                    transcript = self._searched_in_pieces(self.long_audio.joined(held or windows))
                blocks = self.long_audio.blocks.pop(utterance.id)
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
        bucket, spelling = self.long_audio.bucket, self.decoder.search.writer.spelling
        most = self.long_audio.num_frames(bucket.length)
        parts = [
            transcript
            for group in batched(pieces(frames, spelling, most_frames=most), bucket.batch_size)
            for transcript in self._searched(group, most)
        ]
        return joined(parts)

    def _searched(self, group: Sequence[FrameLogProbs], num_frames: int) -> Iterator[Transcript]:
        """Searches pieces as a batch, in the shape for which the search is compiled."""
        values = np.zeros((self.long_audio.bucket.batch_size, num_frames, group[0].logps.shape[1]), np.float32)
        lengths = np.zeros(len(values), np.int32)
        for row, piece in enumerate(group):
            values[row, : len(piece.path)], lengths[row] = piece.logps, len(piece.path)
        # Unlike `jnp.asarray`, this compiles no program.
        search, given = self.decoder.search, Frames(*jax.device_put((values, lengths), local_devices()[0]))
        for piece, hypotheses in zip(group, search.sequences(given, range(len(group))), strict=True):
            yield search.transcript(hypotheses, first_frame=piece.first_frame)


def recognise_all(
    trained: Trained,
    decoder: Decoder,
    data: PlannedData,
    *,
    threads: int = READING_THREADS,
    log_probs: LogProbs | None = None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> Recognition:
    """Recognises all recordings of a set; audio that is too long for the batches is computed in windows.

    Several processes share the rows of batches. Of the recordings that are computed in windows, each computes some on
    its own devices. The result is the same on all processes.

    Args:
        log_probs: Writer that gets the log-probabilities of all recordings. None: they are not written.
        is_stopped: Called before each batch, and before and after the recordings in windows; True stops the evaluation.

    Raises:
        BrokenOff: If `is_stopped` returns True.
    """
    take = functools.partial(log_probs.take, data=data) if log_probs else lambda emitted: None
    found = recognise(decoder, trained.variables, data, threads=threads, is_stopped=is_stopped, take=take)
    if not data.windowed_rows:
        return found
    if is_stopped():
        raise BrokenOff
    utterances = data.index.utterances
    # Ids of a manifest need not be unique, so rows serve as ids.
    own = [replace(utterances[row], id=str(row)) for row in own_windowed_rows(data)]

    def add(utterance: Utterance, whole: FrameLogProbs) -> None:
        if log_probs:
            log_probs.add(utterances[int(utterance.id)], whole.logps)

    transcripts, rejected, differing = dict[int, Transcript](), list[Rejected](), list[Rejected]()
    alone = decoder.of_this_process
    local = replace(trained, variables=of_this_process(decoder.fetching()(trained.variables), alone.mesh))
    for each in Transcriber(local, alone).of_windows(own, take=add if log_probs else None):
        row = int(each.utterance.id)
        if each.transcript:
            transcripts[row] = each.transcript
            differing += [replace(each.differing, id=utterances[row].id)] if each.differing else []
        else:
            rejected.append(Rejected(utterances[row].id, each.utterance.location, each.reason, "audio"))
    if is_stopped():
        raise BrokenOff
    return replace(
        found,
        transcripts=found.transcripts | whole_transcripts(transcripts),
        rejected=found.rejected + rejected_everywhere(rejected),
        differing=(*found.differing, *rejected_everywhere(differing)),
    )


def prepare_windows(trained: Trained, decoder: Decoder, data: PlannedData) -> None:
    """Starts to compile the shape in which `recognise_all` computes the recordings of a set that are too long."""
    if data.windowed_rows:
        decoder.fetching()  # compiles in all processes
    if rows := own_windowed_rows(data):
        long_audio = LongAudio(trained, decoder.of_this_process)
        long_audio.make_room(data.index.utterances[row] for row in rows)
        long_audio.prepare()


def own_windowed_rows(data: PlannedData) -> list[int]:
    """Returns the rows that this process computes in windows."""
    return list(data.windowed_rows[jax.process_index() :: jax.process_count()])
