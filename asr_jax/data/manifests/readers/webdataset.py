"""Reader of WebDataset's tar shards: files with the same stem are one utterance.

Audio has `.txt`, `.json` or tokens beside it. Shards are not unpacked: training reads each file from the tar by random
access. Compressed tars do not permit this.
"""

import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.core.text_files import TextError, text_of
from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers import entries
from asr_jax.data.manifests.readers import fields as f
from asr_jax.data.manifests.readers.base import Entries, Reader, ReadOptions, is_file_of, this_file
from asr_jax.data.manifests.readers.fields import Fields, InvalidEntry
from asr_jax.data.manifests.readers.folders import AUDIO_ENDINGS, TEXT_ENDINGS, TOKEN_ENDINGS
from asr_jax.data.manifests.remote import is_url
from asr_jax.data.manifests.utterances import Rejected, Utterance

# Beginnings of the names of files of WebDataset itself and of macOS, which are not data.
NO_SAMPLE = ("__", "._", ".")
# A tar ends in two blocks of zeros. tarfile does not require them, and accepts a tar that is truncated between files.
END = bytes(2 * tarfile.BLOCKSIZE)

Members = dict[str, tarfile.TarInfo]


def read_tar(path: str, options: ReadOptions) -> Entries:
    """Reads a tar shard.

    Raises:
        UserError: If the tar is compressed, truncated or damaged.
    """
    if not path.lower().endswith(".tar"):
        raise UserError(f"{path} is compressed: its files cannot be read one by one; decompress it to a .tar first")
    try:
        with open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            for stem, members in samples(tar):
                try:
                    yield utterance_of(path, tar, stem, members, options)
                except InvalidEntry as error:
                    yield Rejected(stem, f"{path}: {stem}", str(error), error.stage)
            check_end(file, tar)
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UserError(f"{path}: not a complete tar ({error}); copy it again, or remove it") from None


TAR = Reader("WebDataset shard", is_file_of(".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"), this_file, read_tar)


def check_end(file: Any, tar: tarfile.TarFile) -> None:
    """Checks that a tar is complete, and that nothing follows it.

    Raises:
        tarfile.ReadError: If it is truncated, or if several tars are joined to one.
    """
    file.seek(tar.offset)
    if file.read(len(END)) != END:
        raise tarfile.ReadError(f"truncated or damaged at byte {tar.offset}, after its last complete file")
    while rest := file.read(1 << 16):
        if rest.strip(b"\0"):
            raise tarfile.ReadError(
                f"more files follow after its end at byte {tar.offset}: several tars are joined to one, and "
                "readers stop at the end of the first; unpack it (tar --ignore-zeros -xf) and pack it again"
            )


def samples(tar: tarfile.TarFile) -> Iterator[tuple[str, Members]]:
    """Consecutive files that share the folder and the name up to the first dot, by ending."""
    stem, members = "", Members()
    for member in tar:
        folder, name = os.path.split(member.name)
        first, dot, ending = name.partition(".")
        if not member.isfile() or not dot or name.startswith(NO_SAMPLE):
            continue
        key = os.path.join(folder, first)
        if key != stem and members:
            yield stem, members
            members = {}
        stem = key
        members[f".{ending.lower()}"] = member
    if members:
        yield stem, members


def utterance_of(path: str, tar: tarfile.TarFile, stem: str, members: Members, options: ReadOptions) -> Utterance:
    """Utterance of the files with a stem.

    Raises:
        InvalidEntry: If they are not an utterance.
    """
    audio = _ending(members, AUDIO_ENDINGS)
    if audio is None:
        raise InvalidEntry(f"no audio among {', '.join(members)}: expected one of {' '.join(AUDIO_ENDINGS)}")
    fields = _fields(tar, members)
    if "sources" in fields and "sampling_rate" in fields and not options.texts_may_lack:
        raise InvalidEntry("a recording of lhotse's Shar: its text is in cuts.*.jsonl.gz beside the tar; give the cuts")
    if text_file := _ending(members, TEXT_ENDINGS):
        fields = {**fields, "text": _content(tar, text_file).strip()}
    if token_file := _ending(members, TOKEN_ENDINGS):
        fields = {**fields, "tokens": _content(tar, token_file)}
    if f.first(fields, (*f.TEXT, *f.LABELS)) is None and not options.texts_may_lack:
        raise InvalidEntry(f"no text among {', '.join(members)}: expected .txt, or .json with a text")
    where = path if is_url(path) else os.path.abspath(path)
    location = Location(where, audio.offset_data, audio.size, name=os.path.basename(audio.name))
    return entries.utterance(entries.with_audio(fields, location), options, name=stem)


def _ending(members: Members, endings: Sequence[str]) -> tarfile.TarInfo | None:
    """First member with one of the endings, in the order of the endings.

    Names are split at the first dot, and endings are compared at the end: `a.b.txt` has the text of `a.b.flac`.
    """
    found = (member for ending in endings for name, member in members.items() if name.endswith(ending))
    return next(found, None)


def _fields(tar: tarfile.TarFile, members: Members) -> Fields:
    """Fields of the member .json. Empty if there is no such member."""
    member = _ending(members, (".json",))
    if member is None:
        return {}
    content = _content(tar, member)
    try:
        fields = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise InvalidEntry(f"{member.name}: not JSON ({error})") from None
    if not isinstance(fields, dict):
        raise InvalidEntry(f"{member.name}: {f.shown(fields)}; expected a JSON object")
    return fields


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> str:
    file = tar.extractfile(member)
    assert file is not None, member.name
    try:
        return text_of(file.read())
    except TextError as error:
        raise InvalidEntry(f"{member.name}: {error}") from None
