"""Measures an original in PyTorch; `python -m benchmarks.model --peer` runs it.

    .venv-reference/bin/python benchmarks/model_side.py '{"peer": "quartznet", "rows": 4, "frames": 800}'

Reads {"peer", "rows", "frames", "labels", "vocabulary", "threads", "repeats", "settling_s", "sizes", "operations",
"device", "precision"} as JSON from its argument; all except "peer" have defaults. Prints {"parameters", "forward_s":
[…], "step_s": […], "operations": […], "peak_bytes"} as JSON. The forward pass includes the CTC loss; the step is the
forward pass, the backward pass and an update with AdamW. Both are in training mode, on random features; with precision
bf16, the forward pass is in autocast. On a GPU, each time ends when the device has ended its work. glibc keeps freed
memory as it does in our process. The operations are those with the largest shares of the time of a step, from PyTorch's
profiler; on a GPU, they are its kernels. The sources of icefall's, NVIDIA's and NeMo's originals are loaded from .peers
(scripts/setup_reference.sh --peers); transformers is installed. Stubs below replace frameworks that are not
installed; the modules of the originals run unchanged.
"""

import ast
import importlib
import json
import math
import sys
import time
import types
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Optional

import torch
from torch import Tensor, nn

PEERS = Path(__file__).resolve().parents[1] / ".peers"
DEFAULTS = {
    "rows": 4,
    "frames": 800,
    "labels": 40,
    "vocabulary": 500,
    "threads": 2,
    "repeats": 5,
    "settling_s": 0.0,
    "sizes": {},
    "operations": 5,
    "device": "cpu",
    "precision": "f32",
}


def stand_in(name: str, **attributes: Any) -> None:
    """Adds a stub module with some attributes, and its parents if they are missing."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        if (path := ".".join(parts[:i])) not in sys.modules:
            module = types.ModuleType(path)
            module.__path__ = []  # type: ignore[attr-defined]
            sys.modules[path] = module
            if i > 1:
                setattr(sys.modules[".".join(parts[: i - 1])], parts[i - 1], module)
    for attribute, value in attributes.items():
        setattr(sys.modules[name], attribute, value)


def icefall_function(name: str, **names: Any) -> Callable[..., Any]:
    """Returns a function of icefall/utils.py, whose module cannot be imported without k2.

    Args:
        names: Imported names that the function uses.
    """
    tree = ast.parse((PEERS / "icefall/icefall/utils.py").read_text())
    wanted = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]
    exec(compile(ast.Module(wanted, []), "icefall/utils.py", "exec"), names)
    found: Callable[..., Any] = names[name]
    return found


def swoosh(offset: float, constant: float) -> tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Any]]:
    """k2's function, and its variant that also returns the derivative; those of k2 itself are fused and faster."""

    def value(x: Tensor) -> Tensor:
        return nn.functional.softplus(x - offset) - 0.08 * x - constant

    return value, lambda x: (value(x), torch.sigmoid(x - offset) - 0.08)


