"""Alignments written: a line of JSON, lines of CTM, a TextGrid for Praat."""

from collections.abc import Iterable, Sequence
from typing import Any

from asr_jax.decoding.aligned_words import Token
from asr_jax.decoding.transcript import Transcript, Word, to_json


def as_json(name: str, transcript: Transcript, tokens: Sequence[Token] = ()) -> dict[str, Any]:
    """As `transcript.to_json`, with the recording's id, its text and the tokens."""
    fields = {"id": name, "text": transcript.text, **to_json(transcript)}
    del fields["alternatives"]  # the text is given
    if tokens:
        fields["tokens"] = [
            {"text": token.text, "start_s": round(token.start_s, 3), "end_s": round(token.end_s, 3)}
            | {"log_prob": round(token.log_prob, 4)}
            for token in tokens
        ]
    return fields


def as_ctm(name: str, words: Iterable[Word]) -> str:
    """NIST's lines: recording, channel, start, duration, word, confidence."""
    recording = "_".join(name.split())
    return "".join(
        f"{recording} 1 {word.start_s:.3f} {word.end_s - word.start_s:.3f} {word.text} {word.confidence:.4f}\n"
        for word in words
    )


def as_textgrid(transcript: Transcript, tokens: Sequence[Token], *, duration_s: float) -> str:
    """Praat's long text format: a tier of words and, where there are tokens, one of these."""
    last_s = max([duration_s, *(word.end_s for word in transcript.words), *(token.end_s for token in tokens)])
    tiers = [("words", [(word.start_s, word.end_s, word.text) for word in transcript.words])]
    if tokens:
        tiers.append(("tokens", [(token.start_s, token.end_s, token.text) for token in tokens]))
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


def _filled(marks: Sequence[tuple[float, float, str]], last_s: float) -> list[tuple[float, float, str]]:
    """With empty intervals between, as a tier has no holes."""
    intervals, at = [], 0.0
    for start_s, end_s, text in marks:
        intervals += [(at, start_s, "")] if start_s > at else []
        intervals.append((start_s, end_s, text))
        at = end_s
    return intervals + ([(at, last_s, "")] if last_s > at else [])
