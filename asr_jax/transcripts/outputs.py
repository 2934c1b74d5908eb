"""Destinations of transcripts: standard output, one file, or a folder with one file per recording."""

import contextlib
import json
import os
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from asr_jax.core.errors import UserError
from asr_jax.core.files import (
    OF_ALL_FILES,
    append_lines,
    check_no_input,
    check_writable,
    remove_empty,
    temporary_path,
    write_whole,
)
from asr_jax.core.jobs import MADE_OF, Job, path_of
from asr_jax.core.names import counted, one_line, unique
from asr_jax.core.text_files import json_line, json_text, open_text, read_text
from asr_jax.data.manifests.identity import Identity
from asr_jax.data.manifests.progress import in_threads
from asr_jax.data.manifests.utterances import Rejected, Utterance
from asr_jax.transcripts.files import FORMS, Form, FormName, NamedRecording, ctm_labels

REJECTED, MADE_BY = "rejected.jsonl", "made_by.jsonl"
"""Names of further files in a folder. No format has their ending."""
NAMED = 3
"""Number of files that a message names."""
Maker = Mapping[str, Any]
"""Origin of a folder's transcripts: run, checkpoint with the digest of its seal, kind of weights, the decoding with its
digest, and other settings, as JSON values."""


class Output:
    """Destination of transcripts. This base class discards them.

    It is a context manager. Entering it checks that the destination can be written; leaving it finishes the files.

    Raises:
        UserError: If the destination cannot be written.
    """

    goes_on = False
    """Whether finished transcripts remain after an interruption, and a later call continues with the rest."""

    def has(self, name: str) -> bool:
        """Returns whether the transcript of a recording exists from an earlier call."""
        return False

    def write(self, named: NamedRecording) -> str:
        """Writes the transcript of one recording; returns why it cannot be written, or empty text.

        Raises:
            OSError: If no transcript can be written any more, as on a full disk.
        """
        return ""

    def reject(self, name: str, location: str, reason: str) -> None:
        """Records a recording without a transcript."""

    def __enter__(self) -> "Output":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        pass


def is_folder(out: Path) -> bool:
    """Returns whether a destination is a folder: an existing one, or a name without an ending."""
    return out.is_dir() or not out.suffix


def files_of_job(out: Path, job: Job) -> dict[Path, Path]:
    """Returns the files of a job, by those of the whole. In a folder, each recording also has a file of its own."""
    return {whole: job.path(whole) for whole in ((out / REJECTED, out / MADE_OF) if is_folder(out) else (out,))}


def open_output(
    form: FormName,
    out: Path | None,
    recordings: Sequence[Utterance | Rejected],
    *,
    force: bool,
    maker: Callable[[], Maker],
    made_of: Callable[[], Iterable[tuple[str, Identity]]],
    job: Job | None = None,
) -> Output:
    """Returns the output for a destination.

    Args:
        form: Name of the file format.
        out: Folder or file, as in `is_folder`. None: standard output.
        recordings: All recordings, with different ids.
        force: Whether existing transcripts are overwritten.
        maker: Function that returns the origin of the transcripts; called only if `out` is a folder.
        made_of: Function that returns ids and identities of the recordings of this process; called only if `out` is a
            folder.
        job: Job of the recordings that this process writes, to the same folder as the others, or to a file of its own,
            which is overwritten: a finished job has a receipt. None: all of them.

    Raises:
        UserError: If the file exists or is a recording, if there are several recordings for a subtitle file, or if the
            folder has transcripts of another origin, or files of these names that are not of these recordings.
    """
    if out and is_folder(out):
        return Folder(FORMS[form], out, recordings, force=force, maker=maker(), made_of=made_of(), job=job)
    out = out and path_of(out, job)
    if not FORMS[form].is_of_many and len(recordings) > 1:
        raise UserError(
            f"{len(recordings)} recordings: expected --out FOLDER, since a file of {form} contains only one"
        )
    check_no_input("--out", out, [each.location for each in recordings])
    if out and out.exists() and not (force or job):
        raise UserError(f"{out} already exists: choose another --out, or overwrite it with --force")
    return OneFile(form, out, recordings)


