"""N-gram language models with the KenLM library (extra `lm`), and word lists."""

import gzip
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asr_jax.core.errors import UserError
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import Finite, settings

NOT_WORDS = {"<s>", "</s>", "<unk>"}


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
    """Loads a `kenlm.Model` from an ARPA file (also .gz) or a binary file.

    Raises:
        UserError: If the library or the file is missing, or KenLM cannot read the file.
    """
    try:
        import kenlm
    except ImportError as error:
        raise UserError(
            f"the language model {path} needs kenlm, which is not installed ({error}): pip install 'asr-jax[lm]', "
            "which builds it and needs a C++ compiler"
        ) from error
    if not Path(path).is_file():
        raise UserError(f"there is no language model {path}: expected a file that KenLM wrote, ARPA or binary")
    config = kenlm.Config()
    config.show_progress = False
    config.arpa_complain = kenlm.ARPALoadComplain.NONE  # no advice to use a binary file
    try:
        return kenlm.Model(os.fspath(path), config)
    except OSError as error:
        raise UserError(
            f"KenLM cannot read {path} ({_reason(str(error))}): expected an ARPA file, or one of build_binary"
        ) from error


def _reason(message: str) -> str:
    """Returns the last sentences of a message of KenLM, without the place in its source."""
    text = re.sub(r"^Cannot read model '.*?' \((.*)\)$", r"\1", message, flags=re.DOTALL)
    return re.sub(r"^.* threw \w+( because `.*')?\.\s+", "", text, flags=re.DOTALL)


def arpa_words(path: str | Path) -> frozenset[str] | None:
    """Returns the words of an ARPA file; None for a binary file, which does not list them.

    Raises:
        UserError: If an ARPA file has no words.
    """
    with open(path, "rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    with gzip.open(path, "rb") if compressed else open(path, "rb") as file:
        if not next((line for line in file if line.strip()), b"").startswith(b"\\data\\"):
            return None
        words = frozenset(_unigrams(file)) - NOT_WORDS
    if not words:
        raise UserError(f"{path} has no unigrams: expected an ARPA file of a model of words")
    return words


def listed_words(path: str | Path) -> frozenset[str]:
    """Returns the first field of each line of a file.

    Raises:
        UserError: If the file cannot be read or is empty.
    """
    try:
        words = frozenset(line.split()[0] for line in Path(path).read_text("utf-8").splitlines() if line.strip())
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read words from {path} ({error}): expected UTF-8 text with a word per line") from error
    if not words:
        raise UserError(f"{path} is empty: expected a word per line")
    return words


def _unigrams(lines: Any) -> Iterator[str]:
    is_inside = False
    for line in lines:
        fields = line.split()
        if len(fields) == 1 and fields[0].startswith(b"\\"):
            if is_inside:
                return
            is_inside = fields[0] == b"\\1-grams:"
        elif is_inside and len(fields) >= 2:
            yield fields[1].decode()
