"""Files in tars that a manifest names, as NeMo's tarred manifests and lhotse's Shar.

NeMo's audio is in `audio_SHARD.tar`, beside the manifest or in the folder above. Several utterances may be parts of one
file of a tar, with `offset` and `duration`. For the file `NAME.wav`, NeMo names the first one `NAME.wav`, and the
others `NAME-sub1.wav`, `NAME-sub2.wav` ….
"""

import glob
import os
import re
import tarfile
from collections.abc import Iterable

from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers import entries
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.fields import Fields, InvalidEntry
from asr_jax.data.manifests.utterances import Utterance

SUB = re.compile(r"-sub\d+(?=(\.\w+)?$)")
"""Ending of the name of a further part of a file of NeMo."""
Spans = dict[str, tuple[int, int]]
"""First byte and number of bytes of each file in a tar."""


class Tars:
    """The tars of a manifest, whose files are listed when they are first needed."""

    def __init__(self) -> None:
        self._spans: dict[str, Spans] = {}

    def find(self, path: str, names: Iterable[str]) -> Location | None:
        """Location of the first of the names that a tar has; None if it has none of them or does not exist.

        Raises:
            InvalidEntry: If the tar cannot be read.
        """
        if path not in self._spans:
            self._spans[path] = _spans(path)
        name = next((name for name in names if name in self._spans[path]), None)
        return None if name is None else Location(path, *self._spans[path][name], name=os.path.basename(name))


def _spans(path: str) -> Spans:
    try:
        with tarfile.open(path, "r:") as tar:
            return {member.name.removeprefix("./"): (member.offset_data, member.size) for member in tar}
    except FileNotFoundError:
        return {}
    except (tarfile.TarError, OSError) as error:
        raise InvalidEntry(f"{path}: not a complete tar ({error}); copy it again") from None


def nemo_utterance(fields: Fields, manifest: str, tars: Tars, options: ReadOptions) -> Utterance:
    """Utterance of a line of NeMo with `shard_id`.

    Raises:
        InvalidEntry: If the tar or its member does not exist, or the line is not valid.
    """
    shard, name = f.count(fields, ("shard_id",)), f.string(fields, f.AUDIO_PATH)
    folder = os.path.dirname(os.path.abspath(manifest))
    path = os.path.join(folder, f"audio_{shard}.tar")
    if not os.path.exists(path) and os.path.exists(above := os.path.join(folder, os.pardir, f"audio_{shard}.tar")):
        path = os.path.normpath(above)  # the manifest of a shard, in the folder sharded_manifests
    location = tars.find(path, (name, SUB.sub("", name)))
    if location is None:
        others = len(glob.glob(os.path.join(glob.escape(folder), "audio_*.tar")))
        raise InvalidEntry(f"no file {name!r} in {path} (the folder has {others} tars audio_N.tar)")
    return entries.utterance(entries.with_audio(fields, location), options, name=name)
