"""Parts that NeMo's models have in common (commit 8cfedd72): front-end, heads, weight names of layers and heads."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.logmel import LogMel
from asr_jax.audio.spectrum import WindowShape
from asr_jax.audio.stages import Normalise
from asr_jax.core.errors import UserError
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.heads.transducer import Transducer
from asr_jax.models.base import Model
from asr_jax.models.encoder import EncoderSettings
from asr_jax.nn.recurrent.prediction import LSTMPrediction
from asr_jax.pretrained.base import Description, Format, Heads, check_settings, ctc_rows, first_head
from asr_jax.pretrained.keymap import (
    BATCH_NORM,
    CONV_2D,
    DEPTHWISE,
    LINEAR,
    NORM,
    POINTWISE,
    POINTWISE_1D,
    Row,
    Table,
    TensorLayout,
    array,
    attention,
    flattened,
    kernel,
    rows_of,
)
from asr_jax.pretrained.nemo_files import VERSIONS, encoder_class, nemo_config, section, target
from asr_jax.pretrained.transducers import OF_NEMO, transducer_rows
from asr_jax.search.transducer import TransducerDecoding

PREPROCESSOR: dict[str, Any] = {
    "sample_rate": 16000,
    "window_size": 0.02,
    "window_stride": 0.01,
    "window": "hann",
    "normalize": "per_feature",
    "n_fft": None,
    "preemph": 0.97,
    "features": 64,
    "lowfreq": 0,
    "highfreq": None,
    "log_zero_guard_value": 2.0**-24,
    "dither": 1e-5,
}
"""NeMo's defaults of the front-end's settings."""
WINDOWS: dict[str, WindowShape] = {"hann": "hann", "hamming": "hamming", "blackman": "blackman"}
NORMALISED: dict[str | None, tuple[Normalise, ...]] = {
    "per_feature": (Normalise(),),
    "all_features": (Normalise(over="all"),),
    "NA": (),
    "None": (),
    None: (),
}
"""Stages of NeMo's `normalize`."""
ENCODER: dict[str, Any] = {
    "n_heads": 4,
    "ff_expansion_factor": 4,
    "conv_kernel_size": 31,
    "conv_norm_type": "batch_norm",
    "subsampling_factor": 4,
    "subsampling_conv_channels": -1,
    "self_attention_model": "rel_pos",
    "untie_biases": True,
    "xscaling": True,
    "dropout": 0.1,
    "dropout_att": 0.0,
}
"""NeMo's defaults of settings that Conformer and Squeezeformer have in common."""
NORMS = {"batch_norm": "batch", "layer_norm": "layer"}
UNUSED = r"preprocessor\..*|.*\.num_batches_tracked"
"""Names of the front-end's buffers and of the batch counters of batch norms."""
OF_OTHER_HEADS = r"(decoder|joint|transf_decoder|loss|spec_augmentation|_reduction)\..*"
"""Names of weights of a transducer or a decoder that is not read beside a CTC head, and of losses."""

LAYER_NORMS = (
    ("norm_feed_forward1", "feed_forward_1_norm", NORM),
    ("norm_self_att", "attention_norm", NORM),
    ("norm_conv", "convolution_norm", NORM),
    ("norm_feed_forward2", "feed_forward_2_norm", NORM),
)
FEED_FORWARD_AND_ATTENTION = (
    ("feed_forward1.linear1", "feed_forward_1/in", LINEAR),
    ("feed_forward1.linear2", "feed_forward_1/out", LINEAR),
    ("feed_forward2.linear1", "feed_forward_2/in", LINEAR),
    ("feed_forward2.linear2", "feed_forward_2/out", LINEAR),
    *attention("self_attn", "attention"),
)
CONVOLUTION = (
    ("conv.pointwise_conv1", "convolution/in", POINTWISE_1D),
    ("conv.depthwise_conv", "convolution", DEPTHWISE),
    ("conv.pointwise_conv2", "convolution/out", POINTWISE_1D),
)
POSITIONS = (("self_attn.linear_pos", "attention/positions", kernel(LINEAR)),)
POSITION_BIASES = (
    ("self_attn.pos_bias_u", "content_bias", array()),
    ("self_attn.pos_bias_v", "position_bias", array()),
)


