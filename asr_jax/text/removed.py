"""Characters of a text that a normaliser removes, and characters or words that have no label.

A character is removed if the normalised text is the same without it. Characters that are converted (`ß` to `SS`, `5` to
`five`) are not removed. Spaces and control characters do not count.
"""

import functools
import unicodedata
from collections import Counter

from asr_jax.text.normalise import normalise

PUNCTUATION = "P"
SPOKEN = frozenset("%&@#§‰*/\\")
"""Characters that Unicode classifies as punctuation, but that are read aloud."""


def is_spoken(character: str) -> bool:
    """Whether a character is a letter, mark, digit or symbol, or punctuation that is read aloud, such as `%`."""
    return unicodedata.category(character)[0] in "LMNS" or character in SPOKEN


@functools.cache
def may_be_removed(character: str, normaliser: str) -> bool:
    """Whether a normaliser returns no character for one that is not a space or a control character."""
    return unicodedata.category(character)[0] not in "ZC" and not normalise(character, normaliser).strip()


def removed_characters(text: str, normaliser: str) -> Counter[str]:
    """Counts the characters of a text, in Unicode NFC, that a normaliser removes.

    For example, `english_letters.v1` removes `ö` from `köln`. `english.v1` does not remove `$` from `$5`, because the
    result is `five dollars`.

    Args:
        text: The text as in the manifest.
        normaliser: Name in NORMALISERS.

    Returns:
        Number of occurrences of each removed character.
    """
    text = unicodedata.normalize("NFC", text)
    removed = Counter[str]()
    suspects = [character for character in dict.fromkeys(text) if may_be_removed(character, normaliser)]
    if not suspects:
        return removed
    whole = normalise(text, normaliser)
    for character in suspects:
        if whole in (normalise(text.replace(character, other), normaliser) for other in (" ", "")):
            removed[character] = text.count(character)
    return removed


def name_of(part: str) -> str:
    """Unicode name of a character, such as `LATIN SMALL LETTER U WITH DIAERESIS`. Empty for words and unnamed ones."""
    return unicodedata.name(part, "") if len(part) == 1 else ""
