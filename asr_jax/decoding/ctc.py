"""From the CTC output of a batch to texts: which search, what is fused with it, and the two halves of the work."""

import hashlib
import json
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import jax
import numpy as np

from asr_jax.core.batch import Frames
from asr_jax.core.frame_times import FrameTimes
from asr_jax.decoding.ctc_beam import CTCBeamSearch
from asr_jax.decoding.greedy import best_path, greedy_hypothesis
from asr_jax.decoding.hypotheses import Hypothesis, Search
from asr_jax.decoding.rerank import Reranking
from asr_jax.decoding.spelling import Spelling
from asr_jax.decoding.transcript import Alternative, Transcript, Word
from asr_jax.decoding.word_scores import Fusion
from asr_jax.metrics.confidence import Calibration
from asr_jax.text.tokenizer import Tokenizer


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
        """Equal where the settings are."""
        if self.kind == "greedy":
            return "greedy"
        return "beam-" + hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    def build(self, tokenizer: Tokenizer, *, times: FrameTimes) -> "CTCDecoder":
        """`times`: of the head's frames.

        Raises: UserError where a language model or a lexicon cannot be read, and as `Spelling.of`.
        """
        return CTCDecoder(self, Spelling.of(tokenizer), times=times)


class CTCDecoder:
    """Makes transcripts of batches in two steps: `reduce` on the device, within the model's own program, and `finish`,
    which takes what that gave."""

    def __init__(self, settings: Decoding, spelling: Spelling, *, times: FrameTimes) -> None:
        self.settings, self.spelling, self.times = settings, spelling, times
        self._search: CTCBeamSearch | None = None
        self._one_at_a_time = threading.Lock()
        if settings.kind == "beam":
            self._search = CTCBeamSearch(spelling, search=settings.search, scores=settings.fusion.build())
        self._rerank = settings.reranking.build()

    def reduce(self, frames: Frames) -> Any:
        """What `finish` needs of log-probabilities `[B T V]`: for a greedy search the best paths, else all of them."""
        if self._search:
            return frames
        return best_path(frames.values, frames.lengths, blank_id=self.spelling.blank_id)

    def prepare(self, reduced: Any) -> None:
        """Compiles what `finish` takes for results of `reduce` of these shapes."""
        if self._search:
            with self._one_at_a_time:
                self._search.prepare(*reduced.values.shape[:2])

    def finish(self, reduced: Any, rows: Sequence[int]) -> list[list[Hypothesis]]:
        """The n-best lists of some rows of a batch. What `reduce` gave lies on every device alike."""
        if self._search:
            values, lengths = (array.addressable_data(0) for array in (reduced.values, reduced.lengths))
            with self._one_at_a_time:
                found = self._search(values, np.asarray(lengths))
            lists = [found[row] for row in rows]
        else:
            paths, logps = jax.device_get(reduced)
            lists = [[greedy_hypothesis(paths[row], logps[row], self.spelling)] for row in rows]
        return [self._rerank(hypotheses) for hypotheses in lists] if self._rerank else lists

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
