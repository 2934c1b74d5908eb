"""Text normalisers, the same in training and in scoring.

Invisible characters are removed before every normaliser, also before none. The result of a normaliser's name never
changes; changes get a new version number. Normalisers are idempotent, because scoring normalises recognised text, which
is already normalised. The versions of libraries that normalisers depend on are pinned in the extra `text`.
"""

import re
import unicodedata
from collections.abc import Callable
from functools import partial
from urllib.parse import unquote

import regex

from asr_jax.core.errors import UserError, nearest
from asr_jax.text.english import english_v1
from asr_jax.text.invisible import visible
from asr_jax.text.libraries import library
from asr_jax.text.whisper import whisper_basic_v1, whisper_english_v1


def _cased(text: str, case: Callable[[str], str]) -> str:
    """Unicode NFC, lower or upper case (ß becomes SS), single spaces."""
    text = case(unicodedata.normalize("NFC", text))
    return " ".join(unicodedata.normalize("NFC", text).split())  # lower case can decompose characters, such as İ


def _english_letters_v1(text: str) -> str:
    """Lower case; a to z, the apostrophe (’ becomes ') and single spaces; any other character becomes a space."""
    text = unicodedata.normalize("NFC", text).lower().replace("’", "'")
    return " ".join(re.sub("[^a-z']", " ", text).split())


def _words_v1(text: str) -> str:
    """Lower case in Unicode NFKC, in which full-width letters are plain ones, without punctuation, single spaces.

    Kept are letters, marks, digits, symbols, punctuation that is read aloud, and apostrophes between letters, all as
    `'`. Spaces between Han characters and kana are removed.
    """
    text = unicodedata.normalize("NFKC", APOSTROPHES.sub("'", text)).lower()
    text = APOSTROPHES.sub("'", unicodedata.normalize("NFKC", text))  # NFKC writes one for ŉ
    text = " ".join(NOT_OF_WORDS.sub(" ", text).split())
    return WITHIN_HAN.sub("", text)


def _no_tags_v1(text: str) -> str:
    """Unicode NFC without tags in angle brackets, such as `<silence>`, as CAIMAN-ASR's remove_tags; single spaces."""
    text = unicodedata.normalize("NFC", text)
    while (left := TAG.sub("", text)) != text:  # in <a<b>c>, another tag remains
        text = left
    return " ".join(text.split())


def _replaced(text: str, pair: str) -> str:
    """Unicode NFC, in which NEW replaces OLD; the pair is `OLD=NEW`, in which %2B is +, %3D is = and %25 is %."""
    old, _, new = (unicodedata.normalize("NFC", unquote(part)) for part in pair.partition("="))
    return unicodedata.normalize("NFC", text).replace(old, new)


def _ascii_v1(text: str) -> str:
    """All scripts transliterated to ASCII (`Привет` to `Privet`, `你好` to `NiHao`), case unchanged, single spaces."""
    text = unicodedata.normalize("NFC", text)
    return " ".join(library("anyascii", normaliser="ascii.v1").anyascii(text).split())


TAG = re.compile("<[a-zA-Z_]+>")
REPLACE = "replace:"
"""Start of a normaliser's name that has a pair `OLD=NEW`."""
APOSTROPHES = re.compile("[’‘ʼ＇`´′]")
NOT_OF_WORDS = regex.compile(r"[^\p{L}\p{M}\p{N}\p{S}%&@#§‰*/\\']|(?<![\p{L}\p{M}])'+|'+(?![\p{L}\p{M}])")
WITHIN_HAN = regex.compile(r"(?<=[\p{Han}\p{Hiragana}\p{Katakana}ー]) (?=[\p{Han}\p{Hiragana}\p{Katakana}])")
NORMALISERS: dict[str, Callable[[str], str]] = {
    "none": str,
    "lower.v1": partial(_cased, case=str.lower),
    "upper.v1": partial(_cased, case=str.upper),
    "words.v1": _words_v1,
    "no_tags.v1": _no_tags_v1,
    "ascii.v1": _ascii_v1,
    "english_letters.v1": _english_letters_v1,
    "english.v1": english_v1,
    "whisper_basic.v1": whisper_basic_v1,
    "whisper_english.v1": whisper_english_v1,
}


CHOICES = f"{{{','.join(NORMALISERS)}}}"
"""The names, for help texts of options."""


def normalise(text: str, name: str) -> str:
    """Removes invisible characters from a text and normalises it.

    Args:
        name: Name of a normaliser, or names joined by `+`, which are applied in this order. `replace:OLD=NEW` replaces
            a text.

    Raises:
        UserError: If a name is unknown or a normaliser's library is not installed.
    """
    text = visible(text)
    for part in name.split("+"):
        if part not in NORMALISERS and unknown_normaliser(part):
            raise UserError(unknown_normaliser(name))
        change = NORMALISERS.get(part) or partial(_replaced, pair=part.removeprefix(REPLACE))
        text = change(text)
        while (seen := visible(text)) != text:  # a joiner whose letters or emoji were removed
            text = change(seen)
    return text


def unknown_normaliser(name: str) -> str:
    """Returns the error message for a name that `normalise` does not take. Empty: it takes the name."""
    unknown = next((part for part in name.split("+") if part not in NORMALISERS and not _is_pair(part)), None)
    if unknown is None:
        return ""
    expected = f"expected one of {', '.join(NORMALISERS)}, {REPLACE}OLD=NEW without OLD in NEW, or several joined by +"
    return f"unknown normaliser {unknown!r}; {expected}{nearest(unknown, NORMALISERS)}"


def _is_pair(part: str) -> bool:
    """Whether a name is that of a replacement. With OLD in NEW, a second normalisation would change the text again."""
    old, equals, new = part.removeprefix(REPLACE).partition("=")
    return part.startswith(REPLACE) and bool(equals and old) and unquote(old) not in unquote(new)


def check_normaliser(name: str) -> None:
    """Checks the value of the option --normaliser; empty is allowed.

    Raises:
        UserError: If `normalise` does not take it.
    """
    if name and (unknown := unknown_normaliser(name)):
        raise UserError(f"--normaliser: {unknown}")
