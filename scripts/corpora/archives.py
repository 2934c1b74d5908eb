"""Archives of corpora, which are unpacked atomically."""

import tarfile
import tempfile
from pathlib import Path

from asr_jax.core.errors import RunError


def unpack(path: Path, folder: Path) -> None:
    """Moves the content of the archive's single top-level folder into `folder` after all of it is unpacked.

    Existing files are kept.

    Raises:
        RunError: If the file is not a tar, or does not have a single top-level folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking-") as made:
        try:
            with tarfile.open(path) as tar:
                tar.extractall(made, filter="data")
        except (tarfile.TarError, EOFError) as error:
            raise RunError(f"{path}: not a complete tar: {error}; download it again") from None
        tops = list(Path(made).iterdir())
        if len(tops) != 1:
            raise RunError(f"{path}: {len(tops)} files and folders at its top level; expected one folder")
        for entry in sorted(tops[0].iterdir()):
            if not (folder / entry.name).exists():
                entry.rename(folder / entry.name)
