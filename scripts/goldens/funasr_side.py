"""Runs FunASR's own Paraformer on a folder of its format, for a comparison with this package (see BUILD_NOTES.md).

Runs in .venv-reference, with a checkout of https://github.com/modelscope/FunASR (commit 3c58cb56).

.venv/bin/python scripts/goldens/funasr_side.py --ours FOLDER --model v1     random model and our log-probabilities
.venv-reference/bin/python scripts/goldens/funasr_side.py FOLDER --funasr CHECKOUT
.venv-reference/bin/python scripts/goldens/funasr_side.py FOLDER --funasr CHECKOUT --draw 1 --out OTHER
.venv/bin/python scripts/goldens/funasr_side.py --compare OTHER

The second command loads our folder with FunASR's code and compares log-probabilities. The third one draws other weights
with PyTorch and writes them with FunASR's log-probabilities to a folder; the fourth one reads that folder with this
package and compares.
"""

import argparse
import importlib.abc
import importlib.machinery
import shutil
import sys
import types
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import yaml

FRAMES, LENGTHS, SYMBOLS = 61, (61, 40, 17), 30
GIVEN = "given.npz"
"""File in the folder with the features, their lengths and the log-probabilities of the side that wrote the folder."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", help="folder that FunASR's code reads")
    parser.add_argument("--funasr", type=Path, help="checkout of FunASR")
    parser.add_argument("--draw", type=int, help="seed of other weights, which are written to --out")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--ours", type=Path, help="folder to write with this package")
    parser.add_argument("--model", choices=("v1", "v2"), default="v1")
    parser.add_argument("--compare", type=Path, help="folder to read with this package")
    options = parser.parse_args()
    if options.ours:
        write_ours(options.ours, options.model)
    elif options.compare:
        given = np.load(options.compare / GIVEN)
        report(our_log_probs(options.compare, given), given)
    else:
        run_theirs(options.folder, options.funasr, draw=options.draw, out=options.out)


def report(found: list[np.ndarray], given: Any) -> None:
    """Prints the largest difference of the log-probabilities of each row."""
    for row, array in enumerate(found):
        expected = given[f"log_probs_{row}"]
        same = "same shape" if array.shape == expected.shape else f"{array.shape} and {expected.shape}"
        size = min(len(array), len(expected))
        print(f"row {row}: {same}, largest difference {np.abs(array[:size] - expected[:size]).max(initial=0):.2e}")


def write_ours(folder: Path, kind: str) -> None:
    """Writes a folder with random weights, and our log-probabilities."""
    import jax

    from asr_jax.audio.presets import funasr
    from asr_jax.heads.ctc import CTC
    from asr_jax.heads.paraformer import Paraformer
    from asr_jax.heads.paraformer_v2 import ParaformerV2
    from asr_jax.models.base import Model
    from asr_jax.models.sanm import SANM
    from asr_jax.nn.decoders.cif import CIF
    from asr_jax.nn.decoders.parallel_decoder import SANMDecoder
    from asr_jax.pretrained.formats import save_folder
    from asr_jax.text.characters import CharacterTokenizer

    decoder = SANMDecoder(num_layers=2, num_attention_layers=2, num_heads=2, feedforward_dim=48, kernel_size=5)
    first = {"paraformer": Paraformer(predictor=CIF(), decoder=decoder, end_id=2, dropped_ids=(1, 2))}
    second = {
        "paraformer": ParaformerV2(decoder=decoder, queries="normed", dropped_ids=(1, 2), weight_by="utterances"),
        "ctc": CTC(dropout=0.0, weight_by="utterances"),
    }
    model = Model(
        encoder=SANM(input_dim=560, dim=32, num_layers=3, num_heads=2, feedforward_dim=48, kernel_size=5),
        heads=first if kind == "v1" else second, front_end=funasr(), augment=(), primary="paraformer",
    )  # fmt: skip
    built = model.build(vocab_size=SYMBOLS, blank_id=0, precision="f32")
    given = {"features": np.random.default_rng(0).normal(size=(len(LENGTHS), FRAMES, 560)).astype(np.float32)}
    given["lengths"] = np.array(LENGTHS, np.int32)
    weights = jax.jit(lambda key: built.init(key, _batch(given), step=None))(jax.random.key(0))
    weights = {"params": jax.tree.map(lambda leaf: 1.5 * leaf, weights["params"])}
    symbols = [None, "<s>", "</s>", *map(chr, range(97, 97 + SYMBOLS - 3))]
    save_folder(weights, model, CharacterTokenizer(tuple(symbols), "none"), "funasr", folder)
    found = our_log_probs(folder, given)
    np.savez(folder / GIVEN, **given, **{f"log_probs_{row}": array for row, array in enumerate(found)})
    print(f"{folder}: {[len(array) for array in found]} labels")


def _batch(given: Any) -> Any:
    import jax.numpy as jnp

    from asr_jax.core.batch import Batch

    rows = len(given["lengths"])
    return Batch(
        audio=None, features=jnp.asarray(given["features"]), lengths=jnp.asarray(given["lengths"]),
        tokens=jnp.full((rows, 4), 5, jnp.int32), token_lengths=jnp.full(rows, 4), weights=jnp.ones(rows),
        utterances=jnp.arange(rows),
    )  # fmt: skip


def our_log_probs(folder: Path, given: Any) -> list[np.ndarray]:
    """Reads a folder and returns the log-probabilities of the labels of each row."""
    import jax

    from asr_jax.core.pytrees import unflatten
    from asr_jax.models.base import Model
    from asr_jax.pretrained.formats import imported, load_weights
    from asr_jax.pretrained.funasr import settings_of

    config = yaml.safe_load((folder / "config.yaml").read_text())
    encoder, heads = settings_of(config, "config.yaml")
    model = Model(encoder=encoder, heads=heads, augment=(), primary="paraformer", front_end=_front_end())
    params, left = imported(load_weights(folder)[0], model)
    assert not left, left
    built = model.build(vocab_size=SYMBOLS, blank_id=0, precision="f32")
    emitted: Any = jax.jit(lambda tree, batch: built.apply(tree, batch, head="paraformer", method="emit"))(
        unflatten(params), _batch(given)
    )
    frames = jax.device_get(emitted["paraformer"])
    return [values[:length] for values, length in zip(frames.values, frames.lengths, strict=True)]


def _front_end() -> Any:
    from asr_jax.audio.presets import funasr

    return funasr()


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Replaces modules that are not installed, and that inference from features does not use."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        return None if name.startswith("funasr") else importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> Any:
        module = MagicMock(name=spec.name, spec=types.ModuleType)
        module.__path__ = []
        return module

    def exec_module(self, module: Any) -> None:
        pass


def their_model(config: dict[str, Any], checkout: Path, *, input_size: int, vocab_size: int) -> Any:
    """Returns FunASR's model of a config.yaml with random weights."""
    package = types.ModuleType("funasr")  # its __init__ imports everything
    package.__path__ = [str(checkout / "funasr")]
    sys.modules["funasr"] = package
    sys.meta_path.append(Missing())
    for name in ("paraformer", "paraformer_v2_community", "sanm"):
        for part in ("model", "decoder", "encoder", "cif_predictor"):
            if (checkout / "funasr/models" / name / f"{part}.py").is_file():
                importlib.import_module(f"funasr.models.{name}.{part}")
    from funasr.register import tables  # type: ignore[import-not-found]

    parts = ("encoder", "encoder_conf", "decoder", "decoder_conf", "predictor", "predictor_conf", "ctc_conf")
    given = {name: config[name] for name in parts if config.get(name) is not None}
    model_class = tables.model_classes[config["model"]]
    return model_class(input_size=input_size, vocab_size=vocab_size, **given, **config["model_conf"]).eval()


