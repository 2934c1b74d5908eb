"""NeMo's `.nemo` files, which are archives of settings, weights and tokenizer, read without NeMo and without PyTorch.

The module also has NeMo's weight names of the subsampling that several of its encoders share.
"""

import re
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.logmel import LogMel
from asr_jax.audio.spectrum import WindowShape
from asr_jax.audio.stages import Normalise
from asr_jax.core.errors import UserError
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.nn.striding import Subsampling
from asr_jax.pretrained.keymap import CONV_2D, POINTWISE, Row
from asr_jax.pretrained.torch_files import load_torch, state_dict
from asr_jax.pretrained.torch_writer import save_torch
from asr_jax.pretrained.transducers import as_nemo_numbers, nemo_transducer

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
PREPROCESSOR: dict[str, Any] = {
    "sample_rate": 16000, "window_size": 0.02, "window_stride": 0.01, "window": "hann", "normalize": "per_feature",
    "n_fft": None, "preemph": 0.97, "features": 64, "lowfreq": 0, "highfreq": None, "log_zero_guard_value": 2.0**-24,
    "dither": 1e-5,
}  # fmt: skip
"""NeMo's defaults of the front-end's settings."""
WINDOWS: dict[str, WindowShape] = {"hann": "hann", "hamming": "hamming", "blackman": "blackman"}
NORMALISED: dict[str | None, tuple[Normalise, ...]] = {
    "per_feature": (Normalise(),), "all_features": (Normalise(over="all"),), "NA": (), None: (),
}  # fmt: skip
"""Stages of NeMo's `normalize`."""
CTC_DECODER, OF_HYBRIDS = "decoder.decoder_layers.", "ctc_"
"""Names of the CTC decoder's weights, and their prefix in hybrid models."""
OF_OTHER_HEADS = r"(decoder|joint|transf_decoder|loss|spec_augmentation|_reduction)\..*"
"""Names of weights of a transducer or a decoder that is not read beside a CTC head, and of losses."""


class Nemo(NamedTuple):
    """Content of a `.nemo` file."""

    config: dict[str, Any]
    """Settings of the model."""
    weights: dict[str, np.ndarray]
    """Weights by NeMo's names."""
    symbols: tuple[str | None, ...] | None
    """Text of each label of the CTC decoder, with None for the blank at the end; None if the settings list no
    vocabulary."""


def load_nemo(path: Path) -> Nemo:
    """Returns the settings, weights and symbols of a `.nemo` file.

    Raises:
        UserError: If the file is not a `.nemo` file or is truncated.
    """
    config = nemo_config(path)
    with tempfile.TemporaryDirectory() as folder:
        weights = state_dict(load_torch(_extracted(path, WEIGHTS, Path(folder))))
    decoder = config.get("decoder")
    vocabulary = decoder.get("vocabulary") if isinstance(decoder, Mapping) else None
    symbols = (*map(str, vocabulary), None) if isinstance(vocabulary, list) and vocabulary else None
    return Nemo(config, weights, symbols)


def nemo_config(path: Path) -> dict[str, Any]:
    """Returns the model's settings in a `.nemo` file.

    Raises:
        UserError: If the file is not a `.nemo` file or is truncated.
    """
    with tempfile.TemporaryDirectory() as folder:
        text = _extracted(path, CONFIG, Path(folder)).read_text()
    try:
        config = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: {CONFIG} cannot be read ({error}): expected YAML that NeMo wrote") from error
    if not isinstance(config, dict):
        raise UserError(f"{path}: {CONFIG} does not contain a mapping: expected a file that NeMo's save_to wrote")
    return config


def nemo_encoder(path: Path) -> str:
    """Returns the class of the encoder in a `.nemo` file.

    The result is empty for a path with another suffix, and `nothing` if the file has no encoder section.

    Raises:
        UserError: If a `.nemo` file cannot be read.
    """
    if path.suffix != ".nemo":
        return ""
    encoder = nemo_config(path).get("encoder")
    return str(encoder.get("_target_", "")).rpartition(".")[2] if isinstance(encoder, Mapping) else "nothing"


def nemo_front_end(path: Path) -> FrontEnd:
    """Returns the preset `nemo` with the settings of a `.nemo` file.

    Raises:
        UserError: If this package has no such front-end.
    """
    given = nemo_config(path).get("preprocessor", {})
    target = str(given.get("_target_", "")).rpartition(".")[2]
    given = {"_target_": target, **PREPROCESSOR, **{name: given[name] for name in given if name != "_target_"}}
    expected = {
        "_target_": ("", "AudioToMelSpectrogramPreprocessor"), "window": tuple(WINDOWS), "normalize": tuple(NORMALISED),
        "log": True, "log_zero_guard_type": "add", "frame_splicing": 1, "mag_power": 2.0, "exact_pad": False,
        "mel_norm": "slaney",
    }  # fmt: skip
    check_settings(path, "preprocessor", given, expected)
    window = round(given["window_size"] * given["sample_rate"])
    return LogMel(
        rate_hz=given["sample_rate"], num_mels=given["features"], window_ms=1000 * given["window_size"],
        hop_ms=1000 * given["window_stride"], window=WINDOWS[given["window"]],
        fft_length=given["n_fft"] or 1 << (window - 1).bit_length(), low_hz=float(given["lowfreq"]),
        high_hz=float(given["highfreq"] or 0.0), preemphasis=given["preemph"] or 0.0, edges="zeros",
        log="natural_of_sum", log_guard=float(given["log_zero_guard_value"]), dither=given["dither"],
        then=NORMALISED[given["normalize"]],
    )  # fmt: skip


