"""Beam search of transducers on the device, compared with plain Python, and its settings."""

import re
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.search.transducer_beam import TransducerBeamSearch, TransducerSearch
from asr_jax.search.transducer_beam_state import TransducerFrames
from asr_jax.search.word_scores import Fusion
from asr_jax.text.spelling import Spelling
from tests.search.unchecked import unchecked

PIECES = Spelling.of_surfaces([" a", "a", " b", "b", " ab", " ", "c", ""], blank_id=7)
LENGTHS = np.array([9, 0, 1, 7], np.int32)
DIM = 6
ARPA = """\\data\\
ngram 1=7
ngram 2=4

\\1-grams:
-2.1\t<unk>\t0
0\t<s>\t-0.4
-0.9\t</s>\t0
-0.7\t{0}\t-0.3
-1.2\t{1}\t-0.2
-1.0\t{2}\t-0.5
-1.4\t{3}\t0

\\2-grams:
-0.2\t<s> {0}
-0.5\t{0} {1}
-0.3\t{1} {2}
-0.6\t{2} </s>

\\end\\
"""


@dataclass(frozen=True)
class Toy:
    """Networks with one recurrent layer; for NumPy as well."""

    blank_id: int = 7
    start_labels: int = 2

    def apply(self, variables, *arguments, method):
        return getattr(self, method)(variables, *arguments)

    def begin(self, variables, num_rows):
        return {"projected": jnp.zeros((num_rows, DIM))}

    def advance(self, variables, before, labels):
        return {"projected": jnp.tanh(before["projected"] @ variables["recurrent"] + variables["embedding"][labels])}

    def logits(self, variables, frames, projected):
        return jnp.tanh(frames + projected) @ variables["output"]


def frames_of(seed, scale=3.0):
    """Random frames and networks, with likely blanks, and NaN beyond the lengths."""
    random, size = np.random.default_rng(seed), len(PIECES.texts)
    values = random.normal(0, 1.5, (len(LENGTHS), LENGTHS.max(), DIM))
    values[np.arange(values.shape[1]) >= LENGTHS[:, None]] = np.nan
    variables = {
        "recurrent": random.normal(0, 0.7, (DIM, DIM)), "embedding": random.normal(0, 1, (size, DIM)),
        "output": random.normal(0, scale / DIM**0.5, (DIM, size)),
    }  # fmt: skip
    as_arrays = jax.tree.map(lambda each: jnp.asarray(each, jnp.float32), (values, variables))
    return TransducerFrames(as_arrays[0], jnp.asarray(LENGTHS), as_arrays[1], Toy())


