"""Texts of any data set, read without opening its audio, for tokenizers and language models."""

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from asr_jax.core.errors import UserError
from asr_jax.core.paths import matches
from asr_jax.core.text_files import TextError, read_lines
from asr_jax.data.manifests.inputs import resolve
from asr_jax.data.manifests.readers.base import Reader, ReadOptions, notes_of
from asr_jax.data.manifests.utterances import Utterance
from asr_jax.text.invisible import invisible_characters
from asr_jax.text.normalise import normalise
from asr_jax.text.removed import name_of

NUM_SHOWN = 10
"""Maximum number of invisible characters that are named."""


def normalised_texts(inputs: Sequence[str], normaliser: str) -> list[str]:
    """Returns the normalised texts of all inputs that are not empty, each on one line, and prints what is removed.

    Args:
        inputs: As in `texts_of`.

    Raises:
        UserError: As `texts_of`, or if there is no text.
    """
    texts, unseen = list[str](), Counter[str]()
    for text in texts_of(inputs):
        unseen.update(invisible_characters(text))
        texts.append(normalise(re.sub(r"[\r\n]+", " ", text), normaliser))
    if unseen:
        named = ", ".join(f"{each!r} ({name_of(each)}) {num:,} ×" for each, num in unseen.most_common(NUM_SHOWN))
        print(f"invisible characters are removed from the texts: {named}")
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise UserError(f"{', '.join(inputs)}: no text; expected at least one that is not empty")
    return texts


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
