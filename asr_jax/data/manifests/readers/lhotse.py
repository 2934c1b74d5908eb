"""Reader of cuts of lhotse, one object per line: recordings in files, with their supervisions.

A cut with one supervision is one utterance of the whole cut. A cut with several supervisions is one utterance for each.
Ready features of lhotse are ignored, and audio is read instead.
"""

import math
import os
from collections.abc import Iterator, Mapping, Sequence

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.fields import Fields, InvalidEntry
from asr_jax.data.manifests.readers.json_values import objects
from asr_jax.data.manifests.utterances import Utterance

# Tolerance in seconds: a cut that leaves out less than this of its recording is the whole file.
WHOLE_S = 1e-3
# Transforms that are not needed here: audio is resampled when it is read.
HARMLESS = ("Resample",)


def utterances(cut: Fields, options: ReadOptions) -> Iterator[Utterance]:
    """Yields the utterances of a cut.

    Raises:
        InvalidEntry: If it is not a cut of a recording in a file.
    """
    name = f.string(cut, f.ID)
    recording = cut.get("recording")
    if not isinstance(recording, dict):
        raise InvalidEntry(
            f"a {cut.get('type', 'cut')} without a recording: expected cuts of recordings; save mixed cuts with "
            "CutSet.save_audios first"
        )
    _check_transforms(recording)
    path, channel = _file(recording, cut.get("channel", 0))
    start_s, length_s = _span(cut)
    is_silent = options.texts_may_lack and not cut.get("supervisions")
    supervisions = [{}] if is_silent else f.objects(cut, "supervisions")
    for supervision in supervisions:
        first_s, part_s = start_s, length_s
        if len(supervisions) > 1:
            first_s, part_s = _span(supervision)
            first_s += start_s
        if first_s < 0 or part_s <= 0:
            raise InvalidEntry(
                f"{part_s:g} s from {first_s:g} s of its recording: expected a duration above 0 and a start of 0 or "
                "more"
            )
        whole = first_s == 0 and abs(part_s - f.seconds(recording, ("duration",))) < WHOLE_S
        location = Location(
            path, channel=channel, start_s=0.0 if whole else first_s, length_s=None if whole else part_s
        )
        yield Utterance(
            id=name if len(supervisions) == 1 else f.string(supervision, f.ID, name),
            location=str(location),
            text=_text(supervision, options),
            duration_s=part_s,
            speaker=f.string(supervision, f.SPEAKER),
        )


def _text(supervision: Fields, options: ReadOptions) -> str:
    if not options.texts_may_lack and f.first(supervision, f.TEXT) is None:
        raise InvalidEntry('a supervision without "text"')
    return f.string(supervision, f.TEXT)


def supervisions_beside(path: str) -> dict[str, list[Fields]]:
    """Supervisions by recording, from the file beside the recordings, such as `supervisions.jsonl.gz`.

    Raises:
        UserError: If there is no such file.
    """
    folder, name = os.path.split(path)
    beside = os.path.join(folder, name.replace("recordings", "supervisions"))
    if beside == path or not os.path.exists(beside):
        raise UserError(
            f"{path} has recordings of lhotse without texts: expected the supervisions in {beside}; or pass cuts"
        )
    found: dict[str, list[Fields]] = {}
    for _, value in objects(beside):
        if isinstance(value, dict):
            found.setdefault(str(value.get("recording_id")), []).append(value)
    return found


def cuts_of(recording: Fields, supervisions: Mapping[str, Sequence[Fields]]) -> Iterator[Fields]:
    """Yields a cut for each supervision of a recording.

    Raises:
        InvalidEntry: If the recording has no supervision.
    """
    own = supervisions.get(str(recording.get("id")), ())
    if not own:
        raise InvalidEntry("a recording without a supervision")
    for each in own:
        channel = each.get("channel", 0)
        yield {
            "id": each.get("id"),
            "start": each.get("start"),
            "duration": each.get("duration"),
            "channel": channel[0] if isinstance(channel, list) else channel,
            "recording": recording,
            "supervisions": [each],
        }


def _span(item: Fields) -> tuple[float, float]:
    """Start and duration of a cut or a supervision in seconds."""
    start_s, length_s = f.seconds(item, ("start",)), f.seconds(item, ("duration",))
    if math.isnan(start_s) or math.isnan(length_s):
        raise InvalidEntry('a cut or a supervision without "start" and "duration"')
    return start_s, length_s


def _file(recording: Fields, channel: object) -> tuple[str, int | None]:
    """File of a channel, and the index of the channel in the file; None if the file has only this channel."""
    for source in f.objects(recording, "sources"):
        channels = source.get("channels")
        if isinstance(channels, list) and channel in channels:
            path = f.string(source, ("source",))
            kind = source.get("type")
            if kind not in ("file", "command", "url") or not path:
                raise InvalidEntry(f"a recording of type {f.shown(kind)}: expected a file")
            path = f"{path.rstrip(' |')} |" if kind == "command" else path
            return path, None if len(channels) == 1 else channels.index(channel)
    raise InvalidEntry(f"no source of the recording has channel {f.shown(channel)}")


def _check_transforms(recording: Fields) -> None:
    """Checks that the recording has no transforms, which lhotse applies when it reads audio. They are not applied here.

    Raises:
        InvalidEntry: If the recording has transforms other than resampling.
    """
    if not recording.get("transforms"):
        return
    names = [str(transform.get("name")) for transform in f.objects(recording, "transforms")]
    if others := [name for name in names if name not in HARMLESS]:
        raise InvalidEntry(
            f"a recording with transforms ({', '.join(others)}): expected recordings without transforms; remove "
            "perturbed copies (data.speeds creates them), or save the audio first (CutSet.save_audios)"
        )