def run_theirs(folder: Path, checkout: Path, *, draw: int | None, out: Path | None) -> None:
    """Computes log-probabilities with FunASR's code, compares them or writes them with drawn weights."""
    import torch

    torch.manual_seed(draw or 0)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    model = their_model(config, checkout, input_size=560, vocab_size=SYMBOLS)
    if draw is None:
        found = model.load_state_dict(torch.load(folder / "model.pt", weights_only=True), strict=False)
        print("missing", found.missing_keys, "unexpected", found.unexpected_keys)
    else:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
    given = np.load(folder / GIVEN)
    speech = [
        torch.from_numpy(row[:length])[None] for row, length in zip(given["features"], given["lengths"], strict=True)
    ]
    with torch.no_grad():
        log_probs = [their_log_probs(model, each).numpy() for each in speech]
    if draw is None:
        return report(log_probs, given)
    assert out is not None, "--draw needs --out"
    shutil.copytree(folder, out, dirs_exist_ok=True)
    torch.save(model.state_dict(), out / "model.pt")
    named = {f"log_probs_{row}": array for row, array in enumerate(log_probs)}
    np.savez(out / GIVEN, features=given["features"], lengths=given["lengths"], **named)
    return None


def their_log_probs(model: Any, speech: Any) -> Any:
    """Returns the log-probabilities [U V] of a recording from its features [1 T F], by the steps of `inference`."""
    import torch

    encoded, lengths = model.encode(speech, torch.tensor([speech.shape[1]]))
    if hasattr(model, "average_repeats_inference"):
        probs = model.ctc.softmax(encoded)[0]
        mean = model.average_repeats_inference(probs, probs.argmax(dim=-1))[None]
        logits, _ = model.decoder(encoded, lengths, mean, torch.tensor([mean.shape[1]]))
        return torch.log_softmax(logits, dim=-1)[0]
    vectors, number, *_ = model.calc_predictor(encoded, lengths)
    number = number.round().long()
    found, _ = model.cal_decoder_with_predictor(encoded, lengths, vectors, number)
    return found[0, : int(number[0])]


if __name__ == "__main__":
    main()
