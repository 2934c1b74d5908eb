"""Names, meanings and fields of all events of events.jsonl, and the check of their types."""

from typing import Any, NamedTuple

from asr_jax.metrics.measure import ALL, MEAN

LARGEST = 1e100
"""Largest absolute value of a number. The numbers of a picture, their sums and their products then remain finite."""
LARGEST_COUNT = 2**53
"""Largest count. A float represents every count up to it exactly."""

MEASURED = (float, None)
"""Type of a number that may not have been finite."""
SCALAR = (str, float, bool, None)
SAMPLES = [{"id": str, "reference": str, "hypothesis": str}]
RATES = {
    "wer": MEASURED, "cer": MEASURED, "substitutions": int, "deletions": int, "insertions": int, "words": int,
    "utterances": int,
}  # fmt: skip
SET = {
    "wer?": MEASURED, "cer?": MEASURED, "loss?": MEASURED, "substitutions?": int, "deletions?": int,
    "insertions?": int, "words?": int, "utterances?": int, "metrics?": {str: MEASURED},
}  # fmt: skip
VALIDATION = {
    "update": int, "epoch": int, "weights": {"live", "ema"}, "loss?": MEASURED, "losses?": {str: MEASURED},
    "metrics?": {str: MEASURED}, "utterances": int, "samples?": SAMPLES, "normaliser?": str, "heads?": {str: RATES},
    "sets?": {str: SET}, "mean?": {str: MEASURED}, "best_of?": str, "empty_share?": MEASURED,
}  # fmt: skip
"""Fields of a validation by any measure."""


class Kind(NamedTuple):
    """One kind of events."""

    meaning: str
    """Meaning of the event and of its fields."""
    fields: Any
    """Types of the fields, see `fits`. Other fields may be added, but these are not renamed."""


COMMON = {"elapsed_s": float, "update?": (int, None), "weights?": str, "detector?": (str, None)}
"""Types of fields that have the same meaning in all events. `elapsed_s` is the time of the run in seconds, summed over
its jobs."""

