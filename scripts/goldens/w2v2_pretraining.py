"""Writes outputs, losses and gradients of NVIDIA's pre-training for tests/goldens/test_w2v2_pretraining.py.

The code is NVIDIA's wav2vec 2.0; the cases have no ties in codes and accuracies. Runs in .venv-reference, with the
sources that `scripts/setup_reference.sh --peers` downloads to .peers:

    .venv-reference/bin/python scripts/goldens/w2v2_pretraining.py \\
        --peer .peers/DeepLearningExamples/PyTorch/SpeechRecognition/wav2vec2 --out tests/goldens/pretraining

Values are computed in float64 and stored in float32, with the names of the goldens of the family dle_w2v2. The seed of
a case is the first one whose smallest margin is at least `MARGIN`.
"""

import argparse
import json
import types
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from w2v2_pretraining_steps import (
    COMMIT,
    ROWS,
    TINY,
    draw_inputs,
    in_float64,
    inject,
    load_peer,
    margin,
    move,
    recording_choices,
)

MARGIN = 1e-3
"""Minimum difference of the best and second-best value of any choice, relative to the largest absolute value."""
CASES: dict[str, dict[str, Any]] = {
    "plain_post": {},
    "pyt_mha": {"mha": "pyt"},
    "rotary": {"rotary_embeddings": True},
    "quantized_input": {"quantize_input": True, "activation_fn": "gelu_accurate", "latent_dim": 12},
    "same_quantizer": {"quantize_input": True, "same_quantizer": True, "activation_fn": "tanh", "quantizer_depth": 2},
}
LOG_KEYS = ["prob_perplexity", "code_perplexity", "temp"]
LOG_FIELDS = ["loss", "sample_size", *LOG_KEYS, "loss_0", "loss_1", "loss_2", "correct", "count"]
NOTE = (
    "param/: weights by the peer's names. eval_padded: extract_features(mask=False) with padding_mask; eval_nopad: "
    "without it; eval_last_alone: the last utterance alone. *_pretrain/log: `log_fields` of the criterion, with "
    "input/mask_indices, distractors input/neg_idxs_* [B M*num_negatives] among the B*M hidden frames, and, in "
    "training, input/gumbel_noise [B*M*latent_groups latent_vars]; with quantize_input also "
    "input/quantized_input_noise [B*T*latent_groups latent_vars]. *_pretrain/logits: similarities of hidden frames "
    "with their target and their distractors. In float64, stored in float32."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="folder wav2vec2 of DeepLearningExamples")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    peer = load_peer(options.peer)
    in_float64()
    for name, changes in CASES.items():
        for seed in count():
            arrays, least = computed(peer, TINY | changes, seed=seed)
            if least >= MARGIN:
                break
        stored = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        save_file(stored, (options.out / name).with_suffix(".safetensors"))
        (options.out / name).with_suffix(".safetensors").chmod(0o644)
        info = {
            "peer": f"NVIDIA/DeepLearningExamples@{COMMIT} PyTorch/SpeechRecognition/wav2vec2 model and criterion",
            "versions": {"torch": torch.__version__, "numpy": np.__version__},
            "config": TINY | changes, "log_fields": LOG_FIELDS, "seed": seed, "margin": least, "note": NOTE,
        }  # fmt: skip
        (options.out / name).with_suffix(".json").write_text(json.dumps(info, indent=1) + "\n")


def computed(peer: Any, config: dict[str, Any], *, seed: int) -> tuple[dict[str, np.ndarray], float]:
    """Arrays to store, and the smallest margin."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    model = peer.model(types.SimpleNamespace(**config))
    move(model)
    model.double()
    given = draw_inputs(peer, model, config, padded=True)
    found: dict[str, Any] = {f"param/{name}": value.clone() for name, value in model.state_dict().items()}
    names = ("source", "padding_mask", "mask_indices")
    tensors = {name: torch.from_numpy(given[name]) for name in names}
    source, padding = tensors["source"].double(), tensors["padding_mask"]
    model.eval()
    with torch.no_grad():
        padded = model.extract_features(source, padding)
        alone = source[-1:, : int((~padding[-1]).sum())]
        found |= {f"eval_padded/{name}": padded[name] for name in ("x", "padding_mask", "features")}
        found["eval_nopad/x"] = model.extract_features(source, None)["x"]
        found["eval_last_alone/x"] = model.extract_features(alone, None)["x"]
    found |= {f"input/{name}": tensor for name, tensor in tensors.items()}
    for name in given.keys() & {"gumbel_noise", "quantized_input_noise"}:
        found[f"input/{name}"] = torch.from_numpy(given[name])
    chosen_from: list[torch.Tensor] = []
    recording_choices(model, chosen_from)
    for mode in ("eval", "train"):
        model.train(mode == "train")
        logged, negatives, logits = pretrained(peer, model, tensors | {"source": source}, given)
        found[f"{mode}_pretrain/log"] = torch.tensor([float(logged[name]) for name in LOG_FIELDS])
        found[f"{mode}_pretrain/logits"], found[f"input/neg_idxs_{mode}"] = logits, negatives
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    found |= {f"train_pretrain_grad/{name}": gradient for name, gradient in gradients.items()}
    arrays = {name: tensor.detach().numpy() for name, tensor in found.items()}
    return {
        name: array.astype(np.float32) if array.dtype == np.float64 else array for name, array in arrays.items()
    }, min(map(margin, chosen_from))


def pretrained(peer: Any, model: Any, tensors: dict[str, Any], given: dict[str, np.ndarray]) -> Any:
    """Computes loss and gradient of a batch.

    Returns:
        The log of the criterion, the indices of the distractors, and the similarities of masked frames. The parameters
        have the gradient of the loss.
    """
    inject(given)
    kept, methods = {}, {name: getattr(model, name) for name in ("sample_negatives", "get_logits")}

    def keeping(name: str) -> Any:
        def method(*values: Any, **named: Any) -> Any:
            kept[name] = methods[name](*values, **named)
            return kept[name]

        return method

    for name in methods:
        setattr(model, name, keeping(name))
    args = types.SimpleNamespace(infonce=True, loss_weights=[0.1, 10.0], log_keys=LOG_KEYS)
    sample = {"net_input": tensors, "id": torch.arange(ROWS), "sub_batch_sizes": None, "sub_batch_lens": None}
    model.zero_grad()
    model.set_num_updates(0)
    loss, _, logged = peer.criterion(args)(model, sample)
    loss.backward()
    return logged, kept["sample_negatives"][1], kept["get_logits"].detach()


if __name__ == "__main__":
    main()
