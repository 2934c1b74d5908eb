"""Settings and host stage that the beam searches of all heads share: fusion, re-ranking, and checks of their words."""

import hashlib
import json
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from asr_jax.core.devices import local_devices
from asr_jax.core.errors import UserError
from asr_jax.core.names import counted
from asr_jax.core.paths import digest_of
from asr_jax.core.settings import settings
from asr_jax.core.timed_tokens import TimedTokens, TokenSequence
from asr_jax.search.base import GreedyOrBeam, HostStage, StreamSearch
from asr_jax.search.hypotheses import Hypothesis
from asr_jax.search.language_model import model_words
from asr_jax.search.rerank import Reranking
from asr_jax.search.word_scores import Fusion, WordScores
from asr_jax.text.normalise import normalise
from asr_jax.text.segmentation import may_follow
from asr_jax.text.spelling import Spelling
from asr_jax.text.tokenizers import Tokenizer

WRITABLE = 0.1
"""Minimum share of a language model's words that the recogniser can write; below, the model is refused."""
TRIED = 10_000
"""Maximum number of a language model's words that are checked."""


@settings
class BeamDecoding(GreedyOrBeam):
    """Settings of greedy search or beam search. Subclasses have the settings of the beam search in `search`."""

    fusion: Fusion = Fusion()
    """Language model, hot words and lexicon in the beam search (shallow fusion)."""
    reranking: Reranking = Reranking()
    """Language model that re-ranks the n-best lists of the beam search."""

    def problems(self) -> Iterator[str]:
        used = [name for name in ("fusion", "reranking") if getattr(self, name) != type(getattr(self, name))()]
        if self.kind == "greedy" and used:
            yield f"kind is 'greedy' and {used[0]} is set: expected kind 'beam', since greedy search does not use it"
        if self.reranking.kenlm and (self.fusion.kenlm or self.fusion.hot_words):
            yield (
                f"reranking.kenlm is {self.reranking.kenlm!r}, which replaces the scores that fusion.kenlm and "
                "fusion.hot_words add: expected one of them only"
            )

    def _fused(self) -> Iterator[str]:
        """Yields descriptions of fusion and re-ranking, for the name."""
        if self.fusion.kenlm:
            yield f"{self.fusion.kenlm} × {self.fusion.lm_weight:g} fused"
        if self.fusion.lexicon:
            yield f"words of {self.fusion.lexicon}"
        if self.fusion.hot_words:
            yield counted(len(self.fusion.hot_words), "hot word")
        if self.reranking.kenlm:
            yield f"{self.reranking.kenlm} × {self.reranking.lm_weight:g} re-ranked"

    def digest(self) -> str:
        """Returns a text that is equal if the best texts are: without `num_best`, and with files by their content."""
        if self.kind == "greedy":
            return "greedy"
        settings = asdict(self)
        del settings["search"]["num_best"]
        files = [settings["fusion"].pop(name) for name in ("kenlm", "known_words", "lexicon")]
        files = [file for file in (*files, settings["reranking"].pop("kenlm")) if file]
        made_of = [settings, [(os.path.basename(file), digest_of(file)) for file in files]]
        return "beam-" + hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]


