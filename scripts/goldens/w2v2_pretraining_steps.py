"""Writes updates of NVIDIA's wav2vec 2.0 pre-training for tests/goldens/test_w2v2_pretraining_steps.py.

Runs in .venv-reference, with the sources that `scripts/setup_reference.sh --peers` downloads to .peers:

    .venv-reference/bin/python scripts/goldens/w2v2_pretraining_steps.py \\
        --peer .peers/DeepLearningExamples/PyTorch/SpeechRecognition/wav2vec2 --out tests/goldens/pretraining_steps

Model, criterion, optimizer, clipping and schedule are NVIDIA's, called in the order of their train.py with --bf16, the
path that clips gradients. Values are computed in float64 and stored in float32. NumPy draws the random values.
"""

import argparse
import importlib
import json
import re
import sys
import types
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file

COMMIT = "729963dd47e7c8bd462ad10bfac7a7b0b604e6dd"
NUM_UPDATES, ROWS, SAMPLES = 6, 3, 400
TINY = {
    "use_spectrogram_features": False, "conv_feature_layers": "[(12,10,5)]+[(12,3,2)]", "extractor_mode": "default",
    "conv_bias": False, "fp32_conv_norms": True, "masked_feature_extractor": False, "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32, "encoder_attention_heads": 2, "encoder_layers": 2, "quantize_input": False,
    "quantize_targets": True, "mask_prob": 0.65, "mask_length": 4, "mask_selection": "static", "mask_other": 0,
    "no_mask_overlap": False, "mask_min_space": 1, "mask_channel_prob": 0.0, "mask_channel_before": False,
    "mask_channel_selection": "static", "mask_channel_other": 0, "mask_channel_length": 10,
    "no_mask_channel_overlap": False, "mask_channel_min_space": 1, "dropout_input": 0.0, "dropout_features": 0.0,
    "dropout": 0.0, "attention_dropout": 0.0, "activation_dropout": 0.0, "encoder_layerdrop": 0.0,
    "feature_grad_mult": 0.1, "num_negatives": 5, "cross_sample_negatives": 0, "codebook_negatives": 0,
    "negatives_from_everywhere": False, "logit_temp": 0.1, "fp32_cosine_sim": True, "final_dim": 8, "latent_dim": 0,
    "latent_vars": 6, "latent_groups": 2, "latent_temp": [2.0, 0.5, 0.8], "quantizer_depth": 1, "quantizer_factor": 3,
    "same_quantizer": False, "target_glu": False, "fp32_pos_conv": True, "conv_pos": 8, "conv_pos_groups": 4,
    "activation_fn": "gelu", "layer_norm_first": False, "rotary_embeddings": False, "mha": "fairseq",
    "fp32_transformer_layernorm": True, "fp32_mha_softmax": False, "hourglass_transformer": None,
    "hourglass_resample": "naive",
}  # fmt: skip
TRAINING = {
    "infonce": True, "loss_weights": [0.1, 10.0], "log_keys": ["prob_perplexity", "code_perplexity", "temp"],
    "optimizer": "adam", "lr": 0.005, "adam_betas": [0.9, 0.98], "adam_eps": 1e-6, "weight_decay": 0.01,
    "clip_norm": 25.0, "lr_policy": "poly", "lr_poly_power": 1.0, "initial_lr_scale": 0.0, "final_lr_scale": 0.0,
    "warmup_updates": 3, "hold_updates": 0, "max_update": 10, "update_freq": 1, "world_size": 1, "fp16": False,
    "bf16": True, "bf16_disable_loss_scaler": False, "fp16_init_scale": 128, "min_loss_scale": 1e-4,
}  # fmt: skip
MARGIN = 2e-5
"""Minimum difference of the best and second-best value of any choice, relative to the largest absolute value.

It is twice the threshold of a tie in tests/goldens/margins.py.
"""
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "hourglass": (
        {"hourglass_transformer": "[1,(2,4),0]", "encoder_attention_heads": 4, "latent_temp": [1.5, 0.9, 0.9]},
        {"clip_norm": 5.0, "lr": 0.003, "loss_weights": [0.3, 2.0], "final_lr_scale": 0.1, "weight_decay": 0.1},
    ),
}
"""Settings of model and training that differ from TINY and TRAINING."""
PADDED = "hourglass"
"""Case with --enable_padding; in the other case, the utterances of a batch have one length, as if they were cut."""
NOTE = (
    "param/: weights before the first update, after/: behind the last, by the peer's names. Of each update: "
    "input_{n}/source [B S], padding_mask [B S], mask_indices [B T], neg_idxs [B M*num_negatives] (of the B*M hidden "
    "frames), gumbel_noise [B*M*latent_groups latent_vars]; and in `updates` what the criterion logs, the rate, and "
    "the norm of the gradient of the mean over hidden frames before it is clipped. train.py at the commit: "
    "set_num_updates(n) with n from 1 before the forward pass; the rate is set for step 1 before the first update, "
    "and for step n after update n. In float64, stored in float32."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="folder wav2vec2 of DeepLearningExamples")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    peer = load_peer(options.peer)
    for name, (of_model, of_training) in CASES.items():
        case = partial(save_case, peer, options.out / name, TINY | of_model, TRAINING | of_training)
        next(seed for seed in count() if case(seed=seed))


