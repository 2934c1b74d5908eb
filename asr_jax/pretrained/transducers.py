"""Weight names and settings of transducer heads in NeMo, Hugging Face's Parakeet, icefall and CAIMAN-ASR.

Source: NeMo's modules/rnnt.py at commit 8cfedd72; transformers 5.23; icefall's zipformer recipe at commit 36e0420c;
CAIMAN-ASR's rnnt/model.py at version 1.14, whose names are those of MLPerf's RNN-T.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asr_jax.core.batch import OUTPUT
from asr_jax.core.errors import UserError
from asr_jax.heads.transducer import Pruning, Transducer
from asr_jax.models.base import Model
from asr_jax.nn.prediction import LSTMPrediction, StatelessPrediction
from asr_jax.pretrained.keymap import CONV_1D, LINEAR, SAME, Layout, NamedWeights, Row
from asr_jax.search.transducer import TransducerDecoding

JOINT_OUTPUT, WITHOUT_DROPOUT = "joint.joint_net.2", "joint.joint_net.1"
"""NeMo's names of the joint network's last layer, with dropout before it and without."""
LSTM = (
    ("weight_ih", "input",          LINEAR),
    ("weight_hh", "recurrent",      LINEAR),
    ("bias_ih",   "input_bias",     SAME),
    ("bias_hh",   "recurrent_bias", SAME),
)  # fmt: skip
BATCH_NORM = (
    ("weight",       "params",      "gain"),
    ("bias",         "params",      "bias"),
    ("running_mean", "batch_stats", "mean"),
    ("running_var",  "batch_stats", "variance"),
)  # fmt: skip


def transducer_of(model: Model) -> tuple[str, Transducer] | None:
    """Returns the parameter path and the settings of the first transducer on the encoder's output; None without one."""
    found = ((f"heads_{name}", head) for name, head in model.heads.items() if isinstance(head, Transducer))
    return next(((path, head) for path, head in found if head.tap == OUTPUT), None)


def _without_last(rows: np.ndarray) -> np.ndarray:
    if rows[-1].any():
        raise UserError(
            "the embedding of the blank is not a vector of zeros: expected a model whose prediction network starts "
            "with a vector of zeros, as in NeMo"
        )
    return rows[:-1]


BLANK_IS_ZERO = Layout(_without_last, lambda x: np.concatenate([x, np.zeros_like(x[:1])]))
"""Converts embeddings with a last row of zeros, that of the blank, to embeddings without it."""


def lstm_rows(theirs: str, ours: str, num_layers: int, *, batch_norm: bool = False) -> list[Row]:
    """Returns PyTorch's names of a stack of LSTM layers.

    Args:
        theirs: Name of the module that contains the layers; CAIMAN-ASR's, if `batch_norm` is True.
        ours: Path of `nn.lstm.LSTM` in the variables, without `params/`.
        batch_norm: Whether batch normalisation follows each layer.
    """
    table = []
    for layer in range(num_layers):
        start, number = (f"{theirs}.lstms.{layer}.", 0) if batch_norm else (f"{theirs}.lstm.", layer)
        table += [
            Row(f"{start}{name}_l{number}", f"params/{ours}/layer_{layer}/{leaf}", layout)
            for name, leaf, layout in LSTM
        ]
        if batch_norm:
            start = f"{theirs}.batch_norms.{layer}."
            table += [Row(start + name, f"{part}/{ours}/norm_{layer}/{leaf}") for name, part, leaf in BATCH_NORM]
    return table


def nemo_rows(path: str, head: Transducer) -> list[Row]:
    """Returns NeMo's names of a transducer with an LSTM, at a parameter path such as `heads_transducer`."""
    return [
        *_lstm_prediction("decoder.prediction.embed", "decoder.prediction.dec_rnn", path, head, BLANK_IS_ZERO),
        *_linear("joint.enc", path, "of_frames"),
        *_linear("joint.pred", path, "of_labels"),
        *_linear(JOINT_OUTPUT, path, "output"),
    ]


def huggingface_rows(path: str, head: Transducer) -> list[Row]:
    """Returns transformers' names of a Parakeet's transducer, at a parameter path such as `heads_transducer`."""
    return [
        *_lstm_prediction("decoder.embedding", "decoder", path, head, BLANK_IS_ZERO),
        *_linear("encoder_projector", path, "of_frames"),
        *_linear("decoder.decoder_projector", path, "of_labels"),
        *_linear("joint.head", path, "output"),
    ]


def caiman_rows(path: str, head: Transducer) -> list[Row]:
    """Returns CAIMAN-ASR's names of a transducer, at a parameter path such as `heads_transducer`."""
    return [
        *_lstm_prediction("prediction.embed", "prediction.dec_rnn", path, head, SAME),
        *_linear("joint_enc", path, "of_frames"),
        *_linear("joint_pred", path, "of_labels"),
        *_linear("joint_net.2", path, "output"),
    ]


