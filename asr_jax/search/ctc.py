"""From the CTC output of a batch to texts: which search, what is fused with it, and the two halves of the work."""

import hashlib
import json
import math
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from asr_jax.core.batch import Frames
from asr_jax.core.errors import UserError
from asr_jax.core.frame_times import FrameTimes
from asr_jax.metrics.confidence import Calibration
from asr_jax.search.ctc_beam import CTCBeamSearch
from asr_jax.search.ctc_greedy import best_path, greedy_hypothesis
from asr_jax.search.hypotheses import Hypothesis, Search
from asr_jax.search.rerank import Reranking
from asr_jax.search.word_scores import Fusion, WordScores
from asr_jax.text.spelling import Spelling
from asr_jax.text.tokenizers import Tokenizer
from asr_jax.transcripts.transcript import Alternative, Transcript, Word


@dataclass(frozen=True)
class Decoding:
    """How texts are found in the output of a CTC head."""

    kind: Literal["greedy", "beam"] = "greedy"
    """greedy: the likeliest symbol of each frame; beam: prefix beam search, n-best, with what is fused."""
    search: Search = Search()
    """Of the beam search."""
    fusion: Fusion = Fusion()
    """Language model, hot words and lexicon within the beam search."""
    reranking: Reranking = Reranking()
    """A language model that puts the n-best list in another order."""

    def __post_init__(self) -> None:
        used = [name for name in ("fusion", "reranking") if getattr(self, name) != type(getattr(self, name))()]
        if self.kind == "greedy" and used:
            raise ValueError(f"kind is 'greedy' and {used[0]} is set: expected kind 'beam', which alone uses it")
        if self.fusion.unit == "labels":
            raise ValueError("fusion.unit is 'labels': expected 'words', of which the device's search knows alone")
        if self.reranking.kenlm and (self.fusion.kenlm or self.fusion.hot_words):
            raise ValueError(
                "reranking puts its own score in the place of what fusion.kenlm and fusion.hot_words add: expected one "
                "of them"
            )

    def __str__(self) -> str:
        if self.kind == "greedy":
            return "greedy"
        parts = [f"beam {self.search.beam_width}"]
        if self.fusion.kenlm:
            parts.append(f"{self.fusion.kenlm} × {self.fusion.lm_weight:g} fused")
        if self.fusion.lexicon:
            parts.append(f"words of {self.fusion.lexicon}")
        if self.fusion.hot_words:
            parts.append(f"{len(self.fusion.hot_words)} hot words")
        if self.reranking.kenlm:
            parts.append(f"{self.reranking.kenlm} × {self.reranking.lm_weight:g} re-ranked")
        return ", ".join(parts)

    def digest(self) -> str:
        """Equal where the best texts are the same: whatever the number of others, and where files lie."""
        if self.kind == "greedy":
            return "greedy"
        settings = asdict(self)
        del settings["search"]["num_best"]
        files = [settings["fusion"].pop(name) for name in ("kenlm", "known_words", "lexicon")]
        files = [Path(file) for file in (*files, settings["reranking"].pop("kenlm")) if file]
        made_of = [settings, [(file.name, file.stat().st_size if file.exists() else 0) for file in files]]
        return "beam-" + hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:12]

    def build(self, tokenizer: Tokenizer, *, times: FrameTimes, num_shares: int = 1) -> "CTCDecoder":
        """`times`: of the head's frames; `num_shares`: of how many the rows of a batch are shared by, each calling
        `finish` with its own.

        Raises: UserError where a language model or a lexicon cannot be read, and as `Spelling.of`.
        """
        return CTCDecoder(self, tokenizer, times=times, num_shares=num_shares)


