"""SentencePiece models: how they are trained, and the list of their pieces."""

import io
import re
from collections.abc import Sequence
from typing import Any

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer, set_random_generator_seed

from asr_jax.core.errors import UserError


def train_model(texts: Sequence[str], *, vocab_size: int, with_blank: bool, **options: Any) -> bytes:
    """A serialised model; the same texts in the same order give the same bytes.

    `with_blank`: whether `vocab_size` counts the blank, which is no piece. `options`: SentencePiece's, by its names.

    Raises: UserError where SentencePiece refuses, with the size that it would take.
    """
    model = io.BytesIO()
    set_random_generator_seed(0)  # draws the texts where it trains on some of them
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=vocab_size - with_blank,
            num_threads=4,  # the sums' order, thus the pieces, depend on it: not on the machine
            minloglevel=2,
            **options,
        )
    except (RuntimeError, OSError) as error:
        raise UserError(_refusal(str(error), len(texts), vocab_size, with_blank)) from error
    return model.getvalue()


def _refusal(reason: str, num_texts: int, vocab_size: int, with_blank: bool) -> str:
    said = f"SentencePiece cannot make a vocabulary of {vocab_size} from {num_texts} texts"
    if most := re.search(r"size too high .*<= (\d+)", reason):
        return f"{said}: they have too few pieces; expected at most {int(most[1]) + with_blank}, or more texts"
    if least := re.search(r"smaller than required_chars. \d+ vs (\d+)", reason):
        return (
            f"{said}: their characters alone take more; expected at least {int(least[1]) + with_blank}, or a lower "
            "character coverage"
        )
    return f"{said}: {reason}"


def vocabulary_file(model: bytes) -> str:
    """A model's pieces as SentencePiece lists them in a .vocab: `piece⇥score` in the order of their ids."""
    processor = SentencePieceProcessor(model_proto=model)
    ids = range(processor.get_piece_size())
    return "".join(f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n" for i in ids)
