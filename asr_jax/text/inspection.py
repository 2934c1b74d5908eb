"""Inspection of the texts of a corpus: its scripts, characters and case, and texts that look wrong."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import regex

from asr_jax.text.invisible import invisible_characters
from asr_jax.text.normalise import APOSTROPHES
from asr_jax.text.segmentation import has_unspaced, words_of

MIXED = ("LATIN", "CYRILLIC", "GREEK")
"""Scripts with letters that look alike."""
MAIN_SHARE = 0.03
"""Least share of all letters at which a script is one of the corpus."""
MOST_CAPITALS = 0.5
"""Largest share of texts in capitals at which they are unlike the others."""
MARKUP = re.compile(r"<[^<>]*>|\[[^\[\]]*\]|\{[^{}]*\}|\([^()]*\)|&[a-z]+;|https?:|@@|▁|\|")
FULL_WIDTH = re.compile("[\uff10-\uff19\uff21-\uff3a\uff41-\uff5a\uff66-\uffdc]")
DIGITS = re.compile(r"\d")
PUNCTUATION = regex.compile(r"^\W+|\W+$")
"""Punctuation before and after the letters, marks and digits of a word."""
LETTERS = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Finding:
    """Something that a person should know about a corpus."""

    kind: str
    """Short name, such as `no_letters`, for programs."""
    number: int
    """Number of utterances or files that it concerns. 0: all."""
    message: str
    """Description of what was found, and advice after a semicolon, without the number and the examples."""
    examples: tuple[str, ...] = ()
    """Utterances, characters or files that it concerns, the first ones."""
    is_wrong: bool = True
    """Whether it is likely to be a mistake. Otherwise it is worth knowing."""

    @property
    def line(self) -> str:
        more = " …" if self.number > len(self.examples) else ""
        examples = f" ({'; '.join(self.examples)}{more})" if self.examples else ""
        what, _, advice = self.message.partition("; ")
        number = f": {self.number:,}" if self.number else ""
        return f"{what}{number}{examples}" + (f"; {advice}" if advice else "")


@dataclass(frozen=True)
class Texts:
    """Common properties of the texts of a corpus."""

    characters: Counter[str]
    """Occurrences of each character."""
    scripts: tuple[str, ...]
    """Scripts of the corpus, such as `LATIN` and `HAN` (with kana), most frequent first."""
    words: Counter[str]
    """Occurrences of each word, in lower case and without punctuation around it."""
    has_capitals: bool
    """Whether some texts have both capital and small letters."""
    has_punctuation: bool
    """Whether texts have punctuation besides apostrophes."""
    without_spaces: bool
    """Whether most words are in a script without spaces between words, as in Mandarin, also if the texts have some."""
    without_letters: tuple[int, ...]
    """Places of the texts that have no letter and no digit."""
    findings: tuple[Finding, ...]

    @property
    def is_english(self) -> bool:
        """Whether the texts are Latin, and at least one of a hundred words is `the`."""
        return self.scripts == ("LATIN",) and 100 * self.words["the"] >= max(self.words.total(), 1)


@cache
def script_of(character: str) -> str:
    """Script of a letter, from its Unicode name; `HAN` includes kana. Empty for others and for modifier letters."""
    if unicodedata.category(character) not in ("Lu", "Ll", "Lt", "Lo"):
        return ""
    name = unicodedata.name(character, "").removeprefix("FULLWIDTH ").removeprefix("HALFWIDTH ")
    script = name.partition(" ")[0]
    return {"CJK": "HAN", "HIRAGANA": "HAN", "KATAKANA": "HAN", "MICRO": "", "FEMININE": "", "MASCULINE": ""}.get(
        script, script
    )


def inspect_texts(texts: Sequence[str], ids: Sequence[str]) -> Texts:
    """Inspects texts as they are in manifests, before any normaliser.

    Args:
        ids: Ids of the utterances, for examples.
    """
    characters, words = Counter("".join(texts)), Counter[str]()
    for word, number in Counter(word for text in texts for word in words_of(text.lower())).items():
        words[PUNCTUATION.sub("", word)] += number
    del words[""]
    by_script = Counter[str]()
    for character, number in characters.items():
        by_script[script_of(character)] += number
    del by_script[""]
    main = [name for name, number in by_script.most_common() if number >= MAIN_SHARE * by_script.total()]
    without = [place for place, text in enumerate(texts) if not any(map(str.isalnum, text))]
    findings = [*_of_texts(texts, ids, main, without), *_of_characters(characters, texts, main)]
    return Texts(
        characters,
        tuple(main),
        words,
        has_capitals=any(map(_is_mixed, texts)),
        has_punctuation=any(unicodedata.category(each)[0] == "P" and each != "'" for each in characters),
        without_spaces=2 * sum(number for word, number in words.items() if has_unspaced(word)) > words.total(),
        without_letters=tuple(without),
        findings=tuple(findings),
    )


def _of_texts(
    texts: Sequence[str], ids: Sequence[str], main: Sequence[str], without: Sequence[int]
) -> Iterator[Finding]:
    """Yields findings about texts, with three examples of each kind.

    Args:
        main: Scripts that most texts are in.
        without: Places of the texts without letters and digits.
    """

    def about(kind: str, places: Sequence[int], message: str, *, is_wrong: bool = True) -> Iterator[Finding]:
        if places:
            shown = [(place, mixed_word(texts[place]) * (kind == "mixed_scripts")) for place in places[:3]]
            examples = tuple(f"{ids[place]} {word or repr(texts[place][:60])}" for place, word in shown)
            yield Finding(kind, len(places), message, examples, is_wrong)

    def those(check: Callable[[str], object]) -> list[int]:
        return [place for place, text in enumerate(texts) if check(text)]

    def of_other_script(text: str) -> bool:
        is_other = any(script and script not in main for script in map(script_of, set(text)))
        return is_other and not mixed_word(text)

    empty = [place for place in without if not texts[place].strip()]
    yield from about("no_text", empty, "empty texts; they are left out")
    only_punctuation = [place for place in without if texts[place].strip()]
    yield from about("no_letters", only_punctuation, "texts of punctuation alone; they are left out")
    message = "texts with words of letters of several scripts that look alike; write each word in one script"
    yield from about("mixed_scripts", those(mixed_word), message)
    message = f"texts with letters of other scripts than {', '.join(map(str.title, main))}; each becomes a label"
    yield from about("other_script", those(of_other_script), message, is_wrong="HAN" not in main)
    message = "texts with brackets or markup; the model would learn them as speech"
    yield from about("markup", those(MARKUP.search), message)
    capitals = those(lambda text: len(words := LETTERS.findall(text)) > 1 and all(map(str.isupper, "".join(words))))
    if len(capitals) < MOST_CAPITALS * len(texts):
        yield from about("capitals", capitals, "texts in capitals, unlike the others", is_wrong=False)
    message = "texts with full-width or half-width letters or digits; they become plain ones"
    yield from about("full_width", those(FULL_WIDTH.search), message, is_wrong=False)
    if main:
        message = "texts with digits; spell them out as they are spoken"
        yield from about("digits", those(DIGITS.search), message, is_wrong=False)
    yield from about("invisible", those(invisible_characters), "texts with invisible characters; they are removed")


def _of_characters(characters: Counter[str], texts: Sequence[str], main: Sequence[str]) -> Iterator[Finding]:
    """Yields findings about characters that occur once, and about several kinds of apostrophes."""
    in_lower_case = Counter("".join(texts).lower())
    once = sorted(each for each, number in in_lower_case.items() if number == 1 and each.isalnum())
    if once and len(main) and not {"HAN", "HANGUL"} & {*main} and characters.total() > 1000:
        which = tuple(f"{each} ({unicodedata.name(each, 'no name')})" for each in once[:5])
        yield Finding("rare_characters", len(once), "characters that occur once; each becomes a label", which)
    apostrophes = [each for each in characters if each == "'" or APOSTROPHES.match(each)]
    if len(apostrophes) > 1:
        which = tuple(f"{each} {characters[each]:,} times" for each in apostrophes)
        yield Finding("apostrophes", len(apostrophes), "kinds of apostrophes", which, is_wrong=False)


def mixed_word(text: str) -> str:
    """First word with letters of two of the scripts `MIXED`, and its letters of the rarer one. Empty: there is none.

    A Latin `i` in a Ukrainian word is shown as `'кiшки' (Latin i)`.
    """
    for word in LETTERS.findall("" if text.isascii() else text):
        scripts = Counter(script for script in map(script_of, word) if script in MIXED)
        if len(scripts) > 1:
            rare = min(scripts, key=scripts.__getitem__)
            return f"{word!r} ({rare.title()} {' '.join(each for each in word if script_of(each) == rare)})"
    return ""


def _is_mixed(text: str) -> bool:
    return any(map(str.isupper, text)) and any(map(str.islower, text))
