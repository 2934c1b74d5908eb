"""List of the commands: `python -m asr_jax` prints it, and `asr-jax COMMAND …` runs one of them."""

import importlib.metadata
import os
import platform
import runpy
import signal
import sys

from asr_jax.core.errors import nearest
from asr_jax.core.text_files import use_utf8

COMMANDS = {
    "init": "Looks at recordings and at this machine, and writes a config that fits both",
    "train": "Trains a model, or continues a run",
    "plan": "Plans the training data without training: batches, padding, rejected utterances, removed characters",
    "evaluate": "Computes error rates of runs on manifests",
    "transcribe": "Transcribes audio files, folders, lists and manifests; writes JSON, SRT, VTT, CTM and TextGrid",
    "serve": "Serves a run over HTTP, with OpenAI's API, streams and a page",
    "align": "Aligns texts with audio, or segments long audio by its text",
    "watch": "Shows runs in the terminal while they go on, or later: curves, figures, transcripts, warnings",
    "compare": "Compares the predictions of two runs, with a significance test",
    "report": "Writes a report of runs and predictions that a browser opens: error rates, recordings, curves",
    "observe.health": "Prints how a run went: its end, warnings, rejected utterances, time, best checkpoint",
    "observe.curves": "Draws the curves of a run, as at its end",
    "observe.profile": "Prints the operations of a trace of --training.profile that take most time",
    "observe.forward": "Sends the events of a run to Weights & Biases, MLflow or trackio, also while it runs",
    "clean": "Lists the caches with their sizes, and removes them",
    "merge": "Joins the outputs of jobs that divided the work of a command by --job",
    "migrate": "Makes a config of scripts, command lines and YAML files of another system",
    "convert": "Converts manifests of any supported format to JSON lines or to fairseq's lists",
    "tokenizer": "Trains a SentencePiece tokenizer",
    "ngram": "Estimates an n-gram language model from texts",
    "import": "Imports a published model as a run, without training",
    "export": "Writes a run for other programs: ONNX, sherpa-onnx, StableHLO, and weights of other systems",
    "average": "Averages checkpoints of a run",
    "upload": "Uploads a checkpoint to the Hugging Face Hub, with a model card",
    "extract_features": "Computes features, encoder outputs or codes of a set",
    "feature_statistics": "Computes mean and deviation of the features of a set",
    "augment": "Writes augmented audio, to listen to",
    "benchmark": "Measures the speed of training, inference, data and kernels",
    "quickstart": "Trains on synthetic speech, evaluates and transcribes, in minutes",
}
"""Commands with their summaries, the most used first."""


def run() -> None:
    """Runs the command in the arguments of the process.

    Without arguments, prints the list of commands; with --version, the versions.
    """
    use_utf8()
    name = sys.argv[1].replace("-", "_") if len(sys.argv) > 1 else ""
    if name in COMMANDS:
        if not sys.flags.safe_path:  # as `python -m` does, for modules that a config imports
            sys.path.insert(0, os.getcwd())
        sys.argv = [f"python -m asr_jax.{name}", *sys.argv[2:]]
        runpy.run_module(f"asr_jax.{name}", run_name="__main__", alter_sys=True)
        return
    if name and name not in ("__help", "_h", "help", "__version"):
        print(f"error: {sys.argv[1]} is not a command{nearest(name, COMMANDS)}; the commands are:", file=sys.stderr)
        print(listing(), file=sys.stderr)
        sys.exit(2)
    text = f"usage: asr-jax COMMAND …, or python -m asr_jax.COMMAND …; COMMAND --help lists its options\n\n{listing()}"
    try:
        print(_version() if name == "__version" else text, flush=True)
    except BrokenPipeError:  # the reader of the output, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


def _version() -> str:
    versions = (f"{name} {importlib.metadata.version(name)}" for name in ("asr-jax", "jax", "jaxlib", "flax"))
    return f"{', '.join(versions)}, Python {platform.python_version()}"


def listing() -> str:
    """One line for each command: its name and its summary."""
    width = max(map(len, COMMANDS))
    return "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