class Icefall(nn.Module):
    """Zipformer with CTC of k2-fsa/icefall at commit 36e0420c; `sizes` are fields of our `Zipformer`."""

    def __init__(self, sizes: dict[str, Any], vocabulary: int) -> None:
        super().__init__()
        left, left_both = swoosh(4.0, 0.035)
        right, right_both = swoosh(1.0, 0.313261687)
        stand_in(
            "k2", swoosh_l=left, swoosh_l_forward=left, swoosh_l_forward_and_deriv=left_both,
            swoosh_r=right, swoosh_r_forward=right, swoosh_r_forward_and_deriv=right_both,
        )  # fmt: skip
        stand_in("icefall.utils", torch_autocast=lambda **_: nullcontext())
        recipe = PEERS / "icefall/egs/librispeech/ASR/zipformer"
        sys.path.insert(0, str(recipe))
        modules = {name: importlib.import_module(name) for name in ("subsampling", "zipformer", "scaling")}
        self.pad_mask = icefall_function("make_pad_mask", torch=torch, Optional=Optional)
        dropout = modules["scaling"].ScheduledFloat((0.0, 0.3), (20000.0, 0.1))
        small = {
            "dims": (192, 256, 256, 256, 256, 256), "num_layers": (2,) * 6, "unmasked_dims": (192,) * 6,
            "feedforward_dims": (512, 768, 768, 768, 768, 768), "num_heads": (4, 4, 4, 8, 4, 4),
            "query_dims": (32,) * 6, "position_dims": (4,) * 6, "value_dims": (12,) * 6, "positions_dim": 48,
            "kernel_sizes": (31, 31, 15, 15, 15, 31), "downsampling": (1, 2, 4, 8, 4, 2), "output_downsampling": 2,
            "embed_channels": (8, 32, 128), "num_mels": 80,
        }  # fmt: skip
        s = {name: tuple(v) if isinstance(v, list) else v for name, v in (small | sizes).items()}
        first, second, third = s["embed_channels"]
        self.embed = modules["subsampling"].Conv2dSubsampling(
            s["num_mels"], s["dims"][0], layer1_channels=first, layer2_channels=second, layer3_channels=third,
            dropout=dropout,
        )  # fmt: skip
        self.encoder = modules["zipformer"].Zipformer2(
            output_downsampling_factor=s["output_downsampling"], downsampling_factor=s["downsampling"],
            encoder_dim=s["dims"], num_encoder_layers=s["num_layers"], encoder_unmasked_dim=s["unmasked_dims"],
            query_head_dim=s["query_dims"], pos_head_dim=s["position_dims"], value_head_dim=s["value_dims"],
            num_heads=s["num_heads"], feedforward_dim=s["feedforward_dims"], cnn_module_kernel=s["kernel_sizes"],
            pos_dim=s["positions_dim"], dropout=dropout,
        )  # fmt: skip
        self.output = nn.Sequential(nn.Dropout(0.1), nn.Linear(max(s["dims"]), vocabulary))
        for module in self.modules():  # after the end of the schedules of dropout and layer skipping
            if hasattr(module, "batch_count"):
                module.batch_count = 30000.0

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x, lengths = self.embed(features, lengths)
        x, lengths = self.encoder(x.permute(1, 0, 2), lengths, self.pad_mask(lengths))
        return self.output(x.permute(1, 0, 2)), lengths


class QuartzNet(nn.Module):
    """QuartzNet 10x5 of NVIDIA/DeepLearningExamples at commit 729963dd.

    `sizes` may have "blocks", 1 for 5x5 or 3 for 15x5, and "width_factor", a factor of the number of filters.
    """

    def __init__(self, sizes: dict[str, Any], vocabulary: int) -> None:
        super().__init__()
        sys.path.insert(0, str(PEERS / "DeepLearningExamples/PyTorch/SpeechRecognition/QuartzNet"))
        made = importlib.import_module("quartznet.model").QuartzNet

        factor = sizes.get("width_factor", 1.0)

        def block(filters: int, kernel: int, **more: Any) -> dict[str, Any]:
            plain = {"repeat": 5, "stride": [1], "dilation": [1], "residual": True, "separable": True, "dropout": 0.0}
            return {"filters": int(filters * factor), "kernel_size": [kernel], **plain, **more}

        alone = {"repeat": 1, "residual": False}
        wide = ((256, 33), (256, 39), (512, 51), (512, 63), (512, 75))
        blocks = [
            block(256, 33, stride=[2], **alone),
            *(block(*each) for each in wide for _ in range(sizes.get("blocks", 2))),
            block(512, 87, dilation=[2], **alone),
            block(1024, 1, separable=False, **alone),
        ]
        encoder = {"in_feats": 64, "activation": "relu", "use_conv_masks": True, "blocks": blocks}
        self.model = made(encoder, {"in_feats": int(1024 * factor), "n_classes": vocabulary})

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.model(features.transpose(1, 2), lengths)