class OneFile(Output):
    """Writes all transcripts to one file.

    The file has the name NAME.partial until it is complete. After an interruption, or if there is no transcript, it is
    removed.
    """

    def __init__(self, form: FormName, out: Path | None, recordings: Sequence[Utterance | Rejected]) -> None:
        self._form, self._out, self._labels = form, out, _labels(recordings)
        self._file: TextIO | None = sys.stdout
        self._is_empty = True

    def write(self, named: NamedRecording) -> str:
        """Writes a transcript; in text format, the path, as one line, and a tab precede it."""
        text = FORMS[self._form].write(replace(named, label=self._labels[named.name]))
        assert self._file, "the output is not entered"
        self._file.write(f"{one_line(named.path)}\t{text}" if self._form == "text" else text)
        self._file.flush()
        self._is_empty = False
        return ""

    def __enter__(self) -> "OneFile":
        if self._out:
            self._made = check_writable(self._out)
            self._partial = temporary_path(self._out, f"{self._out.name}.partial")
            self._file = open_text(self._partial)
        elif not self._file:
            raise UserError("standard output is closed: expected --out, or a redirection of standard output")
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
    """Writes one file per recording, named by its id. Each file is written atomically.

    rejected.jsonl lists the recordings without a transcript and the reasons. made_by.jsonl contains the origin of the
    transcripts, and made_of.jsonl the identity of the recording of each file.
    """

    goes_on = True

    def __init__(
        self,
        form: Form,
        folder: Path,
        recordings: Sequence[Utterance | Rejected],
        *,
        force: bool,
        maker: Maker,
        made_of: Iterable[tuple[str, Identity]],
        job: Job | None = None,
    ) -> None:
        names = [each.id for each in recordings]
        self._form, self._folder, self._maker = form, folder, maker
        self._paths = dict(zip(names, _paths(names, form.ending), strict=True))
        self._labels, self._rejected = _labels(recordings), list[dict[str, str]]()
        self._is_signed = not force and _is_signed(folder, maker)
        self._rejected_path, self._made_of_path = path_of(folder / REJECTED, job), path_of(folder / MADE_OF, job)
        self._made_of = dict(made_of)
        self._done = set() if force else self._finished()

    def _finished(self) -> set[str]:
        """Returns the ids of the recordings whose files exist.

        Raises:
            UserError: If such a file is not of its recording.
        """
        there = [name for name in self._made_of if os.path.isfile(self._folder / self._paths[name])]
        before = _made_of(self._folder) if there else {}
        done, others = set[str](), list[str]()

        def is_same(name: str) -> bool:
            return self._made_of[name].is_of(before.get(self._paths[name], {}))

        for name, same in zip(there, in_threads(is_same, there, "recordings of files that exist"), strict=True):
            file, now = self._paths[name], self._made_of[name]
            if same:
                done.add(name)
            elif now.exists:  # otherwise it is rejected
                others.append(f"{file} {_of_what(before.get(file, {}), now)}")
        if others:
            more = " …" * (len(others) > NAMED)
            raise UserError(
                f"{self._folder} has {counted(len(others), 'file')} of other recordings or texts: "
                f"{'; '.join(others[:NAMED])}{more}; choose another --out, delete these files, or overwrite all with "
                "--force"
            )
        return done

    def has(self, name: str) -> bool:
        return name in self._done

    def write(self, named: NamedRecording) -> str:
        path = self._folder / self._paths[named.name]
        text = self._form.write(replace(named, label=self._labels[named.name]))
        if not self._is_signed:  # written with the first transcript: an empty folder has no origin
            write_whole(self._folder / MADE_BY, json_line(self._maker))
            self._is_signed = True
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)  # it is not of the recording of the next line
            made_of = {"file": self._paths[named.name]} | self._made_of[named.name].to_json()
            append_lines(self._made_of_path, [json_text(made_of)])
            write_whole(path, text)
        except OSError as error:
            if error.errno in OF_ALL_FILES:
                raise
            return f"{path} cannot be written: {error.strerror}; rename the recording, or choose another --out"
        self._done.add(named.name)
        return ""

    def reject(self, name: str, location: str, reason: str) -> None:
        self._rejected.append({"id": name, "location": location, "reason": reason})

    def __enter__(self) -> "Folder":
        self._made = check_writable(self._folder, is_folder=True)
        self._rejected_path.unlink(missing_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._rejected:
            lines = "".join(json_line(line) for line in self._rejected)
            write_whole(self._rejected_path, lines)
        remove_empty(self._made)


def _made_of(folder: Path) -> dict[str, dict[str, Any]]:
    """Returns the identity that is stored for each file of a folder; an empty one if two jobs stored different ones.

    In the list of a job, the last line of a file counts. Incomplete lines are ignored.
    """
    found = dict[str, dict[str, Any]]()
    for path in folder.glob(f"{MADE_OF.partition('.')[0]}*.jsonl"):
        own = dict[str, dict[str, Any]]()
        for line in path.read_bytes().split(b"\n"):  # a line that is cut may not be UTF-8
            with contextlib.suppress(ValueError, KeyError, TypeError):
                entry = json.loads(line)
                own[entry["file"]] = entry
        for file, entry in own.items():
            found[file] = entry if found.get(file, entry) == entry else {}
    return found


def _of_what(before: Mapping[str, Any], now: Identity) -> str:
    """Returns why a file is not of a recording, for a message."""
    if not before:
        return "is not of an earlier command"
    if before.get("path") != now.path:
        return f"is of {before.get('path') or 'other audio'} and not of {now.path or 'this audio'}"
    return f"was made before {now.path or 'the audio'} or its text changed"


def _is_signed(folder: Path, maker: Maker) -> bool:
    """Returns whether the folder has this origin. Raises a UserError if it has another one."""
    path = folder / MADE_BY
    try:
        before = json.loads(read_text(path))
        others = {name: before.get(name) for name in maker if before.get(name) != maker[name]}
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"{path} cannot be read: {error}; choose another --out, or use --force") from error
    for digest, place in (("digest", "decoding"), ("checkpoint", "run")):
        if before.get(digest) == maker[digest]:  # they differ only in the folders of their files
            others.pop(place, None)
    if others:
        there, now = (", ".join(f"{name} {each[name]}" for name in others) for each in (others, maker))
        raise UserError(
            f"{folder} has transcripts by {there}, but this is {now}: choose another --out, or overwrite them with "
            "--force"
        )
    return True


