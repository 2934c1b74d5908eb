"""SentencePiece from the texts of any data: `python -m asr_jax.tokenizer --input IN [--input IN …]`.

Writes OUTPUT_DIR/PREFIX.model and .vocab, loads the model as training will, and tries some texts on it. A run trains
with it by `--data.tokenizer.path OUTPUT_DIR/PREFIX.model` and the same normaliser.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

from asr_jax.core.errors import UserError
from asr_jax.core.options import parse

NUM_TRIED = 200
"""Texts that go through the model and back."""
NUM_SHOWN = 10
SPECIALS = ("unk", "bos", "eos", "pad")
OURS = (
    "input", "output_dir", "model_prefix", "normaliser", "vocab_size", "keep_corpus", "corpus_output",
    "sentencepiece_command",
)  # fmt: skip
"""Options that SentencePiece does not have."""


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions:
    """Options of `asr_jax.tokenizer`."""

    input: Annotated[UseAppendAction[tuple[str, ...]], arg(metavar="IN")]
    """File, folder or pattern of any format that is read, or a .txt file with a text on each line. May be repeated."""
    output_dir: Path = Path("tokenizer")
    """Folder to write to."""
    model_prefix: str = "tokenizer"
    """Name of the files, without their endings."""
    normaliser: str = "lower.v1"
    """Normaliser of the texts, as data.tokenizer.normaliser; scoring uses no other."""
    sentencepiece_command: Annotated[str | None, arg(metavar="COMMAND")] = None
    """Ignored; accepted for scripts that name a program: SentencePiece is a library here."""
    vocab_size: int = 5000
    """Number of pieces; the blank is one more."""
    model_type: Literal["unigram", "bpe", "char", "word"] = "unigram"
    """Type of the pieces."""
    character_coverage: float = 0.9995
    """Share of all characters that get pieces."""
    input_sentence_size: int = 0
    """Train on at most this number of texts; 0: on all."""
    shuffle_input_sentence: bool = False
    """Draw these texts at random instead of from the beginning."""
    train_extremely_large_corpus: bool = False
    """For gigabytes of text and an old version of SentencePiece."""
    max_sentence_length: int = 4192
    """Texts with more bytes are left out."""
    user_defined_symbols: Annotated[str, arg(metavar="A,B")] = ""
    """Pieces that are never split."""
    control_symbols: Annotated[str, arg(metavar="A,B")] = ""
    """Pieces that no text encodes to."""
    byte_fallback: bool = False
    """Spell characters without a piece as bytes."""
    normalization_rule_name: Literal["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"] = "nmt_nfkc"
    """SentencePiece's own normalisation, applied after the normaliser."""
    unk_id: int = 0
    """Id of <unk>."""
    unk_piece: str = "<unk>"
    """Spelling of <unk>."""
    bos_id: int = 1
    """Id of <s>; -1: none."""
    bos_piece: str = "<s>"
    """Spelling of <s>."""
    eos_id: int = 2
    """Id of </s>; -1: none."""
    eos_piece: str = "</s>"
    """Spelling of </s>."""
    pad_id: int = -1
    """Id of <pad>; -1: none."""
    pad_piece: str = "<pad>"
    """Spelling of <pad>."""
    keep_corpus: bool = False
    """Keep the normalised texts in PREFIX.corpus.txt."""
    corpus_output: Path | None = None
    """File to keep the normalised texts in."""


def main(arguments: Sequence[str]) -> None:
    options = parse(TokenizerOptions, arguments, prog="python -m asr_jax.tokenizer", about=__doc__)
    _check(options)
    from asr_jax.core.files import write_whole
    from asr_jax.text.pieces import train_model, vocabulary_file

    texts = _texts(options)
    path = options.output_dir / f"{options.model_prefix}.model"
    path.parent.mkdir(parents=True, exist_ok=True)
    if options.keep_corpus or options.corpus_output:
        corpus = options.corpus_output or path.with_name(f"{options.model_prefix}.corpus.txt")
        corpus.parent.mkdir(parents=True, exist_ok=True)
        write_whole(corpus, "".join(f"{text}\n" for text in texts))
    model = train_model(texts, vocab_size=options.vocab_size, with_blank=False, **_training(options))
    write_whole(path.with_suffix(".vocab"), vocabulary_file(model))
    write_whole(path, model)
    _report(path, texts, normaliser=options.normaliser, vocab_size=options.vocab_size)


