"""Where transcripts go: standard output, one file, or a folder with a file for each recording."""

import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO, cast

from asr_jax.core.errors import UserError
from asr_jax.core.files import write_whole
from asr_jax.core.names import unique
from asr_jax.decoding.transcript_files import FORMS, Form, Named

SKIPPED = "skipped.jsonl"


class Output:
    """What takes transcripts, this one without a trace; `with` ends it."""

    goes_on = False
    """Whether it keeps what is done where the work is broken off, so that a later call does the rest."""

    def has(self, name: str) -> bool:
        """Whether a recording's transcript is there from before."""
        return False

    def write(self, named: Named) -> None:
        """Takes one recording's."""

    def skip(self, name: str, location: str, reason: str) -> None:
        """A recording that there is no transcript of."""

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass


def open_output(form: str, out: Path | None, names: Sequence[str], *, force: bool) -> Output:
    """`out`: a folder (one that is there, or a name without ending), a file, or None: standard output. `names`: of all
    recordings; `force`: what is there is written anew.

    Raises: UserError for a file that is there, and for several recordings in one file of subtitles.
    """
    if out and (out.is_dir() or not out.suffix):
        return Folder(FORMS[form], out, names, force=force)
    if not FORMS[form].is_of_many and len(names) > 1:
        raise UserError(f"{len(names)} recordings, and a file of {form} holds one: expected --out FOLDER")
    if out and out.exists() and not force:
        raise UserError(f"{out} is there already: give another --out, or --force")
    return OneFile(form, out)


class OneFile(Output):
    """All transcripts after one another; while they are written the file is called NAME.partial."""

    def __init__(self, form: str, out: Path | None) -> None:
        self._form, self._out, self._file = form, out, cast(TextIO, sys.stdout)
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            self._partial = out.with_name(f"{out.name}.partial")
            self._file = self._partial.open("w", encoding="utf-8", newline="\n")

    def write(self, named: Named) -> None:
        """Texts with their paths before them."""
        text = FORMS[self._form].write(named)
        self._file.write(f"{named.path}\t{text}" if self._form == "text" else text)
        self._file.flush()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._out:
            self._file.close()
            if kind is None:
                os.replace(self._partial, self._out)
            elif not self._partial.stat().st_size:
                self._partial.unlink()


class Folder(Output):
    """A file for each recording, by its name or its place in the folder that was given, each whole or not there; and
    skipped.jsonl, what there is none of and why."""

    goes_on = True

    def __init__(self, form: Form, folder: Path, names: Sequence[str], *, force: bool) -> None:
        self._form, self._folder, self._force = form, folder, force
        self._paths = dict(zip(names, _paths(names, form.ending), strict=True))
        self._skipped = list[dict[str, str]]()

    def has(self, name: str) -> bool:
        return not self._force and (self._folder / self._paths[name]).exists()

    def write(self, named: Named) -> None:
        path = self._folder / self._paths[named.name]
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, self._form.write(named))

    def skip(self, name: str, location: str, reason: str) -> None:
        self._skipped.append({"id": name, "location": location, "reason": reason})

    def __enter__(self) -> "Folder":
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / SKIPPED).unlink(missing_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._skipped:
            lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self._skipped)
            write_whole(self._folder / SKIPPED, lines)


def _paths(names: Sequence[str], ending: str) -> list[str]:
    """Relative paths, none outside of the folder and none twice; with the audio's ending where they would be those of
    others without."""
    plain = [
        "/".join(part.replace("\0", "_") for part in name.split("/") if part not in ("", ".", "..")) or "_"
        for name in names
    ]
    stems = [os.path.splitext(path)[0] for path in plain]
    number, whole = Counter(stems), {path for path in plain if os.path.splitext(path)[1]}
    short = [path if number[stem] > 1 or stem in whole else stem for path, stem in zip(plain, stems, strict=True)]
    return [path + ending for path in unique(short)]
