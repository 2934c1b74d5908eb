"""Our CTC decoding beside pyctcdecode's, in one run: `python benchmarks/race_pyctcdecode.py --texts MANIFEST … [--json OUT]`.

pyctcdecode runs in the environment of scripts/setup_reference.sh, over a pool of as many processes as there are cores;
ours takes the same emissions as one batch. Both search with the same width and pruning, without a language model and
with KenLM's bigrams of the manifests' words. Processes take turns; each gives the best wall time of its repeats, the
race their medians: compilation, loading and the pool's start are outside.

The emissions are made up: each label of a text has a frame, or two, and one to four of blank; the right symbol leads by
12 (plus noise of deviation 1) in a sure frame, by 1 to 6 in one that is not. The result says how many symbols of a
frame pass `token_min_logp`, and in how many frames the blank alone does.
"""

import argparse
import collections
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
LABELS = ["", " ", *"abcdefghijklmnopqrstuvwxyz'"]
NUM_ROWS, NUM_FRAMES = 64, 400
UNSURE = {"sure": 0.1, "unsure": 0.4}
"""Shares of frames that are not sure."""
NUM_BEST = 10

Decode = Callable[[np.ndarray], list[list[tuple[str, float]]]]


def ours(width: int, folder: Path) -> dict[str, Decode]:
    from asr_jax.decoding.ctc_beam import CTCBeamSearch
    from asr_jax.decoding.greedy import greedy_ids
    from asr_jax.decoding.hypotheses import Search
    from asr_jax.decoding.spelling import Spelling
    from asr_jax.decoding.word_scores import Fusion

    spelling = Spelling.of_surfaces(LABELS, blank_id=0)
    search = Search.of_pyctcdecode(beam_width=width, num_best=NUM_BEST)
    fusion = Fusion(kenlm=str(folder / "lm.arpa"), known_words=str(folder / "words.txt"))

    def by(search: CTCBeamSearch) -> Decode:
        search.prepare(NUM_ROWS, NUM_FRAMES)
        lengths = np.full(NUM_ROWS, NUM_FRAMES)
        return lambda x: [[(each.text, each.score) for each in texts] for texts in search(x, lengths)]

    def greedy(x: np.ndarray) -> list[list[tuple[str, float]]]:
        import jax

        ids, num = jax.device_get(
            jax.jit(greedy_ids, static_argnames="blank_id")(x, np.full(NUM_ROWS, NUM_FRAMES), blank_id=0)
        )
        texts = ("".join(LABELS[i] for i in row[:n]) for row, n in zip(ids.tolist(), num.tolist(), strict=True))
        return [[(" ".join(text.split()), 0.0)] for text in texts]

    return {
        "beam": by(CTCBeamSearch(spelling, search=search)),
        "kenlm": by(CTCBeamSearch(spelling, search=search, scores=fusion.build())),
        "greedy": greedy,
    }


def theirs(width: int, folder: Path) -> dict[str, Decode]:
    import multiprocessing

    from pyctcdecode import build_ctcdecoder

    def by(**options: Any) -> Decode:
        decoder = build_ctcdecoder(LABELS, **options)
        pool = multiprocessing.get_context("fork").Pool(os.cpu_count())  # after the decoder: the children share it

        def decode(x: np.ndarray) -> list[list[tuple[str, float]]]:
            found = decoder.decode_beams_batch(pool, list(x), beam_width=width)
            return [[(beam[0], beam[-1]) for beam in beams[:NUM_BEST]] for beams in found]

        return decode

    words = (folder / "words.txt").read_text().split()
    return {"beam": by(), "kenlm": by(kenlm_model_path=str(folder / "lm.arpa"), unigrams=words)}


def side(name: str, width: int, folder: Path, repeats: int) -> None:
    """One process of the race: figures by standard output."""
    result: dict[str, Any] = {}
    for how, decode in {"asr_jax": ours, "pyctcdecode": theirs}[name](width, folder).items():
        for kind in UNSURE:
            x, took_s = np.load(folder / f"{kind}.npy"), []
            for _ in range(repeats):
                start = time.perf_counter()
                found = decode(x)
                took_s.append(time.perf_counter() - start)
            result[f"{how}, {kind}"] = {"best_s": min(took_s), "first_s": took_s[0], "found": found}
    print(json.dumps(result))


def emissions(texts: list[str], unsure: float, seed: int) -> np.ndarray:
    """Log-probabilities [B T V] of the texts, as many of each one's words as there is room for."""
    random = np.random.default_rng(seed)
    paths = np.zeros((len(texts), NUM_FRAMES), np.int64)
    for path, text in zip(paths, texts, strict=True):
        position = 2
        for char in text:
            num_said, num_blank = 1 + (random.random() < 0.2), random.integers(1, 5)
            path[position : position + num_said] = LABELS.index(char)
            position += num_said + num_blank
    lead = np.where(random.random(paths.shape) < unsure, random.uniform(1, 6, paths.shape), 12.0)
    x = random.normal(0, 1, (*paths.shape, len(LABELS))) + lead[..., None] * np.eye(len(LABELS))[paths]
    return (x - np.logaddexp.reduce(x, axis=-1, keepdims=True)).astype(np.float32)


