"""NeMo's `.nemo` files: an archive of settings, weights and tokenizer, read without NeMo and without PyTorch; and what
NeMo calls the modules that several of its encoders share.
"""

import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import nemo
from asr_jax.core.errors import UserError
from asr_jax.nn.striding import Subsampling
from asr_jax.pretrained.keymap import CONV_2D, POINTWISE, Row
from asr_jax.pretrained.torch_files import load_torch, state_dict
from asr_jax.pretrained.torch_writer import save_torch

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"


class Nemo(NamedTuple):
    """What a file holds."""

    config: dict[str, Any]
    """The model's settings."""
    weights: dict[str, np.ndarray]
    """By NeMo's names."""
    symbols: tuple[str | None, ...] | None
    """What the labels of its CTC decoder stand for, the blank last as None; None where the settings do not say."""


def load_nemo(path: Path) -> Nemo:
    """A whole file.

    Raises: UserError where it is none, or cut.
    """
    config = nemo_config(path)
    with tempfile.TemporaryDirectory() as folder:
        weights = state_dict(load_torch(_extracted(path, WEIGHTS, Path(folder))))
    decoder = config.get("decoder")
    vocabulary = decoder.get("vocabulary") if isinstance(decoder, Mapping) else None
    symbols = (*map(str, vocabulary), None) if isinstance(vocabulary, list) and vocabulary else None
    return Nemo(config, weights, symbols)


def nemo_config(path: Path) -> dict[str, Any]:
    """The model's settings alone.

    Raises: as `load_nemo`.
    """
    with tempfile.TemporaryDirectory() as folder:
        text = _extracted(path, CONFIG, Path(folder)).read_text()
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: its {CONFIG} cannot be read ({error}): expected YAML as NeMo writes it") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: its {CONFIG} is no tree of settings: expected a file that NeMo's save_to wrote")
    return config


def nemo_encoder(path: Path) -> str:
    """The class of a `.nemo` file's encoder; empty for another path, and `nothing` where the file says none.

    Raises: UserError where a .nemo file cannot be read.
    """
    if path.suffix != ".nemo":
        return ""
    said = nemo_config(path).get("encoder")
    return str(said.get("_target_", "")).rpartition(".")[2] if isinstance(said, Mapping) else "nothing"


def nemo_front_end(path: Path) -> FrontEnd:
    """The preset `nemo` with the mel bins of a `.nemo` file.

    Raises: UserError where the file's front-end differs in more.
    """
    said = nemo_config(path).get("preprocessor", {})
    expected = {
        "sample_rate": 16000, "normalize": "per_feature", "window_size": 0.025, "window_stride": 0.01, "window": "hann",
        "n_fft": 512, "frame_splicing": 1, "log": True,
    }  # fmt: skip
    check_settings(path, "preprocessor", said, expected)
    return nemo(num_mels=said.get("features", 80))


def save_nemo(weights: Mapping[str, np.ndarray], path: Path, *, like: Path) -> None:
    """A copy of the file `like` with other weights of the same names and shapes. What `weights` have not, the window of
    the front-end and counts of batches, stays as it is there.

    Raises: UserError where `like` is no such file, or of another model or vocabulary.
    """
    before = load_nemo(like).weights
    wrong = [
        f"{name} of shape {list(array.shape)}, there " + (str(list(before[name].shape)) if name in before else "none")
        for name, array in weights.items()
        if name not in before or before[name].shape != array.shape
    ]
    if wrong:
        raise UserError(
            f"{like} is of another model or vocabulary: {'; '.join(wrong[:3])}: expected the one begun with"
        )
    with tempfile.TemporaryDirectory() as folder, tarfile.open(like) as archive, tarfile.open(path, "w") as out:
        save_torch({**before, **weights}, Path(folder) / WEIGHTS)
        for member in archive:
            if Path(member.name).name == WEIGHTS:
                out.add(Path(folder) / WEIGHTS, member.name)
            else:
                out.addfile(member, archive.extractfile(member) if member.isfile() else None)


def _names(path: Path) -> list[str]:
    try:
        with tarfile.open(path) as archive:
            return archive.getnames()
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({error}): expected a whole .nemo file") from error


def _extracted(path: Path, name: str, folder: Path) -> Path:
    """The member of that name, wherever it lies in the archive."""
    found = [member for member in _names(path) if Path(member).name == Path(name).name]
    if not found:
        raise UserError(f"{path} holds no {name}: expected a file that NeMo's save_to wrote")
    target = folder / Path(name).name
    try:
        with tarfile.open(path) as archive:
            member = archive.extractfile(found[0])
            if member is None:
                raise UserError(f"{path}: its {name} is no file")
            target.write_bytes(member.read())
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({error}): expected a whole .nemo file") from error
    return target


def nemo_subsampling(ours: str, factor: int, kind: Subsampling) -> list[Row]:
    """NeMo's names of the convolutions of `striding.Subsample`, whose path here is `ours`: places in a list of them,
    their products and their ReLUs.
    """
    rows, place = list[Row](), 0
    for number in range(factor.bit_length() - 1):
        modules = [(f"conv_{number}", CONV_2D)]
        if number > 0 and kind == "dw_striding":
            modules.append((f"pointwise_{number}", POINTWISE))
        for module, layout in modules:
            theirs = f"encoder.pre_encode.conv.{place}"
            rows += [Row(f"{theirs}.weight", f"{ours}/{module}/kernel", layout)]
            rows += [Row(f"{theirs}.bias", f"{ours}/{module}/bias")]
            place += 1
        place += 1
    return rows


def check_settings(path: str | Path, part: str, said: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raises: UserError where a setting is said and is none of those expected."""
    for name, values in expected.items():
        choices = values if isinstance(values, tuple) else (values,)
        if name in said and said[name] not in choices:
            raise UserError(f"{path}: its {part}.{name} is {said[name]}, expected {' or '.join(map(str, choices))}")
