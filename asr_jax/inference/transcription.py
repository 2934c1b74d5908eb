"""Transcripts of recordings of any length: short ones in batches of the shapes of training, long ones by windows."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import batched

import jax.numpy as jnp
import numpy as np

from asr_jax.audio.io import AudioError
from asr_jax.core.batch import Frames
from asr_jax.data.batching.dataset import PlannedData
from asr_jax.data.manifests.reading import Records
from asr_jax.data.manifests.records import Record
from asr_jax.inference.decoder import Decoder
from asr_jax.inference.log_probs import LogProbs
from asr_jax.inference.long_audio import LongAudio
from asr_jax.inference.recognition import Recognition, recognise
from asr_jax.inference.trained import Trained
from asr_jax.transcripts.seams import FrameLogProbs, joined_parts, together
from asr_jax.transcripts.transcript import Transcript, joined
from asr_jax.transcripts.windows import pieces

AT_ONCE = 1024
"""Recordings that are planned and given out together, at most; fewer where they fill BATCHES_AT_ONCE."""
BATCHES_AT_ONCE = 32


@dataclass(frozen=True)
class Transcribed:
    """What became of one recording."""

    record: Record
    transcript: Transcript | None
    """None where it could not be read."""
    reason: str = ""
    """Why not."""


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
        """`window_s`: of long audio; 0: as long as the longest that was trained on. `overlap_s`: of windows; None: a
        third of one. `tell` is called with the seconds of audio that have been heard since.

        Raises: UserError for windows that do not go on.
        """
        self.trained, self.decoder, self._tell = trained, decoder, tell
        self._long = LongAudio(trained, decoder, window_s=window_s, overlap_s=overlap_s, tell=tell)
        self.windows, self.longest_s = self._long.windows, self._long.longest_s
        """How long audio is cut, and from which length on."""
        self._batch_s = self._long.bucket.batch_size * self.longest_s

    def __call__(self, records: Iterable[Record]) -> Iterator[Transcribed]:
        """What became of each recording, in order; of so many that some batches are filled, the short ones are heard
        before any is given out. Records have durations and different ids."""
        for group in self._groups(records):
            short = self._short([record for record in group if not self._is_long(record)])
            long = self.of_windows(filter(self._is_long, group))
            for record in group:
                yield next(long) if self._is_long(record) else short[record.id]

    def _groups(self, records: Iterable[Record]) -> Iterator[list[Record]]:
        """An interruption costs no more than one of them."""
        group, seconds = list[Record](), 0.0
        for record in records:
            group.append(record)
            seconds += record.duration_s if record.duration_s > 0 else 0.0
            if seconds >= BATCHES_AT_ONCE * self._batch_s or len(group) == AT_ONCE:
                yield group
                group, seconds = [], 0.0
        if group:
            yield group

    def _is_long(self, record: Record) -> bool:
        return not record.num_frames and record.duration_s > self.longest_s

    def _short(self, records: Sequence[Record]) -> dict[str, Transcribed]:
        """By id."""
        found = {record.id: Transcribed(record, None, "no samples") for record in records}
        # Labels and texts of a manifest are of no use here, and could only be refused.
        plain = [replace(record, text="", labels=None) for record in records if record.duration_s > 0]
        if plain:
            data = self.trained.plan(Records.of(plain))
            result = recognise(self.decoder, self.trained.variables, data)
            reasons = {entry["id"]: entry["reason"] for entry in result.skipped + data.dropped.entries}
            texts = {data.index.records[row].id: transcript for row, transcript in result.transcripts.items()}
            found |= {
                record.id: Transcribed(record, texts.get(record.id), reasons.get(record.id, ""))
                for record in records if record.duration_s > 0
            }  # fmt: skip
            self._tell(sum(record.duration_s for record in plain))
        return found

    def of_windows(
        self, records: Iterable[Record], *, take: Callable[[Record, FrameLogProbs], None] | None = None
    ) -> Iterator[Transcribed]:
        """What became of each recording, by windows.

        Tokens are joined where the search runs on the device. A search with a stage on the host searches the joined
        log-probabilities, a batch of pieces at a time.

        Args:
            take: called with the log-probabilities of each recording, all of which are held then.
        """
        search = self.decoder.search
        for record, windows in self._long.emissions(records):
            try:
                held = list(windows) if take else None
                if take and held:
                    take(record, together(self._long.joined(held)))
                if search.stage is None:
                    found = joined_parts(each.part for each in held or windows)
                    yield Transcribed(record, search.transcript([found]))
                else:
                    yield Transcribed(record, self._searched_in_pieces(self._long.joined(held or windows)))
            except AudioError as error:
                yield Transcribed(record, None, error.reason)

    def _searched_in_pieces(self, frames: Iterator[FrameLogProbs]) -> Transcript:
        """Of the log-probabilities of a recording."""
        bucket, spelling = self._long.bucket, self.decoder.search.writer.spelling
        most = self._long.num_frames(bucket.length)
        parts = [
            transcript
            for group in batched(pieces(frames, spelling, most_frames=most), bucket.batch_size)
            for transcript in self._searched(group, most)
        ]
        return joined(parts)

    def _searched(self, group: Sequence[FrameLogProbs], num_frames: int) -> Iterator[Transcript]:
        """Pieces in the shape of a batch, for which the search is compiled already."""
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
    """As `recognise`, and audio that is too long for the batches of `Trained.plan` by windows. `log_probs` gets those
    of all recordings."""
    take = functools.partial(log_probs.take, data=data) if log_probs else lambda emitted: None
    found = recognise(decoder, trained.variables, data, threads=threads, take=take)
    if not data.windowed_rows:
        return found
    records = data.index.records
    of_rows = (replace(records[row], id=str(row)) for row in data.windowed_rows)  # ids that differ

    def add(record: Record, whole: FrameLogProbs) -> None:
        if log_probs:
            log_probs.add(records[int(record.id)], whole.logps)

    transcripts, skipped = dict(found.transcripts), list(found.skipped)
    for each in Transcriber(trained, decoder).of_windows(of_rows, take=add if log_probs else None):
        row = int(each.record.id)
        if each.transcript:
            transcripts[row] = each.transcript
        else:
            skipped.append({"id": records[row].id, "location": each.record.location, "reason": each.reason})
    return Recognition(transcripts, skipped)
