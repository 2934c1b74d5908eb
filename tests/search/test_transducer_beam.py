"""Beam search of transducers on the device, compared with plain Python, and its settings."""

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from asr_jax.core.errors import UserError
from asr_jax.search import transducer_beam
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.search.transducer_beam import TransducerBeamSearch, TransducerSearch
from asr_jax.search.transducer_beam_state import Texts, TransducerFrames, texts_of
from asr_jax.search.word_scores import Fusion
from asr_jax.text.characters import CharacterTokenizer
from asr_jax.text.spelling import Spelling
from tests.search.unchecked import unchecked
from tests.support import ROUNDING, approx

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
    durations: tuple[int, ...] = ()

    def apply(self, variables, *arguments, method):
        return getattr(self, method)(variables, *arguments)

    def begin(self, variables, num_rows):
        return {"projected": jnp.zeros((num_rows, DIM))}

    def advance(self, variables, before, labels):
        return {"projected": jnp.tanh(before["projected"] @ variables["recurrent"] + variables["embedding"][labels])}

    def logits(self, variables, frames, projected):
        return jnp.tanh(frames + projected) @ variables["output"]


def frames_of(seed, scale=3.0, durations=()):
    """Random frames and networks, with likely blanks, and NaN beyond the lengths."""
    random, size = np.random.default_rng(seed), len(PIECES.texts)
    values = random.normal(0, 1.5, (len(LENGTHS), LENGTHS.max(), DIM))
    values[np.arange(values.shape[1]) >= LENGTHS[:, None]] = np.nan
    variables = {
        "recurrent": random.normal(0, 0.7, (DIM, DIM)), "embedding": random.normal(0, 1, (size, DIM)),
        "output": random.normal(0, scale / DIM**0.5, (DIM, size + len(durations))),
    }  # fmt: skip
    as_arrays = jax.tree.map(np.float32, (values, variables))
    return TransducerFrames(as_arrays[0], LENGTHS, as_arrays[1], Toy(durations=durations))


class Found(NamedTuple):
    """A hypothesis of the reference."""

    labels: tuple[int, ...]
    log_prob: float
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    reached: int


