"""Names of the files and folders in the folder of a run."""

EXPERIMENT, CHECKPOINTS, TOKENIZER = "experiment.json", "checkpoints", "tokenizer"
PLAN, EVENTS, TENSORBOARD = "plan.json", "events.jsonl", "tensorboard"
SKIPPED, VOIDED, CURVES, LOCK = "skipped.jsonl", "voided.jsonl", "curves.png", "lock"
SPLIT, PROFILE, CALIBRATION = "validation_split", "profile", "calibration.json"
