"""Compares our CTC searches with pyctcdecode in one run: `python benchmarks/race_pyctcdecode.py --texts MANIFEST …`.

pyctcdecode runs in the environment of scripts/setup_reference.sh, with its own pool of one process per core. Our search
has one thread per core, which searches its share of the rows as one batch. Both use the same beam width and pruning,
without a language model and with a bigram model of KenLM of the texts of the manifests. Processes take turns. A turn
returns medians over batches with different emissions, and the result is the median over the turns: wall-clock time, and
CPU time of all processes and threads, which depends less on the load of the machine. pyctcdecode searches only the
first rows of each batch, since it searches row by row; its times are scaled to the number of rows of ours. Compilation,
loading and the start of the pool are not measured.

The emissions are synthetic: each label of a text has one or two frames, followed by one to four frames of blank. The
logit of the right symbol is higher by 12 (with noise of deviation 1) in a certain frame, and by 1 to 6 in an uncertain
one. The result contains the number of symbols per frame that pass `token_min_logp`, and the share of frames in which
only the blank does.
"""

import argparse
import collections
import json
import math
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
LABELS = ["", " ", *"abcdefghijklmnopqrstuvwxyz'"]
NUM_ROWS, NUM_FRAMES = 64, 400
NUM_THEIRS = 16
"""Number of rows of a batch that pyctcdecode searches."""
UNSURE = {"sure": 0.1, "unsure": 0.4}
"""Share of uncertain frames of each kind of emissions."""
NUM_BEST = 10

Lists = list[list[tuple[str, float]]]
Decode = Callable[[np.ndarray], Lists]


def ours(width: int, folder: Path) -> dict[str, Decode]:
    import jax

    from asr_jax.search.ctc_beam import CTCBeamSearch
    from asr_jax.search.ctc_greedy import greedy_search
    from asr_jax.search.hypotheses import Search
    from asr_jax.search.word_scores import Fusion
    from asr_jax.text.spelling import Spelling

    spelling = Spelling.of_surfaces(LABELS, blank_id=0)
    search = Search(rules="pyctcdecode", beam_width=width, num_best=NUM_BEST)
    fusion = Fusion(kenlm=str(folder / "lm.arpa"), known_words=str(folder / "words.txt"))
    num_threads = os.cpu_count() or 1
    pool, num_rows = ThreadPoolExecutor(num_threads), NUM_ROWS // num_threads
    collapse = jax.jit(greedy_search, static_argnames="blank_id")

    def by(fusion: Fusion) -> Decode:
        searches = [CTCBeamSearch(spelling, search=search, scores=fusion.build()) for _ in range(num_threads)]
        for each in searches:
            each(np.zeros((num_rows, NUM_FRAMES, len(LABELS)), np.float32), np.zeros(num_rows, np.int32))  # compiles

        def decode(x: np.ndarray) -> Lists:
            lengths = np.full(num_rows, NUM_FRAMES)
            parts = pool.map(lambda each, part: each(part, lengths), searches, np.split(x, num_threads))
            return [[(each.text, each.score) for each in texts] for part in parts for texts in part]

        return decode

    def greedy(x: np.ndarray) -> Lists:
        found = jax.device_get(collapse(x, np.full(NUM_ROWS, NUM_FRAMES), blank_id=0))
        rows = zip(found.tokens[:, 0].tolist(), found.lengths[:, 0].tolist(), strict=True)
        texts = ("".join(LABELS[i] for i in row[:n]) for row, n in rows)
        return [[(" ".join(text.split()), 0.0)] for text in texts]

    greedy(np.zeros((NUM_ROWS, NUM_FRAMES, len(LABELS)), np.float32))
    return {"beam": by(Fusion()), "kenlm": by(fusion), "greedy": greedy}


def theirs(width: int, folder: Path) -> dict[str, Decode]:
    from pyctcdecode import build_ctcdecoder

    def by(**options: Any) -> Decode:
        decoder = build_ctcdecoder(LABELS, **options)
        pool = multiprocessing.get_context("fork").Pool(os.cpu_count())  # the processes share the decoder

        def decode(x: np.ndarray) -> Lists:
            found = decoder.decode_beams_batch(pool, list(x[:NUM_THEIRS]), beam_width=width)
            return [[(beam[0], beam[-1]) for beam in beams[:NUM_BEST]] for beams in found]

        return decode

    words = (folder / "words.txt").read_text().split()
    return {"beam": by(), "kenlm": by(kenlm_model_path=str(folder / "lm.arpa"), unigrams=words)}


def side(name: str, width: int, folder: Path) -> None:
    """One process of the comparison: writes figures to standard output."""
    result: dict[str, Any] = {}
    for how, decode in {"asr_jax": ours, "pyctcdecode": theirs}[name](width, folder).items():
        for kind in UNSURE:
            took_s, took_cpu_s, found = [], [], []
            for x in np.load(folder / f"{kind}.npy"):
                start, start_cpu = time.perf_counter(), cpu_s()
                found.append(decode(x))
                took_s.append((time.perf_counter() - start) * NUM_ROWS / len(found[-1]))
                took_cpu_s.append((cpu_s() - start_cpu) * NUM_ROWS / len(found[-1]))
            medians = {"s": statistics.median(took_s), "cpu_s": statistics.median(took_cpu_s)}
            result[f"{how}, {kind}"] = medians | {"found": [lists[:NUM_THEIRS] for lists in found]}
    print(json.dumps(result))