def nemo_heads(path: Path) -> dict[str, HeadSettings]:
    """Returns the heads of a `.nemo` file's model; of hybrid models the transducer first, which NeMo uses too.

    A transducer that this package does not have is left out beside a CTC head. An encoder alone has no heads.

    Raises:
        UserError: If texts come from an attention decoder, or from a transducer that this package does not have.
    """
    config = nemo_config(path)
    decoder = config.get("decoder")
    target = str(decoder.get("_target_", "") if isinstance(decoder, Mapping) else "").rpartition(".")[2]
    has_ctc = "aux_ctc" in config or "ConvASRDecoder" in (target, target.removesuffix("Classification"))
    heads: dict[str, HeadSettings] = {}
    if "joint" in config:
        try:
            heads["transducer"] = nemo_transducer(config, path)
        except UserError:
            if not has_ctc:
                raise
    if has_ctc:
        heads["ctc"] = CTC(dropout=0.0)
    if heads:
        return heads
    if "transf_decoder" in config:
        raise UserError(
            f"{path}: texts come from {target or 'an attention decoder'}, and the model has no CTC head; this package "
            "has no attention decoders yet: expected a CTC model, a transducer or a hybrid model"
        )
    return {"ctc": CTC(dropout=0.0)} if isinstance(decoder, Mapping) and "vocabulary" in decoder else {}


def save_nemo(weights: Mapping[str, np.ndarray], path: Path, *, like: Path) -> None:
    """Writes a copy of a `.nemo` file with other weights.

    Arrays that `weights` lack keep their values; these are the front-end's window and the batch counters.

    Args:
        weights: New weights by NeMo's names; names and shapes must exist in `like`.
        path: File to write.
        like: File to copy.

    Raises:
        UserError: If `like` is not a `.nemo` file, or contains another model or vocabulary.
    """
    before = load_nemo(like).weights
    weights = as_nemo_numbers(weights, before)
    if any(name.startswith(OF_HYBRIDS) for name in before):
        weights = {
            re.sub(f"^{CTC_DECODER}", f"{OF_HYBRIDS}{CTC_DECODER}", name): array for name, array in weights.items()
        }
    wrong = [
        f"{name} has shape {list(array.shape)}, in the file "
        + (str(list(before[name].shape)) if name in before else "none")
        for name, array in weights.items()
        if name not in before or before[name].shape != array.shape
    ]
    if wrong:
        raise UserError(
            f"{like} contains another model or vocabulary: {'; '.join(wrong[:3])}; expected the file that the run was "
            "initialised with"
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
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: expected a .nemo file") from error
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({error}): expected a complete .nemo file") from error


def _extracted(path: Path, name: str, folder: Path) -> Path:
    """Extracts the archive's member with a file name, in any of its folders, and returns the extracted file."""
    found = [member for member in _names(path) if Path(member).name == Path(name).name]
    if not found:
        raise UserError(f"{path} contains no {name}: expected a file that NeMo's save_to wrote")
    target = folder / Path(name).name
    try:
        with tarfile.open(path) as archive:
            member = archive.extractfile(found[0])
            if member is None:
                raise UserError(f"{path}: {name} is not a regular file: expected a file that NeMo's save_to wrote")
            target.write_bytes(member.read())
    except (OSError, tarfile.TarError, EOFError) as error:
        raise UserError(f"{path} cannot be read ({error}): expected a complete .nemo file") from error
    return target


def nemo_subsampling(ours: str, factor: int, kind: Subsampling) -> list[Row]:
    """Returns NeMo's names of the convolutions of `striding.Subsample`.

    NeMo numbers the modules of a list that contains convolutions, pointwise convolutions and ReLUs.

    Args:
        ours: Parameter path of the subsampling in this package.
        factor: Subsampling factor, a power of 2.
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


def check_settings(path: str | Path, part: str, settings: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Checks settings against the values that this package supports; settings that are missing pass.

    Args:
        path: File that contains the settings, for messages.
        part: Section that contains the settings, for messages.
        settings: Settings by their names.
        expected: Supported value of each setting, or a tuple of supported values.

    Raises:
        UserError: If a setting has another value.
    """
    for name, values in expected.items():
        choices = values if isinstance(values, tuple) else (values,)
        if name in settings and settings[name] not in choices:
            raise UserError(f"{path}: {part}.{name} is {settings[name]}, expected {' or '.join(map(str, choices))}")
