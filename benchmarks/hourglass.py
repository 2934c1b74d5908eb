"""Speed and memory of pre-training by the factor of an hourglass: `python -m benchmarks.hourglass [--json OUT]`.

Measures gradient and update of one batch of wav2vec 2.0 Base in pre-training, without an hourglass and with
`[2,(8,factor),2]`. Times are medians of measurements in turns, which distributes the load of the machine evenly. Memory
is XLA's temporary memory of the gradient. Figures are relative to the model without an hourglass, and printed with
NVIDIA's, which are for whole GPUs of 80 GB in bfloat16 with NVIDIA's batches
(PyTorch/SpeechRecognition/wav2vec2/README.md, "Adjusting the Hourglass Transformer").
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from asr_jax.audio.presets import wav2vec2
from asr_jax.config import Experiment, Training
from asr_jax.data.batching.dataset import Data
from asr_jax.heads.contrastive import Contrastive
from asr_jax.models.base import Model
from asr_jax.models.wav2vec2 import Hourglass, Wav2Vec2
from asr_jax.observe.tables import print_table
from asr_jax.optim.optimizers import FairseqAdam
from asr_jax.text.tokenizers import TokenizerSettings
from benchmarks.stepping import Stepping

PUBLISHED = {2: (1.25, 0.7098), 3: (1.33, 0.6431), 4: (1.37, 0.6235), 5: (1.39, 0.6000), 6: (1.40, 0.5961)}
"""Published speed-up and share of the memory, keyed by the factor."""


def experiment(factor: int | None, precision: Any) -> Experiment:
    encoder = Wav2Vec2.base(
        taps=("features", "extractor"), hourglass=Hourglass(2, 8, factor, 2) if factor else Hourglass()
    )
    return Experiment(
        name="hourglass",
        model=Model(front_end=wav2vec2(), augment=(), encoder=encoder, heads={"pretrain": Contrastive()}),
        data=Data(train=("none",), tokenizer=TokenizerSettings(kind="none")),
        optim=FairseqAdam(),
        training=Training(num_updates=1, precision=precision),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--precision", default="f32")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--factors", type=int, nargs="+", default=[1, 2, 3, 4, 5, 6])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    sizes: dict[str, Any] = {"rows": given.rows, "seconds": given.seconds, "labels": 1, "vocabulary": 3}
    factors = [None, *given.factors]
    steppings = {factor: Stepping(experiment(factor, given.precision), **sizes) for factor in factors}
    times: dict[int | None, list[float]] = {factor: [] for factor in factors}
    for _ in range(given.repeats):
        for factor, stepping in steppings.items():
            times[factor] += stepping.times(1)["step"]
    rows = []
    for factor, stepping in steppings.items():
        step_s, memory = statistics.median(times[factor]), stepping.cost()["memory"]
        if factor is None:
            whole_s, whole = step_s, memory
        faster, share = PUBLISHED.get(factor or 0, (None, None))
        rows.append(
            {"factor": factor or "none", "step_ms": round(1000 * step_s), "faster": round(whole_s / step_s, 3),
             "memory_bytes": memory, "memory_share": memory / whole,
             "published_faster": faster or "", "published_memory_share": share or ""}
        )  # fmt: skip
    print_table(rows, title=f"{given.rows} × {given.seconds:g} s, {given.precision}")
    if given.json:
        given.json.write_text(json.dumps({"settings": sizes | {"precision": given.precision}, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