def cpu_s() -> float:
    """CPU time of this process and its children in seconds."""
    ids = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    fields = (Path(f"/proc/{i}/stat").read_text(encoding="utf-8").rsplit(")")[-1].split() for i in ids)
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def emissions(texts: list[str], unsure: float, seed: int) -> np.ndarray:
    """Log-probabilities [B T V] of the texts, each cut at NUM_FRAMES."""
    random = np.random.default_rng(seed)
    paths = np.zeros((len(texts), NUM_FRAMES), np.int64)
    for path, text in zip(paths, texts, strict=True):
        position = 2
        for char in text:
            num_label, num_blank = 1 + (random.random() < 0.2), random.integers(1, 5)
            path[position : position + num_label] = LABELS.index(char)
            position += num_label + num_blank
    lead = np.where(random.random(paths.shape) < unsure, random.uniform(1, 6, paths.shape), 12.0)
    x = random.normal(0, 1, (*paths.shape, len(LABELS))) + lead[..., None] * np.eye(len(LABELS))[paths]
    return (x - np.logaddexp.reduce(x, axis=-1, keepdims=True)).astype(np.float32)


def bigrams(texts: list[str]) -> Iterable[str]:
    """Lines of an ARPA file of a bigram model with absolute discounting."""
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


def made(manifests: list[Path], folder: Path, num_batches: int) -> dict[str, dict[str, float]]:
    """Writes the input of both systems; returns a description of the emissions."""
    texts = [json.loads(line)["text"] for path in manifests for line in path.read_text().splitlines()]
    (folder / "lm.arpa").write_text("\n".join(bigrams(texts)) + "\n")
    (folder / "words.txt").write_text("\n".join(sorted({word for text in texts for word in text.split()})))
    chosen = [text for text in texts if len(text) > NUM_FRAMES // 4][: NUM_ROWS * num_batches]
    about = {}
    for seed, (kind, unsure) in enumerate(UNSURE.items()):
        x = emissions(chosen, unsure, seed)
        np.save(folder / f"{kind}.npy", x.reshape(num_batches, NUM_ROWS, *x.shape[1:]))
        kept = x >= -5
        blank_alone = (kept.sum(-1) == 1) & kept[..., 0]
        about[kind] = {
            "symbols_per_frame": float(kept.sum(-1).mean()),
            "share_of_blank_alone": float(blank_alone.mean()),
        }
    return about


def turn(name: str, python: str, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    command = [python, __file__, "--side", name, "--folder", str(folder), "--beam-width", str(given.beam_width)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed: {done.stderr.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--texts", type=Path, nargs="+", metavar="MANIFEST", help="JSONL manifests with the texts")
    parser.add_argument("--beam-width", type=int, default=100, help="width of the beam; default: pyctcdecode's, 100")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--batches", type=int, default=3)
    parser.add_argument(
        "--pyctcdecode", default=str(ROOT / ".venv-reference/bin/python"), help="Python with pyctcdecode and kenlm"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=("asr_jax", "pyctcdecode"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.side:
        side(given.side, given.beam_width, given.folder)
        return
    if not given.texts:
        parser.error("--texts is missing: expected manifests whose words are used")
    pythons = {"asr_jax": sys.executable, "pyctcdecode": given.pyctcdecode}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        about = made(given.texts, folder, given.batches)
        turns = [{n: turn(n, python, given, folder) for n, python in pythons.items()} for _ in range(given.turns)]
    result: dict[str, Any] = {
        "cores": os.cpu_count(), "load": os.getloadavg()[0], "beam_width": given.beam_width, "emissions": about,
        "batch": [NUM_ROWS, NUM_FRAMES, len(LABELS)], "batches": given.batches, "turns": given.turns,
    }  # fmt: skip
    for what in turns[0]["asr_jax"]:
        raced = [name for name in pythons if what in turns[0][name]]
        took = {k: {n: statistics.median(both[n][what][k] for both in turns) for n in raced} for k in ("s", "cpu_s")}
        result[what] = took | {"frames_per_s": {n: NUM_ROWS * NUM_FRAMES / took["s"][n] for n in raced}}
        if len(raced) == 2:
            result[what] |= compared(*(turns[0][name][what]["found"] for name in raced))
            faster = {k: both["pyctcdecode"] / both["asr_jax"] for k, both in took.items()}
            result[what] |= {"times_as_fast": faster["s"], "times_less_cpu": faster["cpu_s"]}
    print(json.dumps(result, indent=1))
    if given.json:
        given.json.write_text(json.dumps(result, indent=1) + "\n")


def compared(found: list[Any], expected: list[Any]) -> dict[str, Any]:
    """Numbers of equal best texts and of equal n-best lists, and the largest difference of scores of equal texts."""
    pairs = [pair for batches in zip(found, expected, strict=True) for pair in zip(*batches, strict=True)]
    scores = [(dict(map(tuple, ours)), dict(map(tuple, theirs))) for ours, theirs in pairs]
    return {
        "lists": len(pairs),
        "equal_best_texts": sum(ours[0][0] == theirs[0][0] for ours, theirs in pairs),
        "equal_lists": sum([text for text, _ in ours] == [text for text, _ in theirs] for ours, theirs in pairs),
        "largest_score_difference": max(abs(a[text] - b[text]) for a, b in scores for text in a.keys() & b.keys()),
    }


if __name__ == "__main__":
    main()
