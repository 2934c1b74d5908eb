"""Transcripts as files: JSON, text, SubRip and WebVTT subtitles, NIST's CTM, and Praat's TextGrid."""

import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from asr_jax.core.names import unique
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.transcripts.subtitles import CueRules, cues
from asr_jax.transcripts.transcript import Token, Transcript, to_json


@dataclass(frozen=True)
class Named:
    """A recording's transcript, and what it is called."""

    name: str
    """Its id."""
    path: str
    """Where the audio lies."""
    duration_s: float
    transcript: Transcript
    channel: int = 0
    """From 0."""
    tokens: tuple[Token, ...] = ()
    """In JSON and TextGrids, where they are asked for."""
    label: str = ""
    """In CTM files, of `ctm_labels`."""

    @classmethod
    def of(
        cls, utterance: Utterance, transcript: Transcript, *, path: str | None = None, tokens: tuple[Token, ...] = ()
    ) -> "Named":
        """Of an utterance; `path`: instead of its location."""
        channel = Location.parse(utterance.location).channel or 0
        return cls(utterance.id, path or utterance.location, utterance.duration_s, transcript, channel, tokens)


def json_line(named: Named) -> str:
    """An object on one line: id, path, text, duration, what `transcript.to_json` gives, and the tokens."""
    duration = round(named.duration_s, 3) if math.isfinite(named.duration_s) else None
    fields: dict[str, Any] = {"id": named.name, "path": named.path, "text": named.transcript.text}
    fields |= {"duration": duration} | to_json(named.transcript)
    if named.tokens:
        fields["tokens"] = [
            {"text": token.text, "start_s": round(token.start_s, 3), "end_s": round(token.end_s, 3)}
            | {"log_prob": round(token.log_prob, 4)}
            for token in named.tokens
        ]
    return json.dumps(fields, ensure_ascii=False) + "\n"


def text_line(named: Named) -> str:
    """The text alone."""
    return f"{named.transcript.text}\n"


def srt(named: Named, rules: CueRules | None = None) -> str:
    """SubRip: a number, times and lines for each cue. It knows some tags and no way to write their signs otherwise, so
    `<` and `{` get a word joiner behind them, which nobody sees and which makes them none.
    """
    blocks = []
    for number, cue in enumerate(cues(named.transcript, rules, duration_s=named.duration_s), 1):
        lines = "\n".join(re.sub(r"([<{])", "\\1\u2060", line) for line in cue.lines)
        blocks.append(f"{number}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n{lines}\n")
    return "\n".join(blocks)


def vtt(named: Named, rules: CueRules | None = None) -> str:
    """WebVTT, with `&`, `<` and `>` as character references.

    Source: https://www.w3.org/TR/webvtt1/, sections 4.1 and 4.2.
    """
    blocks = ["WEBVTT\n"]
    for cue in cues(named.transcript, rules, duration_s=named.duration_s):
        lines = "\n".join(cue.lines).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        blocks.append(f"{_clock(cue.start_s, '.')} --> {_clock(cue.end_s, '.')}\n{lines}\n")
    return "\n".join(blocks)


def ctm(named: Named) -> str:
    """NIST's time-marked words: `file channel start duration word confidence`, a line each.

    Source: NIST SCTK (usnistgov/SCTK), doc/infmts.htm, "ctm".
    """
    name = named.label or ctm_labels([(named.name, named.path)])[0]
    lines = []
    for word in named.transcript.words:
        start_ms, end_ms = round(word.start_s * 1000), round(word.end_s * 1000)
        times = f"{start_ms / 1000:.3f} {(end_ms - start_ms) / 1000:.3f}"
        lines.append(f"{name} {named.channel + 1} {times} {word.text} {word.confidence:.4f}\n")
    return "".join(lines)


def ctm_labels(recordings: Sequence[tuple[str, str]]) -> list[str]:
    """What recordings, each an id and a location, are called in one CTM file: by the id, without the ending of the
    audio unless another of the same channel would be called so too, then with it, and numbered where that is one too.

    They hold no spaces (these become `_`), and `;;` begins a comment, so a name that does so gets `_` before it.
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


def textgrid(named: Named) -> str:
    """Praat's long text format: a tier of words and, where there are tokens, one of these."""
    tiers = [("words", [(word.start_s, word.end_s, word.text) for word in named.transcript.words])]
    if named.tokens:
        tiers.append(("tokens", [(token.start_s, token.end_s, token.text) for token in named.tokens]))
    duration_s = named.duration_s if math.isfinite(named.duration_s) else 0.0
    last_s = max([duration_s, *(end_s for _, marks in tiers for _, end_s, _ in marks)])
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {last_s:.4f}",
             "tiers? <exists>", f"size = {len(tiers)}", "item []:"]  # fmt: skip
    for number, (name, marks) in enumerate(tiers, 1):
        intervals = _filled(marks, last_s)
        lines += [f"    item [{number}]:", '        class = "IntervalTier"', f'        name = "{name}"',
                  "        xmin = 0", f"        xmax = {last_s:.4f}",
                  f"        intervals: size = {len(intervals)}"]  # fmt: skip
        for place, (start_s, end_s, text) in enumerate(intervals, 1):
            quoted = text.replace('"', '""')
            lines += [f"        intervals [{place}]:", f"            xmin = {start_s:.4f}",
                      f"            xmax = {end_s:.4f}", f'            text = "{quoted}"']  # fmt: skip
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Form:
    """How transcripts are written."""

    ending: str
    write: Callable[[Named], str]
    is_of_many: bool = True
    """Whether those of several recordings may stand in one file."""


FormName = Literal["text", "json", "srt", "vtt", "ctm", "textgrid"]
FORMS: dict[FormName, Form] = {
    "text": Form(".txt", text_line),
    "json": Form(".json", json_line),
    "srt": Form(".srt", srt, is_of_many=False),
    "vtt": Form(".vtt", vtt, is_of_many=False),
    "ctm": Form(".ctm", ctm),
    "textgrid": Form(".TextGrid", textgrid, is_of_many=False),
}


def _filled(marks: Sequence[tuple[float, float, str]], last_s: float) -> list[tuple[float, float, str]]:
    """With empty intervals between, as a tier has no holes."""
    intervals, at = [], 0.0
    for start_s, end_s, text in marks:
        intervals += [(at, start_s, "")] if start_s > at else []
        intervals.append((start_s, end_s, text))
        at = end_s
    return intervals + ([(at, last_s, "")] if last_s > at else [])


def _clock(seconds: float, point: str) -> str:
    """Hours, minutes, seconds and milliseconds."""
    ms = round(seconds * 1000)
    return f"{ms // 3600000:02}:{ms // 60000 % 60:02}:{ms // 1000 % 60:02}{point}{ms % 1000:03}"
