"""Reader of NVIDIA's JSON of QuartzNet and Jasper: one object per utterance, with a file for each speed.

`{"transcript": …, "files": [{"fname": …, "duration": …, "speed": 1}, …], "original_duration": …}`. Every file is an
utterance, and an epoch contains it once at each speed that was prepared. They share the id of the first file, with
suffixes `#2`, `#3` …, by which a split keeps them together.
"""

import math
from collections.abc import Iterator

from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.fields import Fields, InvalidEntry
from asr_jax.data.manifests.readers.parts import part_of, placed, seconds
from asr_jax.data.manifests.utterances import Utterance


def utterances(fields: Fields, options: ReadOptions, *, once: bool = False) -> Iterator[Utterance]:
    """Yields one utterance per file.

    `once` selects only the file at speed 1, or the first file if there is none.

    Raises:
        InvalidEntry: If the object has no files, or a file has no path.
    """
    text, files = f.string(fields, f.TEXT), f.objects(fields, "files")
    if once:
        files = ([file for file in files if _is_original(file)] or files)[:1]
    utterance = f.string(files[0], ("fname",))
    original_s = seconds(fields, "original_duration") or math.nan
    others = {name: value for name, value in fields.items() if name != "files" and not name.startswith("original_")}
    for number, file in enumerate(files, 1):
        name = f.string(file, ("fname",))
        if not name:
            raise InvalidEntry('a file without "fname": expected the path of its audio')
        part = part_of({**others, **file}, options)
        yield Utterance(
            id=utterance if number == 1 else f"{utterance}#{number}",
            location=placed(name, part),
            text=text,
            duration_s=original_s if math.isnan(part.length_s) and _is_original(file) else part.length_s,
            speaker=f.string(fields, f.SPEAKER),
            source=f.string(fields, f.SOURCE),
        )


def _is_original(file: Fields) -> bool:
    return file.get("speed", 1) == 1