def layer_rows(
    settings: Any, number: int, ours: str, layer: int, *, more: Table = (), biases: Sequence[bool] = (True, True)
) -> list[Row]:
    """Returns the names of a layer of Conformer or Squeezeformer.

    Args:
        ours: Path of the stack that contains the layer, without `params/`.
        more: Modules that only one of the two has.
        biases: Whether feed-forward and attention have biases, and whether convolutions have.
    """
    theirs = f"encoder.layers.{number}"
    table = [*LAYER_NORMS, *more]
    for modules, has_bias in zip((FEED_FORWARD_AND_ATTENTION, CONVOLUTION), biases, strict=True):
        table += [(name, path, layout if has_bias else kernel(layout)) for name, path, layout in modules]
    table.append(("conv.batch_norm", "convolution/norm", NORM if settings.norm == "layer" else BATCH_NORM))
    if settings.positions != "rel_pos":
        return rows_of(table, theirs, ours, layer)
    table += POSITIONS
    if settings.tied_biases:  # NeMo lists them in every layer, although they are a single array
        return rows_of(table, theirs, ours, layer) + rows_of(POSITION_BIASES, theirs, "encoder")
    return rows_of(table, theirs, ours, layer) + rows_of(POSITION_BIASES, theirs, f"{ours}/attention", layer)


def subsampling_rows(settings: Any, ours: str, out: str) -> list[Row]:
    """Returns NeMo's names of `striding.Subsample` and of the linear layer after it.

    NeMo numbers the modules of a list that contains convolutions, pointwise convolutions and ReLUs.

    Args:
        ours: Path of `Subsample` within the encoder.
    """
    table, place = list[tuple[str, str, TensorLayout]](), 0
    for number in range(settings.subsampling_factor.bit_length() - 1):
        modules = [(f"conv_{number}", CONV_2D)]
        if number > 0 and settings.subsampling == "dw_striding":
            modules.append((f"pointwise_{number}", POINTWISE))
        for module, layout in modules:
            table.append((f"conv.{place}", f"{ours}/{module}", layout))
            place += 1
        place += 1
    table.append(("out", out, flattened(settings.subsampling_channels or settings.dim)))
    return rows_of(table, "encoder.pre_encode", "encoder")


def head_rows(heads: Heads) -> list[Row]:
    """Returns NeMo's names of a CTC head and a transducer."""
    prefix = "ctc_" if first_head(heads, Transducer) else ""
    rows = transducer_rows(OF_NEMO, heads) + ctc_rows(f"{prefix}decoder.decoder_layers.0", heads, POINTWISE_1D)
    if any(not head.dropout for _, head in first_head(heads, Transducer)):
        rows = [row.renamed([(r"joint_net\.2", "joint_net.1")]) for row in rows]
    return rows


def nemo_format(
    of: str,
    encoder: type[EncoderSettings],
    mark: str,
    rows: Callable[[Any], list[Row]],
    *,
    unused: str = UNUSED,
    check: Callable[[Model], None] = lambda model: None,
) -> Format:
    """Returns the format of an encoder in NeMo; `rows(encoder_settings)` returns the names of its weights."""
    return Format(
        "nemo",
        f"NeMo ({of})",
        encoder,
        mark,
        lambda settings, heads: rows(settings) + head_rows(heads),
        unused,
        VERSIONS,
        check=check,
    )


