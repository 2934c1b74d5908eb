# %% [markdown]
# # First steps
#
# Train a small recogniser, transcribe and evaluate with it, and align a text, from Python. Run the cells from top to
# bottom in an editor that supports `# %%`, in Jupyter with jupytext, or as a script:
#
#     ./scripts/quickstart.sh            # makes the data below; alternatively, set FIRST_STEPS_DATA to your own
#     python examples/first_steps.py

# %%
import os
from dataclasses import replace
from pathlib import Path

import asr_jax
from asr_jax.data.manifests.reading import read_utterances

DATA = Path(os.environ.get("FIRST_STEPS_DATA", "data/quickstart/manifests"))
RUN = os.environ.get("FIRST_STEPS_RUN", "runs/first_steps")
CONFIG = os.environ.get("FIRST_STEPS_CONFIG", "configs/quickstart.py")

# %% [markdown]
# ## Train
#
# A config is a Python file that returns an `Experiment`, a tree of frozen dataclasses; `replace` changes a field. The
# same call continues an interrupted run.

# %%
experiment = asr_jax.load_config(CONFIG)
experiment = replace(
    experiment,
    run_dir=RUN,
    data=replace(experiment.data, train=(str(DATA / "train.jsonl"),), validation=(str(DATA / "validation.jsonl"),)),
)
summary = asr_jax.train(experiment)
print(f"validation WER {summary['wer']:.1%} after {summary['update']} updates")

# %% [markdown]
# ## Transcribe
#
# Audio is a path, an array with its sampling rate, or a list of those, of any length.

# %%
run = asr_jax.load(RUN)
test = DATA / "test.jsonl"
first = read_utterances([str(test)], role="validation")[0]
transcript = run.transcribe(first.location)
print(transcript.text)
for word in transcript.words:
    print(f"{word.start_s:6.2f} {word.end_s:6.2f} {word.confidence:5.2f} {word.text}")

# %% [markdown]
# ## Evaluate and align
#
# An alignment returns the times of the words of a known text.

# %%
counts = run.evaluate(test)
print(f"test WER {counts['wer']:.1%} of {counts['words']} words")
for word in run.align(first.location, first.text).words:
    print(f"{word.start_s:6.2f} {word.end_s:6.2f} {word.text}")