def load_peer(folder: Path) -> types.SimpleNamespace:
    """Imports NVIDIA's modules, with stubs for packages that are neither installed nor used."""
    for name, members in {"amp_C": {}, "editdistance": {"eval": None}}.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(members)
    sys.path.insert(0, str(folder))
    return types.SimpleNamespace(
        model=importlib.import_module("wav2vec2.model").Wav2Vec2Model,
        criterion=importlib.import_module("wav2vec2.criterion").Wav2vecCriterion,
        optimizers=importlib.import_module("common.optimizers"),
        spans=importlib.import_module("common.fairseq.data.data_utils").compute_mask_indices,
    )


def save_case(peer: Any, path: Path, config: dict[str, Any], training: dict[str, Any], *, seed: int) -> bool:
    """Writes a case if its smallest margin is at least `MARGIN`; returns whether it is written."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    model = peer.model(types.SimpleNamespace(**config))
    move(model)
    in_float64()
    model.double().train()
    arrays = {f"param/{name}": value.clone() for name, value in model.state_dict().items()}
    inputs = [draw_inputs(peer, model, config, padded=path.name == PADDED) for _ in range(NUM_UPDATES)]
    chosen_from: list[torch.Tensor] = []
    recording_choices(model, chosen_from)
    found = updates(peer, model, types.SimpleNamespace(**training), inputs)
    least = min(map(margin, chosen_from))
    if least < MARGIN:
        return False
    arrays |= {f"after/{name}": value for name, value in model.state_dict().items()}
    stored = {name: value.to(torch.float32).numpy() for name, value in arrays.items()}
    for number, each in enumerate(inputs):
        stored |= {f"input_{number}/{name}": value for name, value in each.items()}
    save_file({name: np.ascontiguousarray(value) for name, value in stored.items()}, path.with_suffix(".safetensors"))
    info = {
        "peer": f"NVIDIA/DeepLearningExamples@{COMMIT} PyTorch/SpeechRecognition/wav2vec2 model, criterion, "
        "optimizers, in the order of train.py", "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "config": config, "training": training, "updates": found, "seed": seed, "margin": least, "note": NOTE,
    }  # fmt: skip
    path.with_suffix(".json").write_text(json.dumps(info, indent=1) + "\n")
    return True


def move(model: torch.nn.Module) -> None:
    """Changes parameters whose initial values hide their effect.

    Biases and norms leave their initial values, attention becomes uneven, and features become so large that some
    gradients are clipped.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
            elif re.search(r"\.self_attn\.|\.fc\d|extractor\.conv_layers\.1\.0\.weight", name):
                parameter *= 8.0


def in_float64() -> None:
    """Replaces NVIDIA's casts to float32, and norms in float32, by float64."""
    torch.Tensor.float = torch.Tensor.double
    torch.norm = lambda x, p, dtype: torch.linalg.vector_norm(x, p)