def nemo_description(name: str, settings_of: Callable[[Mapping[str, Any], Path], EncoderSettings]) -> Description:
    """Returns the reader of the `.nemo` files of an encoder."""

    def encoder(path: Path) -> EncoderSettings:
        config = nemo_config(path)
        given = section(config, "encoder")
        if isinstance(given.get("feat_in"), str):  # NeMo may write a reference to the preprocessor's number of mel bins
            given = {**given, "feat_in": section(config, "preprocessor").get("features")}
        return settings_of(given, path)

    return Description(
        name, lambda path: encoder_class(path) == name, encoder, front_end, heads_of_file, others=OF_OTHER_HEADS
    )


def encoder_fields(given: Mapping[str, Any], path: Path, *, subsampling: str) -> dict[str, Any]:
    """Returns the fields that the settings of Conformer and Squeezeformer have in common.

    Args:
        subsampling: NeMo's default of this setting.

    Raises:
        UserError: If a setting is missing or not supported.
    """
    if missing := sorted({"feat_in", "n_layers", "d_model"} - given.keys()):
        raise UserError(f"{path}: the encoder has no {', '.join(missing)}; expected settings that NeMo wrote")
    given = {**ENCODER, "subsampling": subsampling, **given}
    check_settings(
        f"{path}: encoder",
        given,
        feat_out=(-1, given["d_model"]),
        subsampling=("striding", "dw_striding"),
        conv_norm_type=(*NORMS,),
        self_attention_model=("rel_pos", "abs_pos"),
        att_context_size=([-1, -1], [[-1, -1]], None),
    )
    if not isinstance(given["feat_in"], int):
        raise UserError(f"{path}: encoder.feat_in is {given['feat_in']!r}: expected a number")
    channels, positions = given["subsampling_conv_channels"], given["self_attention_model"]
    return {
        "num_mels": given["feat_in"],
        "dim": given["d_model"],
        "num_layers": given["n_layers"],
        "num_heads": given["n_heads"],
        "feedforward_dim": given["d_model"] * given["ff_expansion_factor"],
        "kernel_size": given["conv_kernel_size"],
        "subsampling": given["subsampling"],
        "subsampling_factor": given["subsampling_factor"],
        "subsampling_channels": None if channels == -1 else channels,
        "positions": positions,
        "tied_biases": positions == "rel_pos" and not given["untie_biases"],
        "scale_input": given["xscaling"],
        "norm": NORMS[given["conv_norm_type"]],
        "dropout": given["dropout"],
        "attention_dropout": given["dropout_att"],
    }


def front_end(path: Path) -> FrontEnd:
    """Returns the preset `nemo` with the settings of a `.nemo` file, as `front_end_of`."""
    return front_end_of(section(nemo_config(path), "preprocessor"), path)


def front_end_of(given: Mapping[str, Any], path: Path) -> FrontEnd:
    """Returns the preset `nemo` with the settings of a section `preprocessor`. `path` is for messages.

    Raises:
        UserError: If this package has no such front-end.
    """
    given = {**PREPROCESSOR, **given, "_target_": target(given)}
    check_settings(
        f"{path}: preprocessor",
        given,
        _target_=("", "AudioToMelSpectrogramPreprocessor"),
        window=tuple(WINDOWS),
        normalize=tuple(NORMALISED),
        log=True,
        log_zero_guard_type="add",
        frame_splicing=1,
        mag_power=2.0,
        exact_pad=False,
        mel_norm="slaney",
    )
    window = round(given["window_size"] * given["sample_rate"])
    return LogMel(
        rate_hz=given["sample_rate"],
        num_mels=given["features"],
        window_ms=1000 * given["window_size"],
        hop_ms=1000 * given["window_stride"],
        window=WINDOWS[given["window"]],
        fft_length=given["n_fft"] or 1 << (window - 1).bit_length(),
        low_hz=float(given["lowfreq"]),
        high_hz=float(given["highfreq"] or 0.0),
        preemphasis=given["preemph"] or 0.0,
        edges="zeros",
        log="natural_of_sum",
        log_guard=float(given["log_zero_guard_value"]),
        dither=given["dither"],
        then=NORMALISED[given["normalize"]],
    )


