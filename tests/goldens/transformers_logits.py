"""What transformers makes of a folder and of waveforms, for tests; runs in .venv-reference.

.venv-reference/bin/python tests/goldens/transformers_logits.py FOLDER IN.safetensors OUT.safetensors

IN has `waveform` [B S] of full scale 1 and `waveform_lengths`. OUT has what the folder's processor makes of them, and
the model's logits. Printed are the labels of its tokenizer, whose padding must be the model's blank.
"""

import json
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCTC, AutoProcessor

folder, given, out = sys.argv[1:]
arrays = load_file(given)
model, said = AutoModelForCTC.from_pretrained(folder, output_loading_info=True)
assert not any(said.values()), said
processor = AutoProcessor.from_pretrained(folder)
waves = [wave[:length].numpy() for wave, length in zip(arrays["waveform"], arrays["waveform_lengths"], strict=True)]
inputs = processor(waves, sampling_rate=16000, return_tensors="pt", padding=True)
with torch.no_grad():
    logits = model.eval()(**inputs).logits
save_file({**{name: value.contiguous() for name, value in inputs.items()}, "logits": logits}, out)
tokenizer = processor.tokenizer
assert tokenizer.pad_token_id == model.config.pad_token_id
assert tokenizer.word_delimiter_token == "|"
print(json.dumps(sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)))
