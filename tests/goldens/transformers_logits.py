"""Computes outputs of transformers for a folder and waveforms, for tests. Runs in .venv-reference.

.venv-reference/bin/python tests/goldens/transformers_logits.py FOLDER IN.safetensors OUT.safetensors

IN has `waveform` [B S] of full scale 1 and `waveform_lengths`. OUT has the outputs of the folder's processor, and those
of the model: logits, or for pre-training the projected states and the projected quantised states. The labels of the
folder's tokenizer are printed (none for pre-training); its padding token must be the model's blank.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

folder, given, out = sys.argv[1:]
arrays = load_file(given)
(architecture,) = json.loads((Path(folder) / "config.json").read_text())["architectures"]
model, loading = getattr(transformers, architecture).from_pretrained(folder, output_loading_info=True)
assert not any(loading.values()), loading
recognises = architecture.endswith("ForCTC")
processor = (transformers.AutoProcessor if recognises else transformers.AutoFeatureExtractor).from_pretrained(folder)
waves = [wave[:length].numpy() for wave, length in zip(arrays["waveform"], arrays["waveform_lengths"], strict=True)]
inputs = processor(waves, sampling_rate=16000, return_tensors="pt", padding=True)
with torch.no_grad():
    found = model.eval()(**inputs)
names = ["logits"] if recognises else ["projected_states", "projected_quantized_states"]
save_file({name: value.contiguous() for name, value in (*inputs.items(), *((n, found[n]) for n in names))}, out)
labels = {}
if recognises:
    tokenizer = processor.tokenizer
    assert tokenizer.pad_token_id == model.config.pad_token_id
    assert tokenizer.word_delimiter_token == "|"
    labels = tokenizer.get_vocab()
print(json.dumps(sorted(labels, key=labels.__getitem__)))
