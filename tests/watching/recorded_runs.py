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


def others():
    """One event of each further kind, and further kinds of validations."""
    rates = {"wer": 0.2, "cer": 0.08, "substitutions": 3, "deletions": 2, "insertions": 1, "words": 30, "utterances": 4}
    of_set = rates | {"loss": 1.4, "metrics": {"ctc/infeasible": 0.0}}
    of_loss = {
        "epoch": 1, "weights": "live", "measure": "loss", "loss": 2.5, "losses": {"mask/loss": 2.5},
        "metrics": {"mask/accuracy": 0.25}, "utterances": 4,
    }  # fmt: skip
    several = {"sets": {"clean": of_set}, "mean": {"wer": 0.2, "cer": 0.08, "loss": 1.4}}
    reason, path = "audio has 2.0 s, the manifest 3.0 s", "rejected.jsonl"
    changed = [{"setting": "seed", "old": 0, "new": 1}]
    account = {"path": "w", "loaded": ["a"], "kept_rows": {}, "missing": [], "mismatched": {}, "unused": []}
    again = start("zipformer_medium", 300, versions={"jax": "0.7"})
    again["data"]["changed"] = changed
    events = [
        again,
        event("setting_changed", 300, **changed[0]),
        event("resumed", 301, update=2000, data_position=8000, path="checkpoints/2000"),
        event("initialised", 302, **account, message="initial weights of w: 1 loaded\n  no others"),
        event("differing", 303, count=2, files=["a.flac"], reason=reason, path=path),
        event("compile", 304, rows=[{"seconds": 1.6, "memory_bytes": 10**9, "kind": "x", "is_used": True}],
              memory={"maximum_bytes": 10**9, "limit_bytes": None}, seconds=2.0),
        event("pre_allocated", 305, shapes=3, seconds=1.5),
        event("batch_start", 306, update=2050, epoch=5, batches=[{"position": 8000, "shape": [8, 100]}]),
        step(2050, 310, loss=0.4),
        event("recompiled", 311, function="f", seconds=1.0, reason="another shape"),
        event("optimizer_flush", 312, update=2060, batches=1, accumulate=2),
        event("validation", 320, update=2100, epoch=5, weights="live", measure="wer", decoding="greedy", **rates,
              loss=1.5, samples=SAMPLES[:1], heads={"other": rates}, best_of="mean", **several, normaliser="none"),
        event("validation", 321, update=2110, **of_loss),
        event("samples", 322, update=2120, samples=SAMPLES[:1]),
        event("profile", 323, path="run/profile", processes=1),
        event("uploaded", 324, update=2100, to="a/b", revision="main", format="x", commit="c", url="u", seconds=9),
        event("upload_failed", 325, update=2100, to="a/b", reason="no token"),
        event("warning", 326, message="a warning of no update"),
        event("job_stopped", 327, update=2120, reason="SIGTERM"),
    ]  # fmt: skip
    of_extraction = [
        event("extracted", 50, output="f.parquet", utterances=12_000, rejected=3, skipped_long=17),
        event("extraction_complete", 51, files=1),
    ]
    return [*events, *of_extraction]


def write(path: Path, events, *, rest: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(each) + "\n" for each in events) + rest, encoding="utf-8")
    return path