class Reference:
    """One utterance in plain Python, with dictionaries of hypotheses and float64."""

    def __init__(self, frames, row, settings, *, max_symbols, temperature=1.0, penalty=0.0, scores=None):
        self.frames = np.asarray(frames.values[row, : frames.lengths[row]], np.float64)
        self.weights = {name: np.asarray(value, np.float64) for name, value in frames.variables.items()}
        self.settings, self.max_symbols, self.scores = settings, max_symbols, scores
        self.temperature, self.penalty, self.durations = temperature, penalty, frames.networks.durations
        most = max(settings.beam_width, transducer_beam.FUSION_LABELS) if scores else settings.beam_width
        self.num_candidates = most + 1
        self.state, self.extra = cache(self.state), cache(self.extra)

    def state(self, labels):
        if not labels:
            return np.zeros(DIM)
        before = self.state(labels[:-1])
        return np.tanh(before @ self.weights["recurrent"] + self.weights["embedding"][labels[-1]])

    def logits(self, labels, frame):
        logits = np.tanh(self.frames[frame] + self.state(labels)) @ self.weights["output"]
        logits[7] -= self.penalty
        return logits / self.temperature

    def log_probs(self, labels, starts):
        """The log-probability of each label among all labels but the blank."""
        found = []
        for place, (label, frame) in enumerate(zip(labels, starts, strict=True)):
            logits = self.logits(labels[:place], frame)[:7]
            found.append(logits[label] - np.logaddexp.reduce(logits))
        return found

    def candidates(self, labels, frame):
        """Blanks as (duration, log-probability), and labels as (label, duration, log-probability)."""
        logits = self.logits(labels, frame)
        logits, of_durations = logits[: len(PIECES.texts)], logits[len(PIECES.texts) :]
        log_probs = logits - np.logaddexp.reduce(logits)
        likeliest = np.argsort(-log_probs, kind="stable")[: self.num_candidates].tolist()
        least = log_probs.max() + self.settings.token_prune_logp
        likeliest = [each for each in likeliest if each != 7 and log_probs[each] >= least]
        if not self.durations:
            return [(1, log_probs[7])], [(each, 0, log_probs[each]) for each in likeliest]
        of_durations = dict(zip(self.durations, of_durations - np.logaddexp.reduce(of_durations), strict=True))
        pairs = [(each, num, log_probs[each] + value) for each in likeliest for num, value in of_durations.items()]
        blanks = [(num, log_probs[7] + value) for num, value in of_durations.items() if num]
        return blanks, sorted(pairs, key=lambda each: -each[2])[: self.num_candidates]

    def extensions(self, hypothesis, frame, *, least_duration):
        """The hypothesis after each blank and each label, best first."""
        labels, log_prob, starts, ends, _ = hypothesis
        blanks, others = self.candidates(labels, frame)
        num = len(self.frames)
        after = [Found(labels, log_prob + value, starts, ends, min(frame + each, num)) for each, value in blanks]
        if starts.count(frame) < self.max_symbols:
            for label, duration, value in others:
                reached = min(frame + max(duration, least_duration), num)
                end = max(reached, frame + 1)
                after.append(Found((*labels, label), log_prob + value, (*starts, frame), (*ends, end), reached))
        return sorted(after, key=lambda each: -self.score(each))

    def key(self, hypothesis):
        """What equal hypotheses have in common."""
        labels = hypothesis.labels
        if self.settings.same == "labels":
            return labels, hypothesis.reached
        text = "".join(" " * PIECES.opens[label] + PIECES.texts[label] for label in labels)
        return re.sub(" +", " ", text).lstrip(), hypothesis.reached

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
        return hypothesis.log_prob + self.extra(hypothesis.labels)

    def add(self, found, hypothesis):
        """Adds a hypothesis to a dictionary; equal ones are merged into the one that is there."""
        key = self.key(hypothesis)
        if (before := found.get(key)) is not None:
            total = np.logaddexp(self.score(before), self.score(hypothesis))
            hypothesis = before._replace(log_prob=total - self.extra(before.labels))
        found[key] = hypothesis

    def pruned(self, beam):
        per_label = {key: self.score(each) / (len(each.labels) + 2) for key, each in beam.items()}
        least = max(per_label.values(), default=0.0) + self.settings.label_prune_logp
        return {key: each for key, each in beam.items() if per_label[key] >= least}

    def best(self, hypotheses, num):
        ranked = sorted(hypotheses, key=lambda each: -self.score(each))
        return [each for each in ranked if self.score(each) > -np.inf][:num]

    def found(self):
        empty = Found((), 0.0, (), (), 0)
        beam = {self.key(empty): empty}
        for frame in range(len(self.frames)):
            beam = self.pruned((self.one_label if self.max_symbols == 1 else self.several_labels)(beam, frame))
        return list(beam.values())

    def one_label(self, beam, frame):
        every, after = [], {}
        for each in beam.values():
            waits = each.reached > frame
            every += [each] if waits else self.extensions(each, frame, least_duration=1)
        for each in self.best(every, self.settings.beam_width):
            self.add(after, each)
        return after

    def several_labels(self, beam, frame):
        still_open = {key: each for key, each in beam.items() if each.reached == frame}
        waiting = {key: each for key, each in beam.items() if each.reached > frame}
        while still_open:
            key = max(still_open, key=lambda key: self.score(still_open[key]))
            for each in self.extensions(still_open.pop(key), frame, least_duration=0):
                if self.score(each) > -np.inf:
                    self.add(still_open if each.reached == frame else waiting, each)
            best_open = max(map(self.score, still_open.values()), default=-np.inf)
            if sum(self.score(each) > best_open for each in waiting.values()) >= self.settings.beam_width:
                break
        return {self.key(each): each for each in self.best(waiting.values(), self.settings.beam_width)}


BEAM = TransducerSearch(beam_width=3, num_best=3)


@pytest.fixture(autouse=True)
def keeps_all_hypotheses(monkeypatch):
    monkeypatch.setattr(transducer_beam, "KEPT_IN_FRAME", 40)


PRUNED = replace(BEAM, label_prune_logp=-0.9, token_prune_logp=-2.5)
TEXTS = replace(BEAM, same="texts")


def text_of(labels):
    words, part = PIECES.words(labels)
    return " ".join((*words, part)).strip()


def of_different_texts(found):
    best = {}
    for each in sorted(found, key=lambda each: -each.log_prob):
        if (first := best.get(text_of(each.labels))) is not None:
            each = first._replace(log_prob=np.logaddexp(first.log_prob, each.log_prob))
        best[text_of(each.labels)] = each
    return best.values()


