"""Writes paths of torchaudio's forced alignment for tests/goldens/test_forced_align.py; runs in .venv-reference.

    pip install --no-deps --target FOLDER ctc-forced-aligner==1.0.2
    .venv-reference/bin/python scripts/goldens/forced_align.py --out tests/goldens/alignments --aligner FOLDER

The wheel of torchaudio 2.11 is compiled without forced alignment; ctc-forced-aligner contains torchaudio's C++ code for
CPUs as a library. NAME.json contains the id of the blank and the number of rows. NAME.safetensors contains, for row i,
log_probs_i [T, V], labels_i [U], path_i [T] (a symbol for each frame), scores_i [T] (their log-probabilities) and
spans_i [U, 2] (first frame and the frame after the last one, from torchaudio's merge_tokens).
"""

import argparse
import ctypes
import json
from pathlib import Path

import numpy as np
import torch
import torchaudio
from safetensors.numpy import save_file


def forced_align(
    library: ctypes.CDLL, log_probs: np.ndarray, labels: np.ndarray, blank_id: int
) -> tuple[np.ndarray, np.ndarray]:
    """Symbol of each frame, and its log-probability."""
    path, scores = np.zeros(len(log_probs), np.int64), np.zeros(len(log_probs), np.float32)
    of_floats, of_ints = ctypes.POINTER(ctypes.c_float), ctypes.POINTER(ctypes.c_int64)
    targets = labels.astype(np.int64)
    library.align_sequences(
        log_probs.ctypes.data_as(of_floats), targets.ctypes.data_as(of_ints), path.ctypes.data_as(of_ints),
        scores.ctypes.data_as(of_floats), 1, *log_probs.shape, len(targets), ctypes.c_int64(blank_id),
    )  # fmt: skip
    return path, scores


def row(
    library: ctypes.CDLL, generator: np.random.Generator, *, symbols: int, blank_id: int, frames: int
) -> dict[str, np.ndarray]:
    """Random row with at most half as many labels as frames."""
    others = [symbol for symbol in range(symbols) if symbol != blank_id]
    labels = generator.choice(others, int(generator.integers(1, frames // 2 + 1)))
    sharpness = generator.uniform(0.5, 6)
    logits = torch.tensor(sharpness * generator.normal(size=(frames, symbols)), dtype=torch.float32)
    log_probs = torch.log_softmax(logits, dim=-1).numpy()
    path, scores = forced_align(library, log_probs, labels, blank_id)
    spans = torchaudio.functional.merge_tokens(torch.tensor(path), torch.tensor(scores), blank=blank_id)
    return {
        "log_probs": log_probs,
        "labels": labels.astype(np.int32),
        "path": path.astype(np.int32),
        "scores": scores,
        "spans": np.array([[span.start, span.end] for span in spans], np.int32),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--aligner", type=Path, required=True, help="folder in which ctc-forced-aligner is installed")
    given = parser.parse_args()
    out, library = given.out, ctypes.CDLL(str(next((given.aligner / "ctc_forced_aligner").glob("align_ops*.so"))))
    out.mkdir(parents=True, exist_ok=True)
    generator, num = np.random.default_rng(0), 8
    for name, symbols, blank_id in (("few_symbols", 4, 0), ("characters", 29, 28)):
        rows = [row(library, generator, symbols=symbols, blank_id=blank_id, frames=8 + 9 * i) for i in range(num)]
        save_file({f"{key}_{i}": value for i, of in enumerate(rows) for key, value in of.items()},
                  out / f"{name}.safetensors")  # fmt: skip
        info = {"peer": "torchaudio's forced_align of the CPU, as in ctc-forced-aligner 1.0.2", "blank_id": blank_id,
                "rows": num}  # fmt: skip
        (out / f"{name}.json").write_text(json.dumps(info, indent=1) + "\n")


if __name__ == "__main__":
    main()
