"""Reader of NVIDIA's JSON of QuartzNet and Jasper: one object per utterance, with a file for each speed.

`{"transcript": …, "files": [{"fname": …, "duration": …, "speed": 1}, …], "original_duration": …}`. Every file is an
utterance, and an epoch contains it once at each speed that was prepared. They share the id of the first file, with
suffixes `#2`, `#3` …, by which a split keeps them together.
"""

from collections.abc import Iterator

from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.fields import Fields, InvalidEntry
from asr_jax.data.manifests.utterances import Utterance


def utterances(fields: Fields, *, once: bool = False) -> Iterator[Utterance]:
    """Yields one utterance per file.

    `once` selects only the file at speed 1, or the first file if there is none.

    Raises:
        InvalidEntry: If the object has no files, or a file has no path.
    """
    text, files = f.string(fields, f.TEXT), f.objects(fields, "files")
    if once:
        files = ([file for file in files if _is_original(file)] or files)[:1]
    utterance = f.string(files[0], ("fname",))
    for number, file in enumerate(files, 1):
        name = f.string(file, ("fname",))
        if not name:
            raise InvalidEntry('a file without "fname": expected the path of its audio')
        yield Utterance(
            id=utterance if number == 1 else f"{utterance}#{number}",
            location=name,
            text=text,
            duration_s=f.duration_s(file if f.first(file, f.DURATION) is not None else _original(fields, file)),
            speaker=f.string(fields, f.SPEAKER),
            source=f.string(fields, f.SOURCE),
        )


def _is_original(file: Fields) -> bool:
    return file.get("speed", 1) == 1


def _original(fields: Fields, file: Fields) -> Fields:
    """Field with the duration before the change of speed, for a file at speed 1. Empty for other files."""
    return {"duration": fields.get("original_duration")} if _is_original(file) else {}
