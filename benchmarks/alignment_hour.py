"""Benchmark of the search of --segment on one hour of synthetic log-probabilities: seconds, memory, found labels.

python benchmarks/alignment_hour.py [--band 4096]
"""

import argparse
import json
import resource
import time

import jax
import numpy as np

from asr_jax.alignment.ctc_segment import LongSearch, align_long
from asr_jax.alignment.emissions import Emissions

FRAMES, LABELS, SYMBOLS = 180_000, 50_000, 30
"""One hour with 50 frames and 14 characters per second."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--band", type=int, default=LongSearch.band)
    search = LongSearch(band=parser.parse_args().band)
    rng = np.random.default_rng(0)
    labels = rng.integers(1, SYMBOLS, LABELS)
    at = np.sort(rng.choice(np.arange(FRAMES // 2) * 2, LABELS, replace=False))
    logits = rng.normal(size=(FRAMES, SYMBOLS)).astype(np.float32)
    symbols = np.zeros(FRAMES, int)
    symbols[at] = labels
    logits[np.arange(FRAMES), symbols] += 9
    log_probs = np.asarray(jax.nn.log_softmax(logits))
    emissions = Emissions(log_probs[:, 1:], log_probs[:, 0], log_probs[:, 0], log_probs[:, 1:].max(1))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.perf_counter()
    path = align_long(emissions, labels - 1, np.arange(LABELS) % 5 == 0, search=search)
    figures = {
        "band": search.band,
        "seconds": round(time.perf_counter() - begin, 1),
        "memory_added_mb": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024),
        "labels_within_a_frame": float((np.abs(path.starts - at) <= 1).mean()),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
