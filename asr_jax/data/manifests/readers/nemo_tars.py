"""Reader of NeMo's tarred manifests: audio is in `audio_SHARD.tar`, beside the manifest or in the folder above.

Several utterances may be parts of one file of a tar, with `offset` and `duration`. For the file `NAME.wav`, NeMo names
the first one `NAME.wav`, and the others `NAME-sub1.wav`, `NAME-sub2.wav` ….
"""

import glob
import os
import re

from asr_jax.data.manifests.readers import entries
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.fields import Fields, InvalidEntry
from asr_jax.data.manifests.readers.tars import Tars
from asr_jax.data.manifests.utterances import Utterance

SUB = re.compile(r"-sub\d+(?=(\.\w+)?$)")
"""Ending of the name of a further part of a file."""


def utterance(fields: Fields, manifest: str, tars: Tars, options: ReadOptions) -> Utterance:
    """Utterance of a line with `shard_id`.

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
