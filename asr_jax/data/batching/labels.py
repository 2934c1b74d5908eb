"""Labels of all utterances, encoded once per tokenizer and cached beside the columns."""

import functools
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

from asr_jax.core.files import write_whole
from asr_jax.core.text_files import json_text, read_text
from asr_jax.data.manifests.arrays import digest_of_values, mapped, save_arrays
from asr_jax.data.manifests.cache import TEXT_SOURCES, digest_of_code
from asr_jax.data.manifests.columns import Columns, Ragged, load_ragged
from asr_jax.data.manifests.progress import in_parts
from asr_jax.data.manifests.reading import Utterances
from asr_jax.text.tokenizers import OutOfVocabulary, Tokenizer

PROBLEMS = "problems.json"
Encoded = tuple[Ragged, dict[int, tuple[str, str]]]
"""Labels by row, and for rows that cannot be encoded the reason and its detail."""


class Labels(NamedTuple):
    """Labels of all rows of columns."""

    labels: Ragged
    problems: dict[int, tuple[str, str]]
    """Reason and detail for rows that cannot be encoded."""
    repeats: Int32[np.ndarray, " R"]
    """Number of labels of each row that equal the preceding label."""
    digest: str = ""
    """Digest of the labels; empty if they are not cached."""


def encoded(utterances: Utterances, tokenizer: Tokenizer, *, given: bool) -> Labels:
    """Labels of all rows of the columns, from the cache if possible.

    Args:
        given: Whether token ids of manifests are used. Texts are then encoded only if a row has no token ids.

    Returns:
        Labels by row, the rows that cannot be encoded, and the repeated labels of each row.
    """
    if utterances.folder is None:
        alone, problems = _encode(utterances, tokenizer, given=given)
        return Labels(alone, problems, repeats(alone))
    made_of = digest_of_code(TEXT_SOURCES)[:8]
    folder = utterances.folder / f"labels-{tokenizer.digest()}-{made_of}{'-given' if given else ''}"
    labels = _kept(folder)
    if labels is None or len(labels.labels) != len(utterances.columns):
        new = _encode(utterances, tokenizer, given=given)
        labels = Labels(*new, repeats(new[0]), digest_of_values(new[0].offsets, new[0].values))
        _keep(labels, folder)
        labels = _kept(folder) or labels  # memory-mapped arrays are sent to worker processes as file names
    return labels


def repeats(labels: Ragged) -> Int32[np.ndarray, " R"]:
    """Number of labels of each row that equal the preceding label."""
    places = np.flatnonzero(labels.values[1:] == labels.values[:-1]) + 1
    first = np.minimum(labels.offsets[:-1] + 1, labels.offsets[1:])
    return (np.searchsorted(places, labels.offsets[1:]) - np.searchsorted(places, first)).astype(np.int32)


def _kept(folder: Path) -> Labels | None:
    """Cached labels. None if there are none or they are damaged."""
    try:
        about = json.loads(read_text(folder / PROBLEMS))
        problems = {int(row): (reason, detail) for row, (reason, detail) in about["problems"].items()}
        return Labels(load_ragged(folder / "labels"), problems, mapped(folder / "repeats"), about["digest"])
    except (OSError, EOFError, ValueError, AttributeError, KeyError, TypeError):
        return None


def _keep(labels: Labels, folder: Path) -> None:
    """Writes labels to the cache atomically. If another process was first, its labels are kept."""
    partial = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".partial-"))
    arrays = {"labels.values": labels.labels.values, "labels.offsets": labels.labels.offsets, "repeats": labels.repeats}
    save_arrays(partial, arrays)
    about = {"problems": labels.problems, "digest": labels.digest}
    write_whole(partial / PROBLEMS, json_text(about))
    if _kept(folder) is None:
        shutil.rmtree(folder, ignore_errors=True)
    try:
        partial.rename(folder)
    except OSError:
        shutil.rmtree(partial)


def _encode(utterances: Utterances, tokenizer: Tokenizer, *, given: bool) -> Encoded:
    work, num = functools.partial(_encode_part, utterances.columns, tokenizer, given), len(utterances.columns)
    parts = in_parts(work, num, "labels", are_cached=utterances.folder is not None)
    problems = {row: problem for _, of_part in parts for row, problem in of_part.items()}
    return Ragged.joined([labels for labels, _ in parts]), problems


def _encode_part(columns: Columns, tokenizer: Tokenizer, given: bool, rows: range) -> Encoded:
    problems: dict[int, tuple[str, str]] = {}
    return Ragged.of_rows(_rows(columns, tokenizer, given, rows, problems)), problems


def _rows(
    columns: Columns, tokenizer: Tokenizer, given: bool, rows: range, problems: dict[int, tuple[str, str]]
) -> Iterator[Sequence[int]]:
    """Yields the labels row by row, because lists of all rows take a hundred times the memory.

    Adds rows that cannot be encoded to `problems`.
    """
    texts = Ragged(columns.texts.values, columns.texts.offsets[rows.start : rows.stop + 1]).all_texts()
    for row, text in zip(rows, texts, strict=True):
        labels: Sequence[int] = ()
        if given and columns.has_labels[row]:
            labels = columns.labels[row].tolist()
        elif columns.has_labels[row] and not text:
            problems[row] = ("token ids without a text", "set data.tokenizer.path to the tokenizer that produced them")
        else:
            try:
                labels = tokenizer.encode(text)
            except OutOfVocabulary as error:
                problems[row] = ("out of vocabulary", str(error))
        yield labels
