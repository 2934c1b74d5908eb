"""Events of runs for tests and pictures, with fixed times."""

import json
import math
from pathlib import Path

START_MS = 1_800_000_000_000
SAMPLES = [
    {"id": "1272-0003", "reference": "the quick brown fox jumps", "hypothesis": "the quick crown fox jumps now"},
    {"id": "1272-0017", "reference": "she had a little lamb", "hypothesis": "she had little lamb"},
    {"id": "1272-0040", "reference": "nothing is wrong here", "hypothesis": "nothing is wrong here"},
]


def event(name, elapsed_s, **data):
    timestamp_ms = START_MS + round(1000 * elapsed_s)
    return {"event": name, "timestamp_ms": timestamp_ms, "data": data | {"elapsed_s": elapsed_s}}


def start(run, elapsed_s=0.0, **more):
    return event(
        "run_start", elapsed_s, run=run, num_updates=2000, num_parameters=23_300_000, num_epochs=4.0, num_devices=2,
        on="2 × NVIDIA H100 (gpu:0, gpu:1)", changed=[], utterances=28_539, hours=100.6, **more,
    )  # fmt: skip


def step(update, elapsed_s, *, loss=None, norm=None):
    throughput = {
        "audio_s_per_s": 3100.0 + 60 * math.sin(update / 90), "padding_share": 0.041, "waiting_share": 0.02,
        "host_share": 0.11, "device_share": 0.87, "batch_s": 0.25, "num_batches": 50,
    }  # fmt: skip
    memory = {"host_bytes": 6_200_000_000, "device_peak_bytes": 41_000_000_000, "device_limit_bytes": 80_000_000_000}
    loss = 0.3 + 6 * math.exp(-update / 250) if loss is None else loss
    return event(
        "train_step", elapsed_s, update=update, epoch=1 + update // 500, losses={"total": loss, "ctc/loss": loss},
        metrics={}, learning_rate=1e-3 * min(update / 400, (400 / update) ** 0.5), voided=0,
        gradient_norm=2 + 3 * math.exp(-update / 300) if norm is None else norm, throughput=throughput, memory=memory,
    )  # fmt: skip


def validation(update, elapsed_s, wer, *, loss=1.5):
    return event(
        "validation", elapsed_s, update=update, epoch=1 + update // 500, weights="ema", wer=wer, cer=wer / 2.5,
        measure="wer", decoding="greedy", substitutions=70, deletions=12, insertions=9, words=1500, utterances=120,
        loss=loss, samples=SAMPLES,
    )  # fmt: skip


def training(run="zipformer_medium", *, until=1200):
    """Events of a run up to an update."""
    events = [
        start(run),
        event("data", 0.5, set="train", message="train.jsonl: read as JSON"),
        event("rejected", 1.0, count=5, reasons={"too long (41.2, needs 35)": 3, "empty text": 2}, files=["a.flac"]),
        event("compile_start", 2.0, shapes=3),
        *(event("compiled", 20.0 + n, number=n, shapes=3, bucket={}) for n in (1, 2, 3)),
        event("compile", 30.0, rows=[], memory={"maximum_bytes": 43_000_000_000, "limit_bytes": 80_000_000_000}),
    ]
    for update in range(50, until + 1, 50):
        elapsed_s = 40 + update * 0.3
        events.append(step(update, elapsed_s))
        if update % 400 == 0:
            events.append(event("validation_start", elapsed_s + 1, update=update, weights="ema", utterances=120))
            events.append(validation(update, elapsed_s + 8, 0.6 * math.exp(-update / 600), loss=1 + 400 / update))
            events.append(event("checkpoint_saved", elapsed_s + 9, update=update, path=f"checkpoints/{update}"))
    if until >= 1000:
        message = "the loss of update 950 is 2.1 times the mean of the last 100 updates"
        events.append(event("warning", 45 + until * 0.3, update=950, detector="loss spike", message=message))
    return events


def finished(run="zipformer_medium"):
    summary = {"wer": 0.0214, "cer": 0.0086, "measure": "wer", "best_wer": 0.0214}
    return [*training(run, until=2000), event("run_complete", 660, update=2000, reason="all updates done", **summary)]


def failed(run="conformer_small"):
    reason = "RunError: the last 20 updates were not finite (limits.max_failed is 20)"
    voided = event("voided", 260, update=700, count=20, updates=[], path="voided.jsonl")
    return [*training(run, until=700), voided, event("run_failed", 261, reason=reason)]


def extraction():
    """Events of an extraction that goes on."""
    events = [
        event("extraction_start", 1.0, output="features/0000-train.parquet", utterances=12_000, done=2000,
              skipped_long=17, workers=8, kind="processes", on="1 × NVIDIA H100 (gpu:0)"),
    ]  # fmt: skip
    for n in range(1, 41):
        last = {"id": f"utterance-{n:04}", "text": "the quick brown fox", "duration_s": 4.2}
        events.append(event(
            "extraction", 1.0 + n, output="features/0000-train.parquet", done=2000 + 150 * n, utterances=12_000, long=n,
            rejected=n // 20, shard=f"{2000 + 150 * n // 1000 * 1000:09}.parquet", last=last,
            utterances_per_s=150.0 + n % 7, audio_s_per_s=630.0 + 4 * (n % 7), reading=3.1 + n % 3,
        ))  # fmt: skip
    return events


def write(path: Path, events, *, rest: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in events) + rest, encoding="utf-8")
    return path
