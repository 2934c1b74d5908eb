"""Pseudo-labels: a training manifest of confidently recognised audio, and a list of all other audio."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from asr_jax.core.files import temporary_path
from asr_jax.core.text_files import json_line, open_text
from asr_jax.data.manifests.manifest import manifest_fields
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.segmentation import joined
from asr_jax.transcripts.pauses import part_of, stretches
from asr_jax.transcripts.transcript import Transcript, Word

MARGIN_S = 0.5
"""Largest margin of audio before the first and after the last word in seconds. CTC locates the middle of a word more
reliably than its ends."""
PAUSE_S = 2 * MARGIN_S
"""Long recordings are cut at all pauses above this length in seconds."""


class LabelledPiece(NamedTuple):
    """A part of a recording with its words. Audio between parts with words is a part without words."""

    start_s: float
    end_s: float
    words: tuple[Word, ...]


def cut_at_pauses(words: Sequence[Word], duration_s: float, *, most_s: float) -> list[LabelledPiece]:
    """Cuts a whole recording into pieces.

    Consecutive words form a piece of up to `most_s`. Pieces are cut at all pauses above PAUSE_S and, if words continue
    for longer than `most_s`, at the longest pause in the last two thirds. A longer word is a piece of its own.

    Args:
        words: Words of the recording in order.
        duration_s: Duration of the recording in seconds.
        most_s: Largest length of a piece with words in seconds.

    Returns:
        Pieces that cover the recording from 0 to its end.
    """
    spans, room_s = [(word.start_s, word.end_s) for word in words], max(most_s - 2 * MARGIN_S, most_s / 2)
    parts = stretches(spans, least=room_s / 3, most=room_s, max_pause=PAUSE_S)
    groups = [words[part] for part in parts]
    pieces, done_s = list[LabelledPiece](), 0.0
    for place, group in enumerate(groups):
        after_s = groups[place + 1][0].start_s if place + 1 < len(groups) else duration_s
        is_last = place + 1 == len(groups)
        room_s = after_s - group[-1].end_s if is_last else (after_s - group[-1].end_s) / 2
        start_s = max(done_s, group[0].start_s - MARGIN_S)
        end_s = max(group[-1].end_s + min(MARGIN_S, max(room_s, 0.0)), start_s)
        pieces += [LabelledPiece(done_s, start_s, ())] * (start_s > done_s)
        pieces.append(LabelledPiece(start_s, min(end_s, duration_s), tuple(group)))
        done_s = pieces[-1].end_s
    return pieces + [LabelledPiece(done_s, duration_s, ())] * (duration_s > done_s)


def rejected_path_of(manifest: Path) -> Path:
    """List of the audio that is not in a manifest of pseudo-labels, or of pieces of long audio."""
    return manifest.with_name(f"{manifest.stem}.rejected.jsonl")


class PseudoLabels:
    """Context manager that writes a manifest of pseudo-labels, and NAME.rejected.jsonl with all other audio.

    Each line of the manifest has a `confidence`, and each line of the other file a `reason`. The files exist only after
    the block. If no audio could be read, only the second one is written; after an error, none is.

    Args:
        path: Path of the manifest.
        min_confidence: Smallest mean confidence of the words of a kept utterance, in 0..1.
    """

    def __init__(self, path: Path, *, min_confidence: float) -> None:
        self.path, self.rejected_path = path, rejected_path_of(path)
        self._min_confidence = min_confidence
        self.hours = {"kept": 0.0, "below the confidence": 0.0, "without words": 0.0, "too long": 0.0, "not read": 0.0}
        self.entries = dict.fromkeys(self.hours, 0)

    def __enter__(self) -> "PseudoLabels":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._files = [open_text(_partial(path)) for path in (self.path, self.rejected_path)]
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        is_any_read = self.entries["not read"] < sum(self.entries.values())
        for file, path in zip(self._files, (self.path, self.rejected_path), strict=True):
            file.close()
            if kind is None and (is_any_read or path == self.rejected_path):
                os.replace(_partial(path), path)
            else:
                _partial(path).unlink()

    def add(self, utterance: Utterance, transcript: Transcript, *, most_s: float) -> None:
        """Adds the transcript of a recording.

        Args:
            most_s: Length in seconds above which a recording is cut into pieces at pauses.
        """
        if utterance.num_frames or utterance.duration_s <= most_s:
            self._add(utterance, transcript.words)
            return
        pieces = cut_at_pauses(transcript.words, utterance.duration_s, most_s=most_s)
        for number, piece in enumerate(piece for piece in pieces if piece.end_s - piece.start_s > 1e-3):
            part = part_of(utterance, number, piece.start_s, piece.end_s)
            if piece.words and part.duration_s > most_s:
                reason = f"{part.duration_s:g} s without a pause between words, longer than {most_s:g} s"
                self.reject(part.id, part.location, reason, part.duration_s, kind="too long")
            else:
                self._add(part, piece.words)

    def reject(
        self, utterance_id: str, location: str, reason: str, duration_s: float = 0.0, *, kind: str = "not read"
    ) -> None:
        """Adds audio that is not used.

        Args:
            reason: Why it is not used.
            duration_s: Duration of the audio in seconds, if known.
            kind: Key of `hours` that it counts for.
        """
        self._count(kind, duration_s)
        line = {"id": utterance_id, "location": location, "reason": reason, "duration": round(duration_s, 3)}
        self._files[1].write(json_line(line))

    def _add(self, utterance: Utterance, words: tuple[Word, ...]) -> None:
        confidence = Transcript(words, 0.0).confidence
        if not words:
            self.reject(utterance.id, utterance.location, "no words", utterance.duration_s, kind="without words")
        elif not confidence >= self._min_confidence:
            reason = f"confidence {confidence:.4f} below {self._min_confidence:g}"
            self.reject(utterance.id, utterance.location, reason, utterance.duration_s, kind="below the confidence")
        else:
            self._count("kept", utterance.duration_s)
            fields = manifest_fields(
                replace(utterance, text=joined(words), labels=None), os.path.dirname(os.path.abspath(self.path))
            )
            line = fields | {"confidence": round(confidence, 4)}
            self._files[0].write(json_line(line))

    def _count(self, kind: str, duration_s: float) -> None:
        self.entries[kind] += 1
        self.hours[kind] += duration_s / 3600 if duration_s > 0 else 0.0

    def summary(self) -> str:
        """Returns the numbers and hours of kept and rejected utterances as text."""
        parts = [f"{self.entries[kind]} {kind} ({hours:.3f} h)" for kind, hours in self.hours.items()]
        return f"{self.path}: {', '.join(parts)}; rejected utterances and reasons are in {self.rejected_path}"


def _partial(path: Path) -> Path:
    return temporary_path(path, f"{path.name}.partial")