def _texts(options: TokenizerOptions) -> list[str]:
    """The normalised texts, each one line.

    Raises: UserError where there are none.
    """
    from asr_jax.data.manifests.texts import texts_of
    from asr_jax.text.normalise import normalise

    texts = [normalise(" ".join(text.splitlines()), options.normaliser) for text in texts_of(options.input)]
    texts = [text for text in texts if text.strip()]
    if not texts:
        raise UserError(f"{', '.join(options.input)}: no text; expected at least one that is not empty")
    limit = options.max_sentence_length
    if long := sum(len(text.encode()) > limit for text in texts):
        print(f"{long} of {len(texts)} texts are left out: they have more than --max-sentence-length {limit} bytes")
    return texts


def _check(options: TokenizerOptions) -> None:
    """Raises: UserError for what SentencePiece would refuse in its own words."""
    from asr_jax.text.normalise import NORMALISERS, unknown_normaliser

    if options.normaliser not in NORMALISERS:
        raise UserError(f"--normaliser: {unknown_normaliser(options.normaliser)}")
    ids = [number for name in SPECIALS if (number := getattr(options, f"{name}_id")) >= 0]
    wrong = {
        f"--vocab-size {options.vocab_size}: expected 1 or more": options.vocab_size < 1,
        f"--character-coverage {options.character_coverage}: expected 0.98 to 1":
            not 0.98 <= options.character_coverage <= 1,
        f"--input-sentence-size {options.input_sentence_size}: expected 0, or more than 100":
            options.input_sentence_size and options.input_sentence_size <= 100,
        f"--max-sentence-length {options.max_sentence_length}: expected 10 or more": options.max_sentence_length < 10,
        f"--unk-id {options.unk_id}: expected an id; characters without a piece become it": options.unk_id < 0,
        f"ids {ids} of unk, bos, eos and pad: expected each once, all below --vocab-size {options.vocab_size}":
            len(set(ids)) != len(ids) or max(ids, default=0) >= options.vocab_size,
    }  # fmt: skip
    if said := [message for message, is_wrong in wrong.items() if is_wrong]:
        raise UserError("\n".join(said))


def _training(options: TokenizerOptions) -> dict[str, Any]:
    """The options for SentencePiece, by its names. Flags that are not set are left out: newer versions warn of one that
    they no longer need.
    """
    given = {name: value for name, value in asdict(options).items() if name not in OURS and value is not False}
    listed = {name: given[name].split(",") for name in ("user_defined_symbols", "control_symbols")}
    return given | {name: [symbol for symbol in symbols if symbol] for name, symbols in listed.items()}


def _report(path: Path, texts: Sequence[str], *, normaliser: str, vocab_size: int) -> None:
    """Loads what was written as training will, and prints what it is and how some of the texts fare.

    Raises: RunError for a text that does not come back.
    """
    from asr_jax.text.sentencepiece import SentencePieceTokenizer
    from asr_jax.text.tokenizers import TokenizerSettings, given_tokenizer

    tokenizer = given_tokenizer(TokenizerSettings(path=str(path), normaliser=normaliser))
    assert isinstance(tokenizer, SentencePieceTokenizer)  # which is what a .model gives
    size, blank = tokenizer.vocab_size, tokenizer.blank_id
    fewer = f"; --vocab-size asked for {vocab_size} pieces" if size - 1 < vocab_size and blank == size - 1 else ""
    print(f"{path} and .vocab: a vocabulary of {size}, the blank ({blank}) among them{fewer}")
    tried = texts[:: max(len(texts) // NUM_TRIED, 1)][:NUM_TRIED]
    unknown = [found for text in tried if (found := tokenizer.without_piece(text))]
    print(f"{len(tried) - len(unknown)} of {len(tried)} texts that were tried come back from their ids")
    if missing := sorted(set().union(*unknown)):
        print(f"the others have parts without a piece, such as {', '.join(map(repr, missing[:NUM_SHOWN]))}")
    print(f"train with --data.tokenizer.path {path} --data.tokenizer.normaliser {normaliser}")
