"""Weight names and settings of Myrtle's CAIMAN-ASR (version 1.14), which are also those of MLPerf's RNN-T."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.logmel import LogMel
from asr_jax.audio.presets import rnnt
from asr_jax.audio.stages import NormaliseByDataSet, Stack
from asr_jax.core.errors import UserError
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.transducer import Transducer
from asr_jax.models.lstm import LSTMEncoder
from asr_jax.nn.recurrent.prediction import LSTMPrediction
from asr_jax.pretrained.base import Description, Format, check_settings
from asr_jax.pretrained.keymap import NamedWeights, Row
from asr_jax.pretrained.torch_files import has_weight, load_torch, state_dict
from asr_jax.pretrained.torch_writer import averaged_checkpoint
from asr_jax.pretrained.transducers import OF_CAIMAN, check_transducer, lstm_rows, transducer_rows
from asr_jax.search.transducer import TransducerDecoding
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.tokenizers import Tokenizer

UNUSED = r".*\.num_batches_tracked|joint_fc\.(weight|bias)"
"""Names of counters, and second names of the joint network's last layer."""
MARK = r"encoder\.pre_rnn\."
"""Beginning of names in every file."""
FEATURES = {"rate_hz": "sample_rate", "num_mels": "n_filt", "fft_length": "n_fft", "dither": "dither"}
"""Settings of `LogMel`, and CAIMAN-ASR's names of them."""


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


def lstm_encoder_of(path: Path) -> LSTMEncoder:
    """Returns the encoder settings of a CAIMAN-ASR checkpoint, from shapes of weights.

    Raises:
        UserError: If the file is not such a checkpoint.
    """
    weights = state_dict(load_torch(path))
    layers = {part: _num_layers(weights, f"encoder.{part}") for part in ("pre_rnn", "post_rnn")}
    batch_norm = "encoder.pre_rnn.batch_norms.0.weight" in weights
    first = "lstms.0" if batch_norm else "lstm"
    try:
        before, after = (weights[f"encoder.{part}.{first}.weight_ih_l0"] for part in layers)
    except KeyError as error:
        raise UserError(f"{path} has no weights {error}: expected a checkpoint of CAIMAN-ASR") from error
    dim = len(before) // 4
    return LSTMEncoder(
        num_mels=before.shape[1],
        dim=dim,
        layers_before=layers["pre_rnn"],
        layers_after=layers["post_rnn"],
        stack=after.shape[1] // dim,
        batch_norm=batch_norm,
        mask_padding=False,
    )


def _num_layers(weights: NamedWeights, module: str) -> int:
    """Returns the number of LSTM layers of a module; with batch norms, each layer is a module of its own."""
    layer = rf"{re.escape(module)}\.(lstms\.\d+\.weight_hh_l0|lstm\.weight_hh_l\d+)"
    return sum(bool(re.fullmatch(layer, name)) for name in weights)


def _front_end(path: Path) -> FrontEnd:
    """Returns the front-end of a hardware checkpoint, which contains its settings and statistics."""
    loaded = load_torch(path)
    config = loaded["rnnt_config"]["input_val"]
    given, splicing = config["filterbank_features"], config["frame_splicing"]
    stacked = splicing["frame_stacking"]
    check_settings(f"{path}: filterbank_features", given, normalize="per_feature", window="hann")
    check_settings(f"{path}: frame_splicing", splicing, frame_subsampling=stacked)
    mean, variance = (np.asarray(loaded[name], np.float64).reshape(-1) for name in ("melmeans", "melvars"))
    statistics = NormaliseByDataSet(tuple(mean.tolist()), tuple(np.sqrt(variance).tolist()))
    usual = rnnt()
    assert isinstance(usual, LogMel)
    return replace(
        usual,
        window_ms=1000 * given["window_size"],
        hop_ms=1000 * given["window_stride"],
        then=(statistics, Stack(stacked, stacked)),
        **{ours: given[theirs] for ours, theirs in FEATURES.items()},
    )


def _unknown(path: Path) -> str:
    loaded = load_torch(path)
    if isinstance(loaded, Mapping) and {"rnnt_config", "melmeans", "melvars"} <= loaded.keys():
        return ""
    return (
        "the statistics that features are normalised with: expected the hardware checkpoint, or --config FILE.py, such "
        "as configs/rnnt_base.py with front_end=rnnt(NormaliseByDataSet(…))"
    )


def heads_of(path: Path) -> dict[str, HeadSettings]:
    """Returns the transducer of a CAIMAN-ASR checkpoint, from shapes of weights.

    Raises:
        UserError: If the file is not such a checkpoint.
    """
    weights = state_dict(load_torch(path))
    try:
        prediction = LSTMPrediction(
            weights["prediction.embed.weight"].shape[1],
            num_layers=_num_layers(weights, "prediction.dec_rnn"),
            batch_norm="prediction.dec_rnn.batch_norms.0.weight" in weights,
        )
        joint_dim = weights["joint_net.2.weight"].shape[1]
    except KeyError as error:
        raise UserError(f"{path} has no weights {error}: expected a checkpoint of CAIMAN-ASR") from error
    decoding = TransducerDecoding(max_symbols=30)
    return {"transducer": Transducer(prediction=prediction, joint_dim=joint_dim, decoding=decoding)}


def _tokenizer(path: Path, given: Tokenizer | None) -> Tokenizer | None:
    model = load_torch(path).get("sentpiece_model")
    if given or not isinstance(model, bytes):
        return given
    return SentencePieceTokenizer.of_model(model, normaliser="none")


CAIMAN = Format(
    names="caiman",
    of="CAIMAN-ASR (RNN-T)",
    encoder=LSTMEncoder,
    mark=f"^{MARK}",
    rows=lambda settings, heads: encoder_rows(settings) + transducer_rows(OF_CAIMAN, heads),
    unused=UNUSED,
    check=lambda model: check_transducer(model, "caiman", "relu"),
    checkpoint=averaged_checkpoint,
)
FORMATS = (CAIMAN,)
DESCRIPTIONS = (
    Description(
        "CAIMAN-ASR's .pt",
        lambda path: has_weight(path, MARK),
        lstm_encoder_of,
        _front_end,
        heads_of,
        _tokenizer,
        _unknown,
    ),
)