class Squeezeformer(nn.Module):
    """Squeezeformer-S of NVIDIA/NeMo at commit 8cfedd72, with a linear layer for CTC.

    `sizes` are arguments of NeMo's encoder. The original in TensorFlow is not measured.
    """

    def __init__(self, sizes: dict[str, Any], vocabulary: int) -> None:
        super().__init__()

        class Plain:
            """Base of stubs for classes that are used only in annotations and signatures."""

            def is_access_enabled(self, *_: Any) -> bool:
                return False

            def is_adapter_available(self) -> bool:
                return False

        def plain(*names: str) -> dict[str, type]:
            return {name: type(name, (Plain,), {}) for name in names}

        for within in ("", ".modules", ".parts", ".parts.submodules", ".parts.submodules.adapters", ".parts.utils"):
            folder = f"nemo.collections.asr{within}"  # bypasses __init__.py of packages, which import everything
            stand_in(folder)
            sys.modules[folder].__path__ = [str(PEERS / "NeMo" / folder.replace(".", "/"))]
        stand_in("omegaconf", **plain("DictConfig", "OmegaConf", "ListConfig"))
        silent = types.SimpleNamespace(info=print, warning=print, debug=print)
        stand_in("nemo.utils", logging=silent, logging_mode=None, avoid_float16_autocast_context=nullcontext)
        stand_in("nemo.collections.common.parts.utils", activation_registry={"swish": nn.SiLU})
        stand_in("nemo.collections.asr.parts.submodules.adapters.attention_adapter_mixin",
                 **plain("AttentionAdapterModuleMixin"))  # fmt: skip
        stand_in("nemo.collections.asr.parts.utils.adapter_utils")
        stand_in("nemo.core.classes.common", typecheck=lambda *_: lambda method: method)
        stand_in("nemo.core.classes.exportable", **plain("Exportable"))
        stand_in("nemo.core.classes.mixins", adapter_mixins=types.SimpleNamespace(
            **plain("AdapterModuleMixin"), get_registered_adapter=lambda _: True), **plain("AccessMixin"))  # fmt: skip
        stand_in("nemo.core.classes.module", NeuralModule=nn.Module)
        stand_in("nemo.core.neural_types",
                 **plain("AcousticEncodedRepresentation", "LengthsType", "NeuralType", "SpectrogramType"))  # fmt: skip
        made = importlib.import_module("nemo.collections.asr.modules.squeezeformer_encoder").SqueezeformerEncoder
        small = {"feat_in": 80, "n_layers": 18, "d_model": 196, "n_heads": 4, "conv_kernel_size": 31,
                 "time_reduce_idx": 8, "time_recovery_idx": 17, "dropout": 0.1, "dropout_att": 0.1,
                 "dropout_emb": 0.0}  # fmt: skip
        self.encoder = made(**(small | sizes))
        self.output = nn.Linear((small | sizes)["d_model"], vocabulary)

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        x, lengths = self.encoder(features.transpose(1, 2), lengths)
        return self.output(x.transpose(1, 2)), lengths


class Parakeet(nn.Module):
    """FastConformer-CTC of transformers, by default with 12 layers of width 512.

    `sizes` are fields of `ParakeetEncoderConfig`; for Conformer-CTC {"subsampling_factor": 4, "conv_kernel_size": 31}.
    """

    def __init__(self, sizes: dict[str, Any], vocabulary: int) -> None:
        super().__init__()
        from transformers import ParakeetEncoder, ParakeetEncoderConfig

        base = {"hidden_size": 512, "num_hidden_layers": 12, "intermediate_size": 2048, "layerdrop": 0.0}
        config = ParakeetEncoderConfig(**(base | sizes))
        self.encoder = ParakeetEncoder(config)
        self.output = nn.Linear(config.hidden_size, vocabulary)
        self.halvings = int(math.log2(config.subsampling_factor))

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        mask = torch.arange(features.shape[1], device=lengths.device)[None] < lengths[:, None]
        x = self.encoder(features, attention_mask=mask).last_hidden_state
        for _ in range(self.halvings):
            lengths = (lengths - 1) // 2 + 1
        return self.output(x), lengths.clamp(max=x.shape[1])


