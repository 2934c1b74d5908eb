"""Reader of cuts of lhotse, one object per line: recordings in files, with their supervisions.

A cut with one supervision is one utterance of the whole cut. A cut with several supervisions is one utterance for each.
Ready features of lhotse are ignored, and audio is read instead. In lhotse's Shar, the audio of `cuts.N.jsonl.gz` is in
`recording.N.tar` beside it, under the ids of the cuts.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from asr_jax.core.errors import UserError
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.fields import Fields, InvalidEntry
from asr_jax.data.manifests.readers.folders import AUDIO_ENDINGS
from asr_jax.data.manifests.readers.json_values import objects
from asr_jax.data.manifests.readers.parts import seconds
from asr_jax.data.manifests.readers.tars import Tars
from asr_jax.data.manifests.utterances import Utterance

# Tolerance in seconds: a cut that leaves out less than this of its recording is the whole file.
WHOLE_S = 1e-3
# Transforms that are not needed here: audio is resampled when it is read.
HARMLESS = ("Resample",)
SAVE = (
    "write the audio to files first: python -c 'from lhotse import CutSet; "
    'CutSet.from_file("IN.jsonl.gz").save_audios("audio").to_file("OUT.jsonl.gz")\''
)
CUTS = ("MonoCut", "MultiCut", "MixedCut", "PaddingCut")
"""Types of cuts."""


def tar_of(cuts: str) -> str:
    """Path of the audio of a file of cuts of lhotse's Shar."""
    folder, name = os.path.split(os.path.abspath(cuts))
    return os.path.join(folder, re.sub(r"\.jsonl(\.gz)?$", ".tar", name.replace("cuts", "recording", 1)))


def is_of_shar(path: str) -> bool:
    """Whether a tar is audio or another field of the cuts of lhotse's Shar beside it."""
    folder, name = os.path.split(path)
    found = re.fullmatch(r"[^.]+((?:\.\d+)?)\.tar", name)
    return found is not None and any(
        os.path.exists(os.path.join(folder, f"cuts{found[1]}.jsonl{ending}")) for ending in ("", ".gz")
    )


def utterances(cut: Fields, path: str, tars: Tars, options: ReadOptions) -> Iterator[Utterance]:
    """Yields the utterances of a cut.

    Args:
        path: File of the cut.
        tars: Audio of the cuts, for recordings that are in lhotse's Shar.

    Raises:
        InvalidEntry: If it is not a cut of a recording in a file.
    """
    name, custom = f.string(cut, f.ID), cut.get("custom")
    f.check_not_skipped(custom if isinstance(custom, dict) else {})
    recording = cut.get("recording")
    if not isinstance(recording, dict):
        raise InvalidEntry(f"a {cut.get('type', 'cut')} without a recording: expected cuts of recordings; {SAVE}")
    _check_transforms(recording)
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
        channel = cut.get("channel", 0)
        if isinstance(channel, list):  # of a MultiCut, whose speakers may have a channel each
            channel = supervision.get("channel", channel)
        location = _audio(recording, channel, lambda: _in_shar(name, path, tars))
        if first_s != 0 or not abs(part_s - seconds(recording, "duration")) < WHOLE_S:
            location = replace(location, start_s=first_s, length_s=part_s)
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
        yield {
            "id": each.get("id"),
            "start": each.get("start"),
            "duration": each.get("duration"),
            "channel": each.get("channel", 0),
            "recording": recording,
            "supervisions": [each],
        }


def _span(item: Fields) -> tuple[float, float]:
    """Start and duration of a cut or a supervision in seconds."""
    start_s, length_s = seconds(item, "start"), seconds(item, "duration")
    if math.isnan(start_s) or math.isnan(length_s):
        raise InvalidEntry('a cut or a supervision without "start" and "duration"')
    return start_s, length_s


def _audio(recording: Fields, channel: object, in_shar: Callable[[], Location]) -> Location:
    """Audio of a channel of a recording, or the mean of all of its channels."""
    wanted = channel if isinstance(channel, list) else [channel]
    for source in f.objects(recording, "sources"):
        channels = source.get("channels")
        if not isinstance(channels, list) or not wanted or not all(each in channels for each in wanted):
            continue
        if 1 < len(wanted) < len(channels):
            raise InvalidEntry(
                f"channels {f.shown(channel)} of {f.shown(channels)}: expected one channel or all; {SAVE}"
            )
        index = channels.index(wanted[0]) if len(wanted) == 1 < len(channels) else None
        path, kind = f.string(source, ("source",)), source.get("type")
        if kind == "shar":
            return replace(in_shar(), channel=index)
        if kind not in ("file", "command", "url") or not path:
            raise InvalidEntry(f"a recording of type {f.shown(kind)}: expected a file; {SAVE}")
        return Location(f"{path.rstrip(' |')} |" if kind == "command" else path, channel=index)
    raise InvalidEntry(f"no source of the recording has channel {f.shown(channel)}")


def _in_shar(name: str, path: str, tars: Tars) -> Location:
    location = tars.find(tar := tar_of(path), (name + ending for ending in AUDIO_ENDINGS))
    if location is None:
        raise InvalidEntry(f"a cut of lhotse's Shar: expected its audio in {tar}, as {name}{AUDIO_ENDINGS[0]}")
    return location


def _check_transforms(recording: Fields) -> None:
    """Checks that the recording has no transforms but resampling. lhotse applies them when it reads audio."""
    if not recording.get("transforms"):
        return
    names = [str(transform.get("name")) for transform in f.objects(recording, "transforms")]
    if others := [name for name in names if name not in HARMLESS]:
        raise InvalidEntry(
            f"a recording with transforms ({', '.join(others)}): expected recordings without transforms; remove "
            "perturbed copies (data.speeds creates them), or save the audio first (CutSet.save_audios)"
        )
