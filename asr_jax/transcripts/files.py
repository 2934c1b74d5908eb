"""File formats of transcripts: JSON, text, SubRip and WebVTT subtitles, NIST's CTM, and Praat's TextGrid."""

import math
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from asr_jax.core.names import unique
from asr_jax.core.text_files import json_text
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.transcripts.subtitles import cues
from asr_jax.transcripts.transcript import Token, Transcript, Word, to_json, with_valid_times

TEXTGRID_S = 0.0001
"""Unit of times in TextGrids in seconds."""


@dataclass(frozen=True)
class NamedRecording:
    """A transcript with the name and location of its recording."""

    name: str
    """Id of the recording."""
    path: str
    """Location of the audio."""
    duration_s: float
    """Duration of the audio in seconds; may be NaN."""
    transcript: Transcript
    channel: int = 0
    """Channel of the audio, from 0."""
    tokens: tuple[Token, ...] = ()
    """Tokens for JSON and TextGrid files. Empty: none are written."""
    label: str = ""
    """Name of the recording in CTM files, from `ctm_labels`. Empty: `ctm` computes it for this recording alone."""
    head: str = ""
    """Head that the text comes from, for JSON. Empty for alignments."""
    decoding: str = ""
    """Name of the decoding, for JSON."""

    @classmethod
    def of(
        cls, utterance: Utterance, transcript: Transcript, *, path: str | None = None, tokens: tuple[Token, ...] = ()
    ) -> "NamedRecording":
        """Returns the named transcript of an utterance."""
        channel = Location.parse(utterance.location).channel or 0
        return cls(utterance.id, path or utterance.location, utterance.duration_s, transcript, channel, tokens)


def json_line(named: NamedRecording) -> str:
    """Returns one line of JSON: id, path, text, duration, the fields of `transcript.to_json`, and the tokens."""
    duration = round(named.duration_s, 3) if math.isfinite(named.duration_s) else None
    fields: dict[str, Any] = {"id": named.name, "path": named.path, "text": named.transcript.text}
    fields |= {"duration": duration} | to_json(named.transcript, named.duration_s)
    fields |= {"head": named.head, "decoding": named.decoding} if named.head else {}
    if named.tokens:
        fields["tokens"] = [
            {"text": token.text, "start_s": token.start_s, "end_s": token.end_s, "log_prob": round(token.log_prob, 4)}
            for token in with_valid_times(named.tokens, named.duration_s)
        ]
    return json_text(fields) + "\n"


def text_line(named: NamedRecording) -> str:
    """Returns the text as one line."""
    return f"{named.transcript.text}\n"


def srt(named: NamedRecording) -> str:
    """Returns SubRip subtitles: number, times and lines of each cue.

    SubRip has tags but no escape sequences. A word joiner, which is invisible, is therefore added after `<` and `{`, so
    that players do not read them as tags.
    """
    blocks = []
    for number, cue in enumerate(cues(named.transcript, duration_s=named.duration_s), 1):
        lines = "\n".join(re.sub(r"([<{])", "\\1\u2060", line) for line in cue.lines)
        blocks.append(f"{number}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n{lines}\n")
    return "\n".join(blocks)


