"""Weight names and settings of Myrtle's CAIMAN-ASR (version 1.14), whose names are those of MLPerf's RNN-T."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.logmel import LogMel
from asr_jax.audio.presets import rnnt
from asr_jax.audio.stages import NormaliseByDataSet, Stack
from asr_jax.core.errors import UserError
from asr_jax.heads.base import HeadSettings
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.pretrained.base import Description, Format
from asr_jax.pretrained.keymap import NamedWeights, Row, export_params, find_params
from asr_jax.pretrained.nemo_files import check_settings
from asr_jax.pretrained.torch_files import SUFFIXES, load_torch, state_dict
from asr_jax.pretrained.transducers import caiman_rows, caiman_transducer, lstm_rows
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.tokenizers import Tokenizer

NEVER_USED = r".*\.num_batches_tracked|joint_fc\.(weight|bias)"
"""Names of counters, and second names of the joint network's last layer."""
FEATURES = {"rate_hz": "sample_rate", "num_mels": "n_filt", "fft_length": "n_fft", "dither": "dither"}
"""Settings of `LogMel`, and CAIMAN-ASR's names of them."""


def claims(weights: NamedWeights) -> bool:
    """Returns whether the weights have the names of CAIMAN-ASR and MLPerf."""
    return any(name.startswith("encoder.pre_rnn.") for name in weights)


def find(weights: NamedWeights, settings: LSTMEncoder, **_: Any) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the encoder's weights by parameter path, and the names that are left.

    Args:
        weights: Weights by CAIMAN-ASR's names; parameters that they lack are not returned.
    """
    found = find_params(weights, encoder_rows(settings))
    return found.params, [name for name in found.left if not re.fullmatch(NEVER_USED, name)]


def export(variables: Any, settings: LSTMEncoder, **_: Any) -> dict[str, np.ndarray]:
    """Returns the encoder's variables under CAIMAN-ASR's names.

    Args:
        variables: `{"params": …, "batch_stats": …}`, or a tree of the same structure.

    Raises:
        UserError: If a parameter has no name there.
    """
    return export_params(variables, encoder_rows(settings))


def encoder_rows(settings: LSTMEncoder) -> list[Row]:
    """Returns the table of the encoder's names."""
    parts = (
        ("encoder.pre_rnn", "before", settings.layers_before),
        ("encoder.post_rnn", "after", settings.layers_after),
    )
    return [
        row
        for theirs, ours, num_layers in parts
        for row in lstm_rows(theirs, f"encoder/{ours}", num_layers, batch_norm=settings.batch_norm)
    ]


def lstm_encoder_of(path: str | Path, **changes: Any) -> LSTMEncoder:
    """Returns the encoder settings of a CAIMAN-ASR checkpoint, from shapes of weights, with `changes` of their fields.

    Raises:
        UserError: If the file is not such a checkpoint.
    """
    weights = state_dict(load_torch(Path(path)))
    batch_norm = "encoder.pre_rnn.batch_norms.0.weight" in weights
    of_layer = r"\.lstms\.\d+\.weight_hh_l0" if batch_norm else r"\.lstm\.weight_hh_l\d+"
    first = "lstms.0" if batch_norm else "lstm"
    layers = {
        part: sum(bool(re.fullmatch(rf"encoder\.{part}{of_layer}", name)) for name in weights)
        for part in ("pre_rnn", "post_rnn")
    }
    try:
        before, after = (weights[f"encoder.{part}.{first}.weight_ih_l0"] for part in layers)
    except KeyError as error:
        raise UserError(f"{path} has no weights {error}: expected a checkpoint of CAIMAN-ASR") from error
    dim = len(before) // 4
    sizes = {
        "num_mels": before.shape[1], "dim": dim, "layers_before": layers["pre_rnn"], "layers_after": layers["post_rnn"],
        "stack": after.shape[1] // dim, "batch_norm": batch_norm, "mask_padding": False,
    }  # fmt: skip
    return LSTMEncoder(**{**sizes, **changes})


def _front_end(path: Path) -> FrontEnd:
    """Returns the front-end of a hardware checkpoint, which contains its settings and statistics."""
    loaded = load_torch(path)
    config = loaded["rnnt_config"]["input_val"]
    given, splicing = config["filterbank_features"], config["frame_splicing"]
    stacked = splicing["frame_stacking"]
    check_settings(path, "filterbank_features", given, {"normalize": "per_feature", "window": "hann"})
    check_settings(path, "frame_splicing", splicing, {"frame_subsampling": stacked})
    mean, variance = (np.asarray(loaded[name], np.float64).reshape(-1) for name in ("melmeans", "melvars"))
    statistics = NormaliseByDataSet(tuple(mean.tolist()), tuple(np.sqrt(variance).tolist()))
    usual = rnnt()
    assert isinstance(usual, LogMel)
    return replace(
        usual, window_ms=1000 * given["window_size"], hop_ms=1000 * given["window_stride"],
        then=(statistics, Stack(stacked, stacked)), **{ours: given[theirs] for ours, theirs in FEATURES.items()},
    )  # fmt: skip


def _unknown(path: Path) -> str:
    loaded = load_torch(path)
    if isinstance(loaded, Mapping) and {"rnnt_config", "melmeans", "melvars"} <= loaded.keys():
        return ""
    return (
        "the statistics that features are normalised with: expected the hardware checkpoint, or --config FILE.py, such "
        "as configs/rnnt_base.py with front_end=rnnt(NormaliseByDataSet(…))"
    )


def _heads(path: Path) -> dict[str, HeadSettings]:
    try:
        return {"transducer": caiman_transducer(state_dict(load_torch(path)))}
    except KeyError as error:
        raise UserError(f"{path} has no weights {error}: expected a checkpoint of CAIMAN-ASR") from error


def _tokenizer(path: Path, given: Tokenizer | None) -> Tokenizer | None:
    model = load_torch(path).get("sentpiece_model")
    if given or not isinstance(model, bytes):
        return given
    return SentencePieceTokenizer.of_model(model, normaliser="none")


def _is_of(path: Path) -> bool:
    if path.suffix not in SUFFIXES or not path.is_file():
        return False
    try:
        return claims(state_dict(load_torch(path)))
    except UserError:  # the reader that takes the file reports it
        return False


FORMATS = (
    Format(
        "caiman", "CAIMAN-ASR (RNN-T)", LSTMEncoder, claims, find, export, heads=lambda model: {},
        transducer=caiman_rows,
    ),
)  # fmt: skip
DESCRIPTIONS = (Description("CAIMAN-ASR's .pt", _is_of, lstm_encoder_of, _front_end, _heads, _tokenizer, _unknown),)
