"""The normaliser of spoken English: spelled-out texts, and that the result has only letters."""

import random
import re

import pytest

from asr_jax.text.normalise import normalise

SPOKEN = {
    "Mr. & Mrs. Smith": "mister and missus smith",
    "St. James Co. Ltd., Dr. Who": "saint james company limited doctor who",
    "He came first. The coast.": "he came first the coast",
    "A&B C+D 5%": "a and b c plus d five percent",
    "It’s 5 o'clock — 'tis": "it's five o'clock 'tis",
    "rock ' roll '' '": "rock roll",
    "Ørsted’s naïve CAFÉ": "orsted's naive cafe",
    "twenty-one": "twenty one",
    "0 7 12 100 345 1000": "zero seven twelve one hundred three hundred forty five one thousand",
    "12,345 1,000,000": "twelve thousand three hundred forty five one million",
    "1984 1905 1900 2000 2005 2024": "nineteen eighty four nineteen oh five nineteen hundred two thousand two thousand "
    "five twenty twenty four",
    "1,984": "one thousand nine hundred eighty four",
    "the 1980s, 1980's, 6s, 20s": "the nineteen eighties nineteen eighties sixes twenties",
    "1st 2nd 3rd 12th 21st 100th": "first second third twelfth twenty first one hundredth",
    "3.14 0.5 1,000.05": "three point one four zero point five one thousand point zero five",
    "007": "zero zero seven",
    "5551234567 1000000000": "five five five one two three four five six seven one billion",
    "3:05 10:00 12:30": "three oh five ten twelve thirty",
    "$1 $2 £1,234 €5": "one dollar two dollars one thousand two hundred thirty four pounds five euros",
    "$3.50 $0.05 £1.01 $2.00": "three dollars fifty cents five cents one pound one penny two dollars",
    "$20 million $2.5 billion $1.5": "twenty million dollars two point five billion dollars one point five dollars",
    "b2b 2x4": "b two b two x four",
    "١٢٣ ②": "one hundred twenty three two",
    "Привет 你好": "privet nihao",
    "": "",
    " -- ": "",
}


@pytest.mark.parametrize("text", SPOKEN)
def test_is_written_out(text):
    assert normalise(text, "english.v1") == SPOKEN[text]


def test_numbers_without_a_name_are_spelled_digit_by_digit():
    assert normalise("1" + "0" * 36, "english.v1") == " ".join(["one", *["zero"] * 36])
    assert normalise("9" * 40 + "th", "english.v1").endswith("nine ninth")


def test_nothing_but_letters_apostrophes_and_single_spaces_is_left():
    draw = random.Random(9)
    letters = "abc XYZ'’.,:;$£€%&+0123456789-/\\()\x00\x7féß你Ж١½😀\u0301"
    for _ in range(1000):
        text = "".join(draw.choice(letters) for _ in range(draw.randint(0, 20)))
        assert re.fullmatch(r"([a-z']+( [a-z']+)*)?", normalise(text, "english.v1")), text
