"""Estimation of n-gram language models with interpolated modified Kneser-Ney smoothing.

Source: Chen and Goodman 1998, "An empirical study of smoothing techniques for language modeling". KenLM's lmplz without
pruning gives the same values.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from asr_jax.core.errors import UserError

Ngram = tuple[str, ...]
START, END, UNKNOWN = "<s>", "</s>", "<unk>"
FALLBACK = (0.0, 0.5, 1.0, 1.5)
"""Discounts where the numbers of rare n-grams give none, as in few or repetitive texts."""


def estimate(texts: Iterable[Sequence[str]], order: int) -> list[dict[Ngram, tuple[float, float]]]:
    """Estimates a model from texts.

    Args:
        texts: Words of each text, at least one.
        order: Length in words of the longest n-grams, 1 or more.

    Returns:
        For each length from 1 to `order`: natural logarithms of the probability and of the back-off weight, by n-gram.

    Raises:
        UserError: If a word is START, END or UNKNOWN.
    """
    counts = _adjusted(_count(texts, order))
    vocabulary = [*counts[0], (UNKNOWN,)]
    shorter: Mapping[Ngram, float] = dict.fromkeys(vocabulary, 1 / len(vocabulary))
    probabilities, weights = list[dict[Ngram, float]](), list[dict[Ngram, float]]()
    for number in counts:
        discounts = _discounts(number.values())
        totals, removed = defaultdict[Ngram, int](int), defaultdict[Ngram, float](float)
        for ngram, count in number.items():
            totals[ngram[:-1]] += count
            removed[ngram[:-1]] += discounts[min(count, 3)]
        weight = {context: removed[context] / total for context, total in totals.items()}
        shorter = {
            ngram: (number[ngram] - discounts[min(number[ngram], 3)]) / totals[ngram[:-1]] * (ngram in number)
            + weight[ngram[:-1]] * shorter[ngram[1:] or ngram]
            for ngram in (number if weights else vocabulary)
        }
        probabilities.append(dict(shorter))
        weights.append(weight)
    probabilities[0][(START,)] = 1.0
    weights.append({})
    return [
        {ngram: (math.log(each), math.log(longer.get(ngram, 1.0))) for ngram, each in found.items()}
        for found, longer in zip(probabilities, weights[1:], strict=True)
    ]


def arpa(model: Sequence[Mapping[Ngram, tuple[float, float]]]) -> str:
    """Returns the content of an ARPA file.

    Args:
        model: Result of `estimate`.
    """
    lines = ["\\data\\", *(f"ngram {n}={len(ngrams)}" for n, ngrams in enumerate(model, 1))]
    for n, ngrams in enumerate(model, 1):
        lines += ["", f"\\{n}-grams:"]
        for ngram, values in sorted(ngrams.items()):
            probability, weight = (f"{value / math.log(10):.7g}" for value in values)
            lines.append("\t".join((probability, " ".join(ngram), *([weight] if n < len(model) else []))))
    return "\n".join([*lines, "", "\\end\\", ""])


def _count(texts: Iterable[Sequence[str]], order: int) -> list[Counter[Ngram]]:
    """Counts the n-grams of each length, in texts between START and END."""
    counts = [Counter[Ngram]() for _ in range(order)]
    for words in texts:
        if reserved := {START, END, UNKNOWN}.intersection(words):
            raise UserError(f"{' '.join(words)!r} has the word {min(reserved)}, which a language model reserves")
        padded = (START, *words, END)
        for n, count in enumerate(counts, 1):
            count.update(padded[first : first + n] for first in range(len(padded) - n + 1))
    return counts


def _adjusted(counts: Sequence[Counter[Ngram]]) -> list[Counter[Ngram]]:
    """Counts of the longest n-grams; of others, the number of words before them, except where START begins them."""
    adjusted = [Counter(ngram[1:] for ngram in longer) for longer in counts[1:]]
    for before, count in zip(adjusted, counts, strict=False):
        before.update({ngram: number for ngram, number in count.items() if ngram[0] == START and len(ngram) > 1})
    adjusted.append(counts[-1])
    del adjusted[0][(START,)]
    return adjusted


def _discounts(counts: Iterable[int]) -> Sequence[float]:
    """Discounts of n-grams that are counted 0 times, once, twice, and three times or more."""
    having = Counter(counts)
    one, two, three, four = (having[number] for number in (1, 2, 3, 4))
    if not (one and two and three):
        return FALLBACK
    share = one / (one + 2 * two)
    found = (0.0, 1 - 2 * share * two / one, 2 - 3 * share * three / two, 3 - 4 * share * four / three)
    return found if all(0 <= each <= number for number, each in enumerate(found)) else FALLBACK