EVENTS: dict[str, Kind] = {
    "run_start": Kind(
        "a job starts: run, num_updates, num_epochs, num_parameters, num_devices, on (its devices), versions {library: "
        "version}, changed [{setting, old, new}, ..], utterances and hours of the training data",
        {
            "run": str, "num_updates": int, "num_epochs": float, "num_parameters": int, "num_devices": int, "on": str,
            "changed": [{"setting": str, "old": object, "new": object}], "utterances": int, "hours": float,
        },
    ),
    "data": Kind(
        "an input of the data, or its long utterances: set (train or validation), message",
        {"set": str, "message": str},
    ),
    "setting_changed": Kind(
        "the job continues a run with another value of a setting: setting, old, new",
        {"setting": str, "old": object, "new": object},
    ),
    "resumed": Kind(
        "the job continues from a checkpoint: update, data_position, path", {"update": int, "path": str}
    ),
    "compile_start": Kind("compilation before the first update starts: shapes (their number)", {"shapes": int}),
    "compiled": Kind("a shape is compiled: number (from 1), shapes, bucket", {"number": int, "shapes": int}),
    "compile": Kind(
        "the bucket table: rows [{bucket, batch_size, flops, ..}], one per compiled shape, and memory {maximum_bytes, "
        "limit_bytes (null: the device reports none)}",
        {"rows": [{str: SCALAR}], "memory": {"maximum_bytes": int, "limit_bytes": (int, None)}},
    ),
    "rejected": Kind(
        "utterances are not used: count, reasons {reason: count}, files [the first ones], path of the list",
        {"count": int, "reasons": {str: int}, "files": [str], "path?": str},
    ),
    "differing": Kind(
        "utterances are used with remarks on their audio, such as another duration than in the manifest: count, files "
        "[the first ones], reason (of the first one), path of the list",
        {"count": int, "files": [str], "reason": str, "path": str},
    ),
    "initialised": Kind(
        "initial weights are loaded: path, loaded, kept_rows, missing, mismatched, unused, message (of several lines)",
        {"message": str},
    ),
    "batch_start": Kind(
        "an update starts (at every log_every): update, epoch, batches [{position, shape, labels, audio_s}]",
        {"update": int, "epoch": int, "batches": [object]},
    ),
    "optimizer_flush": Kind(
        "an update at the end of an epoch has fewer batches: update, batches, accumulate",
        {"update": int, "batches": int, "accumulate": int},
    ),
    "voided": Kind(
        "updates with values that are not finite changed nothing: update, count, updates, path of their batches",
        {"update": int, "count": int, "path": str},
    ),
    "pre_allocated": Kind(
        "the gradient of a batch of noise of every shape was computed: shapes, seconds",
        {"shapes": int, "seconds": float},
    ),
    "profile": Kind("XLA traces are written: path, processes", {"path": str}),
    "recompiled": Kind(
        "a function is compiled after the first update: function, seconds, reason",
        {"function": str, "seconds": float, "reason": str},
    ),
    "train_step": Kind(
        "means since the last train_step: update, epoch (from 1), losses {total, term: ..}, metrics (also the "
        "quantiser's temperature in the last update), learning_rate, gradient_norm (before clipping), voided (updates "
        "so far that changed nothing), loss_scale (float16), throughput {metrics/throughput.py: rates}, memory "
        "{core/devices.py: memory_in_use}; with several processes: processes {loading_s, waiting_s, number}, the "
        "seconds of reading batches (of all threads) and of waiting for them since the last train_step, each {min, "
        "mean, max, process (the one with max)}",
        {
            "update": int, "epoch": int, "losses": {str: MEASURED}, "metrics": {str: MEASURED},
            "learning_rate": MEASURED, "gradient_norm": MEASURED, "voided": int,
            "throughput": {
                "audio_s_per_s": MEASURED, "padding_share": MEASURED, "waiting_share": MEASURED,
                "host_share": MEASURED, "device_share": MEASURED,
            },
            "memory": {"host_bytes?": int, "device_peak_bytes?": int, "device_limit_bytes?": int},
        },
    ),
    "validation_start": Kind(
        "a validation starts: update, weights, utterances", {"update": int, "weights": str, "utterances": int}
    ),
    "validation": Kind(
        "errors on all validation sets together: update, epoch, weights (live or ema), decoding (its digest), measure "
        "(wer, cer or loss, which chooses the best checkpoint), wer, cer, ter, substitutions, deletions, insertions, "
        "words, utterances, rejected, by_source, empty_share, and the other results of `score` in metrics/scoring.py, "
        "samples [{id, reference, hypothesis}]; heads {name: error rates of another head}; with "
        "training.validation.loss or without a recognising head: loss, losses {term: ..}, metrics, loss_utterances; "
        "with several sets: sets {name: these figures of the set, without rejected and samples}, mean {wer, cer, "
        "loss}, best_of (the set that chooses the best checkpoint, or all or mean), normaliser",
        ({**VALIDATION, "measure": {"wer", "cer"}, **RATES}, {**VALIDATION, "measure": {"loss"}, "loss": MEASURED}),
    ),
    "samples": Kind(
        "transcripts between validations: update, samples [{id, reference, hypothesis}]",
        {"update": int, "samples": SAMPLES},
    ),
    "checkpoint_saved": Kind("a checkpoint is on disk: update, path", {"update": int, "path": str}),
    "uploaded": Kind(
        "a checkpoint is on the hub: update, to, revision, format, commit, url, seconds", {"update": int, "url": str}
    ),
    "upload_failed": Kind(
        "an upload failed, and is tried again after the next checkpoint or by the next job: update, to, reason",
        {"update": int, "reason": str},
    ),
    "warning": Kind("a problem: message, update, detector (its name), and its measurements", {"message": str}),
    "job_stopped": Kind(
        "the job ends before the run is complete: update, reason", {"update": int, "reason": str}
    ),
    "run_failed": Kind("the job failed or was interrupted: reason", {"reason": str}),
    "run_complete": Kind(
        "the run is complete: update, reason, and the fields of the summary", {"update": int, "reason": str}
    ),
    "extraction_start": Kind(
        "the extraction of features to a file starts: output, utterances, done (by an earlier job), skipped_long "
        "(above --reject-above), workers, kind (threads or processes), on (its devices)",
        {
            "output": str, "utterances": int, "done": int, "skipped_long": int, "workers": int, "kind": str, "on": str,
        },
    ),
    "extraction": Kind(
        "progress of an extraction: output, done (utterances with features), utterances (of the output), long "
        "(computed in windows) and rejected (in the current shard) since the start, shard, last {id, text, "
        "duration_s}, and since the last event: utterances_per_s, audio_s_per_s, reading (mean number of reading "
        "workers)",
        {
            "output": str, "done": int, "utterances": int, "long": int, "rejected": int, "shard": str,
            "last": {"id": str, "text": str, "duration_s": float}, "utterances_per_s": float, "audio_s_per_s": float,
            "reading": float,
        },
    ),
    "extracted": Kind(
        "a file of features is complete: output, utterances, rejected, skipped_long",
        {"output": str, "utterances": int, "rejected": int, "skipped_long": int},
    ),
    "extraction_complete": Kind("all files of an extraction are complete: files (their number)", {"files": int}),
}  # fmt: skip
"""All events by their names."""


