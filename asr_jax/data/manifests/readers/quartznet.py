"""NVIDIA's JSON of QuartzNet and Jasper: an object per utterance with a file for each speed.

`{"transcript": …, "files": [{"fname": …, "duration": …, "speed": 1}, …], "original_duration": …}`. Every file is a
utterance: an epoch holds an utterance once at each speed that it was prepared at. They share the id of the first, with
`#2`, `#3` … at its end, by which a split keeps them together.
"""

from collections.abc import Iterator

from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.fields import Fields, InvalidEntry
from asr_jax.data.manifests.utterances import Utterance


def utterances(fields: Fields, *, once: bool = False) -> Iterator[Utterance]:
    """`once`: of the file at speed 1 alone, or the first where there is none. Raises: InvalidEntry."""
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
    """The duration before the change of speed, where it is the file's own."""
    return {"duration": fields.get("original_duration")} if _is_original(file) else {}
