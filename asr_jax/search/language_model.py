"""N-gram language models with the KenLM library (extra `lm`), and word lists."""

import bz2
import gzip
import lzma
import mmap
import os
import re
import struct
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from asr_jax.core.errors import UserError
from asr_jax.core.installation import installing
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import Finite, settings
from asr_jax.core.text_files import TextError, read_lines
from asr_jax.text.invisible import visible
from asr_jax.text.segmentation import has_unspaced, may_follow, words_of

NOT_WORDS = {"<s>", "</s>", "<unk>"}
MOST_LETTERS = 32
"""Number of letters of the longest words that are looked for in texts without spaces."""
COMPRESSED: dict[bytes, Any] = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\0": lzma.open}
"""First bytes of the compressed files that KenLM reads, and functions that open them."""
MAGIC_BYTES = max(map(len, COMPRESSED))
UNIGRAMS_AT = 108
"""Position of the number of unigrams in KenLM's binary files (format version 5)."""


@settings
class LanguageModel:
    """Settings of an n-gram language model and its scores."""

    kenlm: UserPath = ""
    """Path of a KenLM n-gram model of words. Empty: none."""
    lm_weight: Finite = 0.5
    """Factor of the language model's natural log-probabilities (alpha)."""
    word_bonus: Finite = 0.0
    """Score added for each word if there is a language model (beta)."""
    bos: bool = True
    """Whether the language model's context begins with the start of the sentence."""
    eos: bool = True
    """Whether the language model scores the end of the sentence."""


def load_kenlm(path: str | Path) -> Any:
    """Loads a `kenlm.Model` from an ARPA file (also .gz, .bz2 or .xz) or a binary file.

    Raises:
        UserError: If the library or the file is missing, or KenLM cannot read the file.
    """
    try:
        import kenlm
    except ImportError as error:
        raise UserError(
            f"the language model {path} needs kenlm, which is not installed ({error}): {installing('lm')}, "
            "which builds it and needs a C++ compiler"
        ) from error
    if not Path(path).is_file():
        raise UserError(f"there is no language model {path}: expected a file that KenLM wrote, ARPA or binary")
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE  # no advice to use a binary file
    try:
        return kenlm.Model(os.fspath(path), config)
    except (OSError, UnicodeDecodeError) as error:
        message, fix = str(error), ""
        if isinstance(error, UnicodeDecodeError):  # the message repeats a line of the file
            message = error.object.decode(errors="backslashreplace")
        if message != str(error) or "\ufeff" in message:
            fix = "; save it as UTF-8 without a byte order mark"
        raise UserError(
            f"KenLM cannot read {path} ({_reason(message)}): expected an ARPA file, or one of build_binary{fix}"
        ) from error


def _reason(message: str) -> str:
    """Returns the last sentences of a message of KenLM, without the place in its source."""
    text = re.sub(r"^Cannot read model '.*?' \((.*)\)$", r"\1", message, flags=re.DOTALL)
    return re.sub(r"^.* threw \w+( because `.*')?\.\s+", "", text, flags=re.DOTALL)


def model_words(path: str | Path) -> frozenset[str] | None:
    """Returns the words of a language model that KenLM reads: of an ARPA file, also compressed, or of a binary file.

    The result is None, with a warning, for a binary file that was written without its words.

    Raises:
        UserError: If the words are not UTF-8, or there are none, or the file is damaged.
    """
    try:
        with _opened(path) as file:
            lines = (line for line in file if line.strip() and not line.startswith(b"#"))  # as KenLM skips them
            is_arpa = next(lines, b"").startswith(b"\\data\\")
            found = frozenset(_unigrams(file)) if is_arpa else _words_of_binary(path)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UserError(f"the words of {path} cannot be read ({error}): copy the file again") from error
    if found is None:
        print(
            f"warning: {path} is a binary model without its words, so that their case and characters are not checked, "
            "and every open word counts as unknown: list its words with fusion.known_words, or use the ARPA file",
            file=sys.stderr,
        )
        return None
    try:
        words = frozenset(word.decode() for word in found) - NOT_WORDS
    except UnicodeDecodeError:
        wrong = sorted(word for word in found if word.decode(errors="ignore").encode() != word)
        raise UserError(
            f"{len(wrong):,} of {len(found):,} words of {path} are not UTF-8, such as {wrong[0]!r}, and would never be "
            "found: convert the text of the language model with `iconv -f LATIN1 -t UTF-8` (or from its own encoding) "
            "and build it again; `iconv -f UTF-8 -t UTF-8 -c` removes single damaged characters"
        ) from None
    if not words:
        raise UserError(f"{path} has no unigrams: expected an ARPA file of a model of words")
    return words


def words_of_model(word: str, is_listed: Callable[[str], bool]) -> list[str]:
    """Returns the words that a language model or a list sees in a text between spaces.

    In scripts without spaces, these are the longest listed ones from the left, otherwise those of `text.segmentation`.

    Args:
        is_listed: Returns whether a word is in the language model or in the list.
    """
    if not has_unspaced(word):
        return [word]
    found = list[str]()
    while word:
        ends = range(min(len(word), MOST_LETTERS), 0, -1)
        seams = (end for end in ends if end == len(word) or may_follow(word[:end], word[end]))
        end = next((end for end in seams if is_listed(word[:end])), 0) or len(words_of(word)[0])
        found.append(word[:end])
        word = word[end:]
    return found


def listed_words(path: str | Path) -> frozenset[str]:
    """Returns the first field of each line of a file, as in a list of words or a lexicon with pronunciations.

    Lines that are empty or begin with `#`, invisible characters and a byte order mark do not count.

    Raises:
        UserError: If the file cannot be read or has no words.
    """
    try:
        lines = list(map(visible, read_lines(path)))
    except (OSError, TextError) as error:
        raise UserError(f"cannot read words from {path}: {error}; expected a word per line") from error
    words = frozenset(line.split()[0] for line in lines if line.strip() and not line.startswith("#"))
    if not words:
        raise UserError(f"{path} has no words: expected a word per line")
    return words


def _opened(path: str | Path) -> IO[bytes]:
    """Opens a file for reading; one that is compressed is decompressed, as KenLM does."""
    with open(path, "rb") as file:
        begin = file.read(MAGIC_BYTES)
    opener = next((opener for magic, opener in COMPRESSED.items() if begin.startswith(magic)), open)
    return opener(path, "rb")


def _unigrams(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Yields the words of an ARPA file, which end where KenLM ends them."""
    is_inside = False
    for line in lines:
        fields = re.split(rb"[\0\t\n\r ]+", line.rstrip(b"\r\n"))
        if fields[0].startswith(b"\\"):
            if is_inside:
                return
            is_inside = fields[0] == b"\\1-grams:"
        elif is_inside and len(fields) >= 2:
            yield fields[1]


def _words_of_binary(path: str | Path) -> frozenset[bytes] | None:
    """Returns the words at the end of a file of build_binary, where a zero byte ends each word.

    The first one is `<unk>`, which the number of unigrams in the header includes unless the ARPA file lacked it.
    """
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if len(content) < UNIGRAMS_AT + 8 or content[:8] != b"mmap lm ":
            return None
        (number,) = struct.unpack_from("<Q", content, UNIGRAMS_AT)
        start = len(content)
        while (start := content.rfind(b"<unk>\0", 0, start)) >= 0:
            words = content[start:].split(b"\0")[:-1]
            if len(words) in (number, number + 1):
                return frozenset(words)
    return None
