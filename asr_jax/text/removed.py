"""Characters of a text that a normaliser removes or replaces.

A character is removed if the normalised text is the same without it. A letter is replaced if other letters stand for it
in the normalised text: `o` for `ö`. Another case of the letter (`SS` for `ß`) and Unicode's compatible forms (`fi` for
`ﬁ`) do not count, and characters that are spelled out (`5` as `five`) are neither removed nor replaced. Spaces do not
count. Invisible characters are removed by every normaliser.
"""

import functools
import unicodedata
from collections import Counter

from asr_jax.text.invisible import invisible_characters, visible
from asr_jax.text.normalise import normalise

SPOKEN = frozenset("%&@#§‰*/\\")
"""Characters that Unicode classifies as punctuation, but that are read aloud."""


def is_spoken(character: str) -> bool:
    """Whether a character is a letter, mark, digit or symbol, or punctuation that is read aloud, such as `%`."""
    return unicodedata.category(character)[0] in "LMNS" or character in SPOKEN


@functools.cache
def may_be_removed(character: str, normaliser: str) -> bool:
    """Whether a normaliser returns no character for one that is not a space or a control character."""
    return unicodedata.category(character)[0] not in "ZC" and not normalise(character, normaliser).strip()


@functools.cache
def depends_on_context(character: str, normaliser: str) -> bool:
    """Whether a normaliser removes a character alone, such as an apostrophe, and not within a word."""
    is_kept = normalise(f"a{character}a", normaliser).replace(" ", "") != "aa"
    return is_kept and may_be_removed(character, normaliser)


def removed_characters(text: str, normaliser: str) -> Counter[str]:
    """Counts the characters of a text, in Unicode NFC, that a normaliser removes.

    For example, `english_letters.v1` removes `ö` from `köln`. `english.v1` does not remove `$` from `$5`, because the
    result is `five dollars`.
    """
    text = unicodedata.normalize("NFC", text)
    removed, text = invisible_characters(text), visible(text)
    suspects = [character for character in dict.fromkeys(text) if may_be_removed(character, normaliser)]
    if not suspects:
        return removed
    whole = normalise(text, normaliser)
    for character in suspects:
        if whole in (normalise(text.replace(character, other), normaliser) for other in (" ", "")):
            removed[character] = text.count(character)
    return removed


@functools.cache
def replacement_of(character: str, normaliser: str) -> str:
    """Returns the letters that a normaliser writes for a letter. Empty if the letter is kept or removed."""
    if character.isascii() or unicodedata.category(character)[0] != "L":
        return ""
    kept = {
        unicodedata.normalize("NFC", cased)
        for form in (character, unicodedata.normalize("NFKC", character))
        for cased in (form, form.lower(), form.upper())
    }
    normalised = normalise(f"x{character}x", normaliser)[1:-1].strip()  # alone, Whisper's normaliser reads ö as 0
    return "" if normalised in kept or not any(map(str.isalpha, normalised)) else normalised


def replaced_characters(text: str, normaliser: str) -> Counter[str]:
    """Counts the letters of a text, in Unicode NFC, that a normaliser replaces by others.

    For example, `ascii.v1` writes `o` for `ö`, and `Privet` for `Привет`.
    """
    counts = Counter(unicodedata.normalize("NFC", text))
    return Counter({each: number for each, number in counts.items() if replacement_of(each, normaliser)})


def lost_characters(text: str, normaliser: str) -> set[str]:
    """Returns the characters of a text that are spoken and that a normaliser removes, or replaces by other letters."""
    removed = filter(is_spoken, removed_characters(text, normaliser))
    return {*removed, *replaced_characters(text, normaliser)}


def num_letters(text: str) -> int:
    """Number of letters and digits of a text in Unicode NFKC, in which equivalent texts have equal numbers."""
    return sum(map(str.isalnum, unicodedata.normalize("NFKC", text)))


def name_of(part: str) -> str:
    """Unicode name of a character, such as `LATIN SMALL LETTER U WITH DIAERESIS`. Empty for words and unnamed ones."""
    return unicodedata.name(part, "") if len(part) == 1 else ""
