"""Removal of invisible characters, which are neither spoken nor seen.

Invisible are the characters of Unicode's categories Cf (format) and Cc (control) except for white space: the zero width
space, the soft hyphen, marks of direction, the byte order mark and others. They are kept where they carry meaning:

- U+200C and U+200D (joiners) between letters of scripts that they change, such as Persian and the scripts of India, and
  U+200D in emoji of several parts.
- U+180E (the vowel separator) between Mongolian letters, and tags in emoji of flags.
- Signs that are visible although their category is Cf, such as Arabic number signs, and the controls of hieroglyphs.
"""

import re
from collections import Counter

JOINED = (
    "\u0590-\u0dff\u0f00-\u109f\u1700-\u18af\u1900-\u1cff\ua800-\uabff\ufb1d-\ufdff\ufe70-\ufefc"
    "\U00010800-\U00011fff\U0001e900-\U0001e95f"
)
"""Ranges of letters that joiners change: scripts from right to left, of India, of Southeast Asia, and Mongolian."""
EMOJI = "\u2190-\u2bff\u3030\u303d\u3297\u3299\ufe0f\U0001f000-\U0001faff"
KEPT_TAGS = "\U0001f3f4[\U000e0020-\U000e007e]+\U000e007f"
KEPT_SEPARATOR = "(?<=[\u1820-\u18aa])\u180e(?=[\u1820-\u18aa])"
NEVER_SEEN = (
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e007f]"
)
UNSEEN = re.compile(f"({KEPT_TAGS}|{KEPT_SEPARATOR})|{NEVER_SEEN}")
JOINERS = re.compile("[\u200c\u200d]+")
BESIDE_ONE = re.compile(f"(?<=[{JOINED}])\u200d|(?<=[{EMOJI}])\u200d(?=[{EMOJI}])")
"""U+200D where it carries meaning: behind a letter, because it forms letters of Malayalam at the end of a word."""
BETWEEN = re.compile(rf"(?<=[{JOINED}])\u200c(?=\S)|(?<=\S)\u200c(?=[{JOINED}])")
"""U+200C where it carries meaning: within a word, beside a letter."""


def visible(text: str) -> str:
    """Returns a text without invisible characters. Words are not split where one was."""
    if text.isprintable():  # most texts: they have no characters of the categories Cf and Cc
        return text
    text = UNSEEN.sub(lambda found: found[1] or "", text)
    return JOINERS.sub(_kept_joiner, text)


def invisible_characters(text: str) -> Counter[str]:
    """Counts the characters that `visible` removes."""
    return Counter() if text.isprintable() else Counter(text) - Counter(visible(text))


def _kept_joiner(run: re.Match[str]) -> str:
    """Returns the first joiner of a run that carries meaning between the characters beside the run."""
    before, after = run.string[run.start() - 1 : run.start()], run.string[run.end() : run.end() + 1]
    return next(
        (each for each in run[0] if any(kept.search(before + each + after) for kept in (BESIDE_ONE, BETWEEN))), ""
    )
