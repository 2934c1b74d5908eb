"""SentencePiece from the texts of any data: `python -m asr_jax.tokenizer --input IN [--input IN …]`.

Writes OUTPUT_DIR/PREFIX.model and .vocab, loads the model as training will, and tries some texts on it. A run trains
with it by `--data.tokenizer.path OUTPUT_DIR/PREFIX.model` and the same normaliser.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr_jax.core.errors import UserError

NUM_TRIED = 200
"""Texts that go through the model and back."""
NUM_SHOWN = 10
RULES = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")
SPECIALS = (("unk", 0, "<unk>"), ("bos", 1, "<s>"), ("eos", 2, "</s>"), ("pad", -1, "<pad>"))


def main(arguments: Sequence[str]) -> None:
    options = _parser().parse_args(arguments)
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


def _texts(options: argparse.Namespace) -> list[str]:
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m asr_jax.tokenizer", description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    # fmt: off
    add("--input", action="append", required=True, metavar="IN",
        help="file, folder or pattern of any format that is read, or a .txt with a text on each line; may be repeated")
    add("--output-dir", type=Path, default=Path("tokenizer"), help="where the files go")
    add("--model-prefix", default="tokenizer", help="how the files are named")
    add("--normaliser", default="lower.v1", help="of the texts, as data.tokenizer.normaliser; scoring knows no other")
    add("--sentencepiece-command", metavar="COMMAND", help="taken for the sake of scripts: it is a library here")
    add("--vocab-size", type=int, default=5000, help="pieces; the blank is one more")
    add("--model-type", choices=("unigram", "bpe", "char", "word"), default="unigram", help="what pieces are")
    add("--character-coverage", type=float, default=0.9995, help="share of all characters that get pieces")
    add("--input-sentence-size", type=int, default=0, help="train on at most so many texts; 0: on all")
    add("--shuffle-input-sentence", action="store_true", help="draw these at random, not from the beginning")
    add("--train-extremely-large-corpus", action="store_true", help="for gigabytes of text, where SentencePiece is old")
    add("--max-sentence-length", type=int, default=4192, help="bytes; longer texts are left out")
    add("--user-defined-symbols", type=_listed, default=[], metavar="A,B", help="pieces that are never split")
    add("--control-symbols", type=_listed, default=[], metavar="A,B", help="pieces that no text encodes to")
    add("--byte-fallback", action="store_true", help="spell characters without a piece as bytes")
    add("--normalization-rule-name", choices=RULES, default=RULES[0], help="SentencePiece's own, after the normaliser")
    for name, number, piece in SPECIALS:
        add(f"--{name}-id", type=int, default=number, help=f"id of {piece}" + (", -1 for none" if number else ""))
        add(f"--{name}-piece", default=piece, help="how it is written")
    add("--keep-corpus", action="store_true", help="keep the normalised texts in PREFIX.corpus.txt")
    add("--corpus-output", type=Path, help="keep them in this file")
    # fmt: on
    return parser


def _listed(value: str) -> list[str]:
    return [symbol for symbol in value.split(",") if symbol]


def _check(options: argparse.Namespace) -> None:
    """Raises: UserError for what SentencePiece would refuse in its own words."""
    from asr_jax.text.normalise import NORMALISERS, unknown_normaliser

    if options.normaliser not in NORMALISERS:
        raise UserError(f"--normaliser: {unknown_normaliser(options.normaliser)}")
    ids = [number for name, _, _ in SPECIALS if (number := getattr(options, f"{name}_id")) >= 0]
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


def _training(options: argparse.Namespace) -> dict[str, Any]:
    """SentencePiece's options, which have the names of ours. A flag that is not set is left out: newer versions warn of
    one that they no longer need."""
    ours = (
        "input",
        "output_dir",
        "model_prefix",
        "normaliser",
        "vocab_size",
        "keep_corpus",
        "corpus_output",
        "sentencepiece_command",
    )
    return {name: value for name, value in vars(options).items() if name not in ours and value is not False}


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
