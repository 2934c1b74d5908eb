"""Writes small random RNN-T models with the code of Myrtle's CAIMAN-ASR 1.14, and what that code computes with them.

For tests/goldens/test_caiman.py. Runs in .venv-reference, with the sources that `scripts/setup_reference.sh --peers`
downloads to .peers:

    .venv-reference/bin/python scripts/goldens/caiman.py --out tests/goldens/caiman     # writes the cases
    .venv-reference/bin/python scripts/goldens/caiman.py --load FILE.pt ORIGINAL.pt CASE OUT    # outputs of both files

Features are random, because CAIMAN-ASR computes them with DALI. `base.pt` is a hardware checkpoint, with the settings,
the statistics of features and the tokenizer; `batch_norm.pt` is a checkpoint of a training.
"""

import argparse
import importlib
import json
import sys
import typing
from collections import OrderedDict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from peer_texts import PEERS, recorded, stand_in
from published import pieces_model
from safetensors.numpy import load_file, save_file

CASES = {"base": False, "batch_norm": True}
SIZES = {
    "n_classes": 41, "in_feats": 24, "enc_n_hid": 12, "enc_pre_rnn_layers": 2, "enc_post_rnn_layers": 2,
    "enc_stack_time_factor": 2, "enc_dropout": 0.1, "pred_dropout": 0.3, "joint_dropout": 0.3, "pred_n_hid": 10,
    "pred_rnn_layers": 2, "joint_n_hid": 14, "forget_gate_bias": 1.0, "gpu_unavailable": True,
}  # fmt: skip
FEATURES = {
    "normalize": "per_feature", "sample_rate": 16000, "window_size": 0.02, "window_stride": 0.01, "window": "hann",
    "n_fft": 512, "n_filt": 8, "dither": 1e-5,
}  # fmt: skip


def import_caiman() -> Any:
    """Imports CAIMAN-ASR's model and its greedy search; checkers of types are stubs."""

    class Anything:
        def __class_getitem__(cls, _: Any) -> Any:
            return Any

    def unchanged(*_: Any, **__: Any) -> Any:
        return lambda decorated: decorated

    stand_in("apex.contrib.transducer", TransducerJoint=None)
    stand_in("beartype", beartype=lambda decorated: decorated)
    sys.modules["beartype.typing"] = typing  # type: ignore[assignment]
    stand_in("jaxtyping", Float=Anything, Int=Anything, jaxtyped=unchanged)
    root = PEERS / "caiman-asr/training/caiman_asr_train"
    for name in ("", ".rnnt", ".train_utils", ".utils"):
        stand_in(f"caiman_asr_train{name}")
        sys.modules[f"caiman_asr_train{name}"].__path__ = [str(root / name.removeprefix("."))]
    stand_in("caiman_asr_train.data.tokenizer", Tokenizer=ModuleType)
    stand_in("caiman_asr_train.rnnt.unbatch_encoder", encode_lower_batch_size=None)
    stand_in("caiman_asr_train.train_utils.distributed", print_once=lambda *_: None, unwrap_ddp=lambda model: model)
    return SimpleNamespace(
        model=importlib.import_module("caiman_asr_train.rnnt.model").RNNT,
        search=importlib.import_module("caiman_asr_train.rnnt.batched_greedy").RNNTBatchedGreedyDecoder,
    )


def computed(caiman: Any, model: Any, inputs: dict[str, Any]) -> dict[str, np.ndarray]:
    """Returns encodings, the joint network's log-probabilities for given labels, and the labels of greedy search."""
    model.eval()
    features, lengths = torch.from_numpy(inputs["features"]), torch.from_numpy(inputs["lengths"])
    tokenizer = SimpleNamespace(sentpiece=SimpleNamespace(id_to_piece=str))
    with torch.no_grad():
        encoded, encoded_lengths, _ = model.encode(features.swapaxes(0, 1), lengths)
        labels = torch.from_numpy(inputs["labels"])
        logits, _, _ = model(features.swapaxes(0, 1), lengths, labels, torch.from_numpy(inputs["num_labels"]))
        search = caiman.search(
            model, blank_idx=SIZES["n_classes"] - 1, eos_strategy=None, max_inputs_per_batch=1, tokenizer=tokenizer
        )
        steps = recorded(model.joint_fc)
        found = search._inner_decode(encoded, encoded_lengths)
        model.joint_fc.__dict__.pop("forward")
    best = torch.cat([step.flatten(0, -2) for step in steps]).topk(2, dim=-1).values
    texts = [[y for frame in row.values() for y in frame.final.alternatives[0].y_seq] for row in found]
    arrays = {"log_probs": logits.log_softmax(-1).numpy(), "margin": (best[:, 0] - best[:, 1]).min().numpy()}
    return arrays | {f"text_{number}": np.array(text, np.int64) for number, text in enumerate(texts)}