def vtt(named: NamedRecording) -> str:
    """Returns WebVTT subtitles, with `&`, `<` and `>` as character references.

    Source: https://www.w3.org/TR/webvtt1/, sections 4.1 and 4.2.
    """
    blocks = ["WEBVTT\n"]
    for cue in cues(named.transcript, duration_s=named.duration_s):
        lines = "\n".join(cue.lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        blocks.append(f"{_clock(cue.start_s, '.')} --> {_clock(cue.end_s, '.')}\n{lines}\n")
    return "\n".join(blocks)


def ctm(named: NamedRecording) -> str:
    """Returns NIST's time-marked words, one per line: `file channel start duration word confidence`.

    Source: NIST SCTK (usnistgov/SCTK), doc/infmts.htm, "ctm".
    """
    name = named.label or ctm_labels([(named.name, named.path)])[0]
    lines = []
    for word in with_valid_times(named.transcript.words, named.duration_s):
        start_ms, end_ms = round(word.start_s * 1000), round(word.end_s * 1000)
        times = f"{start_ms / 1000:.3f} {(end_ms - start_ms) / 1000:.3f}"
        lines.append(f"{name} {named.channel + 1} {times} {word.text} {word.confidence:.4f}\n")
    return "".join(lines)


def ctm_labels(recordings: Sequence[tuple[str, str]]) -> list[str]:
    """Returns the names of recordings in a CTM file.

    The name is the id without the ending of the audio file. If several recordings of the same channel would have the
    same name, the ending is kept, and names that are still equal are numbered. White space becomes `_`. A name that
    starts with `;;`, which starts a comment, gets a leading `_`.

    Args:
        recordings: Id and location of each recording.
    """
    channels = [Location.parse(location).channel or 0 for _, location in recordings]
    short = [
        f"{channel} {_ctm_name(name.removesuffix(os.path.splitext(location)[1]))}"
        for channel, (name, location) in zip(channels, recordings, strict=True)
    ]
    number = Counter(short)
    chosen = [
        label if number[label] == 1 else f"{channel} {_ctm_name(name)}"
        for label, channel, (name, _) in zip(short, channels, recordings, strict=True)
    ]
    return [label.partition(" ")[2] for label in unique(chosen)]


def _ctm_name(name: str) -> str:
    name = re.sub(r"\s", "_", name)
    return f"_{name}" if name.startswith(";;") or not name else name


def textgrid(named: NamedRecording) -> str:
    """Returns Praat's long text format, with a tier of words and, if there are tokens, a tier of tokens.

    Intervals cover the audio, do not overlap and are not empty, as Praat requires.
    """
    known: dict[str, Sequence[Word | Token]] = {
        "words": with_valid_times(named.transcript.words, named.duration_s, tick_s=TEXTGRID_S),
        "tokens": with_valid_times(named.tokens, named.duration_s, tick_s=TEXTGRID_S),
    }
    tiers = [(name, marks) for name, marks in known.items() if marks or name == "words"]
    duration_s = round(named.duration_s, 4) if math.isfinite(named.duration_s) else 0.0
    last_s = max([duration_s, *(mark.end_s for _, marks in tiers for mark in marks), TEXTGRID_S])
    lines = [
        'File type = "ooTextFile"',
        'Object class = "TextGrid"',
        "",
        "xmin = 0",
        f"xmax = {last_s:.4f}",
        "tiers? <exists>",
        f"size = {len(tiers)}",
        "item []:",
    ]
    for number, (name, marks) in enumerate(tiers, 1):
        intervals = _filled(marks, last_s)
        lines += [
            f"    item [{number}]:",
            '        class = "IntervalTier"',
            f'        name = "{name}"',
            "        xmin = 0",
            f"        xmax = {last_s:.4f}",
            f"        intervals: size = {len(intervals)}",
        ]
        for place, (start_s, end_s, text) in enumerate(intervals, 1):
            quoted = text.replace('"', '""')
            lines += [
                f"        intervals [{place}]:",
                f"            xmin = {start_s:.4f}",
                f"            xmax = {end_s:.4f}",
                f'            text = "{quoted}"',
            ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Form:
    """A file format of transcripts."""

    ending: str
    """Ending of the file name."""
    write: Callable[[NamedRecording], str]
    """Returns the content of a file for one transcript."""
    is_of_many: bool = True
    """Whether a file may contain the transcripts of several recordings."""


FormName = Literal["text", "json", "srt", "vtt", "ctm", "textgrid"]
FORMS: dict[FormName, Form] = {
    "text": Form(".txt", text_line),
    "json": Form(".json", json_line),
    "srt": Form(".srt", srt, is_of_many=False),
    "vtt": Form(".vtt", vtt, is_of_many=False),
    "ctm": Form(".ctm", ctm),
    "textgrid": Form(".TextGrid", textgrid, is_of_many=False),
}


def form_of(name: str) -> FormName | None:
    """Returns the format of a file by the ending of its name, in any case; None for other endings."""
    ending = os.path.splitext(name)[1].lower()
    endings = {form.ending.lower(): name for name, form in FORMS.items()} | {".jsonl": "json"}
    return endings.get(ending)


def _filled(marks: Sequence[Word | Token], last_s: float) -> list[tuple[float, float, str]]:
    """Fills the gaps between intervals with empty ones: a tier must not have gaps."""
    intervals, at = [], 0.0
    for mark in marks:
        intervals += [(at, mark.start_s, "")] if mark.start_s > at else []
        intervals.append((mark.start_s, mark.end_s, mark.text))
        at = mark.end_s
    return intervals + ([(at, last_s, "")] if last_s > at else [])


def _clock(seconds: float, point: str) -> str:
    """Returns a time as hours, minutes, seconds and milliseconds."""
    ms = round(seconds * 1000)
    return f"{ms // 3600000:02}:{ms // 60000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"