def _labels(recordings: Sequence[Utterance | Rejected]) -> dict[str, str]:
    """Returns the names in CTM files by id."""
    labels = ctm_labels([(each.id, each.location) for each in recordings])
    return {each.id: label for each, label in zip(recordings, labels, strict=True)}


def _paths(names: Sequence[str], ending: str) -> list[str]:
    """Returns a different relative path for each id, all of them inside of the folder.

    The ending of the audio file is removed, unless the path would then equal that of another recording. Paths that some
    file systems do not distinguish count as equal: in upper or lower case, with composed or decomposed characters. No
    path is a folder of another one.
    """
    plain = [_inside(name) for name in names]
    stems = [os.path.splitext(path)[0] for path in plain]
    number = Counter(map(_folded, stems))
    whole = {_folded(path) for path in plain if os.path.splitext(path)[1]}
    short = [
        path if number[_folded(stem)] > 1 or _folded(stem) in whole else stem
        for path, stem in zip(plain, stems, strict=True)
    ]
    folders = {_folded(folder) for path in short for folder in map(str, Path(path).parents)}
    files = (folder.removesuffix(_folded(ending)) for folder in folders if folder.endswith(_folded(ending)))
    return [path + ending for path in unique(short, key=_folded, reserved=files)]


def _inside(name: str) -> str:
    """Returns an id as a relative path without parts that leave the folder or that no file can have."""
    name = name.replace("\0", "_").encode(errors="backslashreplace").decode()
    return "/".join(part for part in name.split("/") if part not in ("", ".", "..")) or "_"


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", path).casefold())
