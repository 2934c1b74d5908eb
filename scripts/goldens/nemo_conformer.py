"""Writes outputs, gradients and statistics of NeMo's ConformerEncoder for tests/goldens/test_nemo_conformer.py.

Runs in .venv-reference on a git directory of NVIDIA/NeMo. Its torch modules are used unchanged; their imports from
nemo.core, omegaconf and Lightning, which compute nothing, are replaced by stubs.

.venv-reference/bin/python scripts/goldens/nemo_conformer.py --nemo DIR --out tests/goldens/nemo_conformer
"""

import argparse
import importlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
import types
from collections import OrderedDict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

COMMIT = "8cfedd7203462cb251a914e700e5605444277561"
UNMASKED = "0fd4de534b~1"
"""Last commit whose subsampling ignores lengths: padding affects the last frames of a row."""
PARTS = ["nemo/collections/asr/modules/conformer_encoder.py", "nemo/collections/asr/parts"]
LENGTHS = [61, 40, 17, 58]
TINY = {"feat_in": 16, "d_model": 16, "n_heads": 2, "n_layers": 2, "conv_kernel_size": 5, "ff_expansion_factor": 2}
FAST = {"subsampling": "dw_striding", "subsampling_factor": 8, "subsampling_conv_channels": 6}
NO_DROPOUT = dict.fromkeys(("dropout", "dropout_pre_encoder", "dropout_emb", "dropout_att"), 0.0)
CASES = {
    "striding": {**TINY, "subsampling_conv_channels": -1},
    "striding_tied_layer_norm": {**TINY, "subsampling_conv_channels": 5, "untie_biases": False, "xscaling": False,
                                 "conv_norm_type": "layer_norm"},
    "dw_striding_no_bias": {**TINY, **FAST, "use_bias": False, "conv_kernel_size": 9},
    "abs_pos": {**TINY, **FAST, "subsampling_factor": 4, "self_attention_model": "abs_pos", "feat_in": 21},
    "unmasked": {**TINY, **FAST, "subsampling_factor": 4},
}  # fmt: skip
# In examples/asr/conf: the comments in conformer/conformer_ctc_bpe.yaml and fastconformer/fast-conformer_ctc_bpe.yaml.
# The large FastConformer has 17 layers in the comment and 18 in the settings; 18 match the published 115 M parameters.
SIZES = {
    "small": (176, 4, 16, 31), "medium": (256, 4, 18, 31), "large": (512, 8, 18, 31), "xlarge": (1024, 8, 24, 5),
    "fast_small": (176, 4, 16, 9), "fast_medium": (256, 4, 16, 9), "fast_large": (512, 8, 18, 9),
    "fast_xlarge": (1024, 8, 24, 9), "fast_xxlarge": (1024, 8, 42, 5),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nemo", type=Path, required=True, help="git directory of NVIDIA/NeMo")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, config in CASES.items():
        encoder_class = import_encoder(options.nemo, UNMASKED if name == "unmasked" else COMMIT)
        encoder = save_case(encoder_class, options.out / name, config)
        if name == "dw_striding_no_bias":
            save_weights(encoder, options.out / "model_weights.ckpt")
    counts = {name: num_parameters(encoder_class, name, *size) for name, size in SIZES.items()}
    (options.out / "num_parameters.json").write_text(json.dumps({"peer": PEER, "encoder": counts}, indent=1) + "\n")


PEER = f"NVIDIA/NeMo@{COMMIT} nemo/collections/asr/modules/conformer_encoder.py"
NOTE = (
    "eval/: outputs and gradients with the running statistics; train/: with those of the padded batch, and the running "
    "statistics after it. Gradients are of sum(output [B T D] * input/grad_weights), whose weights are 0 beyond the "
    "lengths; input/features [B F T] are noise beyond the lengths. Dropouts are 0. In float64, stored in float32."
)


def import_encoder(repository: Path, commit: str) -> Any:
    command = ["git", f"--git-dir={repository}", "archive", commit, "--", *PARTS]
    archive = subprocess.run(command, check=True, capture_output=True).stdout
    for name in [name for name in sys.modules if name.partition(".")[0] == "nemo"]:
        del sys.modules[name]
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
        stand_in(Path(folder))
        return importlib.import_module("nemo.collections.asr.modules.conformer_encoder").ConformerEncoder


def stand_in(folder: Path) -> None:
    """Adds stubs for modules that compute nothing, and packages without their __init__.py."""
    for name in (
        "nemo", "nemo.collections", "nemo.collections.asr", "nemo.collections.asr.modules",
        "nemo.collections.asr.parts", "nemo.collections.asr.parts.submodules",
        "nemo.collections.asr.parts.submodules.adapters",
        "nemo.collections.asr.parts.utils", "nemo.collections.asr.parts.mixins",
    ):  # fmt: skip
        module(name).__path__ = [str(folder.joinpath(*name.split(".")))]

    class Plain:
        def is_adapter_available(self) -> bool:
            return False

        def is_access_enabled(self, *_: Any) -> bool:
            return False

    class Anything:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

    class NeuralModule(torch.nn.Module):
        pass

    class StreamingConfig:
        pass

    def identity(*_: Any, **__: Any) -> Any:
        return lambda function: function

    classes = {name: type(name, (Plain,), {}) for name in ("StreamingEncoder", "Exportable", "AccessMixin", "Adapter")}
    adapters = module("adapter_mixins", AdapterModuleMixin=classes["Adapter"], get_registered_adapter=bool)
    types_ = (
        "AcousticEncodedRepresentation",
        "BoolType",
        "ChannelType",
        "LengthsType",
        "NeuralType",
        "SpectrogramType",
    )
    module("omegaconf", DictConfig=dict, ListConfig=list, open_dict=identity)
    module("nemo.collections.asr.models.configs", CacheAwareStreamingConfig=StreamingConfig)
    module("nemo.collections.asr.parts.mixins.streaming", StreamingEncoder=classes["StreamingEncoder"])
    module("nemo.collections.asr.parts.utils", adapter_utils=None)
    module("nemo.collections.common.parts.utils", activation_registry={})
    module("nemo.core.classes.common", typecheck=identity)
    module("nemo.core.classes.exportable", Exportable=classes["Exportable"])
    module("nemo.core.classes.mixins", AccessMixin=classes["AccessMixin"], adapter_mixins=adapters)
    module("nemo.core.classes.module", NeuralModule=NeuralModule)
    module("nemo.core.neural_types", **dict.fromkeys(types_, Anything))
    module("nemo.utils", logging=None, logging_mode=None, avoid_float16_autocast_context=nullcontext)


def module(name: str, **members: Any) -> types.ModuleType:
    found = sys.modules.setdefault(name, types.ModuleType(name))
    vars(found).update(members)
    return found


def build(encoder_class: Any, config: dict[str, Any]) -> Any:
    # Only streaming needs this method, and its configuration is a stub.
    encoder_class.setup_streaming_params = lambda self: setattr(
        self, "streaming_cfg", types.SimpleNamespace(drop_extra_pre_encoded=0)
    )
    return encoder_class(**config)


def save_case(encoder_class: Any, path: Path, config: dict[str, Any]) -> Any:
    """Writes the values and the description of one case; returns the encoder with its initial state."""
    torch.manual_seed(0)
    encoder = build(encoder_class, {**config, **NO_DROPOUT})
    move(encoder)
    encoder.double()
    encoder.pos_enc.pe = None  # created again, in float64
    del encoder.pos_enc.pe
    encoder.set_max_audio_length(max(LENGTHS))
    features = torch.randn(len(LENGTHS), config["feat_in"], max(LENGTHS) + 5).double()
    lengths = torch.tensor(LENGTHS)
    names = dict(encoder.named_parameters(remove_duplicate=False))
    arrays = {"input/features": features, "input/lengths": lengths}
    arrays |= {f"state/{name}": value.clone() for name, value in encoder.state_dict().items()}
    for mode in ("eval", "train"):
        encoder.train(mode == "train").zero_grad()
        output, output_lengths = encoder(audio_signal=features, length=lengths)
        output = output.transpose(1, 2)
        if mode == "eval":
            valid = torch.arange(output.shape[1])[None] < output_lengths[:, None]
            weights = torch.randn(output.shape).double() * valid[:, :, None]
            arrays |= {"input/grad_weights": weights, "output/lengths": output_lengths}
        (output * weights).sum().backward()
        arrays[f"{mode}/output"] = output.detach()
        arrays |= {f"{mode}/grad/{name}": parameter.grad.clone() for name, parameter in names.items()}
    running = {name: value for name, value in encoder.state_dict().items() if "running" in name}
    arrays |= {f"train/statistics/{name}": value.clone() for name, value in running.items()}
    arrays = {name: value.float() if value.is_floating_point() else value for name, value in arrays.items()}
    save_file({name: value.contiguous() for name, value in arrays.items()}, path.with_suffix(".safetensors"))
    peer = PEER.replace(COMMIT, UNMASKED) if path.name == "unmasked" else PEER
    masks = path.name != "unmasked"
    info = {"peer": peer, "versions": {"torch": torch.__version__}, "config": config, "masks_padding": masks}
    info |= {"note": NOTE}
    path.with_suffix(".json").write_text(json.dumps(info, indent=1) + "\n")
    encoder.load_state_dict({name[6:]: value for name, value in arrays.items() if name.startswith("state/")})
    return encoder.float()


def save_weights(encoder: Any, path: Path) -> None:
    """Writes weights as in a .nemo file: the encoder, a CTC decoder of 16 labels, and a buffer of the preprocessor."""
    decoder = torch.nn.Conv1d(encoder.d_model, 16, 1)
    state = {f"encoder.{name}": value for name, value in encoder.state_dict().items()}
    state |= {f"decoder.decoder_layers.0.{name}": value for name, value in decoder.state_dict().items()}
    torch.save(OrderedDict(state | {"preprocessor.featurizer.window": torch.hann_window(400)}), path)


def move(model: torch.nn.Module) -> None:
    """Changes parameters whose initial values hide their effect.

    Biases, norms and running statistics leave their initial values, and attention becomes uneven.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or "pos_bias" in name:
                parameter += 0.3 * torch.randn_like(parameter)
            elif ".self_attn." in name:
                parameter *= 4.0
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer += 0.3 * torch.randn_like(buffer)
            if name.endswith("running_var"):
                buffer *= 0.5 + torch.rand_like(buffer)


def num_parameters(encoder_class: Any, name: str, width: int, heads: int, layers: int, kernel: int) -> int:
    """Number of parameters of an encoder, extrapolated from encoders of one and of two layers."""
    fast = {**FAST, "subsampling_conv_channels": 256} if name.startswith("fast") else {}
    config = {"feat_in": 80, "d_model": width, "n_heads": heads, "conv_kernel_size": kernel, **fast}
    one, two = (
        sum(parameter.numel() for parameter in build(encoder_class, {**config, "n_layers": number}).parameters())
        for number in (1, 2)
    )
    return one + (layers - 1) * (two - one)


if __name__ == "__main__":
    main()
