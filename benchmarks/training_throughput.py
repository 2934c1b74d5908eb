"""Throughput of training: `python benchmarks/training_throughput.py [--smoke] --json OUT [--trace DIR]`.

Measures Zipformer-S and -M with CTC (500 labels) in bfloat16 and float32. Synthetic: full batches of one shape are
stored on the device, so only the update is measured. Throughput is in seconds of audio per second, from the median
update. The share of the roofline is computed from XLA's FLOPs, relative to the published dense bfloat16 peak of the
device, if it is known, and to a large matrix product in the same run. Memory is the amount planned from XLA's figures,
and the peak that the device reports. With --data MANIFEST (training set) and --validation, also measures the whole
training loop with the real loader. --trace writes an XLA trace of three updates for xprof or Perfetto.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from asr_jax.config import Experiment, Training
from asr_jax.core.batch import Batch
from asr_jax.core.meshes import data_mesh, global_batch
from asr_jax.core.precision import Precision
from asr_jax.core.pytrees import num_bytes
from asr_jax.data.batching.buckets import Bucket, Buckets
from asr_jax.data.batching.dataset import Data
from asr_jax.data.batching.index import scale_of
from asr_jax.models.base import Model
from asr_jax.models.zipformer import Zipformer
from asr_jax.observe.events import read_events
from asr_jax.optim.optimizers import AdamW
from asr_jax.optim.schedules import RunLength
from asr_jax.text.tokenizers import TokenizerSettings
from asr_jax.training.beginning import abstract_beginning, initial_training, lower_beginning
from asr_jax.training.compile import compile_steps
from asr_jax.training.loop import train
from asr_jax.training.step import Recipe

# Dense bfloat16 FLOP/s from the data sheets of the devices.
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
SIZES = {"S": Zipformer.small, "M": Zipformer.medium, "tiny": Zipformer.tiny}
VOCABULARY = 500


def measured_peak(dtype: Any, size: int) -> float:
    """FLOP/s of a product of square matrices, the maximum of five measurements."""
    product = jax.jit(lambda a, b: a @ b)
    a = jnp.ones((size, size), dtype)
    product(a, a).block_until_ready()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready([product(a, a) for _ in range(4)])
        times.append((time.perf_counter() - start) / 4)
    return 2 * size**3 / min(times)


def batch_of(bucket: Bucket) -> Batch:
    """Full batch of a bucket, with noise and random labels."""
    rng, rows = np.random.default_rng(0), bucket.batch_size
    return Batch(
        audio=rng.integers(-9000, 9000, (rows, bucket.length)).astype(np.int16),
        features=None,
        lengths=np.full(rows, bucket.length, np.int32),
        tokens=rng.integers(0, VOCABULARY - 1, (rows, bucket.num_tokens)).astype(np.int32),
        token_lengths=np.full(rows, bucket.num_tokens // 2, np.int32),
        weights=np.ones(rows, np.float32),
        utterances=np.arange(rows, dtype=np.int32),
    )


def synthetic(
    size: str, precision: Precision, *, seconds: float, batch_seconds: float, updates: int, peaks: dict[str, float],
    trace: Path | None,
) -> dict[str, Any]:  # fmt: skip
    """Measures updates on a synthetic batch of `batch_seconds` seconds in rows of `seconds` seconds."""
    mesh = data_mesh()
    model = Model(encoder=SIZES[size]()).build(vocab_size=VOCABULARY, blank_id=VOCABULARY - 1, precision=precision)
    rows = max(int(batch_seconds / seconds) // mesh.size, 1) * mesh.size
    bucket = Bucket(int(seconds * 16000), int(6 * seconds) // 8 * 8 + 8, rows, int(seconds * 16000))
    device = jax.local_devices()[0]
    peak_before = (device.memory_stats() or {}).get("peak_bytes_in_use", 0)
    recipe, started = Recipe(model, {"ctc": 1.0}, AdamW().build(RunLength(1000, 1000))), time.perf_counter()
    beginning = lower_beginning(recipe, seed=0)
    steps = compile_steps(
        recipe,
        [bucket],
        abstract_beginning(beginning, mesh),
        scale=scale_of(model.front_end, of_features=False),
        mesh=mesh,
    )
    compile_s = time.perf_counter() - started
    state, average = initial_training(beginning.compile(), mesh)
    batch = global_batch(batch_of(bucket), mesh)

    def update(number: int) -> Any:
        nonlocal state, average
        accumulated = steps.accumulate(state, [(bucket, batch, np.int32(number))])
        state, average, report = steps.apply_update(state, average, accumulated)
        return report

    times = []
    for number in range(updates + 2):
        start = time.perf_counter()
        report = jax.block_until_ready(update(number))
        times.append(time.perf_counter() - start)
    if trace:
        with jax.profiler.trace(str(trace), create_perfetto_trace=True):
            jax.block_until_ready([update(number) for number in range(3)])
    update_s = statistics.median(times[2:])
    (row,) = steps.table
    memory = device.memory_stats() or {}
    achieved = row["flops"] / update_s
    return {
        "model": f"Zipformer-{size}",
        "precision": precision,
        "rows": rows,
        "seconds": seconds,
        "parameters": row["parameters"],
        "update_ms": 1e3 * update_s,
        "audio_s_per_s": rows * seconds / update_s,
        "tflops": achieved / 1e12,
        **{f"share_of_{name}": achieved / peak for name, peak in peaks.items()},
        "compile_s": compile_s,
        "planned_gb": (row["memory_bytes"] + num_bytes(average)) / 1e9,
        # The peak is that of the process, so it is known only if this model raised it.
        "peak_gb": memory["peak_bytes_in_use"] / 1e9 if memory.get("peak_bytes_in_use", 0) > peak_before else None,
        "loss": float(report.sums["ctc/loss"].mean()),
    }


def real(
    size: str, precision: Precision, *, data: str, validation: str, batch_seconds: float, updates: int, workers: int
) -> dict[str, Any]:
    """Measures the training loop on recordings; figures are means over the second half of the updates."""
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(
            name="throughput",
            run_dir=f"{folder}/run",
            model=Model(encoder=SIZES[size]()),
            data=Data(
                train=(data,), validation=(validation,), workers=workers, threads=2,
                tokenizer=TokenizerSettings(kind="sentencepiece", vocab_size=VOCABULARY),
                buckets=Buckets(num=2, batch_seconds=batch_seconds, batch_multiple=len(jax.devices())),
            ),
            training=Training(num_updates=updates, precision=precision, log_every=updates // 2, validate_every=updates),
        )  # fmt: skip
        train(experiment)
        events = list(read_events(f"{folder}/run/events.jsonl"))
        step = [event["data"] for event in events if event["event"] == "train_step"][-1]
        table = next(event["data"] for event in events if event["event"] == "compile")
    rates = step["throughput"]
    names = ("audio_s_per_s", "padding_share", "waiting_share", "host_share", "device_share", "batch_s")
    return {"model": f"Zipformer-{size}", "precision": precision, "data": Path(data).parent.parent.name} | {
        "compile_s": table["seconds"], "planned_gb": max(row["memory_bytes"] for row in table["rows"]) / 1e9,
    } | {name: rates[name] for name in names}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="use tiny sizes, to test only whether it runs")
    parser.add_argument("--data", help="training manifest for the real loader")
    parser.add_argument("--validation", help="validation manifest for --data")
    parser.add_argument("--batch-seconds", type=float, default=1200.0, help="audio of a batch in seconds: %(default)s")
    parser.add_argument("--trace", type=Path, help="folder for an XLA trace")
    parser.add_argument("--json", type=Path, required=True, help="file to write the figures to")
    given = parser.parse_args()
    kind = jax.devices()[0].device_kind
    peaks = {"measured_matmul": measured_peak(jnp.bfloat16, 512 if given.smoke else 8192)}
    published = next((peak for name, peak in PEAKS.items() if name in kind), None)  # L40S is before L4
    peaks |= {"published_peak": published} if published else {}
    runs: list[tuple[str, Precision]] = (
        [("tiny", "bf16")] if given.smoke else [("S", "bf16"), ("M", "bf16"), ("M", "f32")]
    )
    figures: dict[str, Any] = {"device": kind, "num_devices": len(jax.devices()), "jax": jax.__version__}
    figures |= {"peak_flops": peaks, "synthetic": [], "real": []}
    for size, precision in runs:
        small = {"seconds": 2.0, "batch_seconds": 4.0, "updates": 2}
        large = {"seconds": 16.0, "batch_seconds": given.batch_seconds, "updates": 12}
        trace = given.trace if (size, precision) == runs[-1 if given.smoke else 1] else None
        figures["synthetic"].append(
            synthetic(size, precision, **(small if given.smoke else large), peaks=peaks, trace=trace)
        )
        print(json.dumps(figures["synthetic"][-1]), flush=True)
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    for size, precision in runs[:2] if given.data else ():
        updates = 4 if given.smoke else 60
        seconds = 16.0 if given.smoke else given.batch_seconds / 2
        figures["real"].append(
            real(size, precision, data=given.data, validation=given.validation, batch_seconds=seconds, updates=updates,
                 workers=0 if given.smoke else 8)
        )  # fmt: skip
        print(json.dumps(figures["real"][-1]), flush=True)
        given.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