def is_complete(event: Any) -> bool:
    """Returns whether an object of JSON is an event with all fields that its kind has, of their types.

    An event with another name than those of `EVENTS` needs only the fields of `COMMON`: a later version may write it.
    """
    if not fits(event, {"event": str, "timestamp_ms": int, "data": COMMON}):
        return False
    name, data = event["event"], event["data"]
    return name not in EVENTS or (fits(data, EVENTS[name].fields) and (name != "validation" or _has_best(data)))


def fits(value: Any, kind: Any) -> bool:
    """Returns whether a value of JSON has a type.

    Args:
        kind: `str`, `bool` or None; `int` for a count from 0 to `LARGEST_COUNT`; `float` for any number up to
            `LARGEST`, with or without a point; `object` for any value; a set of texts for one of them; a list with a
            type for a list of it; a tuple of types for one of them; `{str: type}` for values by their names; another
            dictionary for an object with these fields, and any others. A field whose name ends with `?` may be missing.
    """
    if isinstance(kind, tuple):
        return any(fits(value, each) for each in kind)
    if isinstance(kind, list):
        return isinstance(value, list) and all(fits(each, kind[0]) for each in value)
    if isinstance(kind, dict):
        return isinstance(value, dict) and (
            all(fits(each, kind[str]) for each in value.values())
            if str in kind
            else all(_has(value, name, of_field) for name, of_field in kind.items())
        )
    if isinstance(kind, set):
        return isinstance(value, str) and value in kind
    if kind in (int, float):
        is_number = isinstance(value, int | kind) and not isinstance(value, bool)
        return is_number and (0 <= value <= LARGEST_COUNT if kind is int else -LARGEST <= value <= LARGEST)
    return value is None if kind is None else isinstance(value, kind)


def _has(fields: dict[str, Any], name: str, kind: Any) -> bool:
    key = name.removesuffix("?")
    return fits(fields[key], kind) if key in fields else key != name


def _has_best(validation: dict[str, Any]) -> bool:
    """Returns whether a validation has the figures that choose the best checkpoint."""
    if "sets" not in validation:
        return bool(validation.get("best_of", ALL) == ALL)
    sets = validation["sets"]
    return bool(sets) and "mean" in validation and validation.get("best_of") in (ALL, MEAN, *sets)