def compare(seeds, settings, *, max_symbols, fusion=None, durations=(), **options):
    """Lists must be equal: labels, times, probabilities and scores. Returns the texts."""
    scores = (fusion or Fusion()).build()
    search = TransducerBeamSearch(PIECES, search=settings, max_symbols=max_symbols, scores=scores, **options)
    if "blank_penalty" in options:
        options["penalty"] = options.pop("blank_penalty")
    texts = []
    for seed in seeds:
        frames = frames_of(seed, durations=durations)
        for row, found in enumerate(search(frames)):
            reference = Reference(frames, row, settings, max_symbols=max_symbols, scores=scores, **options)
            every = unchecked()(reference.found)()
            every = of_different_texts(every) if settings.same == "texts" else every
            expected = {each.labels: each for each in every}
            assert {each.labels for each in found} == expected.keys()
            for each in found:
                labels, log_prob, starts, ends, _ = expected[each.labels]
                # A score is a sum of log-probabilities, with 16 roundings of its size, or 3e-5 if it is small.
                assert each.log_prob == approx(log_prob, rel=16 * ROUNDING, abs=3e-5)
                assert (each.starts, each.ends) == (starts, ends)
                assert each.log_probs == approx(reference.log_probs(labels, starts), rel=16 * ROUNDING, abs=3e-5)
                units = scores.units([word.text for word in each.words], PIECES, labels) if scores else ()
                assert each.lm_score == approx(scores.text(units) if scores else 0.0)
                assert each.text == text_of(labels)
            ranks = [each.score / (len(each.labels) + 2) for each in found]
            assert ranks == sorted(ranks, reverse=True)
            texts += [each.text for each in found]
    assert max(map(len, texts)) > 3
    return texts


@pytest.mark.parametrize(
    ("settings", "max_symbols", "options"),
    [
        pytest.param(BEAM, 1, {}, marks=pytest.mark.slow),
        pytest.param(BEAM, 3, {}, marks=pytest.mark.slow),
        (PRUNED, 1, {"temperature": 1.4, "blank_penalty": 0.5}),
        pytest.param(PRUNED, 2, {"temperature": 0.8}, marks=pytest.mark.slow),
        pytest.param(TEXTS, 1, {}, marks=pytest.mark.slow),
        pytest.param(TEXTS, 3, {}, marks=pytest.mark.slow),
        pytest.param(BEAM, 1, {"durations": (0, 1, 2, 4)}, marks=pytest.mark.slow),
        pytest.param(
            PRUNED, 3, {"durations": (0, 1, 3), "temperature": 1.4, "blank_penalty": 0.5}, marks=pytest.mark.slow
        ),
        (TEXTS, 2, {"durations": (2, 0, 1)}),
        pytest.param(BEAM, 3, {"durations": (1, 2, 3)}, marks=pytest.mark.slow),
    ],
)
def test_the_device_finds_what_plain_python_finds(settings, max_symbols, options):
    compare(range(6), settings, max_symbols=max_symbols, **options)


@pytest.mark.parametrize(
    ("max_symbols", "durations"),
    [(1, ()), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((1, (0, 1, 2)), (3, ())))],
)
def test_hot_words_and_a_lexicon(max_symbols, durations, tmp_path):
    hot = compare(
        range(3), BEAM, max_symbols=max_symbols, fusion=Fusion(hot_words=("abc:6", "cab:-1")), durations=durations
    )
    assert any("abc" in text.split() for text in hot)
    (tmp_path / "words").write_text("ab\ncab\nb")
    fusion = Fusion(lexicon=str(tmp_path / "words"), hot_words=("cab:2",))
    scores = fusion.build()
    search = TransducerBeamSearch(PIECES, search=BEAM, max_symbols=max_symbols, scores=scores)
    texts = [each.text for seed in range(3) for found in search(frames_of(seed, durations=durations)) for each in found]
    assert {"ab", "b"} <= {word for text in texts for word in text.split()} <= {"ab", "cab", "b"}


