"""Readers of corpora as they are distributed: the trees of LibriSpeech and AN4."""

import glob
import os
from collections.abc import Iterator

from asr_jax.data.manifests.locations import Location
from asr_jax.data.manifests.readers.base import Entries, Reader, ReadOptions
from asr_jax.data.manifests.readers.text_tables import BadLine, text_lines
from asr_jax.data.manifests.utterances import Rejected, Utterance

TRANSCRIPTS = ".trans.txt"
LIBRISPEECH_AUDIO = (".flac", ".wav", ".mp3", ".opus")
AN4_AUDIO = (".sph", ".wav", ".flac")
AN4_SETS = {"train": "an4_train", "validation": "an4_test", "test": "an4_test"}


def is_librispeech(path: str) -> bool:
    """Whether a folder has `ID.trans.txt` in it or up to two folders below."""
    depths = ("", "*/", "*/*/", "*/*/*/")
    return os.path.isdir(path) and any(
        next(glob.iglob(f"{glob.escape(path)}/{depth}*{TRANSCRIPTS}"), "") for depth in depths
    )


def subsets(path: str) -> list[str]:
    """Subsets such as `train-clean-100` in the folder of a whole corpus. Empty for the folder of one subset."""
    names = sorted(os.listdir(path))
    return [os.path.join(path, name) for name in names if name.startswith(("train", "dev", "test"))]


def read_librispeech(path: str, options: ReadOptions) -> Entries:
    """Reads a tree of `SPEAKER/CHAPTER/ID.flac` with the texts in `SPEAKER-CHAPTER.trans.txt`."""
    there = set(options.walk(path))
    listed = set()
    for transcript in sorted(name for name in there if name.endswith(TRANSCRIPTS)):
        for number, line in text_lines(transcript):
            if isinstance(line, BadLine) and line.uncut is None:
                yield Rejected(line.first_word, f"{transcript}:{number}", str(line))
                continue
            name, _, text = (line.uncut or "" if isinstance(line, BadLine) else line).strip().partition(" ")
            stem = os.path.join(os.path.dirname(transcript), name)
            audio = next((stem + ending for ending in LIBRISPEECH_AUDIO if stem + ending in there), "")
            listed.add(audio)
            if not audio:
                yield Rejected(name, f"{transcript}:{number}", "no audio beside it")
            else:
                yield Utterance(name, os.path.abspath(audio), text.strip(), speaker=name.partition("-")[0])
    for name in sorted(there - listed):
        if name.endswith(LIBRISPEECH_AUDIO):
            yield Rejected(os.path.relpath(name, path), name, f"no line in a file {TRANSCRIPTS} beside it")


def is_an4(path: str) -> bool:
    """Whether a folder has `etc/an4_train.transcription`, or the file is one."""
    return bool(_an4_lists(path))


def read_an4(path: str, options: ReadOptions) -> Entries:
    """Reads `etc/NAME.transcription` with the paths in `etc/NAME.fileids` and audio in `wav`.

    Args:
        path: The file `.transcription`, or the folder of the corpus, whose training set is read.
    """
    transcription = _an4_lists(path)[0]
    root = os.path.dirname(os.path.dirname(os.path.abspath(transcription)))
    of_files = transcription.removesuffix(".transcription") + ".fileids"
    ids, listed = dict(_ids(of_files)), set[str]()
    for number, line in text_lines(transcription):
        place = f"{transcription}:{number}"
        text, _, name = (line if isinstance(line, str) else line.uncut or "").rpartition("(")
        name = name.strip(" )")
        listed.add(name)
        stem = os.path.join(root, "wav", ids.get(name, name))
        audio = next((stem + ending for ending in AN4_AUDIO if os.path.exists(stem + ending)), "")
        if not audio:
            yield Rejected(name or place, place, f"no audio {stem} with one of {', '.join(AN4_AUDIO)}")
            continue
        words = text.replace("<s>", " ").replace("</s>", " ").split()
        yield Utterance(name, str(Location(audio)), " ".join(words), speaker=name.split("-")[1] if "-" in name else "")
    for name in (name for name in ids if name not in listed):
        yield Rejected(name, of_files, f"no line in {transcription}")


def _ids(path: str) -> Iterator[tuple[str, str]]:
    if os.path.exists(path):
        for _, line in text_lines(path):
            name = (line if isinstance(line, str) else line.uncut or "").strip()
            yield os.path.basename(name), name


def an4_set(path: str, role: str) -> str:
    """File `.transcription` of a set of the corpus."""
    return os.path.join(path, "etc", f"{AN4_SETS[role]}.transcription")


def _an4_lists(path: str) -> list[str]:
    name = path if path.endswith(".transcription") else an4_set(path, "train")
    return [name] if os.path.isfile(name) else []


def _files(path: str, options: ReadOptions) -> list[str]:
    if not os.path.isdir(path):
        return [path]
    return [name for name in options.walk(path) if name.endswith((TRANSCRIPTS, *LIBRISPEECH_AUDIO))]


LIBRISPEECH = Reader("tree of LibriSpeech", is_librispeech, _files, read_librispeech)
AN4 = Reader("corpus AN4", is_an4, _files, read_an4)
