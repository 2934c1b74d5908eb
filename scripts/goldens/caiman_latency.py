"""Writes emission times and latencies of random words, computed with the code of Myrtle's CAIMAN-ASR 1.14.

For tests/goldens/test_caiman_latency.py. Runs in .venv-reference, with the sources that `scripts/setup_reference.sh
--peers` downloads to .peers:

    .venv-reference/bin/python scripts/goldens/caiman_latency.py --out tests/goldens/caiman_latency/cases.json

Words are of lower-case letters, which the peer's normalisation leaves unchanged; a stub replaces it.
"""

import argparse
import dataclasses
import importlib
import json
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from peer_texts import PEERS, stand_in

FRAME_S = 0.06
WORDS = ("a", "bee", "cat", "door", "egg", "far", "gin", "hat", "ice", "joy", "key", "low")
CASES = {"all right": (0.0, 4), "errors": (0.25, 12), "nothing right": (1.0, 2)}
"""Share of wrong words, and number of recordings."""


def import_caiman() -> Any:
    """Imports the modules of latencies; checkers of types and what is not used are stubs."""
    stand_in("beartype", beartype=lambda decorated: decorated)
    sys.modules["beartype.typing"] = typing  # type: ignore[assignment]
    stand_in("matplotlib")
    stand_in("matplotlib.pyplot")
    root = PEERS / "caiman-asr/training/caiman_asr_train"
    for name in ("", ".data", ".data.text", ".latency", ".train_utils"):
        stand_in(f"caiman_asr_train{name}")
        sys.modules[f"caiman_asr_train{name}"].__path__ = [str(root / name.removeprefix(".").replace(".", "/"))]
    stand_in("caiman_asr_train.data.text.normalizers", lowercase_normalize=lambda text, _: text)
    stand_in("caiman_asr_train.train_utils.distributed", print_once=lambda *_: None)
    names = ("measure_latency", "measure_latency_lite", "timestamp")
    return SimpleNamespace(**{name: importlib.import_module(f"caiman_asr_train.latency.{name}") for name in names})


def drawn(random: np.random.Generator, share_wrong: float) -> tuple[list[Any], str, list[int]]:
    """Returns spoken words with times, a recognised text, and the frame of each of its characters."""
    places = random.permutation(len(WORDS))[: random.integers(1, 9)]
    ends = np.cumsum(random.uniform(0.2, 0.6, len(places)))
    starts = ends - random.uniform(0.1, 0.2, len(places))
    spoken = [
        (WORDS[place], round(start, 3), round(end, 3)) for place, start, end in zip(places, starts, ends, strict=True)
    ]
    text, frames = [], list[int]()
    for word, start, end in spoken:
        kind = random.choice(["wrong", "missing", "added"]) if random.random() < share_wrong else "right"
        kind = "wrong" if share_wrong == 1 else kind
        written = {"right": [word], "wrong": [f"z{word}"], "missing": [], "added": [word, "zoo"]}[kind]
        for each in written:
            first = max(int(start / FRAME_S) + random.integers(-1, 3), 0)
            last = max(first, int(end / FRAME_S) + random.integers(-2, 8))
            of_letters = np.sort(random.integers(first, last + 1, len(each) + bool(text)))
            frames += of_letters.tolist()
            text.append(each)
    return spoken, " ".join(text), frames


def case_of(caiman: Any, random: np.random.Generator, share_wrong: float, number: int) -> dict[str, Any]:
    """Returns the inputs and outputs of a case. Recordings without recognised words are drawn again."""
    recordings = list[Any]()
    while len(recordings) < number:
        each = drawn(random, share_wrong)
        if each[1] and (np.diff(each[2]) >= 0).all():
            recordings.append(each)
    times, measure = caiman.timestamp, caiman.measure_latency
    texts, frames = [text for _, text, _ in recordings], [frames for *_, frames in recordings]
    grouped = times.group_timestamps([list(text) for text in texts], frames, texts, [times.Never()] * len(texts))
    words = [[times.frame_to_time(each, FRAME_S) for each in sequence.seqs] for sequence in grouped]
    tails, _, _, _, usage, _, stats = measure.align_transcripts(
        [measure.CTMTimestamp(*word, str(row)) for row, (spoken, *_) in enumerate(recordings) for word in spoken],
        [
            measure.CTMTimestamp(each.word, each.start_time, each.end_time, str(row))
            for row, of_row in enumerate(words)
            for each in of_row
        ],
        None,
        head_offset=0.0,
        tail_offset=0.0,
    )
    return {
        "recordings": [
            {"spoken": spoken, "text": text, "frames": of_row} for spoken, text, of_row in recordings
        ],
        "words": [[list(dataclasses.astuple(each)) for each in of_row] for of_row in words],
        "tails": tails,
        "usage": usage,
        "metrics": caiman.measure_latency_lite.compute_latency_metrics(tails, [], [], frame_width=FRAME_S),
        "timestamps": stats,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    caiman, random = import_caiman(), np.random.default_rng(0)
    cases = {name: case_of(caiman, random, *sizes) for name, sizes in CASES.items()}
    about = {"peer": "MyrtleSoftware/caiman-asr@08d60d80 training/caiman_asr_train/latency", "frame_s": FRAME_S}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(about | {"cases": cases}) + "\n")
    print({name: (len(each["tails"]), each["usage"]) for name, each in cases.items()})


if __name__ == "__main__":
    main()
