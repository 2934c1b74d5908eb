"""Files of predictions, recordings and events for tests of reports."""

import json
import random
from pathlib import Path
from typing import Any

import numpy as np

from asr_jax.audio.io import write_flac
from asr_jax.observe.events import EventLog

WORDS = ["some", "words", "of", "an", "utterance", "with", "several", "others"]


def predictions(
    path: Path, error_rate: float, *, num: int = 60, num_words: int = 6, seed: int = 0, **fields: Any
) -> Path:
    """Writes predictions like evaluate; references depend on their row alone. `fields` replace those of all lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    errors = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for row in range(num):
            choose = random.Random(row)
            reference = [choose.choice(WORDS) for _ in range(num_words)]
            hypothesis, words = [], []
            for word in reference:
                kind = errors.choice("SDI") if errors.random() < error_rate else ""
                got = {"": [word], "S": ["wrong"], "D": [], "I": [word, "more"]}[kind]
                hypothesis += got
                words += [{"text": each, "confidence": 0.2 + 0.7 * errors.random()} for each in got]
            n_best = [{"text": " ".join(hypothesis), "score": -1.5}, {"text": "second best", "score": -3.25}]
            line = {
                "set": f"set{row % 2}.jsonl", "head": "ctc", "decoding": "beam 4", "id": f"u{row}",
                "location": f"{row}.flac", "reference": " ".join(reference).upper(), "hypothesis": " ".join(hypothesis),
                "source": ("read", "phone")[row % 3 == 0], "speaker": f"s{row % 12}", "duration_s": 1 + row % 40,
                "normaliser": "lower.v1", "words": words, "confidence": 0.5, "n_best": n_best,
            }  # fmt: skip
            file.write(json.dumps(line | fields) + "\n")
    return path


def recording(path: Path, *, duration_s: float = 1.0) -> Path:
    """Writes a tone that rises."""
    times = np.arange(int(16000 * duration_s)) / 16000
    samples = 8000 * np.sin(2 * np.pi * (300 + 400 * times) * times)
    write_flac(path, samples.astype(np.int16), 16000)
    return path


def run(folder: Path) -> Path:
    """Writes the events of a run."""
    with EventLog(folder / "events.jsonl") as log:
        log.write("run_start", run=folder.name, num_updates=4)
        for update in range(1, 5):
            throughput = {"audio_s_per_s": 10.0, "padding_share": 0.1}
            log.write("train_step", update=update, epoch=1, losses={"total": 1 / update}, learning_rate=1e-3,
                      throughput=throughput)  # fmt: skip
        log.write("validation", update=4, weights="ema", wer=0.5, cer=0.25, loss=0.5)
    return folder