def icefall_rows(path: str, head: Transducer) -> list[Row]:
    """Returns icefall's names of a stateless transducer, at a parameter path such as `heads_transducer`."""
    table = [
        Row("decoder.embedding.weight", f"params/{path}/prediction/embedding/embedding"),
        *_linear("joiner.encoder_proj", path, "of_frames"),
        *_linear("joiner.decoder_proj", path, "of_labels"),
        *_linear("joiner.output_linear", path, "output"),
    ]
    if isinstance(head.prediction, StatelessPrediction) and head.prediction.context > 1:
        table.append(Row("decoder.conv.weight", f"params/{path}/prediction/conv/kernel", CONV_1D))
    if head.pruning:
        table += [*_linear("simple_am_proj", path, "simple_frames"), *_linear("simple_lm_proj", path, "simple_labels")]
    return table


def _lstm_prediction(embedding: str, lstm: str, path: str, head: Transducer, rows: Layout) -> list[Row]:
    """Returns the names of a prediction network; only those of the embedding if it has no LSTM.

    Args:
        lstm: Name of the module that contains the LSTM.
        path: Parameter path of the head.
    """
    table = [Row(f"{embedding}.weight", f"params/{path}/prediction/embedding/embedding", rows)]
    if isinstance(head.prediction, LSTMPrediction):
        settings = head.prediction
        ours = f"{path}/prediction/lstm"
        table += lstm_rows(lstm, ours, settings.num_layers, batch_norm=settings.batch_norm)
    return table


def _linear(theirs: str, path: str, ours: str) -> list[Row]:
    return [
        Row(f"{theirs}.weight", f"params/{path}/{ours}/kernel", LINEAR),
        Row(f"{theirs}.bias", f"params/{path}/{ours}/bias"),
    ]


def check_export(names: str, path: str, head: Transducer) -> None:
    """Checks that a system has a transducer of these settings.

    Args:
        names: Identifier of the system, such as `nemo`.
        path: Parameter path of the head.

    Raises:
        UserError: If the system computes something else with the same weights.
    """
    activation = {"icefall": "tanh", "caiman": "relu"}.get(names, head.activation)
    if head.activation != activation:
        raise UserError(f"{path}: activation is {head.activation}, expected {activation}, that of {names}")
    if head.durations and names in ("icefall", "caiman"):
        raise UserError(f"{path}: durations is {head.durations}, expected none, because {names} has no TDT")


def as_nemo_numbers(weights: NamedWeights, like: Iterable[str] = ()) -> dict[str, np.ndarray]:
    """Returns weights with the joint network's last layer under one of its two names in NeMo.

    Args:
        weights: Weights by NeMo's names.
        like: Names of weights, whose name of that layer is used. Without such a name: `JOINT_OUTPUT`.
    """
    number = r"^joint\.joint_net\.\d+"
    of_like = (re.match(number, name) for name in like)
    last = next((found[0] for found in of_like if found), JOINT_OUTPUT)
    return {re.sub(number, last, name): array for name, array in weights.items()}


