"""The normaliser of spoken English: a to z, apostrophes, single spaces; numbers and abbreviations are spelled out.

It does the same as QuartzNet's `english_cleaners` (ASCII, lower case, numbers, abbreviations, & and +, no punctuation),
with the same library for numbers. Differs from them: % is spelled out, cents are exact, 1,234 is never read as a year,
`£` and `€` are kept in the conversion to ASCII, `mrs` is `missus`, and apostrophes that are not next to a letter are
removed.
"""

import functools
import re
import unicodedata
from collections.abc import Callable
from typing import Any

from asr_jax.text.libraries import library

NAME = "english.v1"
ABBREVIATIONS = {
    "mrs": "missus",
    "mr": "mister",
    "dr": "doctor",
    "drs": "doctors",
    "st": "saint",
    "co": "company",
    "jr": "junior",
    "maj": "major",
    "gen": "general",
    "rev": "reverend",
    "lt": "lieutenant",
    "hon": "honorable",
    "sgt": "sergeant",
    "capt": "captain",
    "esq": "esquire",
    "ltd": "limited",
    "col": "colonel",
    "ft": "fort",
}
"""Words of abbreviations, which are replaced only if a full stop follows."""
SYMBOLS = {"&": "and", "+": "plus", "%": "percent"}
MONEY = {"$": ("dollar", "cent", "cents"), "£": ("pound", "penny", "pence"), "€": ("euro", "cent", "cents")}
NUMBER = r"([0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"


def english_v1(text: str) -> str:
    """Normalises an English text to its spoken form."""
    text = unicodedata.normalize("NFC", text)
    text = re.sub(r"[^\x00-\x7f£€]+", lambda found: library("anyascii", normaliser=NAME).anyascii(found[0]), text)
    text = text.lower()
    for pattern, spoken in SPOKEN:
        text = re.sub(pattern, lambda found, spoken=spoken: f" {spoken(found)} ", text)  # type: ignore[misc]
    text = re.sub(r"[^a-z']", " ", text)
    return " ".join(re.sub(r"(?<![a-z])'+(?![a-z])", " ", text).split())


def _money(found: re.Match[str]) -> str:
    unit, small, smalls = MONEY[found[1]]
    whole, part, magnitude = found[2], found[3] or "", found[4]
    if magnitude:
        return f"{_decimal(whole, part)} {magnitude} {unit}s"
    if len(part) != len(".00"):
        return f"{_decimal(whole, part)} {unit}{'' if whole == '1' and not part else 's'}"
    units = f"{_cardinal(whole)} {unit}{'' if whole == '1' else 's'}"
    cents = f"{_words(part[1:])} {small if part == '.01' else smalls}"
    if part == ".00":
        return units
    return f"{units} {cents}" if whole.strip("0,") else cents


def _time(found: re.Match[str]) -> str:
    hour, minute = found[1].lstrip("0") or "0", found[2]
    spoken = "" if minute == "00" else f"oh {_words(minute[1])}" if minute[0] == "0" else _words(minute)
    return f"{_words(hour)} {spoken}"


def _ordinal(found: re.Match[str]) -> str:
    return _words(found[1].replace(",", "") + found[2])


def _decimal(whole: str, part: str) -> str:
    """Spells out a decimal number; `part` is empty or `.` and digits, which are spelled one by one."""
    return f"{_cardinal(whole)} point {_one_by_one(part[1:])}" if part else _cardinal(whole)


def _plural(found: re.Match[str]) -> str:
    words = _year(found[1])
    return words[:-1] + "ies" if words.endswith("y") else words + ("es" if words.endswith("x") else "s")


def _year(digits: str) -> str:
    """Spells out a number: as a year if it has no commas and is from 1001 to 2999, otherwise as a cardinal number."""
    if not re.fullmatch("[12][0-9]{3}", digits) or digits == "1000":
        return _cardinal(digits)
    century, rest = digits[:2], digits[2:]
    if digits.startswith("200"):
        return _words(digits)
    return f"{_words(century)} {'hundred' if rest == '00' else ('oh ' if rest[0] == '0' else '') + _words(rest)}"


def _cardinal(digits: str) -> str:
    """Spells out a cardinal number.

    Digits are spelled one by one if the number is probably an identifier: with a leading zero (007), or with ten or
    more digits without commas that do not end in 000.
    """
    plain = digits.replace(",", "")
    is_name = (len(plain) > 1 and plain[0] == "0") or (len(digits) > 9 and plain == digits and plain[-3:] != "000")
    return _one_by_one(plain) if is_name else _words(plain)


def _one_by_one(digits: str) -> str:
    return _engine().number_to_words(digits, group=1, comma="")


def _words(number: str) -> str:
    try:
        return _engine().number_to_words(number, andword="", comma="")
    except library("inflect", normaliser=NAME).NumOutOfRangeError:
        return _one_by_one(number)


@functools.cache
def _engine() -> Any:
    return library("inflect", normaliser=NAME).engine()


# The order matters: text that one pattern has spelled out has no digits left for the next patterns.
SPOKEN: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (rf"([$£€]) ?{NUMBER}(\.[0-9]+)?(?: (hundred|thousand|million|billion|trillion)\b)?", _money),
    (r"(?<![0-9])([0-9]{1,2}):([0-5][0-9])(?![0-9])", _time),
    (rf"{NUMBER}(st|nd|rd|th)\b", _ordinal),
    (rf"{NUMBER}(\.[0-9]+)", lambda found: _decimal(found[1], found[2])),
    (rf"{NUMBER}'?s\b", _plural),
    (NUMBER, lambda found: _year(found[1])),
    (rf"\b({'|'.join(ABBREVIATIONS)})\.", lambda found: ABBREVIATIONS[found[1]]),
    (r"[&+%]", lambda found: SYMBOLS[found[0]]),
)
