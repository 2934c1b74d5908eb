"""Quickstart: makes synthetic speech, trains, evaluates on new voices, transcribes three files, writes a summary.

In a checkout, `./scripts/quickstart.sh` makes the environment first. Every stage prints the equivalent command. A
complete corpus and a complete training are not repeated.
"""

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asr_jax.cli.command_line import NoOptions, load_config
from asr_jax.core.files import write_whole
from asr_jax.core.names import counted
from asr_jax.core.options import parse
from asr_jax.core.text_files import read_text

CONFIG = "configs/quickstart.py"


def main(arguments: Sequence[str]) -> None:
    parse(NoOptions, arguments, prog="python -m asr_jax.quickstart", about=__doc__)
    started = time.monotonic()
    experiment = load_config(CONFIG)
    corpus = Path(experiment.data.train[0]).parent.parent
    run, test = experiment.folder, corpus / "manifests" / "test.jsonl"

    from asr_jax.observe.tensorboard import command_for

    made = speak(corpus)
    summary = train(CONFIG)
    scores, checkpoint = evaluate(run, test)
    transcribe(run, test)

    final = {
        "wer": scores["wer"],
        "cer": scores["cer"],
        "train_seconds": summary["seconds"],
        "corpus_seconds": made["seconds_taken"],
        "steps": summary["update"],
        "parameters": summary["parameters"],
        "validation_wer": summary["best_wer"],
        "test_words": scores["words"],
        "checkpoint": checkpoint,
    }
    write_whole(run / "summary.json", json.dumps(final, indent=2) + "\n")
    print(
        f"\nWER {scores['wer']:.2%}, CER {scores['cer']:.2%} on {scores['utterances']} sentences of voices that are "
        "not in the training data"
    )
    print("(synthetic speech: the result shows that training works, and does not predict the WER on human speech)")
    for name, place in (
        ("checkpoint", checkpoint),
        ("events", run / "events.jsonl"),
        ("curves", run / "curves.png"),
        ("summary", run / "summary.json"),
        ("TensorBoard", command_for(run)),
    ):
        print(f"  {name:<13}{place}")
    print(f"done in {time.monotonic() - started:.0f} s; next: python -m asr_jax.init FOLDER, for your own recordings")


def speak(corpus: Path) -> dict[str, Any]:
    from asr_jax.data.corpora.sentences import Corpus
    from asr_jax.data.corpora.synthetic import make_corpus

    _say(f"python -m asr_jax.data.corpora.synthetic --out {corpus}")
    return make_corpus(corpus, Corpus())


def train(config: str) -> dict[str, Any]:
    from asr_jax.cli.command_line import parse_experiment
    from asr_jax.training.loop import train as train_run

    _say(f"python -m asr_jax.train --config {config}")
    summary = train_run(parse_experiment(["--config", config], prog="python -m asr_jax.train"))
    if summary.get("already"):
        print(f"already trained: {counted(summary['update'], 'update')} in {summary['folder']}")
    return summary


def evaluate(run: Path, test: Path) -> tuple[dict[str, Any], str]:
    """Evaluates the best checkpoint on the test set; returns the scores, and the path of the checkpoint."""
    from asr_jax.cli.evaluate import main as evaluate_main

    out = run / "test.json"
    _say(f"python -m asr_jax.evaluate {run} --data {test} --json {out}")
    evaluate_main([str(run), "--data", str(test), "--json", str(out)])
    [found] = json.loads(read_text(out))["runs"]
    return found["sets"][str(test)], str(run / "checkpoints" / str(found["checkpoint"]))


def transcribe(run: Path, test: Path) -> None:
    from asr_jax.cli.transcribe import main as transcribe_main
    from asr_jax.data.manifests.reading import read_utterances

    utterances = read_utterances([test])
    chosen = [utterances[len(utterances) * part // 4] for part in (1, 2, 3)]
    files = [os.path.relpath(utterance.location) for utterance in chosen]
    _say(f"python -m asr_jax.transcribe {run} {' '.join(files)}")
    transcribe_main([str(run), *files])
    print("reference texts:")
    for file, utterance in zip(files, chosen, strict=True):
        print(f"{file}\t{utterance.text}")


def _say(command: str) -> None:
    print(f"\n$ {command}", flush=True)