class CTCDecoder:
    """Makes transcripts of batches in two steps: `reduce` on the device, within the model's own program, and `finish`,
    which takes what that gave."""

    def __init__(self, settings: Decoding, tokenizer: Tokenizer, *, times: FrameTimes, num_shares: int = 1) -> None:
        self._num_shares = num_shares
        self.settings, self.spelling, self.times = settings, Spelling.of(tokenizer), times
        self._decode = tokenizer.decode if self.spelling.has_bytes else None
        self._search: CTCBeamSearch | None = None
        self._one_at_a_time = threading.Lock()
        if settings.kind == "beam":
            if self._decode:
                raise UserError("the vocabulary has bytes of characters, which a beam search cannot spell: use greedy")
            scores = settings.fusion.build()
            if scores:
                check_spelling(scores, self.spelling, tokenizer.normaliser)
            self._search = CTCBeamSearch(self.spelling, search=settings.search, scores=scores)
        self._rerank = settings.reranking.build()

    def reduce(self, frames: Frames) -> Any:
        """What `finish` needs of log-probabilities `[B T V]`: for a greedy search the best paths, else all of them."""
        if self._search:
            return frames
        return best_path(frames.values, frames.lengths, blank_id=self.spelling.blank_id)

    def prepare(self, reduced: Any) -> None:
        """Compiles what `finish` takes for results of `reduce` of these shapes."""
        if self._search:
            whole = jnp.zeros(reduced.values.shape, reduced.values.dtype)
            values, *_ = self._share(whole, np.zeros(len(whole), np.int32), [])
            with self._one_at_a_time:
                self._search.prepare(*values.shape[:2])

    def finish(self, reduced: Any, rows: Sequence[int]) -> list[list[Hypothesis]]:
        """The n-best lists of some rows of a batch, no more than a share of them, rounded up. What `reduce` gave lies
        on every device alike."""
        if self._search:
            values, lengths = (array.addressable_data(0) for array in (reduced.values, reduced.lengths))
            values, lengths, rows = self._share(values, np.asarray(lengths), rows)
            with self._one_at_a_time:
                found = self._search(values, lengths)
            lists = [found[row] for row in rows]
        else:
            paths, logps = jax.device_get(reduced)
            lists = [[greedy_hypothesis(paths[row], logps[row], self.spelling, decode=self._decode)] for row in rows]
        if broken := sum(not math.isfinite(hypotheses[0].score) for hypotheses in lists):
            print(
                f"{broken} of {len(lists)} recordings of a batch have no finite score and empty texts: their "
                "log-probabilities are not numbers; expected finite weights (another checkpoint), or --precision f32",
                file=sys.stderr,
            )
        return [self._rerank(hypotheses) for hypotheses in lists] if self._rerank else lists

    def _share(
        self, values: Float[Array, "B T V"], lengths: Int[np.ndarray, " B"], rows: Sequence[int]
    ) -> tuple[Float[Array, "S T V"], Int[np.ndarray, " S"], Sequence[int]]:
        """The chosen rows, filled up to the size of a share with empty ones, and their places there; where there is one
        share, all as they are."""
        if self._num_shares == 1:
            return values, lengths, rows
        chosen = np.zeros(-(-len(lengths) // self._num_shares), np.int32)
        chosen[: len(rows)] = rows
        is_there = np.arange(len(chosen)) < len(rows)
        values = jnp.take(jax.device_put(values, jax.local_devices()[0]), chosen, axis=0)
        return values, np.where(is_there, lengths[chosen], 0), range(len(rows))

    def transcript(
        self, hypotheses: Sequence[Hypothesis], calibration: Calibration, *, first_frame: int = 0
    ) -> Transcript:
        """Of an n-best list, the best first. `first_frame`: of the recording, where the search began in its middle."""
        best, seconds = hypotheses[0], self.times.seconds
        confidences = calibration(np.nan_to_num(np.exp([word.logp for word in best.words]))).tolist()
        words = tuple(
            Word(word.text, seconds(first_frame + word.start_frame), seconds(first_frame + word.end_frame), confidence)
            for word, confidence in zip(best.words, confidences, strict=True)
        )
        alternatives = tuple(Alternative(each.text, each.score) for each in hypotheses) if self._search else ()
        return Transcript(words, best.score, alternatives)


def check_spelling(scores: WordScores, spelling: Spelling, normaliser: str) -> None:
    """Tells of words of the lexicon that the vocabulary cannot spell, which cannot be found.

    Raises: UserError where it can spell none of the lexicon's words, or not all hot words.
    """
    mend = f"write them as training had them (its texts were normalised by {normaliser})"
    if lost := sorted(word for word in scores.hot_words if not spelling.can_spell(word)):
        raise UserError(f"hot words that the vocabulary cannot spell: {', '.join(lost[:5])}; {mend}")
    lost = sorted(word for word in scores.lexicon if not spelling.can_spell(word))
    said = f"{len(lost)} of {len(scores.lexicon)} words of the lexicon cannot be spelt by the vocabulary"
    if lost and len(lost) == len(scores.lexicon):
        raise UserError(f"{said}, {', '.join(lost[:5])} …; {mend}")
    if lost:
        print(f"{said}: {', '.join(lost[:5])} …; {mend}", file=sys.stderr)
