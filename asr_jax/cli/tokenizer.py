"""Trains a SentencePiece model on the texts of any data: `python -m asr_jax.tokenizer --input IN [--input IN …]`.

Writes OUTPUT_DIR/PREFIX.model and .vocab, then loads the model like training and checks that texts are restored from
their token ids. To train a run with it, pass `--data.tokenizer.path OUTPUT_DIR/PREFIX.model` and the same normaliser.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import UseAppendAction, arg

from asr_jax.core.options import parse
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import NonNegativeInt, PositiveInt, between, command_options
from asr_jax.text.normalise import CHOICES

NUM_TRIED = 200
"""Number of texts that are encoded and decoded as a check."""
NUM_SHOWN = 10
SPECIALS = ("unk", "bos", "eos", "pad")
OURS = (
    "input",
    "output_dir",
    "model_prefix",
    "normaliser",
    "vocab_size",
    "keep_corpus",
    "corpus_output",
    "sentencepiece_command",
)
"""Options that are not options of SentencePiece."""


@command_options
class TokenizerOptions:
    """Options of `asr_jax.tokenizer`."""

    input: Annotated[UseAppendAction[tuple[UserPath, ...]], arg(metavar="IN")]
    """File, folder or pattern of any supported format, or a .txt file with one text per line. Can be repeated."""
    output_dir: Path = Path("tokenizer")
    """Folder to write to."""
    model_prefix: str = "tokenizer"
    """Name of the files, without their endings."""
    normaliser: Annotated[str, arg(metavar=CHOICES)] = "lower.v1"
    """Normaliser of the texts, as data.tokenizer.normaliser; scoring uses the same one."""
    sentencepiece_command: Annotated[str | None, arg(metavar="COMMAND")] = None
    """Ignored, since SentencePiece is used as a library; accepted for scripts that pass it."""
    vocab_size: PositiveInt = 5000
    """Number of pieces, without the blank. data.tokenizer.vocab_size counts the blank, and is one more."""
    model_type: Literal["unigram", "bpe", "char", "word"] = "unigram"
    """Type of the SentencePiece model."""
    character_coverage: Annotated[float, between(0.98, 1)] = 0.9995
    """Share of all characters that have pieces, from 0.98 to 1: SentencePiece's own limits."""
    input_sentence_size: int = 0
    """Maximum number of texts to train on; 0: all."""
    shuffle_input_sentence: bool = False
    """Select these texts at random instead of from the beginning."""
    train_extremely_large_corpus: bool = False
    """Needed by old versions of SentencePiece for gigabytes of text."""
    max_sentence_length: Annotated[int, between(10)] = 4192
    """Maximum length of a text in bytes; longer texts are rejected."""
    user_defined_symbols: Annotated[str, arg(metavar="A,B")] = ""
    """Pieces that are never split."""
    control_symbols: Annotated[str, arg(metavar="A,B")] = ""
    """Pieces that are reserved and never produced by encoding."""
    byte_fallback: bool = False
    """Encode characters without a piece as bytes."""
    normalization_rule_name: Literal["nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"] = "nmt_nfkc"
    """SentencePiece's own normalisation, applied after the normaliser."""
    unk_id: NonNegativeInt = 0
    """Id of <unk>, the piece of characters without one."""
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
    """Write the normalised texts to PREFIX.corpus.txt."""
    corpus_output: Path | None = None
    """File to write the normalised texts to."""

    def problems(self) -> Iterator[str]:
        if self.input_sentence_size and self.input_sentence_size <= 100:
            yield f"input_sentence_size is {self.input_sentence_size}: expected 0, or more than 100"
        ids = [number for name in SPECIALS if (number := getattr(self, f"{name}_id")) >= 0]
        if len(set(ids)) != len(ids) or max(ids) >= self.vocab_size:
            yield f"ids {ids} of unk, bos, eos and pad: expected each once, all below vocab_size, {self.vocab_size}"


def main(arguments: Sequence[str]) -> None:
    options = parse(TokenizerOptions, arguments, prog="python -m asr_jax.tokenizer", about=__doc__)
    from asr_jax.core.files import check_no_input, write_whole
    from asr_jax.text.normalise import check_normaliser
    from asr_jax.text.pieces import train_model, vocabulary_file

    check_normaliser(options.normaliser)
    texts = _texts(options)
    check_no_input("--corpus-output", options.corpus_output, options.input)
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
    """Normalised texts that are not too long."""
    from asr_jax.data.manifests.texts import normalised_texts

    texts, limit = normalised_texts(options.input, options.normaliser), options.max_sentence_length
    if long := sum(len(text.encode()) > limit for text in texts):
        print(f"{long} of {len(texts)} texts are rejected: they have more than --max-sentence-length {limit} bytes")
    return texts


def _training(options: TokenizerOptions) -> dict[str, Any]:
    """Options for SentencePiece, with its names.

    Flags that are not set are omitted, since newer versions warn of a flag that they no longer need.
    """
    given = {name: value for name, value in asdict(options).items() if name not in OURS and value is not False}
    listed = {name: given[name].split(",") for name in ("user_defined_symbols", "control_symbols")}
    return given | {name: [symbol for symbol in symbols if symbol] for name, symbols in listed.items()}


def _report(path: Path, texts: Sequence[str], *, normaliser: str, vocab_size: int) -> None:
    """Loads the model like training and prints its vocabulary and the result of encoding and decoding some texts."""
    from asr_jax.text.sentencepiece import SentencePieceTokenizer
    from asr_jax.text.tokenizers import TokenizerSettings, given_tokenizer

    tokenizer = given_tokenizer(TokenizerSettings(path=str(path), normaliser=normaliser))
    assert isinstance(tokenizer, SentencePieceTokenizer)  # the only kind of tokenizer in .model files
    size, blank = tokenizer.vocab_size, tokenizer.blank_id
    fewer = f"; --vocab-size is {vocab_size} pieces" if size - 1 < vocab_size and blank == size - 1 else ""
    print(f"{path} and .vocab: a vocabulary of {size} labels, including the blank ({blank}){fewer}")
    tried = texts[:: max(len(texts) // NUM_TRIED, 1)][:NUM_TRIED]
    changed = [text for text in tried if tokenizer.written(text) != text]
    unknown = {text: tokenizer.without_label(text) for text in changed}
    print(f"{len(tried) - len(changed)} of {len(tried)} checked texts are restored from their token ids")
    if missing := sorted(set().union(*unknown.values())):
        print(f"some contain parts without a piece, such as {', '.join(map(repr, missing[:NUM_SHOWN]))}")
    if text := next((text for text in changed if not unknown[text]), ""):
        print(
            f"{text[:100]!r} is restored as {tokenizer.written(text)[:100]!r}, and each difference counts as an error: "
            "choose another --normaliser or --normalization-rule-name (identity changes nothing)"
        )
    print(f"to train with it: --data.tokenizer.path {path} --data.tokenizer.normaliser {normaliser}")
