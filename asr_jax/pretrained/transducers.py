"""Weight names and settings of transducer heads in NeMo, Hugging Face's Parakeet, icefall and CAIMAN-ASR.

Source: NeMo's modules/rnnt.py at commit 8cfedd72; transformers 5.23; icefall's zipformer recipe at commit 36e0420c;
CAIMAN-ASR's rnnt/model.py at version 1.14, with the names of MLPerf's RNN-T.
"""

from typing import NamedTuple

import numpy as np

from asr_jax.core.errors import UserError
from asr_jax.heads.transducer import Transducer
from asr_jax.models.base import Model
from asr_jax.nn.recurrent.prediction import LSTMPrediction, PredictionSettings, StatelessPrediction
from asr_jax.pretrained.base import Heads, first_head, heads_of
from asr_jax.pretrained.keymap import (
    BATCH_NORM,
    CONV_1D,
    LINEAR,
    SAME,
    Kind,
    Row,
    TensorLayout,
    array,
    kernel,
    rows_of,
)

LSTM = (
    ("weight_ih", "input", array(LINEAR)),
    ("weight_hh", "recurrent", array(LINEAR)),
    ("bias_ih", "input_bias", array()),
    ("bias_hh", "recurrent_bias", array()),
)


def _without_last(rows: np.ndarray) -> np.ndarray:
    if rows[-1].any():
        raise UserError(
            "the embedding of the blank is not a vector of zeros: expected a model whose prediction network starts "
            "with a vector of zeros, as in NeMo"
        )
    return rows[:-1]


BLANK_IS_ZERO = TensorLayout(_without_last, lambda x: np.concatenate([x, np.zeros_like(x[:1])]))
"""Converts embeddings with a last row of zeros, that of the blank, to embeddings without it."""


class Names(NamedTuple):
    """Names of the modules of a transducer."""

    embedding: str
    network: str
    """Module that contains the LSTM, or the convolution of a network without a state."""
    of_frames: str
    of_labels: str
    output: str
    rows: TensorLayout = SAME
    """Layout of the embeddings."""
    prediction: type[PredictionSettings] = LSTMPrediction


# The last layer of NeMo's joint network is number 1 without dropout.
OF_NEMO = Names(
    "decoder.prediction.embed",
    "decoder.prediction.dec_rnn",
    "joint.enc",
    "joint.pred",
    "joint.joint_net.2",
    BLANK_IS_ZERO,
)
OF_PARAKEET = Names(
    "decoder.embedding", "decoder", "encoder_projector", "decoder.decoder_projector", "joint.head", BLANK_IS_ZERO
)
OF_CAIMAN = Names("prediction.embed", "prediction.dec_rnn", "joint_enc", "joint_pred", "joint_net.2")
OF_ICEFALL = Names(
    "decoder.embedding",
    "decoder",
    "joiner.encoder_proj",
    "joiner.decoder_proj",
    "joiner.output_linear",
    prediction=StatelessPrediction,
)


def transducer_rows(names: Names, heads: Heads) -> list[Row]:
    """Returns the names of the first transducer on the encoder's output; empty without one."""
    return [row for path, head in first_head(heads, Transducer) for row in _rows(names, path, head)]


def _rows(names: Names, path: str, head: Transducer) -> list[Row]:
    linear = [(getattr(names, name), name, LINEAR) for name in ("of_frames", "of_labels", "output")]
    if head.pruning:
        linear += [("simple_am_proj", "simple_frames", LINEAR), ("simple_lm_proj", "simple_labels", LINEAR)]
    embedding = (f"{names.embedding}.weight", "prediction/embedding/embedding", array(names.rows))
    table = rows_of([embedding, *linear], ours=path)
    settings = head.prediction
    if not isinstance(settings, names.prediction):
        return table
    if isinstance(settings, LSTMPrediction):
        return table + lstm_rows(
            names.network, f"{path}/prediction/lstm", settings.num_layers, batch_norm=settings.batch_norm
        )
    if isinstance(settings, StatelessPrediction) and settings.context > 1:
        table += rows_of([(f"{names.network}.conv", f"{path}/prediction/conv", kernel(CONV_1D))])
    return table


def lstm_rows(theirs: str, ours: str, num_layers: int, *, batch_norm: bool = False) -> list[Row]:
    """Returns PyTorch's names of a stack of LSTM layers.

    Args:
        theirs: Name of the module that contains the layers; CAIMAN-ASR's, if `batch_norm` is True.
        ours: Path of `nn.recurrent.lstm.LSTM` in the variables, without `params/`.
        batch_norm: Whether batch normalisation follows each layer.
    """
    table = list[tuple[str, str, Kind]]()
    for layer in range(num_layers):
        start, number = (f"{theirs}.lstms.{layer}.", 0) if batch_norm else (f"{theirs}.lstm.", layer)
        table += [(f"{start}{name}_l{number}", f"layer_{layer}/{leaf}", kind) for name, leaf, kind in LSTM]
        if batch_norm:
            table += [(f"{theirs}.batch_norms.{layer}", f"norm_{layer}", BATCH_NORM)]
    return rows_of(table, ours=ours)


def check_transducer(model: Model, system: str, activation: str) -> None:
    """Checks that a model has at most a transducer of the activation that a system has, without durations.

    Raises:
        UserError: If the system computes something else with the same weights.
    """
    for path, head in first_head(heads_of(model), Transducer):
        if head.activation != activation:
            raise UserError(f"{path}: activation is {head.activation}, expected {activation}, that of {system}")
        if head.durations:
            raise UserError(f"{path}: durations is {head.durations}, expected none, because {system} has no TDT")
