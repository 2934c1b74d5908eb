"""Writes small random causal Zipformers, and what icefall's own code computes with them in chunks and as a stream.

For tests/goldens/test_icefall_streaming.py. Runs in .venv-reference, with the sources that
`scripts/setup_reference.sh --peers` downloads to .peers:

    .venv-reference/bin/python scripts/goldens/icefall_streaming.py --out tests/goldens/icefall_streaming

Streams are computed as in icefall's zipformer/streaming_decode.py: windows of 2·chunk + 13 frames, and silence appended
to each recording. icefall asserts an output downsampling of 2, so that all cases have it.
"""

import argparse
import ast
import json
import math
from pathlib import Path
from typing import Any

import torch
from peer_texts import PEERS, import_icefall
from safetensors.torch import save_file
from torch import Tensor

SILENCE = math.log(1e-10)
"""Value of the features that icefall appends."""
WINDOW = 7 + 2 * 3
"""Frames of a window beyond those that it moves on by."""
TAIL = 30
"""Frames of silence that icefall appends to a recording, besides those of a window."""
LENGTHS = (57, 96, 71)
COMMON = {"feature_dim": 16, "embed_channels": (2, 3, 4), "pos_dim": 8, "causal": True, "vocab_size": 5}
CASES: dict[str, dict[str, Any]] = {
    "chunk4_left8": {
        "chunk": 4, "left": 8, "downsampling_factor": "1,2", "encoder_dim": "12,16", "num_encoder_layers": "1,2",
        "encoder_unmasked_dim": "8,12", "query_head_dim": "4,4", "pos_head_dim": "2,2", "value_head_dim": "4,4",
        "num_heads": "2,4", "feedforward_dim": "16,24", "cnn_module_kernel": "7,3",
    },
    "chunk8_left16": {
        "chunk": 8, "left": 16, "downsampling_factor": "1,2,4", "encoder_dim": "8,16,12", "num_encoder_layers": "1,1,2",
        "encoder_unmasked_dim": "8,8,8", "query_head_dim": "4,3,2", "pos_head_dim": "2,2,3", "value_head_dim": "4,2,3",
        "num_heads": "2,2,4", "feedforward_dim": "16,24,16", "cnn_module_kernel": "5,9,3",
    },
    "chunk16_left16": {
        "chunk": 16, "left": 16, "downsampling_factor": "2,8,1", "encoder_dim": "12,12,8",
        "num_encoder_layers": "2,1,1", "encoder_unmasked_dim": "8,12,8", "query_head_dim": "4,4,4",
        "pos_head_dim": "2,2,2", "value_head_dim": "4,4,4", "num_heads": "2,2,2", "feedforward_dim": "16,16,16",
        "cnn_module_kernel": "15,3,31",
    },
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    model_of, functions = import_icefall(), streaming_functions()
    for number, (name, changes) in enumerate(CASES.items()):
        settings = {**COMMON, **changes}
        torch.manual_seed(number)
        model = model_of(settings).eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight += (0.2 if weight.ndim > 1 else 0.1) * torch.randn_like(weight)
            model.encoder.chunk_size = (settings["chunk"],)
            model.encoder.left_context_frames = (settings["left"],)
            arrays = {
                f"param/{each}": weight
                for each, weight in model.state_dict().items()
                if each.startswith(("encoder.", "encoder_embed."))
            }
            for row, length in enumerate(LENGTHS):
                features = -4 + 3 * torch.randn(1, length, settings["feature_dim"])
                arrays[f"features/{row}"] = features[0]
                arrays[f"chunked/{row}"] = model.encode(features, torch.tensor([length]))[0][0]
                arrays[f"streaming/{row}"] = streamed(model, features, settings, functions)[0]
        save_file({each: array.contiguous() for each, array in arrays.items()}, out / f"{name}.safetensors")
        (out / f"{name}.safetensors").chmod(0o644)
        info = {"silence": SILENCE, "peer": f"icefall zipformer at 36e0420c, torch {torch.__version__}", **settings}
        (out / f"{name}.json").write_text(json.dumps(info, indent=1) + "\n")


def streaming_functions() -> dict[str, Any]:
    """Returns functions of icefall's streaming_decode.py, which imports packages that they do not use."""
    found: dict[str, Any] = {"torch": torch, "Tensor": Tensor, "nn": torch.nn, "List": list, "Tuple": tuple}
    wanted = {"icefall/icefall/utils.py": {"make_pad_mask"}}
    wanted["icefall/egs/librispeech/ASR/zipformer/streaming_decode.py"] = {"get_init_states", "streaming_forward"}
    for file, names in wanted.items():
        nodes = ast.parse((PEERS / file).read_text()).body
        nodes = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in names]
        exec(compile(ast.Module(nodes, []), file, "exec"), found)
    return found


def streamed(model: Any, features: Tensor, settings: dict[str, Any], functions: dict[str, Any]) -> Tensor:
    """Returns the outputs of all windows of a recording [1 T F], with icefall's silence at its end."""
    shift = 2 * settings["chunk"]
    windows = -(-(features.shape[1] + WINDOW + TAIL) // shift)
    more = windows * shift + WINDOW - features.shape[1]
    features = torch.nn.functional.pad(features, (0, 0, 0, more), value=SILENCE)
    states, outputs = functions["get_init_states"](model), []
    for number in range(windows):
        window = features[:, number * shift : (number + 1) * shift + WINDOW]
        output, _, states = functions["streaming_forward"](
            window, torch.tensor([window.shape[1]]), model, states, settings["chunk"], settings["left"]
        )
        outputs.append(output)
    return torch.cat(outputs, dim=1)


if __name__ == "__main__":
    main()
