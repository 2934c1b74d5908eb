"""Download of published models from a URL into the user's cache, also from the zip files of NVIDIA's NGC."""

import hashlib
import os
import re
import shutil
import zipfile
from pathlib import Path, PurePosixPath

from asr_jax.core.downloads import Archive, fetch
from asr_jax.core.environment import CACHES
from asr_jax.core.errors import RunError, UserError
from asr_jax.core.files import held
from asr_jax.pretrained.formats import SUFFIXES

DOWNLOADED = "downloaded"
"""Folder of the cache with the downloaded files, each in a folder of its own."""
LOCAL = re.compile(r"http://(127\.0\.0\.1|localhost)(:\d+)?/")


def is_url(source: str) -> bool:
    """Returns whether the source of a model is a URL and not a path."""
    return re.match(r"[a-z][a-z\d+.-]*://", source) is not None


def downloaded(url: str, sha256: str = "") -> Path:
    """Returns the file of a model at a URL. It is downloaded once, and an interrupted download is resumed.

    If the URL has a zip file with one model in it, as those of NGC, it is that model.

    Args:
        url: `https://…`; also `http://` of this machine.
        sha256: Expected checksum of the file at the URL, in hexadecimal. Empty: the file is not verified.

    Raises:
        UserError: If the URL or the checksum is no such text, or the file is not a model.
        RunError: If the file cannot be downloaded, or has another checksum.
    """
    if not url.startswith("https://") and not LOCAL.match(url):
        raise UserError(f"{url}: expected a URL that begins with https://, or the path of a file")
    if sha256 and not re.fullmatch(r"[\da-fA-F]{64}", sha256):
        raise UserError(f"--sha256 {sha256}: expected 64 hexadecimal digits")
    folder = Path(CACHES) / DOWNLOADED / hashlib.sha256(url.encode()).hexdigest()[:12]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with held(folder / "lock", f"{url} is being downloaded"):
            path = fetch(Archive(url, f"sha256:{sha256.lower()}" * bool(sha256)), folder)
            return _model_in(path, url)
    except OSError as error:
        raise RunError(f"{folder}: {error.strerror}; XDG_CACHE_HOME chooses another folder") from error


def _model_in(path: Path, url: str) -> Path:
    """Returns the model in a zip file, which is unpacked beside it, or the file itself if it is a model."""
    if path.suffix in SUFFIXES:  # a .pt is a zip file, too
        return path
    if not zipfile.is_zipfile(path):
        raise UserError(f"{url} is not a model: expected a file that ends in {' '.join(SUFFIXES)}, or a zip of one")
    with zipfile.ZipFile(path) as archive:
        found = [each for each in archive.infolist() if PurePosixPath(each.filename).suffix in SUFFIXES]
        if len(found) != 1:
            names = ", ".join(each.filename for each in found) or ", ".join(archive.namelist()[:5])
            raise UserError(f"{url} has {len(found)} models ({names}): expected a zip with one; unpack it: {path}")
        model = path.with_name("model") / PurePosixPath(found[0].filename).name  # never outside the folder
        if not model.exists() or model.stat().st_size != found[0].file_size:
            model.parent.mkdir(exist_ok=True)
            unfinished = model.with_name("unfinished")
            try:
                with archive.open(found[0]) as source, unfinished.open("wb") as file:
                    shutil.copyfileobj(source, file)
            except zipfile.BadZipFile as error:
                raise RunError(f"{url} is damaged: {error}; delete {path}, and download it again") from error
            os.replace(unfinished, model)
    return model
