"""Model card of a checkpoint: README.md with the measured table, the decoding, and how to use the model."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from asr_jax.config import Experiment, load_experiment
from asr_jax.core.files import write_whole
from asr_jax.core.names import counted
from asr_jax.core.run_folder import CARD, EVENTS, EXPERIMENT, RESULTS
from asr_jax.core.text_files import json_text
from asr_jax.inference.shared_folders import FOLDERS, OURS
from asr_jax.metrics.measure import ALL
from asr_jax.observe.events import read_events
from asr_jax.observe.progress import set_rows
from asr_jax.observe.tables import markdown_table, quantity
from asr_jax.observe.timeline import of_used_weights, timeline
from asr_jax.pretrained.hub import Upload

TASK = "automatic-speech-recognition"
USES = {
    "ours": "python -m asr_jax.transcribe {name} AUDIO …\npython -m asr_jax.evaluate {name} --data MANIFEST",
    "huggingface": (
        "python -c \"from transformers import pipeline; print(pipeline('{task}', model='{name}')('AUDIO'))\"\n"
        "python -m asr_jax.transcribe {name} AUDIO …"
    ),
    "funasr": (
        "python -c \"from funasr import AutoModel; print(AutoModel(model='{name}').generate(input='AUDIO'))\"\n"
        "python -m asr_jax.transcribe {name} AUDIO …"
    ),
}
"""Commands that use the downloaded folder, by format."""


def results_of(run: Path, updates: int) -> dict[str, Any]:
    """Returns the measured figures of a checkpoint from the events of its run.

    Args:
        updates: Number of updates of the checkpoint.

    Returns:
        `updates`, `parameters`, `weights` (live or ema), `decoding`, and `sets`: a row of figures for each validation
        set, with `WER` and its numbers of errors, or the loss. Without a validation after these updates, no sets.
    """
    is_trained = (run / EVENTS).is_file()  # not an imported model
    events = list(read_events(run / EVENTS, "run_start", "resumed", "validation")) if is_trained else []
    experiment = load_experiment(run / EXPERIMENT)
    found = [each["data"] for each in of_used_weights(timeline(events).get("validation", []))]
    figures = next((each for each in found if each["update"] == updates), None)
    rows = [dict(row) for row in set_rows(figures)] if figures else []
    if len(rows) == 1:
        given = experiment.data.validation
        rows[0]["set"] = Path(given[0]).name.partition(".")[0] if len(given) == 1 else "validation"
    parameters = [each["data"]["num_parameters"] for each in events if "num_parameters" in each["data"]]
    return {
        "updates": updates,
        "parameters": parameters[-1] if parameters else None,
        "weights": figures["weights"] if figures else None,
        "decoding": str(experiment.primary_decoding) if experiment.primary_decoding else None,
        "normaliser": figures.get("normaliser") if figures else None,
        "sets": rows,
    }


def write_card(folder: Path, run: Path, results: Mapping[str, Any], upload: Upload) -> None:
    """Writes README.md and results.json into a folder that is uploaded."""
    write_whole(folder / RESULTS, json_text(results, indent=2) + "\n")
    write_whole(folder / CARD, model_card(load_experiment(run / EXPERIMENT), results, upload))


def model_card(experiment: Experiment, results: Mapping[str, Any], upload: Upload) -> str:
    """Returns the text of a model card, with the metadata that the hub reads."""
    model, name = experiment.model, upload.repository.rpartition("/")[2]
    encoder, heads = type(model.encoder).__name__, ", ".join(model.heads)
    parameters = f"{quantity(results['parameters'])} parameters" if results["parameters"] else "parameters not counted"
    table = markdown_table(results["sets"]) if results["sets"] else ["The checkpoint was not validated."]
    weights = "exponential moving average of the parameters" if results["weights"] == "ema" else "parameters"
    lines = [
        f"# {name}",
        "",
        f"{encoder} with the heads {heads}: {parameters}, after {counted(results['updates'], 'update')} (the {weights} "
        "of the best checkpoint by validation). Trained with asr_jax.",
        "",
        "## Validation",
        "",
        *table,
        "",
        f"Decoding: {results['decoding'] or 'none'}. Texts are normalised by {results['normaliser'] or 'none'}.",
        "",
        "## Use",
        "",
        "```sh",
        *_use(upload, name),
        "```",
        "",
        f"experiment.json has all settings of the training; {RESULTS} has the figures of the table."
        if upload.format not in FOLDERS
        else f"{RESULTS} has the figures of the table.",
    ]
    metadata = yaml.safe_dump(_metadata(experiment, results, name), sort_keys=False, allow_unicode=True)
    return f"---\n{metadata}---\n\n" + "\n".join(lines) + "\n"


def _use(upload: Upload, name: str) -> list[str]:
    revision = f" --revision {upload.revision}" if upload.revision else ""
    uses = USES.get(upload.format, USES[OURS]).format(name=name, task=TASK)
    return [f"hf download {upload.repository}{revision} --local-dir {name}", *uses.split("\n")]


def _metadata(experiment: Experiment, results: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns the metadata of the hub. Licence and language are not known here."""
    encoder = type(experiment.model.encoder).__name__.lower()
    found: dict[str, Any] = {"library_name": "asr-jax", "tags": ["asr-jax", "jax", "speech", encoder]}
    if experiment.model.recognises:
        found["pipeline_tag"] = TASK
    measured = [row for row in results["sets"] if row.get("wer") is not None]
    single = [row for row in measured if row["set"] not in (ALL, "mean")] or measured
    if single:
        found["model-index"] = [{"name": name, "results": [_result(row) for row in single]}]
    return found


def _result(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "task": {"type": TASK},
        "dataset": {"name": row["set"], "type": row["set"]},
        "metrics": [{"type": kind, "value": round(100 * row[kind], 2)} for kind in ("wer", "cer") if row.get(kind)],
    }
