"""Compares our scoring with jiwer's in one run: `python benchmarks/race_jiwer.py --texts MANIFEST … [--json OUT]`.

jiwer runs in the environment of scripts/setup_reference.sh. Both score the same synthetic set by words and by
characters. The set has as many utterances and words as LibriSpeech's test-clean (2,620 and about 52,576), the words of
the texts of the manifests, and errors in a share of `--error-rate` of them. Processes take turns; each returns the
minimum CPU time of its repetitions (both use one thread), and the result is the median over the turns. Both must find
the same substitutions, deletions and insertions.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NUM_UTTERANCES, NUM_WORDS = 2620, 52576


Counts = Callable[[list[str], list[str]], Any]
Texts = tuple[list[str], list[str]]


def ours() -> tuple[Counts, Counts, Callable[[Any], list[int]]]:
    """Functions that score words, that score characters, and that return the edits of a score by kind."""
    from asr_jax.metrics.errors import count_edits

    return (
        lambda *texts: count_edits(*texts, parts=str.split),
        lambda *texts: count_edits(*texts, parts=str.strip),
        lambda found: found.sum(axis=0).tolist()[:3],
    )


def theirs() -> tuple[Counts, Counts, Callable[[Any], list[int]]]:
    from jiwer import process_characters, process_words

    return process_words, process_characters, lambda found: [found.substitutions, found.deletions, found.insertions]


def side(name: str, repeats: int) -> None:
    """One process of the comparison: reads texts from standard input and writes figures to standard output."""
    *both, edits = {"asr_jax": ours, "jiwer": theirs}[name]()
    texts = json.load(sys.stdin)
    result: dict[str, Any] = {}
    for what, count in zip(("words", "characters"), both, strict=True):
        took_s = []
        for _ in range(repeats):
            start = time.process_time()
            found = count(*texts)
            took_s.append(time.process_time() - start)
        result[what] = {"best_s": min(took_s), "edits": edits(found)}
    print(json.dumps(result))


def made(manifests: list[Path], error_rate: float) -> Texts:
    """Synthetic references and hypotheses."""
    choose = random.Random(0)
    words = [
        w for path in manifests for line in path.read_text().splitlines() for w in json.loads(line)["text"].split()
    ]
    lengths = [choose.lognormvariate(0.0, 0.7) for _ in range(NUM_UTTERANCES)]
    scale = NUM_WORDS / sum(lengths)
    references, hypotheses, position = [], [], 0
    for length in lengths:
        reference = [words[(position + n) % len(words)] for n in range(max(round(length * scale), 1))]
        position += len(reference)
        hypothesis = [other for word in reference for other in misheard(word, words, error_rate, choose)]
        references.append(" ".join(reference))
        hypotheses.append(" ".join(hypothesis))
    return references, hypotheses


def misheard(word: str, words: list[str], error_rate: float, choose: random.Random) -> list[str]:
    """Recognised words for a word; three in four errors are substitutions, the others deletions or insertions."""
    if choose.random() >= error_rate:
        return [word]
    kinds: list[list[str]] = [[choose.choice(words)]] * 6 + [[], [word, choose.choice(words)]]
    return choose.choice(kinds)


def turn(name: str, python: str, texts: str, repeats: int) -> dict[str, Any]:
    command = [python, __file__, "--side", name, "--repeats", str(repeats)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input=texts, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, nargs="+", metavar="MANIFEST", help="JSONL manifests with the texts")
    parser.add_argument("--error-rate", type=float, default=0.05)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--jiwer", default=str(ROOT / ".venv-reference/bin/python"), help="Python with jiwer")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=("asr_jax", "jiwer"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        side(given.side, given.repeats)
        return
    if not given.texts:
        parser.error("--texts is missing: expected manifests whose words are used")
    references, hypotheses = made(given.texts, given.error_rate)
    texts = json.dumps([references, hypotheses])
    pythons = {"asr_jax": sys.executable, "jiwer": given.jiwer}
    turns = [{n: turn(n, python, texts, given.repeats) for n, python in pythons.items()} for _ in range(given.turns)]
    result: dict[str, Any] = {
        "cores": os.cpu_count(), "load": os.getloadavg()[0], "utterances": NUM_UTTERANCES,
        "num_words": sum(len(reference.split()) for reference in references),
    }  # fmt: skip
    for what in ("words", "characters"):
        edits = {tuple(both[name][what]["edits"]) for both in turns for name in pythons}
        assert len(edits) == 1, f"the two systems find different edits of {what}: {edits}"
        ms = {name: 1e3 * statistics.median(both[name][what]["best_s"] for both in turns) for name in pythons}
        result[what] = {"edits": edits.pop(), "cpu_ms": ms, "times_as_fast": ms["jiwer"] / ms["asr_jax"]}
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
