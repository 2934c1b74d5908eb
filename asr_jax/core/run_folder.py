"""Names of the files and folders in the folder of a run."""

EXPERIMENT, CHECKPOINTS, TOKENIZER = "experiment.json", "checkpoints", "tokenizer"
PLAN, EVENTS, TENSORBOARD = "plan.json", "events.jsonl", "tensorboard"
REJECTED, VOIDED, CURVES, LOCK = "rejected.jsonl", "voided.jsonl", "curves.png", "lock"
FORMER_REJECTED = "skipped.jsonl"
"""The name of `rejected.jsonl` in runs of earlier versions."""
SPLIT, PROFILE, CALIBRATION = "validation_split", "profile", "calibration.json"