def made(caiman: Any, seed: int, *, batch_norm: bool) -> Any:
    torch.manual_seed(seed)
    model = caiman.model(enc_batch_norm=batch_norm, pred_batch_norm=batch_norm, **SIZES)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter += (0.5 if parameter.ndim == 1 else 0.3) * torch.randn_like(parameter)
            if name.startswith("joint_net"):
                parameter.normal_()
        for name, buffer in model.named_buffers():
            if "running" in name:
                buffer += 0.3 * torch.rand_like(buffer)
        model.joint_net[2].bias[-1] += 6 if batch_norm else 3
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--load", nargs=4, metavar=("FILE", "ORIGINAL", "CASE", "OUT"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    caiman = import_caiman()
    if options.load:
        file, original, case, out = options.load
        arrays = {}
        for name, path, is_safe in (("found", file, True), ("expected", original, False)):
            model = made(caiman, 0, batch_norm=CASES[Path(case).name.split(".")[0]])
            model.load_state_dict(OrderedDict(torch.load(path, weights_only=is_safe)["state_dict"]))
            arrays |= {f"{name} {key}": array for key, array in computed(caiman, model, load_file(case)).items()}
        save_file(arrays, out)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    inputs = {
        "features": rng.normal(size=(3, 21, 24)).astype(np.float32), "lengths": np.array([21, 16, 9], np.int32),
        "labels": rng.integers(0, 40, (3, 6)).astype(np.int64), "num_labels": np.array([6, 4, 0], np.int32),
    }  # fmt: skip
    for name, batch_norm in CASES.items():
        for seed in range(100):
            model = made(caiman, seed, batch_norm=batch_norm)
            found = computed(caiman, model, inputs)
            sizes = [len(found[f"text_{number}"]) for number in range(3)]
            if found["margin"] > 1e-3 and min(sizes) > 2 and max(sizes) < 30:
                break
        print(name, seed, sizes)
        save_file(inputs | found, options.out / f"{name}.safetensors")
        stored = {"state_dict": model.state_dict(), "epoch": 1, "step": 5, "best_wer": 1.0}
        if batch_norm:
            stored |= {"ema_state_dict": model.state_dict(), "optimizer": None, "logmel_norm_weight": 1.0}
            stored["tokenizer_kw"] = {"sentpiece_model": "/datasets/pieces.model", "labels": ["a"], "sampling": 0.05}
        else:  # as export/hardware_ckpt.py
            pieces = pieces_model(options.out, unk_id=0)
            stored |= {
                "melmeans": torch.randn(8), "melvars": torch.rand(8) + 0.5, "melalpha": 0.0,
                "sentpiece_model": pieces.read_bytes(), "ngram": {"binary": None, "scale_factor": None},
                "version": "1.14.0", "rnnt_config": {
                    "input_val": {
                        "filterbank_features": FEATURES,
                        "frame_splicing": {"frame_stacking": 3, "frame_subsampling": 3},
                    }
                },
            }  # fmt: skip
            pieces.unlink()
        torch.save(stored, options.out / f"{name}.pt", pickle_protocol=5)
    info = {
        "peer": "MyrtleSoftware/caiman-asr@08d60d80 training/caiman_asr_train",
        "sizes": SIZES,
        "torch": torch.__version__,
    }
    (options.out / "about.json").write_text(json.dumps(info, indent=1) + "\n")
    for file in options.out.iterdir():
        file.chmod(0o644)


if __name__ == "__main__":
    main()
