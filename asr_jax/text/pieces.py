"""Training of SentencePiece models, and the list of a model's pieces."""

import io
import re
from collections.abc import Sequence
from typing import Any

from sentencepiece import SentencePieceProcessor, SentencePieceTrainer, set_random_generator_seed

from asr_jax.core.errors import UserError


def train_model(texts: Sequence[str], *, vocab_size: int, with_blank: bool, **options: Any) -> bytes:
    """Trains a SentencePiece model. The same texts in the same order result in the same bytes.

    Args:
        vocab_size: Number of pieces, plus one if `with_blank`.
        with_blank: Whether `vocab_size` includes the blank, which is not a piece.
        **options: Options of SentencePiece's trainer.

    Returns:
        The serialised model.

    Raises:
        UserError: If SentencePiece cannot train the model; the message contains the possible vocabulary size.
    """
    model = io.BytesIO()
    set_random_generator_seed(0)  # for the choice of texts, if only some of them are used
    try:
        SentencePieceTrainer.train(
            sentence_iterator=iter(texts),
            model_writer=model,
            vocab_size=vocab_size - with_blank,
            num_threads=4,  # constant on all machines, because the order of sums and thus the pieces depend on it
            minloglevel=2,
            **options,
        )
    except (RuntimeError, OSError) as error:
        raise UserError(_refusal(str(error), len(texts), vocab_size, with_blank)) from error
    return model.getvalue()


def _refusal(reason: str, num_texts: int, vocab_size: int, with_blank: bool) -> str:
    message = f"SentencePiece cannot train a vocabulary of {vocab_size} on {num_texts} texts"
    if most := re.search(r"size too high .*<= (\d+)", reason):
        return f"{message}: the texts have too few pieces; expected at most {int(most[1]) + with_blank}, or more texts"
    if least := re.search(r"smaller than required_chars. \d+ vs (\d+)", reason):
        return (
            f"{message}: the texts have more characters; expected at least {int(least[1]) + with_blank}, or a lower "
            "character coverage"
        )
    return f"{message}: {reason}"


def vocabulary_file(model: bytes) -> str:
    """Returns a model's pieces in SentencePiece's .vocab format: lines of `piece⇥score` in the order of their ids."""
    processor = SentencePieceProcessor(model_proto=model)
    ids = range(processor.get_piece_size())
    return "".join(f"{processor.id_to_piece(i)}\t{processor.get_score(i):g}\n" for i in ids)
