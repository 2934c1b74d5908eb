"""Reader of NeMo's tarred manifests: audio is in `audio_SHARD.tar`, beside the manifest or in the folder above."""

import glob
import os
import tarfile

from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import ReadOptions
from asr_jax.data.manifests.readers.fields import Fields, InvalidEntry
from asr_jax.data.manifests.utterances import Utterance

Spans = dict[str, tuple[int, int]]
"""First byte and number of bytes of each file in a tar."""


class NemoTars:
    """The tars of one manifest, whose members are listed when they are first needed."""

    def __init__(self) -> None:
        self._spans: dict[str, Spans] = {}

    def utterance(self, fields: Fields, manifest: str, options: ReadOptions) -> Utterance:
        """Utterance of a line with `shard_id`.

        Raises:
            InvalidEntry: If the tar or its member does not exist, or the line is not valid.
        """
        shard, name = f.count(fields, ("shard_id",)), f.string(fields, f.AUDIO_PATH)
        if not options.texts_may_lack and f.first(fields, f.TEXT) is None:
            raise InvalidEntry(f'no "text" among its fields ({", ".join(map(repr, fields))}); expected {f.EXAMPLE}')
        folder = os.path.dirname(os.path.abspath(manifest))
        path = os.path.join(folder, f"audio_{shard}.tar")
        if not os.path.exists(path) and os.path.exists(above := os.path.join(folder, os.pardir, f"audio_{shard}.tar")):
            path = os.path.normpath(above)  # the manifest of a shard, in the folder sharded_manifests
        if path not in self._spans:
            self._spans[path] = _spans(path)
        if name not in self._spans[path]:
            others = len(glob.glob(os.path.join(glob.escape(folder), "audio_*.tar")))
            raise InvalidEntry(f"no file {name!r} in {path} (the folder has {others} tars audio_N.tar)")
        first, num = self._spans[path][name]
        return Utterance(
            id=f.string(fields, f.ID, name),
            location=str(Location(path, first, num, name=os.path.basename(name))),
            text=f.string(fields, f.TEXT),
            duration_s=f.duration_s(fields),
            speaker=f.string(fields, f.SPEAKER),
        )


def _spans(path: str) -> Spans:
    try:
        with tarfile.open(path, "r:") as tar:
            return {member.name.removeprefix("./"): (member.offset_data, member.size) for member in tar}
    except FileNotFoundError:
        return {}
    except (tarfile.TarError, OSError) as error:
        raise InvalidEntry(f"{path}: not a complete tar ({error}); copy it again") from None
