"""Writes outputs of transformers' Wav2Vec2BertForCTC with various adapters for tests/goldens/test_w2v_bert_adapters.py.

Runs in .venv-reference.

.venv-reference/bin/python scripts/goldens/w2v_bert_adapters.py --out tests/goldens/w2v_bert_adapters

For each case, writes a folder with config.json, and arrays.safetensors with weights, features, labels, logits and, if
transformers can compute it, the loss.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import Wav2Vec2BertConfig, Wav2Vec2BertForCTC

LENGTHS = [94, 91, 62, 77, 93]
CASES = {"kernel5_stride3": (5, 3), "kernel3_stride1": (3, 1), "kernel3_stride4": (3, 4), "kernel6_stride2": (6, 2)}
"""Kernel size and stride of the adapters. kernel_size // 2 differs from stride // 2 in all of them."""
TINY = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "feature_projection_input_dim": 8, "conv_depthwise_kernel_size": 3, "left_max_position_embeddings": 4,
    "right_max_position_embeddings": 2, "vocab_size": 7, "pad_token_id": 0, "add_adapter": True,
    "num_adapter_layers": 2, "output_hidden_size": 12, "use_intermediate_ffn_before_adapter": True,
    "apply_spec_augment": False, "mask_time_prob": 0.0, "layerdrop": 0.0, "conformer_conv_dropout": 0.0,
    "ctc_loss_reduction": "sum", "ctc_zero_infinity": True,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    for number, (name, (kernel_size, stride)) in enumerate(CASES.items()):
        save_case(out / name, kernel_size, stride, seed=number)


def save_case(folder: Path, kernel_size: int, stride: int, *, seed: int) -> None:
    torch.manual_seed(seed)
    config = Wav2Vec2BertConfig(**TINY, adapter_kernel_size=kernel_size, adapter_stride=stride)
    config.architectures = ["Wav2Vec2BertForCTC"]
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    model = Wav2Vec2BertForCTC(config).eval().double()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
            else:
                parameter += 0.3 * torch.randn_like(parameter)
    lengths = torch.tensor(LENGTHS)
    mask = (torch.arange(max(LENGTHS))[None] < lengths[:, None]).long()
    features = torch.randn(len(LENGTHS), max(LENGTHS), TINY["feature_projection_input_dim"], dtype=torch.float64)
    features = torch.where(mask[..., None] > 0, features, torch.ones((), dtype=torch.float64))
    with torch.no_grad():  # float32 weights and features, which the values are computed from in float64
        features = features.float().double()
        for parameter in model.parameters():
            parameter.copy_(parameter.float())
    arrays = {f"param/{name}": value for name, value in model.state_dict().items()}
    with torch.no_grad():
        logits = model(input_features=features, attention_mask=mask).logits
        arrays |= {"features": features, "lengths": lengths, "logits": logits}
        arrays["logit_lengths"] = model._get_feat_extract_output_lengths(lengths)
        arrays["labels"] = torch.randint(1, TINY["vocab_size"], (len(LENGTHS), 1))
        if arrays["logit_lengths"].max() <= logits.shape[1]:
            loss = model(input_features=features, attention_mask=mask, labels=arrays["labels"]).loss
            arrays["loss"] = loss.reshape(1)
    stored = {
        name: (value.float() if value.is_floating_point() else value).contiguous() for name, value in arrays.items()
    }
    save_file(stored, folder / "arrays.safetensors")
    info = {
        "peer": f"huggingface/transformers {transformers.__version__} Wav2Vec2BertForCTC, torch {torch.__version__}"
    }
    (folder / "about.json").write_text(json.dumps(info, indent=1) + "\n")


if __name__ == "__main__":
    main()
