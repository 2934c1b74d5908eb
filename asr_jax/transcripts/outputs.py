"""Where transcripts go: standard output, one file, or a folder with a file for each recording."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from asr_jax.core.errors import UserError
from asr_jax.core.files import check_writable, remove_empty, write_whole
from asr_jax.core.names import unique
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.transcripts.files import FORMS, Form, FormName, Named, ctm_labels

REJECTED, MADE_BY = "rejected.jsonl", "made_by.jsonl"
"""In a folder; no form's files end so."""
Maker = Mapping[str, str | int]
"""What wrote a folder's transcripts: the run, its checkpoint, the kind of weights, and the decoding with its digest."""


class Output:
    """What takes transcripts, this one without a trace; `with` tries whether it can be written, and ends it.

    Raises: UserError where it cannot.
    """

    goes_on = False
    """Whether it keeps what is done where the work is broken off, so that a later call does the rest."""

    def has(self, name: str) -> bool:
        """Whether a recording's transcript is there from before."""
        return False

    def write(self, named: Named) -> None:
        """Takes one recording's."""

    def reject(self, name: str, location: str, reason: str) -> None:
        """A recording that there is no transcript of."""

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass


def open_output(
    form: FormName,
    out: Path | None,
    recordings: Sequence[Utterance | Rejected],
    *,
    force: bool,
    maker: Callable[[], Maker],
) -> Output:
    """`out`: a folder (one that is there, or a name without ending), a file, or None: standard output. `recordings`:
    all, of different ids; `force`: what is there is written anew; `maker`: asked for a folder.

    Raises: UserError for a file that is there, for several recordings in one file of subtitles, and for a folder with
    transcripts by another maker.
    """
    if out and (out.is_dir() or not out.suffix):
        return Folder(FORMS[form], out, recordings, force=force, maker=maker())
    if not FORMS[form].is_of_many and len(recordings) > 1:
        raise UserError(f"{len(recordings)} recordings, and a file of {form} holds one: expected --out FOLDER")
    if out and out.exists() and not force:
        raise UserError(f"{out} is there already: give another --out, or --force")
    return OneFile(form, out, recordings)


class OneFile(Output):
    """All transcripts after one another; while they are written the file is called NAME.partial, and where the work is
    broken off, or gives no transcript, it is not there.
    """

    def __init__(self, form: FormName, out: Path | None, recordings: Sequence[Utterance | Rejected]) -> None:
        self._form, self._out, self._labels = form, out, _labels(recordings)
        self._file: TextIO | None = sys.stdout
        self._is_empty = True

    def write(self, named: Named) -> None:
        """Texts with their paths before them."""
        text = FORMS[self._form].write(replace(named, label=self._labels[named.name]))
        assert self._file, "it was entered"
        self._file.write(f"{named.path}\t{text}" if self._form == "text" else text)
        self._file.flush()
        self._is_empty = False

    def __enter__(self) -> "OneFile":
        if self._out:
            self._made = check_writable(self._out)
            self._partial = self._out.with_name(f"{self._out.name}.partial")
            self._file = self._partial.open("w", encoding="utf-8", newline="\n")
        elif not self._file:
            raise UserError("standard output is closed: expected --out, or a place that it goes to")
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._out and self._file:
            self._file.close()
            if kind is None and not self._is_empty:
                os.replace(self._partial, self._out)
            else:
                self._partial.unlink()
            remove_empty(self._made)


class Folder(Output):
    """A file for each recording, by its name or its place in the folder that was given, each whole or not there;
    rejected.jsonl, what there is none of and why; and made_by.jsonl, what wrote them.
    """

    goes_on = True

    def __init__(
        self, form: Form, folder: Path, recordings: Sequence[Utterance | Rejected], *, force: bool, maker: Maker
    ) -> None:
        names = [each.id for each in recordings]
        self._form, self._folder, self._force, self._maker = form, folder, force, maker
        self._paths = dict(zip(names, _paths(names, form.ending), strict=True))
        self._labels, self._rejected = _labels(recordings), list[dict[str, str]]()
        self._is_signed = not force and _is_signed(folder, maker)

    def has(self, name: str) -> bool:
        return not self._force and (self._folder / self._paths[name]).exists()

    def write(self, named: Named) -> None:
        path = self._folder / self._paths[named.name]
        path.parent.mkdir(parents=True, exist_ok=True)
        if not self._is_signed:  # with the first: where nothing was written there is nothing to go on with
            write_whole(self._folder / MADE_BY, json.dumps(self._maker, ensure_ascii=False) + "\n")
            self._is_signed = True
        write_whole(path, self._form.write(replace(named, label=self._labels[named.name])))

    def reject(self, name: str, location: str, reason: str) -> None:
        self._rejected.append({"id": name, "location": location, "reason": reason})

    def __enter__(self) -> "Folder":
        self._made = check_writable(self._folder, is_folder=True)
        (self._folder / REJECTED).unlink(missing_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._rejected:
            lines = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in self._rejected)
            write_whole(self._folder / REJECTED, lines)
        remove_empty(self._made)


def _is_signed(folder: Path, maker: Maker) -> bool:
    """Whether this maker's name is in the folder. Raises: UserError for another's."""
    path = folder / MADE_BY
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        others = {name: before.get(name) for name in maker if before.get(name) != maker[name]}
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {error}; give another --out, or --force") from error
    if before.get("digest") == maker["digest"]:
        others.pop("decoding", None)  # the same, with files in other places
    if others:
        there, now = (", ".join(f"{name} {each[name]}" for name in others) for each in (others, maker))
        raise UserError(
            f"{folder} has transcripts by {there}, and this is {now}: give another --out, or --force to write them anew"
        )
    return True


def _labels(recordings: Sequence[Utterance | Rejected]) -> dict[str, str]:
    """By id."""
    labels = ctm_labels([(each.id, each.location) for each in recordings])
    return {each.id: label for each, label in zip(recordings, labels, strict=True)}


def _paths(names: Sequence[str], ending: str) -> list[str]:
    """Relative paths, none outside of the folder and none twice; with the audio's ending where they would be those of
    others without.
    """
    plain = [
        "/".join(part.replace("\0", "_") for part in name.split("/") if part not in ("", ".", "..")) or "_"
        for name in names
    ]
    stems = [os.path.splitext(path)[0] for path in plain]
    number, whole = Counter(stems), {path for path in plain if os.path.splitext(path)[1]}
    short = [path if number[stem] > 1 or stem in whole else stem for path, stem in zip(plain, stems, strict=True)]
    return [path + ending for path in unique(short)]
