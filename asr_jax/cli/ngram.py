"""Estimates an n-gram language model from texts: `python -m asr_jax.ngram --input IN … --output lm.arpa`.

Smoothing is interpolated modified Kneser-Ney. KenLM's lmplz without pruning gives the same probabilities. To decode
with the model, pass `--decoding.fusion.kenlm lm.arpa --decoding.fusion.lm-weight 0.5` and a run of the same normaliser.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from tyro.conf import UseAppendAction, arg

from asr_jax.core.options import parse
from asr_jax.core.paths import UserPath
from asr_jax.core.settings import between, command_options
from asr_jax.text.normalise import CHOICES


@command_options
class NgramOptions:
    """Options of `asr_jax.ngram`."""

    input: Annotated[UseAppendAction[tuple[UserPath, ...]], arg(metavar="IN")]
    """File, folder or pattern of any supported format, or a .txt file with one text per line. Can be repeated."""
    output: Path
    """ARPA file to write."""
    order: Annotated[int, between(1, 6)] = 3
    """Number of words of the longest n-grams, from 1 to 6."""
    normaliser: Annotated[str, arg(metavar=CHOICES)] = "lower.v1"
    """Normaliser of the texts, as data.tokenizer.normaliser of the run."""


def main(arguments: Sequence[str]) -> None:
    options = parse(NgramOptions, arguments, prog="python -m asr_jax.ngram", about=__doc__)
    from asr_jax.core.files import check_no_input, write_whole
    from asr_jax.data.manifests.texts import normalised_texts
    from asr_jax.search.ngrams import arpa, estimate
    from asr_jax.text.normalise import check_normaliser
    from asr_jax.text.segmentation import words_of

    check_normaliser(options.normaliser)
    check_no_input("--output", options.output, options.input)
    texts = [words_of(text) for text in normalised_texts(options.input, options.normaliser)]
    model = estimate(texts, options.order)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    write_whole(options.output, arpa(model))
    numbers = ", ".join(f"{len(ngrams):,} {n}-grams" for n, ngrams in enumerate(model, 1))
    print(f"{options.output}: {numbers} of {sum(map(len, texts)):,} words in {len(texts):,} texts")
    print(f"to decode with it: --decoding.fusion.kenlm {options.output} --decoding.fusion.lm-weight 0.5")