class BeamStage(HostStage):
    """Base class of the stages of beam searches, with language model, hot words, lexicon and re-ranking."""

    search: Callable[[Any], list[list[Hypothesis]]]
    """The search, for outputs of `Head.search`, which have `values` and `lengths`."""
    search_streams: Callable[[int], "BeamStreams"]
    """Returns the same search for a number of streams."""

    def __init__(self, settings: BeamDecoding, tokenizer: Tokenizer, *, num_shares: int = 1) -> None:
        """Reads and checks the files of fusion and re-ranking.

        Args:
            settings: Settings with kind `beam`.
            tokenizer: Tokenizer of the head's labels.
            num_shares: Number of processes that share the rows of a batch.

        Raises:
            UserError: If a file cannot be read or does not fit the vocabulary, or if word boundaries depend on two
                labels and words are needed.
        """
        self.spelling = Spelling.of(tokenizer)
        self.scores = settings.fusion.build()
        if self.spelling.is_of_parts and (self.scores or settings.reranking.kenlm):
            raise UserError(
                "the vocabulary has word boundaries that depend on two labels, which beam search does not support with "
                "fusion or re-ranking: leave them out"
            )
        if self.scores and self.scores.model and settings.fusion.unit == "words":
            check_letters(self.spelling)
        if self.scores and settings.fusion.unit == "labels":
            check_symbols(settings.fusion.kenlm, self.scores.known, self.spelling)
        elif self.scores:
            check_spelling(self.scores, self.spelling, tokenizer.normaliser)
            check_words(settings.fusion.kenlm, self.scores.known, self.spelling, tokenizer.normaliser)
        self._rerank, self._num_shares = settings.reranking.build(), num_shares
        if path := settings.reranking.kenlm:
            check_words(path, model_words(path), self.spelling, tokenizer.normaliser)
        self._one_at_a_time = threading.Lock()

    def share(
        self, values: Float[Array, "B T V"], lengths: Int[np.ndarray, " B"], rows: Sequence[int]
    ) -> tuple[Float[Array, "S T V"], Int[np.ndarray, " S"], Sequence[int]]:
        """Selects this process's rows, padded with empty rows to the size of a share.

        A share has a constant size, for which one program is compiled. With one share, all rows are selected.

        Args:
            values: Frames of all rows.
            lengths: Number of valid frames of all rows.
            rows: Numbers of this process's rows.

        Returns:
            Frames, lengths, and the positions of `rows` in them.
        """
        if self._num_shares == 1:
            return values, lengths, rows
        chosen = np.zeros(-(-len(lengths) // self._num_shares), np.int32)
        chosen[: len(rows)] = rows
        is_there = np.arange(len(chosen)) < len(rows)
        values = jnp.take(jax.device_put(values, local_devices()[0]), chosen, axis=0)
        return values, np.where(is_there, lengths[chosen], 0), range(len(rows))

    def prepare(self, given: Any) -> None:
        self._searched(jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), given), [])

    def __call__(self, given: Any, rows: Sequence[int]) -> TimedTokens:
        found = self._searched(jax.tree.map(lambda array: array.addressable_data(0), given), rows)
        lists = [self._rerank(hypotheses) if self._rerank else hypotheses for hypotheses in found]
        return TimedTokens.of([[hypothesis.sequence for hypothesis in hypotheses] for hypotheses in lists])

    def streams(self, num_rows: int) -> "BeamStreams":
        """Returns the search of streams. Their final lists are re-ranked.

        Raises:
            UserError: If the search cannot continue over windows of a stream.
        """
        found = self.search_streams(num_rows)
        found.rerank = self._rerank
        return found

    def _searched(self, given: Any, rows: Sequence[int]) -> list[list[Hypothesis]]:
        """Returns the n-best lists of some rows."""
        values, lengths, places = self.share(given.values, np.asarray(given.lengths), rows)
        with self._one_at_a_time:
            found = self.search(given.replace(values=values, lengths=jnp.asarray(lengths)))
        return [found[place] for place in places]


class BeamStreams(StreamSearch):
    """Base class of beam searches of streams."""

    rerank: Callable[[Sequence[Hypothesis]], Sequence[Hypothesis]] | None = None
    """Re-ranks final lists. None: they are not re-ranked."""

    def n_best(self, row: int) -> list[Hypothesis]:
        """Returns the n-best list of the utterance of a row so far, best first."""
        raise NotImplementedError

    def hypotheses(self, row: int) -> list[TokenSequence]:
        return [hypothesis.sequence for hypothesis in self.n_best(row)]

    def final(self, row: int) -> list[TokenSequence]:
        found = self.n_best(row)
        return [hypothesis.sequence for hypothesis in (self.rerank(found) if self.rerank else found)]


def check_streams(search: Any) -> None:
    """Checks that a search can continue over windows of a stream.

    Args:
        search: Search with `scores_on_host`.

    Raises:
        UserError: If a language model is fused: the host would look up its scores between the steps.
    """
    if search.scores_on_host:
        raise UserError(
            "fusion.kenlm is set, which the beam search of streams does not support: leave it out, or use "
            "reranking.kenlm, which re-ranks the n-best list of each utterance"
        )


def num_common(sequences: Sequence[Sequence[Any]]) -> int:
    """Returns the number of first elements that all sequences share; 0 if there is no sequence."""
    return sum(1 for _ in takewhile(lambda elements: len(set(elements)) == 1, zip(*sequences, strict=False)))