class W2VBert(nn.Module):
    """W2V-BERT with CTC of transformers; `sizes` are fields of `Wav2Vec2BertConfig`."""

    def __init__(self, sizes: dict[str, Any], vocabulary: int) -> None:
        super().__init__()
        from transformers import Wav2Vec2BertConfig, Wav2Vec2BertForCTC

        self.model = Wav2Vec2BertForCTC(Wav2Vec2BertConfig(**sizes, vocab_size=vocabulary))

    def forward(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        mask = (torch.arange(features.shape[1], device=lengths.device)[None] < lengths[:, None]).long()
        return self.model(features, attention_mask=mask).logits, self.model._get_feat_extract_output_lengths(lengths)


class Wav2Vec2(nn.Module):
    """wav2vec 2.0 of transformers, with CTC or in pre-training; masks and distractors are drawn once.

    `sizes` are fields of `Wav2Vec2Config`, its `architectures`, and `frozen`: whether the convolutions are not trained.
    """

    def __init__(self, sizes: dict[str, Any], vocabulary: int) -> None:
        super().__init__()
        import transformers

        frozen, name = sizes.pop("frozen"), sizes["architectures"][0]
        self.model = getattr(transformers, name)(transformers.Wav2Vec2Config(**sizes, vocab_size=vocabulary))
        self.pretrains = name == "Wav2Vec2ForPreTraining"
        self.drawn: dict[str, Tensor] = {}
        if frozen:
            self.model.freeze_feature_encoder()

    def forward(self, samples: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return self.model(samples[..., 0]).logits, self.model._get_feat_extract_output_lengths(lengths)

    def loss(self, samples: Tensor) -> Tensor:
        """Loss of pre-training."""
        if not self.drawn:
            from transformers.models.wav2vec2 import modeling_wav2vec2 as source

            config, rows = self.model.config, len(samples)
            shape = (rows, int(self.model._get_feat_extract_output_lengths(samples.shape[1])))
            mask = source._compute_mask_indices(shape, config.mask_time_prob, config.mask_time_length, min_masks=2)
            negatives = source._sample_negative_indices(shape, config.num_negatives, mask)
            self.drawn = {
                "mask_time_indices": torch.tensor(mask, dtype=torch.long, device=samples.device),
                "sampled_negative_indices": torch.tensor(negatives, dtype=torch.long, device=samples.device),
            }
        return self.model(samples[..., 0], **self.drawn).loss


class NvidiaWav2Vec2(nn.Module):
    """wav2vec 2.0 with an hourglass in pre-training, of NVIDIA/DeepLearningExamples at commit 729963dd.

    `sizes` are fields of its configuration that differ from Base.
    """

    def __init__(self, sizes: dict[str, Any], vocabulary: int) -> None:
        super().__init__()
        sys.path.insert(0, str(PEERS / "DeepLearningExamples/PyTorch/SpeechRecognition/wav2vec2"))
        stand_in("amp_C")
        made = importlib.import_module("wav2vec2.model").Wav2Vec2Model
        base = {
            "use_spectrogram_features": False, "conv_feature_layers": "[(512,10,5)]+[(512,3,2)]*4+[(512,2,2)]*2",
            "extractor_mode": "default", "conv_bias": False, "fp32_conv_norms": True, "masked_feature_extractor": False,
            "encoder_embed_dim": 768, "encoder_ffn_embed_dim": 3072, "encoder_attention_heads": 12,
            "encoder_layers": 12, "quantize_input": False, "quantize_targets": True, "mask_prob": 0.65,
            "mask_length": 10, "mask_selection": "static", "mask_other": 0, "no_mask_overlap": False,
            "mask_min_space": 1, "mask_channel_prob": 0.0, "mask_channel_before": False,
            "mask_channel_selection": "static", "mask_channel_other": 0, "mask_channel_length": 10,
            "no_mask_channel_overlap": False, "mask_channel_min_space": 1, "dropout_input": 0.1,
            "dropout_features": 0.1, "dropout": 0.1, "attention_dropout": 0.1, "activation_dropout": 0.0,
            "encoder_layerdrop": 0.05, "feature_grad_mult": 0.1, "num_negatives": 100, "cross_sample_negatives": 0,
            "codebook_negatives": 0, "negatives_from_everywhere": False, "logit_temp": 0.1, "fp32_cosine_sim": True,
            "final_dim": 256, "latent_dim": 0, "latent_vars": 320, "latent_groups": 2,
            "latent_temp": [2.0, 0.5, 0.999995], "quantizer_depth": 1, "quantizer_factor": 3, "same_quantizer": False,
            "target_glu": False, "fp32_pos_conv": True, "conv_pos": 128, "conv_pos_groups": 16, "activation_fn": "gelu",
            "layer_norm_first": False, "rotary_embeddings": False, "mha": "fairseq",
            "fp32_transformer_layernorm": True, "fp32_mha_softmax": False, "hourglass_transformer": "[2,(8,4),2]",
            "hourglass_resample": "naive",
        }  # fmt: skip
        self.pretrains = True
        self.model = made(types.SimpleNamespace(**base | sizes))

    def loss(self, samples: Tensor) -> Tensor:
        """Loss as in its `criterion.py`: contrastive loss, 0.1 × diversity and 10 × penalty."""
        found = self.model(samples[..., 0], mask=True)
        logits = self.model.get_logits(found).float()
        contrast = nn.functional.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long), reduction="sum")
        diversity, penalty = self.model.get_extra_losses(found)
        return contrast + (0.1 * diversity + 10 * penalty) * len(logits)