def nemo_transducer(config: Mapping[str, Any], path: str | Path) -> Transducer:
    """Returns the settings of a `.nemo` file's transducer.

    Args:
        config: Settings of the model.
        path: The file, for messages.

    Raises:
        UserError: If the prediction network or the joint network is another one.
    """
    decoder, joint = (_section(config, name) for name in ("decoder", "joint"))
    prediction, network = _section(decoder, "prednet"), _section(joint, "jointnet")
    found: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "decoder._target_": (_class(decoder), ("RNNTDecoder",)),
        "joint._target_": (_class(joint), ("RNNTJoint", "SampledRNNTJoint")),
        "decoder.normalization_mode": (decoder.get("normalization_mode"), (None,)),
        "decoder.blank_as_pad": (decoder.get("blank_as_pad", True), (True,)),
        "decoder.prednet.rnn_hidden_size": (
            prediction.get("rnn_hidden_size", -1), (-1, None, prediction.get("pred_hidden"))
        ),
        "joint.jointnet.activation": (str(network.get("activation", "")).lower(), ("relu", "tanh")),
    }  # fmt: skip
    for name, (value, expected) in found.items():
        if value not in expected:
            raise UserError(f"{path}: {name} is {value!r}, expected {' or '.join(map(repr, expected))}")
    loss = _section(config, "loss")
    options = _section(loss, f"{loss.get('loss_name')}_kwargs")
    durations, more = _durations(config), joint.get("num_extra_outputs") or 0
    if len(durations) != more:
        raise UserError(
            f"{path}: joint.num_extra_outputs is {more}, expected {len(durations)}, the number of durations; this "
            "package has no multi-blank transducers"
        )
    greedy = _section(_section(config, "decoding"), "greedy")
    try:
        return Transducer(
            prediction=LSTMPrediction(
                int(prediction["pred_hidden"]),
                num_layers=int(prediction["pred_rnn_layers"]),
                dropout=prediction.get("dropout") or 0.0,
            ),
            joint_dim=int(network["joint_hidden"]),
            activation=network["activation"].lower(),
            dropout=network.get("dropout") or 0.0,
            weight_by="labels" if config.get("rnnt_reduction") == "mean_volume" else "utterances",
            durations=durations,
            sigma=options.get("sigma", 0.0) if durations else 0.0,
            omega=options.get("omega", 0.0) if durations else 0.0,
            fast_emit=options.get("fastemit_lambda", 0.0),
            decoding=TransducerDecoding(
                max_symbols=greedy.get("max_symbols") or greedy.get("max_symbols_per_step") or 10
            ),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: the settings of the transducer cannot be read: {error!r}") from error


def _durations(config: Mapping[str, Any]) -> tuple[int, ...]:
    """Returns the durations of a TDT model of NeMo, in which they have three names; empty for other models."""
    decoding, loss = _section(config, "decoding"), _section(config, "loss")
    if loss.get("loss_name") not in ("tdt", "tdt_pytorch") and decoding.get("model_type") != "tdt":
        return ()
    places = (
        (decoding, "durations"),
        (_section(loss, "tdt_kwargs"), "durations"),
        (_section(config, "model_defaults"), "tdt_durations"),
    )
    return next((tuple(part[name]) for part, name in places if isinstance(part.get(name), list)), ())


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _class(config: Mapping[str, Any]) -> str:
    return str(config.get("_target_", "")).rpartition(".")[2]


def parakeet_transducer(config: Mapping[str, Any], path: str | Path) -> Transducer:
    """Returns the settings of a Parakeet's transducer.

    Args:
        config: Content of the folder's config.json.
        path: The folder, for messages.

    Raises:
        UserError: If a setting is not supported.
    """
    durations = tuple(config.get("durations") or ())
    expected = {
        "hidden_act": (config.get("hidden_act", "relu"), ("relu", "tanh")),
        "blank_token_id": (config.get("blank_token_id"), (config.get("vocab_size", 0) - 1,)),
        "durations": (durations, (tuple(range(len(durations))),)),  # transformers uses the index as the value
    }
    for name, (value, choices) in expected.items():
        if value not in choices:
            raise UserError(f"{path}: {name} is {value}, expected {' or '.join(map(str, choices))}")
    try:
        return Transducer(
            prediction=LSTMPrediction(
                config["decoder_hidden_size"], num_layers=config["num_decoder_layers"], dropout=0.0
            ),
            joint_dim=config["decoder_hidden_size"],
            activation=config.get("hidden_act", "relu"),
            dropout=0.0,
            durations=durations,
            decoding=TransducerDecoding(max_symbols=config.get("max_symbols_per_step", 10)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path}: the settings of the transducer cannot be read: {error!r}") from error


def icefall_transducer(weights: NamedWeights) -> Transducer | None:
    """Returns the settings of an icefall checkpoint's transducer, from shapes of weights; None if it has none."""
    if not {"decoder.embedding.weight", "joiner.output_linear.weight"} <= weights.keys():
        return None
    conv = weights.get("decoder.conv.weight")
    return Transducer(
        prediction=StatelessPrediction(
            weights["decoder.embedding.weight"].shape[1], 1 if conv is None else conv.shape[2]
        ),
        joint_dim=weights["joiner.output_linear.weight"].shape[1],
        activation="tanh",
        dropout=0.0,
        pruning=Pruning() if "simple_am_proj.weight" in weights else None,
        decoding=TransducerDecoding(max_symbols=1),  # as icefall's decode.py
    )


def caiman_transducer(weights: NamedWeights) -> Transducer:
    """Returns the settings of a CAIMAN-ASR or MLPerf checkpoint's transducer, from shapes of weights.

    Raises:
        KeyError: If a weight is missing.
    """
    batch_norm = "prediction.dec_rnn.batch_norms.0.weight" in weights
    layers = (
        r"prediction\.dec_rnn\.lstms\.\d+\.weight_hh_l0" if batch_norm else r"prediction\.dec_rnn\.lstm\.weight_hh_l\d+"
    )
    return Transducer(
        prediction=LSTMPrediction(
            weights["prediction.embed.weight"].shape[1],
            num_layers=sum(bool(re.fullmatch(layers, name)) for name in weights),
            batch_norm=batch_norm,
        ),
        joint_dim=weights["joint_net.2.weight"].shape[1],
        decoding=TransducerDecoding(max_symbols=30),
    )