def bigrams(texts: list[str]) -> Iterable[str]:
    """Lines of an ARPA file: absolute discounting, as simple as it is."""
    pairs = collections.Counter(
        p for text in texts for p in zip(["<s>", *text.split()], [*text.split(), "</s>"], strict=True)
    )
    words = collections.Counter(word for (_, word), count in pairs.items() for _ in range(count))
    begun, followers = collections.Counter[str](), collections.Counter(first for first, _ in pairs)
    for (first, _), count in pairs.items():
        begun[first] += count
    backoff = {word: math.log10(0.7 * followers[word] / begun[word]) for word in begun}
    yield from ("\\data\\", f"ngram 1={len(words) + 2}", f"ngram 2={len(pairs)}", "", "\\1-grams:", "-6\t<unk>\t0")
    yield f"-99\t<s>\t{backoff['<s>']:.6f}"
    for word, count in words.items():
        yield f"{math.log10(0.99 * count / words.total()):.6f}\t{word}\t{backoff.get(word, 0):.6f}"
    yield from ("", "\\2-grams:")
    for (first, word), count in pairs.items():
        yield f"{math.log10((count - 0.7) / begun[first]):.6f}\t{first} {word}"
    yield from ("", "\\end\\")


def made(manifests: list[Path], folder: Path) -> dict[str, dict[str, float]]:
    """Writes what both sides read, and says what the emissions are like."""
    texts = [json.loads(line)["text"] for path in manifests for line in path.read_text().splitlines()]
    (folder / "lm.arpa").write_text("\n".join(bigrams(texts)) + "\n")
    (folder / "words.txt").write_text("\n".join(sorted({word for text in texts for word in text.split()})))
    chosen = [text for text in texts if len(text) > NUM_FRAMES // 4][:NUM_ROWS]
    about = {}
    for seed, (kind, unsure) in enumerate(UNSURE.items()):
        x = emissions(chosen, unsure, seed)
        np.save(folder / f"{kind}.npy", x)
        kept = x >= -5
        blank_alone = (kept.sum(-1) == 1) & kept[..., 0]
        about[kind] = {
            "symbols_per_frame": float(kept.sum(-1).mean()),
            "share_of_blank_alone": float(blank_alone.mean()),
        }
    return about


def turn(name: str, python: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    command = [python, __file__, "--side", name, "--folder", str(folder), "--repeats", str(given.repeats)]
    command += ["--beam-width", str(given.beam_width)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, nargs="+", metavar="MANIFEST", help="JSONL with text")
    parser.add_argument("--beam-width", type=int, default=100, help="pyctcdecode's default: 100")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--pyctcdecode", default=str(ROOT / ".venv-reference/bin/python"), help="Python that has pyctcdecode and kenlm"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=("asr_jax", "pyctcdecode"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        side(given.side, given.beam_width, given.folder, given.repeats)
        return
    if not given.texts:
        parser.error("--texts is needed: manifests whose words are used")
    pythons = {"asr_jax": sys.executable, "pyctcdecode": given.pyctcdecode}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        about = made(given.texts, folder)
        turns = [{n: turn(n, python, given, folder) for n, python in pythons.items()} for _ in range(given.turns)]
    result: dict[str, Any] = {
        "cores": os.cpu_count(), "load": os.getloadavg()[0], "beam_width": given.beam_width,
        "batch": [NUM_ROWS, NUM_FRAMES, len(LABELS)], "emissions": about,
    }  # fmt: skip
    for what in turns[0]["asr_jax"]:
        raced = [name for name in pythons if what in turns[0][name]]
        s = {name: statistics.median(both[name][what]["best_s"] for both in turns) for name in raced}
        result[what] = {"s": s, "frames_per_s": {name: NUM_ROWS * NUM_FRAMES / s[name] for name in raced}}
        result[what]["first_s"] = {n: statistics.median(both[n][what]["first_s"] for both in turns) for n in raced}
        if len(raced) == 2:
            result[what] |= compared(*(turns[0][name][what]["found"] for name in raced))
            result[what]["times_as_fast"] = s["pyctcdecode"] / s["asr_jax"]
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


def compared(found: list[Any], expected: list[Any]) -> dict[str, Any]:
    """How many best texts and whole lists are equal, and how far scores of equal texts are from each other."""
    pairs = list(zip(found, expected, strict=True))
    scores = [(dict(map(tuple, ours)), dict(map(tuple, theirs))) for ours, theirs in pairs]
    return {
        "equal_best_texts": sum(ours[0][0] == theirs[0][0] for ours, theirs in pairs),
        "equal_lists": sum([text for text, _ in ours] == [text for text, _ in theirs] for ours, theirs in pairs),
        "largest_score_difference": max(abs(a[text] - b[text]) for a, b in scores for text in a.keys() & b.keys()),
    }


if __name__ == "__main__":
    main()
