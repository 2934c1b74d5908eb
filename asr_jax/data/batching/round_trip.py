"""Parts of texts that labels write otherwise, and the lowest error rates that follow.

A text makes a round trip if the decoded labels are the normalised text. Otherwise, even a model that predicts every
label correctly has errors, because error rates compare its texts with the normalised references.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Int64

from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.data.batching.removals import (
    ABSENT,
    CAPITALS,
    LABELS,
    SMALL,
    SPACES,
    PartCounts,
    PartKey,
    Removed,
    RemovedPart,
    part_lines,
    text_rows,
    texts_of_rows,
)
from asr_jax.data.manifests.columns import Columns, Ragged
from asr_jax.data.manifests.progress import in_parts
from asr_jax.data.manifests.reading import Utterances
from asr_jax.data.manifests.remembered import remembered
from asr_jax.metrics.errors import ErrorCounts, count_errors
from asr_jax.text.normalise import NORMALISERS, normalise
from asr_jax.text.removed import lost_characters, num_letters
from asr_jax.text.tokenizers import Tokenizer

MOST_PARTS = 1000
"""Maximum number of parts that are listed."""
TRIED = 500
"""Maximum number of changed texts, and of others, with which normalisers are tried."""
CANDIDATES = (
    "lower.v1",
    "upper.v1",
    "english_letters.v1",
    "english.v1",
    "whisper_basic.v1",
    "whisper_english.v1",
    "ascii.v1",
    "none",
)
"""Normalisers that are tried, in this order."""


@dataclass(frozen=True)
class RoundTrip(Removed):
    """Parts of the texts of a set that its labels write otherwise, most frequent first; at most MOST_PARTS."""

    parts: tuple[RemovedPart, ...] = ()
    num_chars: int = 0
    texts: int = 0
    """Number of texts that labels write otherwise."""
    num_texts: int = 0
    """Number of texts."""
    wer: float | None = None
    """Lowest word error rate that a model with these labels can reach; None without words."""
    cer: float | None = None
    """Lowest character error rate, as `wer`."""
    normaliser: str = ""
    """Normaliser under which labels write all texts that were tried. Empty: there is none, or nothing is changed."""

    @property
    def missing(self) -> Removed:
        """The parts that have no label."""
        return Removed(tuple(each for each in self.parts if each.by == ABSENT), self.num_chars)

    def lines(self) -> list[str]:
        return part_lines(self.parts)

    def to_json(self) -> dict[str, Any]:
        """The fields except for `num_chars`, with `characters` for `parts`, as `Removed.to_json`."""
        names = ("texts", "num_texts", "wer", "cer", "normaliser")
        return {name: getattr(self, name) for name in names} | {"characters": super().to_json()["characters"]}


class _Counted(NamedTuple):
    """Counts of some rows."""

    parts: PartCounts
    changed: Int[np.ndarray, " C"]
    """Rows whose texts are changed."""
    edits: Int64[np.ndarray, " 8"]
    """Sums of EDITS between the texts and what labels write."""


def count_round_trip(
    utterances: Utterances,
    tokenizer: Tokenizer,
    *,
    scoring: str = "",
    takes_ids: bool = False,
    labels: Ragged | None = None,
) -> RoundTrip:
    """Counts the texts of a set that its labels write otherwise, and computes the lowest error rates.

    Args:
        scoring: Normaliser of references and hypotheses in scoring. Empty: that of the tokenizer.
        takes_ids: As in `count_removed`.
        labels: Labels by row of `utterances.columns`, as in `Index`. With them, texts that are known to be restored are
            not compared, and there are no rates, which saves minutes for ten million texts.
    """
    rows = text_rows(utterances, takes_ids=takes_ids)
    if not tokenizer.has_labels or tokenizer.kind == "ids" or not len(rows):
        return RoundTrip()
    suspects = rows[labels.lengths()[rows] == 0] if labels is not None and tokenizer.restores else rows

    def work() -> Any:
        return asdict(_count(utterances, tokenizer, scoring, suspects, has_rates=labels is None))

    inputs = (utterances.digest, suspects, str(utterances.folder), tokenizer.digest(), scoring, labels is None)
    found = remembered(utterances.folder, "round-trip", inputs, work) if len(suspects) else {"parts": ()}
    found["parts"] = tuple(RemovedPart(**part) for part in found["parts"])
    found["num_texts"], found["num_chars"] = len(rows), int(utterances.columns.num_chars[rows].sum(dtype=np.int64))
    return RoundTrip(**found)


def about_round_trip(found: RoundTrip, what: str, *, flag: str, has_rates: bool) -> str:
    """Returns a message on the texts that labels write otherwise; empty if there are none.

    Args:
        flag: Text before the name of a normaliser, such as a flag.
        has_rates: Whether error rates are computed on the set. The lowest ones are then named.
    """
    if not found.texts:
        return ""
    are = "is" if found.texts == 1 else "are"
    first = f"{found.texts:,} of {counted(found.num_texts, f'{what} text')} {are} not what the labels write"
    if has_rates:
        first += f"; {lowest_rates(found.wer, found.cer)}"
    elif found.missing.parts:
        first += "; utterances with parts without a label are rejected, or trained with the unknown label"
    else:
        first += "; the model learns what the labels write"
    return "\n".join([first, *found.lines(), f"  {remedy(found.normaliser, flag)}"])


def lowest_rates(wer: float | None, cer: float | None) -> str:
    """Returns a clause with the rates of a model that predicts every label correctly."""
    word, character = ("undefined" if rate is None else f"{100 * rate:.2f} %" for rate in (wer, cer))
    return f"even if every label is right, WER is {word} and CER {character}"


def remedy(normaliser: str, flag: str) -> str:
    """Returns a sentence on how labels write the texts as they are: with a normaliser, or without one."""
    if normaliser:
        return f"{flag} {normaliser} ends this: the labels then write all texts that were tried"
    return (
        "no normaliser ends this without a loss of letters or digits: write the texts as the labels write them, or "
        "train a tokenizer on texts like these"
    )


def compared(text: str, tokenizer: Tokenizer, scoring: str) -> tuple[str, str]:
    """Returns the normalised reference, and the normalised output of a model without errors.

    The text is encoded with and without the scoring normaliser; the result that is closer to the reference counts.
    """
    reference = normalise(text, scoring)
    if scoring == tokenizer.normaliser:
        written = tokenizer.written(reference)
        return reference, written if written == reference else normalise(written, scoring)
    both = (tokenizer.written(normalise(each, tokenizer.normaliser)) for each in (text, reference))
    scored = dict.fromkeys(normalise(each, scoring) for each in both)
    return reference, min(scored, key=lambda each: count_errors([reference], [each])[0, 4:7].sum())


def changes(text: str, tokenizer: Tokenizer, scoring: str, pair: tuple[str, str]) -> Counter[PartKey]:
    """Counts the parts of a text that its labels write otherwise: characters or words, cases, or white space.

    Args:
        pair: Result of `compared`; the two differ.
    """
    found = Counter[PartKey]()
    for part, number in Counter(tokenizer.parts(normalise(text, tokenizer.normaliser))).items():
        written = part if part.isspace() else tokenizer.written_alone(part)
        if written != part and normalise(written, scoring) != normalise(part, scoring):
            found[_key(part, written)] += number
    if found:
        return found
    reference, written = pair
    if "".join(reference.split()) == "".join(written.split()):
        return Counter({(LABELS, SPACES, f"other {SPACES}"): 1})
    # No part alone is changed; the first words that differ are named.
    words = itertools.zip_longest(reference.split(), written.split(), fillvalue="")
    return Counter({(LABELS, *next(pair for pair in words if pair[0] != pair[1])): 1})


def _key(part: str, written: str) -> PartKey:
    if not written:
        return ABSENT, part, ""
    if part != part.lower() == written:
        return LABELS, CAPITALS, SMALL
    return (LABELS, SMALL, CAPITALS) if part != part.upper() == written else (LABELS, part, written)


def fitting_normaliser(texts: Sequence[str], tokenizer: Tokenizer, *, scoring: str = "", keeps: str = "") -> str:
    """Returns a normaliser under which labels write all texts; empty if none of the CANDIDATES is.

    Args:
        tokenizer: Tokenizer with the present normaliser of texts.
        scoring: Present normaliser of scoring, which is to be replaced. Empty: the tokenizer's is to be replaced.
        keeps: Normaliser whose letters, digits and symbols must not be lost. Empty: the present one.
    """
    own = scoring or tokenizer.normaliser
    behind = [f"{name}+{own}" for name in CANDIDATES] * (not scoring and own in NORMALISERS)
    for name in (*CANDIDATES, *behind):
        tried = tokenizer if scoring else replace(tokenizer, normaliser=name)
        with suppress(UserError):  # its library is not installed
            if name != own and all(_fits(text, tried, name, keeps or own) for text in texts):
                return name
    return ""


def _fits(text: str, tokenizer: Tokenizer, name: str, keeps: str) -> bool:
    reference, written = compared(text, tokenizer, name)
    return (
        reference == written
        and num_letters(reference) >= num_letters(normalise(text, keeps))
        and lost_characters(text, name) <= lost_characters(text, keeps)
    )


def _count(
    utterances: Utterances, tokenizer: Tokenizer, scoring: str, rows: Int[np.ndarray, " R"], *, has_rates: bool
) -> RoundTrip:
    columns = utterances.columns
    work = functools.partial(_of_rows, columns, tokenizer, scoring or tokenizer.normaliser, has_rates, rows)
    counted_parts = in_parts(work, len(rows), "round trip", are_cached=utterances.folder is not None)
    counts, changed = PartCounts(), np.concatenate([each.changed for each in counted_parts])
    for each in counted_parts:
        counts.merge(each.parts)
    edits = np.sum([each.edits for each in counted_parts], axis=0).tolist()
    words, characters = ErrorCounts(*edits[:4]), ErrorCounts(*edits[4:])
    normaliser = ""
    if len(changed):
        tried = [*_some(changed), *_some(np.setdiff1d(rows, changed))]
        normaliser = fitting_normaliser([columns.texts.text(row) for row in tried], tokenizer, scoring=scoring)
    return RoundTrip(
        parts=counts.parts(utterances, MOST_PARTS),
        texts=len(changed),
        wer=words.rate if words.words else None,
        cer=characters.rate if characters.words else None,
        normaliser=normaliser,
    )


def _of_rows(
    columns: Columns, tokenizer: Tokenizer, scoring: str, has_rates: bool, rows: Int[np.ndarray, " R"], part: range
) -> _Counted:
    counts, changed, pairs = PartCounts(), list[int](), list[tuple[str, str]]()
    for row, text in texts_of_rows(columns.texts, rows[part.start : part.stop]):
        pair = compared(text, tokenizer, scoring)
        pairs.append(pair)
        if pair[0] != pair[1]:
            changed.append(row)
            counts.add(changes(text, tokenizer, scoring, pair), row)
    references, written = zip(*pairs, strict=True) if has_rates else ((), ())
    return _Counted(counts, np.array(changed, rows.dtype), count_errors(references, written).sum(axis=0))


def _some(rows: Int[np.ndarray, " R"]) -> list[int]:
    """Returns at most TRIED of the rows, spread evenly."""
    found: list[int] = rows[:: -(-len(rows) // TRIED) or 1].tolist()
    return found
