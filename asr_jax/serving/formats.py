"""Answers of a transcription in the formats of OpenAI's API."""

from collections.abc import Iterator
from typing import Any

from starlette.responses import JSONResponse, PlainTextResponse, Response

from asr_jax.core.text_files import json_text
from asr_jax.serving.device_thread import Recognised
from asr_jax.serving.uploads import Upload
from asr_jax.transcripts.files import NamedRecording, srt, text_line, vtt
from asr_jax.transcripts.subtitles import cues
from asr_jax.transcripts.transcript import to_json

WRITERS = {"text": (text_line, "text/plain"), "srt": (srt, "application/x-subrip"), "vtt": (vtt, "text/vtt")}
"""Writers of texts, and their media types."""


def response(found: Recognised, upload: Upload, *, language: str) -> Response:
    """Returns the answer in the format of the request."""
    if upload.response_format in WRITERS:
        write, media_type = WRITERS[upload.response_format]
        return PlainTextResponse(
            write(NamedRecording("", "", found.duration_s, found.transcript)), media_type=media_type
        )
    fields = {"text": found.transcript.text} | usage(found)
    return JSONResponse(fields if upload.response_format == "json" else verbose(found, upload, language=language))


def usage(found: Recognised) -> dict[str, Any]:
    """Returns the field `usage`: the audio in whole seconds."""
    return {"usage": {"type": "duration", "seconds": -int(-found.duration_s // 1)}}


def verbose(found: Recognised, upload: Upload, *, language: str) -> dict[str, Any]:
    """Returns the fields of `verbose_json`.

    Segments are the cues of subtitles. Fields of Whisper's search that other models do not have are null. Words also
    have their confidence, 0 to 1.
    """
    fields: dict[str, Any] = {"task": "transcribe", "language": language, "duration": round(found.duration_s, 3)}
    fields["text"] = found.transcript.text
    if "segment" in upload.granularities:
        unknown = dict.fromkeys(("seek", "tokens", "avg_logprob", "compression_ratio", "no_speech_prob"))
        fields["segments"] = [
            {"id": number, "start": cue.start_s, "end": cue.end_s, "text": " ".join(cue.lines), "temperature": 0.0}
            | unknown
            for number, cue in enumerate(cues(found.transcript, duration_s=found.duration_s))
        ]
    if "word" in upload.granularities:
        fields["words"] = [
            {"word": word["text"], "start": word["start_s"], "end": word["end_s"], "confidence": word["confidence"]}
            for word in to_json(found.transcript, found.duration_s)["words"]
        ]
    return fields | usage(found)


def event(fields: dict[str, Any]) -> bytes:
    """Returns a server-sent event."""
    return f"data: {json_text(fields)}\n\n".encode()


def events(found: Recognised) -> Iterator[bytes]:
    """Yields the server-sent events of a result: its text, and the end."""
    text = found.transcript.text
    if text:
        yield event({"type": "transcript.text.delta", "delta": text})
    yield event({"type": "transcript.text.done", "text": text} | usage(found))