def draw_inputs(peer: Any, model: Any, config: dict[str, Any], *, padded: bool) -> dict[str, np.ndarray]:
    """Noise as audio, and the random values of one update; distractors are numbers that are mapped to frames later."""
    lengths = np.random.randint(SAMPLES * 3 // 4, SAMPLES + 1, ROWS) if padded else np.full(ROWS, SAMPLES)
    lengths[0] = SAMPLES
    padding = np.arange(SAMPLES)[None] >= lengths[:, None]
    source = np.where(padding, 0, np.random.randn(ROWS, SAMPLES)).astype(np.float32)
    frames = model._get_feat_extract_output_lengths(torch.tensor(lengths))
    beyond = torch.arange(int(frames.max()))[None] >= frames[:, None]
    mask = peer.spans(
        tuple(beyond.shape), beyond if padded else None, config["mask_prob"], config["mask_length"],
        config["mask_selection"], config["mask_other"], min_masks=2, no_overlap=config["no_mask_overlap"],
        min_space=config["mask_min_space"], require_same_masks=True, mask_dropout=0.0,
    )  # fmt: skip
    num = int(mask[0].sum())
    noise = np.random.gumbel(size=(ROWS * num * config["latent_groups"], config["latent_vars"])).astype(np.float32)
    negatives = np.random.randint(0, num - 1, (ROWS, num * config["num_negatives"]))
    given = {"source": source, "padding_mask": padding, "mask_indices": mask, "gumbel_noise": noise,
             "neg_idxs": negatives}  # fmt: skip
    if config["quantize_input"]:
        shape = (beyond.numel() * config["latent_groups"], config["latent_vars"])
        given["quantized_input_noise"] = np.random.gumbel(size=shape).astype(np.float32)
    return given


def updates(peer: Any, model: Any, args: Any, inputs: list[dict[str, np.ndarray]]) -> list[dict[str, float]]:
    """Runs the loop of NVIDIA's train.py; replaces the numbers of distractors by the indices of their frames."""
    torch.cuda.current_device = lambda: None  # the flat copy of the parameters is on the CPU
    criterion, optimizer = peer.criterion(args), peer.optimizers.get_optimizer(model, args)
    adjust_lr = partial(
        peer.optimizers.lr_poly_policy, power=args.lr_poly_power, initial_lr_scale=args.initial_lr_scale,
        final_lr_scale=args.final_lr_scale, warmup_steps=args.warmup_updates, hold_steps=args.hold_updates,
        num_steps=args.max_update, lr=args.lr,
    )  # fmt: skip
    sample_negatives = model.sample_negatives
    adjust_lr(1, optimizer)
    optimizer.zero_grad()
    found = []
    for step, given in enumerate(inputs, start=1):
        inject(given)

        def recorded(*values: Any, given: dict[str, np.ndarray] = given, **named: Any) -> Any:
            negatives, places = sample_negatives(*values, **named)
            given["neg_idxs"] = places.numpy().astype(np.int32)
            return negatives, places

        model.sample_negatives = recorded
        model.set_num_updates(step)
        names = ("source", "padding_mask", "mask_indices")
        tensors = {name: torch.from_numpy(given[name]) for name in names}
        net_input = tensors | {"source": tensors["source"].double()}
        sample = {"net_input": net_input, "id": torch.arange(ROWS), "sub_batch_sizes": None, "sub_batch_lens": None}
        loss, sample_size, logged = criterion(model, sample)
        optimizer.backward(loss)
        optimizer.multiply_grads(1 / sample_size)
        norm = optimizer.clip_grad_norm(args.clip_norm)
        rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        model.set_num_updates(step)
        optimizer.zero_grad()
        found.append({name: float(value) for name, value in logged.items()} | {"lr": rate, "grad_norm": float(norm)})
        adjust_lr(step, optimizer)
    return found


def recording_choices(model: Any, chosen_from: list[torch.Tensor]) -> None:
    """Records the values of all choices of each forward pass in `chosen_from`.

    These are the logits of the codes, without and with noise, and the similarities of targets and nearest distractors.
    """
    get_logits = model.get_logits

    def of_codes(_: Any, __: Any, logits: torch.Tensor) -> None:
        codes = logits.detach().reshape(-1, model.quantizer.num_vars)
        drawn = codes - torch.log(torch.empty_like(codes).exponential_()) if model.training else codes
        chosen_from.extend((codes, drawn))

    def of_similarities(net_output: Any) -> torch.Tensor:
        logits = get_logits(net_output)
        target, distractors = logits.detach().split([1, logits.shape[1] - 1], dim=1)
        chosen_from.append(torch.cat([target, distractors.max(dim=1, keepdim=True).values], dim=1))
        return logits

    for quantizer in {model.quantizer, model.input_quantizer} - {None}:
        quantizer.weight_proj.register_forward_hook(of_codes)
    model.get_logits = of_similarities


def margin(values: torch.Tensor) -> float:
    """Smallest relative margin of a choice, like `argmax_margin` of tests/goldens/margins.py."""
    best = values.topk(2, dim=-1).values
    return float((best[:, 0] - best[:, 1]).min() / values[torch.isfinite(values)].abs().max())


def inject(given: dict[str, np.ndarray]) -> None:
    """Replaces the next random values of torch: numbers of distractors, and exponential variables of Gumbel noise."""
    torch.randint = lambda low, high, size, device: checked(torch.from_numpy(given["neg_idxs"].copy()), size)
    known = [torch.from_numpy(given[name]) for name in ("gumbel_noise", "quantized_input_noise") if name in given]
    of_shape = {tuple(noise.shape): torch.exp(-noise.double()) for noise in known}
    assert len(of_shape) == len(known), "the noises of targets and input have one shape"
    torch.Tensor.exponential_ = lambda self: self.copy_(of_shape[tuple(self.shape)])


def checked(value: torch.Tensor, shape: Any) -> torch.Tensor:
    assert tuple(value.shape) == tuple(shape), (value.shape, shape)
    return value


if __name__ == "__main__":
    main()