def check_letters(spelling: Spelling) -> None:
    """Checks that words of a language model do not end within a label.

    Raises:
        UserError: If a label has several letters of a script without spaces.
    """
    found = [
        text for text in spelling.texts if any(may_follow(text[:place], text[place]) for place in range(1, len(text)))
    ]
    if found:
        raise UserError(
            f"labels such as {', '.join(found[:5])} have several letters of a script without spaces, in which words "
            "of a language model may end; the beam search does not support that: re-rank with the language model "
            "(--decoding.reranking.kenlm), or train with --data.tokenizer.kind characters or mixed"
        )


def check_spelling(scores: WordScores, spelling: Spelling, normaliser: str) -> None:
    """Checks hot words and lexicon, and warns of words of the lexicon that the vocabulary cannot spell.

    Args:
        scores: Hot words and lexicon.
        normaliser: Name of the normaliser of the training texts, for the message.

    Raises:
        UserError: If the vocabulary cannot spell one of the hot words, or can spell no word of the lexicon.
    """
    advice = f"write them as in the training texts, which were normalised by {normaliser}"
    if lost := sorted(word for word in scores.hot_words if not spelling.can_spell(word)):
        files = [word for word in lost if Path(word).is_file()]
        if files:
            advice = f"{files[0]} is a file, which is not read: expected the words themselves, as in anna:8 otto"
        raise UserError(f"hot words that the vocabulary cannot spell: {', '.join(lost[:5])}; {advice}")
    lost = sorted(word for word in scores.lexicon if not spelling.can_spell(word))
    message = f"{len(lost)} of {len(scores.lexicon)} words of the lexicon cannot be spelt by the vocabulary"
    if lost and len(lost) == len(scores.lexicon):
        raise UserError(f"{message}, {', '.join(lost[:5])} …; {advice}")
    if lost:
        print(f"{message}: {', '.join(lost[:5])} …; {advice}", file=sys.stderr)


def check_words(path: str, words: Collection[str] | None, spelling: Spelling, normaliser: str) -> None:
    """Checks that a language model has words that the recogniser can write, such as words of the same case.

    A word can be written if the normaliser leaves it unchanged and the vocabulary can spell it. Up to TRIED words are
    checked. Warns if more than a tenth of them cannot be written.

    Args:
        path: Path of the language model, for the message.
        words: Words of the language model. None or empty if they are not known.
        normaliser: Name of the normaliser of the training texts.

    Raises:
        UserError: If less than a share of WRITABLE can be written.
    """
    if not words:
        return
    tried = sorted(words)[:: -(-len(words) // TRIED)]
    lost = [word for word in tried if normalise(word, normaliser) != word or not spelling.can_spell(word)]
    if 10 * len(lost) <= len(tried):
        return
    drawn = " that were tried" if len(tried) < len(words) else ""
    message = (
        f"{len(tried) - len(lost):,} of {len(tried):,} words{drawn} of {path} can be written by this recogniser, whose "
        f"texts are normalised by {normaliser}; it cannot write {', '.join(lost[:5])}"
    )
    if len(tried) - len(lost) < WRITABLE * len(tried):
        raise UserError(f"{message}: train the language model on texts that passed {normaliser}, or convert its words")
    print(f"warning: {message}", file=sys.stderr)


def check_symbols(path: str, known: Collection[str] | None, spelling: Spelling) -> None:
    """Checks that the units of a language model of labels are labels of the recogniser.

    Args:
        path: Path of the language model, for the message.
        known: Units of the language model. None or empty if they are not known.

    Raises:
        UserError: If less than a share of WRITABLE are labels.
    """
    if not known:
        return
    lost = sorted(set(known) - set(spelling.symbols))
    if len(known) - len(lost) < WRITABLE * len(known):
        examples = ", ".join(sorted(set(spelling.symbols) - {""})[:5])
        raise UserError(
            f"{len(known) - len(lost):,} of {len(known):,} units of {path} are labels of this recogniser; others are "
            f"{', '.join(lost[:5])}: expected labels such as {examples}; train the language model on texts of labels, "
            "or leave out --decoding.fusion.unit labels for a language model of words"
        )
