"""Writes outputs of NeMo's cache-aware streaming encoder for tests/goldens/test_nemo_streaming.py.

Runs in .venv-reference on a git directory of NVIDIA/NeMo, as nemo_conformer.py does.

.venv-reference/bin/python scripts/goldens/nemo_streaming.py --nemo DIR --out tests/goldens/nemo_streaming
"""

import argparse
import json
import subprocess
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from nemo_conformer import COMMIT, FAST, NO_DROPOUT, TINY, import_encoder, move
from safetensors.torch import save_file

STEP = "nemo/collections/asr/parts/mixins/streaming.py"
PEER = f"NVIDIA/NeMo@{COMMIT} nemo/collections/asr/modules/conformer_encoder.py and {STEP}"
STREAMING = {
    **TINY, "causal_downsampling": True, "conv_context_size": "causal", "conv_norm_type": "layer_norm",
    "att_context_style": "chunked_limited",
}  # fmt: skip
CASES = {
    "fast": {**STREAMING, **FAST, "conv_kernel_size": 9, "att_context_size": [[6, 2], [4, 0]]},
    "conformer": {**STREAMING, "subsampling_conv_channels": 5, "untie_biases": False, "xscaling": False,
                  "conv_norm_type": "batch_norm", "att_context_size": [[8, 3]]},
    "regular": {**STREAMING, **FAST, "att_context_style": "regular", "att_context_size": [[5, 0]], "use_bias": False},
}  # fmt: skip
LENGTHS = [92, 51, 44]
NOTE = (
    "CONTEXT/whole/: outputs of forward. CONTEXT/stream/NUMBER/: outputs of cache_aware_stream_step for each chunk. "
    "features [B F T] are noise beyond the lengths. In evaluation, in float64, stored in float32. difference: largest "
    "difference between whole/ and stream/. lost: number of last outputs of whole/ that stream/ lacks, because NeMo's "
    "CacheAwareStreamingAudioBuffer leaves out a last chunk of fewer than subsampling_factor frames. zeros_difference: "
    "difference if the second chunk has zeros before the first frame, as that buffer gives if the first chunk is "
    "shorter than the cache of the subsampling. Inner convolutions then read their response to these zeros instead of "
    "zeros. For stream/ this chunk begins at the first frame, and drop_extra_pre_encoded is 1."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nemo", type=Path, required=True, help="git directory of NVIDIA/NeMo")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    encoder_class = import_encoder(options.nemo, COMMIT)
    # nemo_conformer.py replaces the mixin by a stub.
    command = ["git", f"--git-dir={options.nemo}", "show", f"{COMMIT}:{STEP}"]
    mixin = types.ModuleType("streaming")
    exec(subprocess.run(command, check=True, capture_output=True, text=True).stdout, vars(mixin))
    encoder_class.cache_aware_stream_step = mixin.StreamingEncoder.cache_aware_stream_step
    for name, config in CASES.items():
        save_case(encoder_class, options.out / name, config)


@torch.no_grad()
def save_case(encoder_class: Any, path: Path, config: dict[str, Any]) -> None:
    torch.manual_seed(0)
    encoder = encoder_class(**{**config, **NO_DROPOUT})
    move(encoder)
    encoder.eval().double()
    encoder.pos_enc.pe = None  # created again, in float64
    del encoder.pos_enc.pe
    encoder.set_max_audio_length(max(LENGTHS))
    features, lengths = torch.randn(len(LENGTHS), config["feat_in"], max(LENGTHS)).double(), torch.tensor(LENGTHS)
    arrays = {"input/features": features, "input/lengths": lengths}
    arrays |= {f"state/{name}": value.clone() for name, value in encoder.state_dict().items()}
    info: dict[str, Any] = {"peer": PEER, "versions": {"torch": torch.__version__}, "config": config, "note": NOTE}
    for context in config["att_context_size"]:
        encoder.set_default_att_context_size(context)
        key = "_".join(map(str, context))
        whole, whole_lengths = encoder(audio_signal=features, length=lengths)
        arrays |= {f"{key}/whole/output": whole.transpose(1, 2), f"{key}/whole/lengths": whole_lengths}
        for number, (output, counts) in enumerate(streamed(encoder, features, lengths, zeros=False)):
            arrays |= {f"{key}/stream/{number}/output": output, f"{key}/stream/{number}/lengths": counts}
        info[key] = {"chunk": vars(encoder.streaming_cfg)}
        for name, zeros in (("difference", False), ("zeros_difference", True)):
            chunks = list(streamed(encoder, features, lengths, zeros=zeros))
            joined = [
                torch.cat([output[row, : counts[row]] for output, counts in chunks]) for row in range(len(LENGTHS))
            ]
            differences = [(each - whole[row].T[: len(each)]).abs().max() for row, each in enumerate(joined)]
            info[key][name] = float(max(differences))
        info[key]["lost"] = [int(count) - len(each) for count, each in zip(whole_lengths, joined, strict=True)]
        print(path.name, key, info[key])
    arrays = {name: value.float() if value.is_floating_point() else value for name, value in arrays.items()}
    save_file({name: value.contiguous() for name, value in arrays.items()}, path.with_suffix(".safetensors"))
    path.with_suffix(".json").write_text(json.dumps(info, indent=1) + "\n")


def streamed(encoder: Any, features: torch.Tensor, lengths: torch.Tensor, *, zeros: bool) -> Iterator[tuple[Any, Any]]:
    """Yields the outputs of each chunk and their numbers, with the chunks of NeMo's CacheAwareStreamingAudioBuffer.

    `zeros`: whether chunks have zeros before the first frame, as there.
    """
    settings, begin, factor = encoder.streaming_cfg, 0, encoder.subsampling_factor
    caches = encoder.get_initial_cache_state(len(features), dtype=features.dtype)
    while features.shape[2] - begin >= (factor if begin else 1):
        later = begin > 0
        size, shift, cache = (
            each[later] for each in (settings.chunk_size, settings.shift_size, settings.pre_encode_cache_size)
        )
        chunk = features[:, :, max(begin - cache, 0) : begin + size]
        drop = min(settings.drop_extra_pre_encoded, -(-begin // factor))
        if zeros and later:
            chunk = torch.nn.functional.pad(chunk, (max(cache - begin, 0), 0))
            drop = settings.drop_extra_pre_encoded
        elif begin < cache:
            cache = begin
        counts = torch.clamp(lengths - begin + cache, min=0, max=chunk.shape[2])
        output, counts, *caches = encoder.cache_aware_stream_step(
            processed_signal=chunk,
            processed_signal_length=counts,
            cache_last_channel=caches[0],
            cache_last_time=caches[1],
            cache_last_channel_len=caches[2],
            drop_extra_pre_encoded=drop,
        )
        yield output.transpose(1, 2), counts
        begin += shift


if __name__ == "__main__":
    main()