MODELS: dict[str, tuple[Callable[..., nn.Module], int]] = {
    "icefall": (Icefall, 80), "quartznet": (QuartzNet, 64), "squeezeformer": (Squeezeformer, 80),
    "parakeet": (Parakeet, 80), "w2v_bert": (W2VBert, 160), "wav2vec2": (Wav2Vec2, 1),
    "nvidia_wav2vec2": (NvidiaWav2Vec2, 1),
}  # fmt: skip
"""Class of each original, and the number of values of a frame of its features."""


def ended(call: Callable[[], Any]) -> None:
    """Calls a function, and waits until the device has ended its work."""
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def seconds(call: Callable[[], Any], repeats: int, settling_s: float) -> Sequence[float]:
    settled = time.perf_counter() + settling_s
    ended(call)
    while time.perf_counter() < settled:
        ended(call)
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        ended(call)
        times.append(time.perf_counter() - begun)
    return times


def operations(call: Callable[[], Any], *, device: str, number: int, repeats: int = 2) -> list[dict[str, Any]]:
    """Returns names, shares of the time and calls of the operations that take the most time; on a GPU, of its kernels.

    Empty if the profiler has found none.
    """
    activity = torch.profiler.ProfilerActivity.CPU if device == "cpu" else torch.profiler.ProfilerActivity.CUDA
    with torch.profiler.profile(activities=[activity]) as profile:
        for _ in range(repeats):
            ended(call)
    name = "self_cpu_time_total" if device == "cpu" else "self_device_time_total"
    times = [(getattr(each, name), each) for each in profile.key_averages()]
    total = sum(time for time, _ in times)
    return [
        {"name": each.key, "share": time / total, "calls": each.count // repeats}
        for time, each in sorted(times, key=lambda pair: -pair[0])[:number]
        if total
    ]


def main() -> None:
    sys.path.insert(0, str(PEERS.parent))
    from asr_jax.core.allocator import keep_memory

    keep_memory()
    settings = DEFAULTS | json.loads(sys.argv[1])
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(0)
    make, num_values = MODELS[settings["peer"]]
    device = settings["device"]
    model = make(settings["sizes"], settings["vocabulary"]).train().to(device)
    rows, frames, labels = settings["rows"], settings["frames"], settings["labels"]
    features, lengths = torch.randn(rows, frames, num_values).to(device), torch.full((rows,), frames).to(device)
    targets = torch.randint(1, settings["vocabulary"], (rows, labels)).to(device)
    target_lengths = torch.full((rows,), labels).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def loss() -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=settings["precision"] == "bf16"):
            if getattr(model, "pretrains", False):
                return model.loss(features)
            logits, out_lengths = model(features, lengths)
            log_probs = logits.log_softmax(-1, dtype=torch.float32).transpose(0, 1)
            return nn.functional.ctc_loss(log_probs, targets, out_lengths, target_lengths, zero_infinity=True)

    def forward() -> None:
        with torch.no_grad():
            loss()

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    how = settings["repeats"], settings["settling_s"]
    times = {"forward_s": seconds(forward, *how), "step_s": seconds(step, *how)}
    largest = operations(step, device=device, number=settings["operations"])
    found = {"parameters": sum(p.numel() for p in model.parameters()), **times, "operations": largest}
    found["peak_bytes"] = torch.cuda.max_memory_allocated() if device == "cuda" else None
    print(json.dumps(found))


if __name__ == "__main__":
    main()
