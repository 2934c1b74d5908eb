"""Writes small random models of Hugging Face's ParakeetForCTC for tests/goldens/test_hf_parakeet.py.

Runs in .venv-reference.

.venv-reference/bin/python scripts/goldens/parakeet.py --out tests/goldens/parakeet

For each case, writes a folder with `save_pretrained` (weights, settings, tokenizer) and a file with inputs, logits, a
loss and its gradients, which a .json file describes.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import ParakeetCTCConfig, ParakeetEncoderConfig, ParakeetForCTC, ParakeetTokenizer
from transformers.convert_slow_tokenizer import generate_merges

SENTENCES = [
    "the cat sat on the mat", "a dog ran to the old tree", "he said that she had seen it", "no one there at ten",
    "read and tell the others", "on an island in the east", "this is not as hard as it seems",
]  # fmt: skip
LENGTHS = [61, 41, 19, 56]
TINY = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24, "conv_kernel_size": 5,
    "subsampling_conv_channels": 6, "num_mel_bins": 16,
}  # fmt: skip
CASES = {
    "biased": {**TINY, "attention_bias": True, "convolution_bias": True},
    "no_bias": {**TINY, "attention_bias": False, "convolution_bias": False, "scale_input": False, "num_mel_bins": 24},
    "attention_bias": {**TINY, "attention_bias": True, "convolution_bias": False, "subsampling_factor": 4},
}
NOTE = (
    "Evaluation mode. features [B T F], 0 beyond lengths; labels are -100 beyond theirs. loss is CTC's, summed over "
    "rows; grad/NAME its gradients. encoded: texts and their ids by the folder's tokenizer."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    for number, (name, config) in enumerate(CASES.items()):
        save_case(out / name, config, seed=number)


def save_case(folder: Path, config: dict[str, Any], *, seed: int) -> None:
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = trained_tokenizer()
    tokenizer.save_pretrained(folder)
    encoder_config = ParakeetEncoderConfig(**config)
    settings = ParakeetCTCConfig(
        vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, encoder_config=encoder_config,
        ctc_loss_reduction="sum",
    )  # fmt: skip
    model = ParakeetForCTC(settings).eval()
    move(model)
    model.save_pretrained(folder)

    lengths = torch.tensor(LENGTHS)
    mask = torch.arange(max(LENGTHS) + 3)[None] < lengths[:, None]
    features = torch.randn(len(LENGTHS), mask.shape[1], encoder_config.num_mel_bins) * mask[:, :, None]
    frames = model._get_subsampling_output_length(lengths)
    labels = torch.full((len(LENGTHS), int(frames.max()) // 2), -100)
    for row, count in enumerate(frames // 2):
        labels[row, :count] = torch.randperm(tokenizer.pad_token_id)[:count]
    given = model(input_features=features, attention_mask=mask, labels=labels)
    given.loss.backward()
    arrays = {"features": features, "lengths": lengths, "labels": labels, "logits": given.logits.detach()}
    arrays |= {"frame_lengths": frames, "loss": given.loss.detach().reshape(1)}
    arrays |= {f"grad/{name}": parameter.grad for name, parameter in model.named_parameters()}
    save_file({name: value.contiguous() for name, value in arrays.items()}, folder.with_suffix(".safetensors"))
    texts = [*SENTENCES, "the tenth tree is red", "eat that"]
    info = {
        "peer": f"huggingface/transformers {transformers.__version__} ParakeetForCTC",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "note": NOTE,
        "encoded": {text: tokenizer(text)["input_ids"] for text in texts},
    }
    folder.with_suffix(".json").write_text(json.dumps(info, indent=1) + "\n")


def trained_tokenizer() -> ParakeetTokenizer:
    """Tokenizer like that of transformers' converter of NeMo's files.

    It has the pieces of a vocabulary with all merges that produce them, and the blank as an additional token, `<pad>`.
    """
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(SENTENCES, trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>"]))
    vocabulary = sorted(trained.get_vocab(), key=trained.get_vocab().__getitem__)
    scores = [(piece, -float(number)) for number, piece in enumerate(vocabulary)]
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    whole = Tokenizer(models.BPE(ids, generate_merges(ids, scores), unk_token="<unk>", fuse_unk=True))
    whole.pre_tokenizer, whole.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer = ParakeetTokenizer(tokenizer_object=whole, clean_up_tokenization_spaces=False)
    special = {f"{name}_token": AddedToken(f"<{name}>", normalized=False, special=True) for name in ("unk", "pad")}
    tokenizer.add_tokens([*special.values()])
    tokenizer.add_special_tokens(special)
    return tokenizer


def move(model: torch.nn.Module) -> None:
    """Enlarges weights, and changes biases, norms and running statistics from their initial values."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.25)
            else:
                parameter += 0.3 * torch.randn_like(parameter)
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer += 0.3 * torch.randn_like(buffer)
            if name.endswith("running_var"):
                buffer *= 0.5 + torch.rand_like(buffer)


if __name__ == "__main__":
    main()
