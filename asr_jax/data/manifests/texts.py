"""Texts of any data set, read without opening its audio, for training tokenizers."""

import os
from collections.abc import Iterator, Sequence

from asr_jax.core.errors import UserError
from asr_jax.core.paths import matches
from asr_jax.core.text_files import TextError, read_lines
from asr_jax.data.manifests.inputs import resolve
from asr_jax.data.manifests.readers.base import Reader, ReadOptions, notes_of
from asr_jax.data.manifests.utterances import Utterance


def texts_of(inputs: Sequence[str]) -> Iterator[str]:
    """Yields the texts of all inputs in order, including empty ones.

    Inputs are data of every supported format, and .txt files with one text per line.

    Raises:
        UserError: If a path cannot be read, or if no utterance of an input can be used.
    """
    options = ReadOptions()
    for given in inputs:
        if plain := _plain_files(given, options):
            for path in plain:
                yield from _lines(path)
        else:
            for _, path, reader in resolve([given], options=options):
                yield from _texts(path, reader, options)


def _plain_files(given: str, options: ReadOptions) -> list[str]:
    """Files of a path or glob pattern that ends in .txt, or of a folder of only .txt files. Empty for other data."""
    if os.path.isdir(given):
        files = list(options.walk(given))
        return files if all(name.lower().endswith(".txt") for name in files) else []
    if not given.lower().endswith(".txt"):
        return []
    return [given] if os.path.exists(given) else matches(given) or [given]


def _lines(path: str) -> Iterator[str]:
    try:
        yield from read_lines(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; check the path (relative paths start at {os.getcwd()})") from None
    except TextError as error:
        raise UserError(f"{path}: {error}") from None


def _texts(path: str, reader: Reader, options: ReadOptions) -> Iterator[str]:
    num_read, num_skipped, rejected = 0, 0, []
    for entry in reader.read(path, options):
        if isinstance(entry, Utterance):
            num_read += 1
            yield entry.text
        elif entry.stage == "filter":
            num_skipped += 1
        else:
            rejected.append(f"{entry.location}: {entry.reason}")
    for note in notes_of(path, num_skipped, options):
        print(note)
    if rejected and not num_read:
        raise UserError("\n".join(rejected[:3]))
    if rejected:
        print(f"{len(rejected)} of {num_read + len(rejected)} utterances are rejected; the first: {rejected[0]}")