class Reference:
    """One utterance in plain Python, with dictionaries of hypotheses and float64."""

    def __init__(self, frames, row, settings, *, max_symbols, temperature=1.0, penalty=0.0, scores=None):
        self.frames = np.asarray(frames.values[row, : frames.lengths[row]], np.float64)
        self.weights = {name: np.asarray(value, np.float64) for name, value in frames.variables.items()}
        self.settings, self.max_symbols, self.scores = settings, max_symbols, scores
        self.temperature, self.penalty = temperature, penalty
        most = max(settings.beam_width, settings.max_tokens) if scores else settings.beam_width
        self.num_tokens = min(most + 1, len(PIECES.texts))

    def candidates(self, labels, frame):
        state = np.zeros(DIM)
        for label in labels:
            state = np.tanh(state @ self.weights["recurrent"] + self.weights["embedding"][label])
        logits = np.tanh(self.frames[frame] + state) @ self.weights["output"]
        logits[7] -= self.penalty
        logits /= self.temperature
        log_probs = logits - np.logaddexp.reduce(logits)
        likeliest = np.argsort(-log_probs, kind="stable")[: self.num_tokens].tolist()
        least = log_probs.max() + self.settings.token_prune_logp
        return log_probs[7], [(each, log_probs[each]) for each in likeliest if each != 7 and log_probs[each] >= least]

    def key(self, labels):
        if self.settings.same == "labels":
            return labels
        text = "".join(" " * PIECES.opens[label] + PIECES.texts[label] for label in labels)
        return re.sub(" +", " ", text).lstrip()

    def extra(self, labels):
        """The score of words or labels, from the beginning."""
        if self.scores is None:
            return 0.0
        words, part = PIECES.words(labels)
        state, total = self.scores.start(), 0.0
        for unit in self.scores.units(words, PIECES, labels):
            state, added = self.scores.word(state, unit)
            total += added
        return total + (self.scores.open(part) if self.scores.settings.unit == "words" else 0.0)

    def score(self, hypothesis):
        return hypothesis[1] + self.extra(hypothesis[0])

    def add(self, found, hypothesis):
        """Adds (labels, log-probability, frames) to a dictionary; equal ones are merged into the one that is there."""
        key = self.key(hypothesis[0])
        if (before := found.get(key)) is not None:
            total = np.logaddexp(self.score(before), self.score(hypothesis))
            hypothesis = (before[0], total - self.extra(before[0]), before[2])
        found[key] = hypothesis

    def pruned(self, beam):
        per_label = {key: self.score(each) / (len(each[0]) + 2) for key, each in beam.items()}
        least = max(per_label.values(), default=0.0) + self.settings.label_prune_logp
        return {key: each for key, each in beam.items() if per_label[key] >= least}

    def best(self, hypotheses, num):
        ranked = sorted(hypotheses, key=lambda each: -self.score(each))
        return [each for each in ranked if self.score(each) > -np.inf][:num]

    def found(self):
        beam = {self.key(()): ((), 0.0, ())}
        for frame in range(len(self.frames)):
            beam = self.pruned((self.one_label if self.max_symbols == 1 else self.several_labels)(beam, frame))
        return list(beam.values())

    def one_label(self, beam, frame):
        every, after = [], {}
        for labels, log_prob, times in beam.values():
            blank, others = self.candidates(labels, frame)
            every.append((labels, log_prob + blank, times))
            every += [((*labels, each), log_prob + value, (*times, frame)) for each, value in others]
        for each in self.best(every, self.settings.beam_width):
            self.add(after, each)
        return after

    def several_labels(self, beam, frame):
        still_open, done = dict(beam), {}
        while still_open:
            key = max(still_open, key=lambda key: self.score(still_open[key]))
            labels, log_prob, times = still_open.pop(key)
            blank, others = self.candidates(labels, frame)
            self.add(done, (labels, log_prob + blank, times))
            if sum(time == frame for time in times) < self.max_symbols:
                for each, value in others:
                    child = ((*labels, each), log_prob + value, (*times, frame))
                    if self.score(child) > -np.inf:
                        self.add(still_open, child)
            best_open = max(map(self.score, still_open.values()), default=-np.inf)
            if sum(self.score(each) > best_open for each in done.values()) >= self.settings.beam_width:
                break
        return {self.key(each[0]): each for each in self.best(done.values(), self.settings.beam_width)}


BEAM = TransducerSearch(beam_width=3, num_best=3)
PRUNED = replace(BEAM, label_prune_logp=-0.9, token_prune_logp=-2.5)
TEXTS = replace(BEAM, same="texts")


def compare(seeds, settings, *, max_symbols, fusion=None, **options):
    scores = (fusion or Fusion()).build()
    search = TransducerBeamSearch(PIECES, search=settings, max_symbols=max_symbols, scores=scores, **options)
    if "blank_penalty" in options:
        options["penalty"] = options.pop("blank_penalty")
    lengths = []
    for seed in seeds:
        frames = frames_of(seed)
        for row, found in enumerate(search(frames)):
            reference = Reference(frames, row, settings, max_symbols=max_symbols, scores=scores, **options)
            expected = {each[0]: each for each in unchecked()(reference.found)()}
            if settings.same == "labels" and scores is None:
                assert {each.labels for each in found} == expected.keys()
            for each in found:
                labels, log_prob, times = expected[each.labels]
                if settings.same == "labels":
                    assert each.log_prob == pytest.approx(log_prob, abs=2e-5)
                assert each.starts == times
                assert each.ends == tuple(time + 1 for time in times)
                if scores:
                    units = scores.units([word.text for word in each.words], PIECES, labels)
                    assert each.lm_score == pytest.approx(scores.text(units))
                lengths.append(len(labels))
            ranks = [each.score / (len(each.labels) + 2) for each in found]
            assert ranks == sorted(ranks, reverse=True)
    assert max(lengths) > 3
    return lengths


@pytest.mark.parametrize(
    ("settings", "max_symbols", "options"),
    [
        (BEAM, 1, {}),
        (BEAM, 3, {}),
        (PRUNED, 1, {"temperature": 1.4, "blank_penalty": 0.5}),
        pytest.param(PRUNED, 2, {"temperature": 0.8}, marks=pytest.mark.slow),
        (TEXTS, 1, {}),
        (TEXTS, 3, {}),
    ],
)
def test_the_device_finds_what_plain_python_finds(settings, max_symbols, options):
    compare(range(6), settings, max_symbols=max_symbols, **options)