def heads_of_file(path: Path) -> dict[str, HeadSettings]:
    """Returns the heads of a `.nemo` file's model, as `heads_of`."""
    return heads_of(nemo_config(path), path)


def heads_of(config: Mapping[str, Any], path: Path) -> dict[str, HeadSettings]:
    """Returns the heads of a model's settings; of hybrid models the transducer first, which NeMo uses too.

    A transducer that this package does not have is left out beside a CTC head. An encoder alone has no heads. `path` is
    for messages.

    Raises:
        UserError: If texts come from an attention decoder, or from a transducer that this package does not have.
    """
    decoder = target(section(config, "decoder"))
    has_ctc = "aux_ctc" in config or "ConvASRDecoder" in (decoder, decoder.removesuffix("Classification"))
    heads: dict[str, HeadSettings] = {}
    if "joint" in config:
        try:
            heads["transducer"] = transducer_of(config, path)
        except UserError:
            if not has_ctc:
                raise
    if has_ctc:
        heads["ctc"] = CTC(dropout=0.0)
    if heads:
        return heads
    if "transf_decoder" in config:
        raise UserError(
            f"{path}: texts come from {decoder or 'an attention decoder'}, and the model has no CTC head; this package "
            "has no attention decoders yet: expected a CTC model, a transducer or a hybrid model"
        )
    return {"ctc": CTC(dropout=0.0)} if "vocabulary" in section(config, "decoder") else {}


def transducer_of(config: Mapping[str, Any], path: Path) -> Transducer:
    """Returns the settings of a model's transducer.

    Raises:
        UserError: If the prediction network or the joint network is another one.
    """
    decoder, joint = section(config, "decoder"), section(config, "joint")
    prediction, network = section(decoder, "prednet"), section(joint, "jointnet")
    activation = str(network.get("activation", "")).lower()
    durations = _durations(config)
    check_settings(
        f"{path}: decoder",
        {**decoder, "_target_": target(decoder)},
        _target_="RNNTDecoder",
        normalization_mode=None,
        blank_as_pad=True,
    )
    check_settings(f"{path}: joint", {"_target_": target(joint)}, _target_=("RNNTJoint", "SampledRNNTJoint"))
    sizes = (-1, None, prediction.get("pred_hidden"))
    check_settings(f"{path}: decoder.prednet", prediction, rnn_hidden_size=sizes)
    check_settings(f"{path}: joint.jointnet", {"activation": activation}, activation=("relu", "tanh"))
    if (more := joint.get("num_extra_outputs") or 0) != len(durations):
        raise UserError(
            f"{path}: joint.num_extra_outputs is {more}, expected {len(durations)}, the number of durations; this "
            "package has no multi-blank transducers"
        )
    loss, greedy = section(config, "loss"), section(section(config, "decoding"), "greedy")
    kind = loss.get("loss_name", "default")
    options = section(loss, f"{'warprnnt_numba' if kind == 'default' else kind}_kwargs")
    try:
        return Transducer(
            prediction=LSTMPrediction(
                int(prediction["pred_hidden"]),
                num_layers=int(prediction["pred_rnn_layers"]),
                dropout=prediction.get("dropout") or 0.0,
            ),
            joint_dim=int(network["joint_hidden"]),
            activation="relu" if activation == "relu" else "tanh",
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
    decoding, loss = section(config, "decoding"), section(config, "loss")
    if loss.get("loss_name") not in ("tdt", "tdt_pytorch") and decoding.get("model_type") != "tdt":
        return ()
    places = (
        (decoding, "durations"),
        (section(loss, "tdt_kwargs"), "durations"),
        (section(config, "model_defaults"), "tdt_durations"),
    )
    return next((tuple(part[name]) for part, name in places if isinstance(part.get(name), list)), ())