@pytest.mark.parametrize("unit", ["words", pytest.param("labels", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("max_symbols", "durations"), [(3, (0, 1, 2)), *(pytest.param(each, (), marks=pytest.mark.slow) for each in (1, 3))]
)
def test_a_language_model(unit, max_symbols, durations, tmp_path):
    pytest.importorskip("kenlm", reason="takes kenlm: pip install 'asr-jax[lm]'")
    units = ("ab", "a", "cab", "b") if unit == "words" else ("▁a", "b", "c", "▁ab")
    (tmp_path / "lm.arpa").write_text(ARPA.format(*units))
    fusion = Fusion(kenlm=str(tmp_path / "lm.arpa"), unit=unit, lm_weight=0.7, word_bonus=0.3, unknown_score=-2.0)
    compare(range(3), BEAM, max_symbols=max_symbols, fusion=fusion, durations=durations)


@pytest.mark.parametrize(
    ("settings", "max_symbols", "durations"),
    [
        pytest.param(BEAM, 1, (), marks=pytest.mark.slow),
        pytest.param(TEXTS, 3, (), marks=pytest.mark.slow),
        (TEXTS, 2, (2, 0, 1)),
    ],
)
def test_rows_do_not_depend_on_others_and_nan_leaves_no_text(settings, max_symbols, durations):
    """Uses the settings of the tests above, whose programs are already compiled."""
    search = TransducerBeamSearch(PIECES, search=settings, max_symbols=max_symbols)
    frames = frames_of(1, durations=durations)
    whole = search(frames)
    # Durations may jump over a frame.
    values = frames.values.copy()
    values[0, 4:8, 2] = np.nan
    broken = search(frames.replace(values=values))
    assert [(each.labels, each.score) for each in broken[0]] == [((), -np.inf)]
    for row in (1, 2, 3):
        assert broken[row] == whole[row]
    order = np.array([3, 3, 1, 0])
    moved = search(frames.replace(values=frames.values[order], lengths=frames.lengths[order]))
    assert moved == [whole[row] for row in order]
    assert [(each.labels, each.score) for each in whole[1]] == [((), 0.0)]


def test_hashes_are_equal_for_equal_texts():
    labels = [(0, 3), (1, 3), (4,), (5, 4), (5, 5, 1, 3), (0, 2), (0, 5, 3), (1, 5, 2), (0, 3, 5)]
    longer = jax.jit(Texts.longer)
    texts = ["ab", "ab", "ab", "ab", "ab", "a b", "a b", "a b", "ab "]
    for same, names in (("labels", labels), ("texts", texts)):
        tables, found = texts_of(PIECES, same), {}
        for each, name in zip(labels, names, strict=True):
            prefix, border = np.ones((1, 2), np.uint32), np.ones(1, bool)
            for label in each:
                prefix, border = longer(tables, prefix, border, np.array([label]))
            found.setdefault(tuple(np.asarray(prefix)[0].tolist()), set()).add(name)
        assert sorted(found.values(), key=str) == sorted(({name} for name in set(names)), key=str)


TOKENIZER = CharacterTokenizer(symbols=(" ", "a", "b", None), normaliser="none")


def test_settings():
    with pytest.raises(ValueError, match="kind is 'greedy' and fusion is set: expected kind 'beam'"):
        TransducerDecoding(fusion=Fusion(hot_words=("anna",)))
    with pytest.raises(ValueError, match="temperature is 0"):
        TransducerDecoding(temperature=0.0)
    with pytest.raises(ValueError, match=r"label_prune_logp is 0\.4: expected at most 0"):
        TransducerSearch(label_prune_logp=0.4)
    some = TransducerDecoding(
        kind="beam", max_symbols=1, temperature=1.4, search=BEAM, fusion=Fusion(hot_words=("ab",))
    )
    assert str(some) == "beam 3, at most 1 label per frame, temperature 1.4, 1 hot word"
    assert some.digest() == replace(some, search=replace(BEAM, num_best=1)).digest()
    assert some.digest() != replace(some, temperature=1.0).digest()
    assert TransducerDecoding().digest() == "transducer greedy 10 0"
    assert (some.gives_n_best, TransducerDecoding().gives_n_best) == (True, False)


def test_words_and_units_that_do_not_fit_are_refused(tmp_path):
    def build(**fusion):
        return TransducerDecoding(kind="beam", fusion=Fusion(**fusion)).host_stage(TOKENIZER)

    with pytest.raises(UserError, match=r"hot words .* cannot spell: ANNA"):
        build(hot_words=("ANNA", "ab"))
    pytest.importorskip("kenlm", reason="takes kenlm: pip install 'asr-jax[lm]'")
    (tmp_path / "lm.arpa").write_text(ARPA.format("▁a", "▁b", "▁c", "d"))
    with pytest.raises(UserError, match=r"0 of 4 units of .*lm.arpa are labels .*expected labels such as a, b, |"):
        build(kenlm=str(tmp_path / "lm.arpa"), unit="labels")
