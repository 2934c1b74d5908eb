"""Weight names and settings of Conformer and FastConformer in NeMo and in Hugging Face's Parakeet.

Source: NeMo at commit 8cfedd72; transformers 5.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import nemo
from asr_jax.core.errors import UserError
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.ctc import CTC
from asr_jax.models.conformer import Conformer
from asr_jax.nn.conformer import ConvNorm
from asr_jax.nn.striding import Subsampling
from asr_jax.pretrained.base import Description, Format
from asr_jax.pretrained.huggingface import CONFIG, front_end_settings, model_type, read_json
from asr_jax.pretrained.keymap import (
    DEPTHWISE,
    LINEAR,
    POINTWISE_1D,
    SAME,
    NamedWeights,
    Row,
    export_params,
    find_params,
    flattened,
)
from asr_jax.pretrained.nemo_files import (
    OF_OTHER_HEADS,
    check_settings,
    nemo_config,
    nemo_encoder,
    nemo_front_end,
    nemo_heads,
    nemo_subsampling,
)
from asr_jax.pretrained.transducers import huggingface_rows, nemo_rows, parakeet_transducer
from asr_jax.text.sentencepiece import SentencePieceTokenizer
from asr_jax.text.tokenizers import Tokenizer

Names = Literal["nemo", "huggingface"]
NEVER_USED = r"preprocessor\..*|.*\.num_batches_tracked"
"""Names that are ignored: buffers of the front-end, and batch counters of batch norms."""
NEMO_NORMS: dict[str, ConvNorm] = {"batch_norm": "batch", "layer_norm": "layer"}

# Parts of NeMo's names, and Hugging Face's names for them.
HUGGING_FACE = (
    ("encoder.pre_encode.conv.",    "encoder.subsampling.layers."),
    ("encoder.pre_encode.out.",     "encoder.subsampling.linear."),
    (".self_attn.linear_q.",        ".self_attn.q_proj."),
    (".self_attn.linear_k.",        ".self_attn.k_proj."),
    (".self_attn.linear_v.",        ".self_attn.v_proj."),
    (".self_attn.linear_out.",      ".self_attn.o_proj."),
    (".self_attn.linear_pos.",      ".self_attn.relative_k_proj."),
    (".self_attn.pos_bias_",        ".self_attn.bias_"),
    (".conv.batch_norm.",           ".conv.norm."),
    ("decoder.decoder_layers.0.",   "ctc_head."),
)  # fmt: skip

LAYER_NORMS = (
    ("norm_feed_forward1",          "feed_forward_1_norm"),
    ("norm_self_att",               "attention_norm"),
    ("norm_conv",                   "convolution_norm"),
    ("norm_feed_forward2",          "feed_forward_2_norm"),
    ("norm_out",                    "norm"),
)  # fmt: skip
# Each of these has a bias if the settings enable it.
FEED_FORWARD_AND_ATTENTION = (
    ("feed_forward1.linear1",       "feed_forward_1/in",      LINEAR),
    ("feed_forward1.linear2",       "feed_forward_1/out",     LINEAR),
    ("feed_forward2.linear1",       "feed_forward_2/in",      LINEAR),
    ("feed_forward2.linear2",       "feed_forward_2/out",     LINEAR),
    ("self_attn.linear_q",          "attention/query",        LINEAR),
    ("self_attn.linear_k",          "attention/key",          LINEAR),
    ("self_attn.linear_v",          "attention/value",        LINEAR),
    ("self_attn.linear_out",        "attention/out",          LINEAR),
)  # fmt: skip
CONVOLUTION = (
    ("conv.pointwise_conv1",        "convolution/in",         POINTWISE_1D),
    ("conv.depthwise_conv",         "convolution",            DEPTHWISE),
    ("conv.pointwise_conv2",        "convolution/out",        POINTWISE_1D),
)  # fmt: skip
POSITION_BIASES = (
    ("self_attn.pos_bias_u",        "content_bias"),
    ("self_attn.pos_bias_v",        "position_bias"),
)  # fmt: skip
BATCH_NORM = (
    ("conv.batch_norm.weight",       "params",       "gain"),
    ("conv.batch_norm.bias",         "params",       "bias"),
    ("conv.batch_norm.running_mean", "batch_stats",  "mean"),
    ("conv.batch_norm.running_var",  "batch_stats",  "variance"),
)  # fmt: skip


def claims_nemo(weights: NamedWeights) -> bool:
    """Returns whether the weights have NeMo's names of a Conformer."""
    return any(name.startswith("encoder.pre_encode.") for name in weights)


def claims_huggingface(weights: NamedWeights) -> bool:
    """Returns whether the weights have Hugging Face's names of a Parakeet."""
    return any(name.startswith("encoder.subsampling.") for name in weights)


def find(
    weights: NamedWeights, settings: Conformer, *, ctc_head: str | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """Returns the weights of a NeMo or Parakeet file by parameter path, and the names that are left.

    Args:
        weights: Weights by NeMo's or Hugging Face's names; parameters that they lack are not returned.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Returns:
        Parameters and running statistics (`params/encoder/…`, `batch_stats/encoder/…` and those of the CTC head), and
        the names of weights that the model does not have, except those that match `NEVER_USED`.
    """
    names: Names = "huggingface" if claims_huggingface(weights) else "nemo"
    # NeMo's hybrid transducer-CTC models call the CTC decoder `ctc_decoder`.
    weights = {re.sub(r"^ctc_decoder\.", "decoder.", name): array for name, array in weights.items()}
    found = find_params(weights, rows(settings, ctc_head=ctc_head, names=names))
    return found.params, [name for name in found.left if not re.fullmatch(NEVER_USED, name)]


def export_nemo(variables: Any, settings: Conformer, *, ctc_head: str | None) -> dict[str, np.ndarray]:
    """Returns the variables of a model under NeMo's names.

    Args:
        variables: `{"params": …, "batch_stats": …}`, a part of it, or a tree of the same structure.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Raises:
        UserError: If a parameter has no name in NeMo.
    """
    return export_params(variables, rows(settings, ctc_head=ctc_head, names="nemo"))


def export_huggingface(variables: Any, settings: Conformer, *, ctc_head: str | None) -> dict[str, np.ndarray]:
    """Returns the variables of a model under the names of Hugging Face's Parakeet.

    Args:
        variables: `{"params": …, "batch_stats": …}`, a part of it, or a tree of the same structure.
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.

    Raises:
        UserError: If a parameter has no name in Parakeet.
    """
    return export_params(variables, rows(settings, ctc_head=ctc_head, names="huggingface"))


def rows(settings: Conformer, *, ctc_head: str | None, names: Names) -> list[Row]:
    """Returns the table of names for a model.

    Args:
        ctc_head: Path of the CTC head, such as `heads_ctc`; None if the model has none.
        names: System whose names the table has.
    """
    table = nemo_subsampling("params/encoder/subsample", settings.subsampling_factor, settings.subsampling)
    channels = settings.subsampling_channels or settings.dim
    table.append(Row("encoder.pre_encode.out.weight", "params/encoder/embed/kernel", flattened(channels)))
    table.append(Row("encoder.pre_encode.out.bias", "params/encoder/embed/bias"))
    for layer in range(settings.num_layers):
        table += _layer_rows(settings, layer)
    if ctc_head:
        table += [
            Row("decoder.decoder_layers.0.weight", f"params/{ctc_head}/output/kernel", POINTWISE_1D),
            Row("decoder.decoder_layers.0.bias", f"params/{ctc_head}/output/bias"),
        ]
    return table if names == "nemo" else [replace(row, theirs=_renamed(row.theirs)) for row in table]


def _renamed(name: str) -> str:
    for theirs, other in HUGGING_FACE:
        name = name.replace(theirs, other)
    return name


def _layer_rows(settings: Conformer, layer: int) -> list[Row]:
    theirs, ours = f"encoder.layers.{layer}", "encoder/layers"
    table = [(f"{name}.weight", f"params/{ours}/{module}/scale", SAME) for name, module in LAYER_NORMS]
    table += [(f"{name}.bias", f"params/{ours}/{module}/bias", SAME) for name, module in LAYER_NORMS]
    has_biases = (settings.use_bias, settings.convolution_bias)
    for modules, has_bias in zip((FEED_FORWARD_AND_ATTENTION, CONVOLUTION), has_biases, strict=True):
        table += [(f"{name}.weight", f"params/{ours}/{module}/kernel", layout) for name, module, layout in modules]
        if has_bias:
            table += [(f"{name}.bias", f"params/{ours}/{module}/bias", SAME) for name, module, _ in modules]
    norm = f"{ours}/convolution/norm"
    if settings.norm == "layer":
        table += [("conv.batch_norm.weight", f"params/{norm}/scale", SAME)]
        table += [("conv.batch_norm.bias", f"params/{norm}/bias", SAME)]
    else:
        table += [(name, f"{part}/{norm}/{leaf}", SAME) for name, part, leaf in BATCH_NORM]
    if settings.positions == "rel_pos":
        table.append(("self_attn.linear_pos.weight", f"params/{ours}/attention/positions/kernel", LINEAR))
    result = [Row(f"{theirs}.{name}", path, layout, layer) for name, path, layout in table]
    if settings.positions == "rel_pos":
        for name, leaf in POSITION_BIASES:
            # NeMo lists tied biases in every layer, although they are a single array.
            row = Row(f"{theirs}.{name}", f"params/{ours}/attention/{leaf}", SAME, layer)
            result.append(Row(row.theirs, f"params/encoder/{leaf}") if settings.tied_biases else row)
    return result


def conformer_of(path: str | Path, **changes: Any) -> Conformer:
    """Returns the encoder settings of a `.nemo` file or a Hugging Face Parakeet folder, with `changes` of their fields.

    Layer drop is ignored, because `Conformer` does not implement it. The `layerdrop` in Hugging Face's folders comes
    from their converter of NeMo files; the models were not trained with it.

    Raises:
        UserError: If the path does not describe a Conformer, or if a setting is not supported.
    """
    config, names = config_of(Path(path))
    try:
        if names == "nemo":
            return replace(settings_of_nemo(config.get("encoder"), path), **changes)
        return replace(_settings_of_huggingface(config["encoder_config"], path), **changes)
    except ValueError as error:
        raise UserError(f"{path}: {error}") from error


def config_of(path: Path) -> tuple[dict[str, Any], Names]:
    """Returns the configuration of a `.nemo` file or a Parakeet folder, and the system that it is written for.

    Raises:
        UserError: If the path is neither.
    """
    if path.suffix == ".nemo":
        return nemo_config(path), "nemo"
    file = path / "config.json"
    try:
        config = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}; expected a .nemo file or a Hugging Face Parakeet folder") from error
    if not isinstance(config, dict) or not isinstance(config.get("encoder_config"), Mapping):
        found = config.get("model_type") if isinstance(config, dict) else None
        raise UserError(
            f"{file}: model_type is {found!r}; expected parakeet_ctc, parakeet_tdt, wav2vec2 or wav2vec2-bert"
        )
    return config, "huggingface"


def settings_of_nemo(encoder: Any, path: str | Path) -> Conformer:
    """Returns the settings of a Conformer from the `encoder` section of a NeMo configuration.

    `path` is the file that the section was read from, for messages.

    Raises:
        UserError: If the encoder is not a Conformer, or if a setting is not supported.
    """
    if not isinstance(encoder, Mapping) or not str(encoder.get("_target_", "")).endswith("ConformerEncoder"):
        raise UserError(f"{path}: the encoder is {encoder and encoder.get('_target_')}, expected a ConformerEncoder")
    if missing := sorted({"feat_in", "n_layers", "d_model"} - encoder.keys()):
        raise UserError(f"{path}: the encoder has no {', '.join(missing)}; expected settings that NeMo wrote")
    expected = {
        "feat_out": (-1, encoder["d_model"]), "causal_downsampling": False, "reduction": None,
        "conv_context_size": None, "subsampling": get_args(Subsampling), "conv_norm_type": (*NEMO_NORMS,),
        "self_attention_model": ("rel_pos", "abs_pos"), "att_context_style": "regular",
        "att_context_size": ([-1, -1], [[-1, -1]], None),
    }  # fmt: skip
    check_settings(path, "encoder", encoder, expected)
    channels = encoder.get("subsampling_conv_channels", -1)
    positions = encoder.get("self_attention_model", "rel_pos")
    return Conformer(
        num_mels=encoder["feat_in"],
        dim=encoder["d_model"],
        num_layers=encoder["n_layers"],
        num_heads=encoder.get("n_heads", 4),
        feedforward_dim=encoder["d_model"] * encoder.get("ff_expansion_factor", 4),
        kernel_size=encoder.get("conv_kernel_size", 31),
        subsampling=encoder.get("subsampling", "striding"),
        subsampling_factor=encoder.get("subsampling_factor", 4),
        subsampling_channels=None if channels == -1 else channels,
        positions=positions,
        tied_biases=positions == "rel_pos" and not encoder.get("untie_biases", True),
        scale_input=encoder.get("xscaling", True),
        norm=NEMO_NORMS[encoder.get("conv_norm_type", "batch_norm")],
        use_bias=encoder.get("use_bias", True),
        convolution_bias=encoder.get("use_bias", True),
        dropout=encoder.get("dropout", 0.1),
        input_dropout=encoder.get("dropout_pre_encoder", 0.1),
        position_dropout=encoder.get("dropout_emb", 0.1),
        attention_dropout=encoder.get("dropout_att", 0.0),
    )


def _settings_of_huggingface(encoder: Mapping[str, Any], path: str | Path) -> Conformer:
    expected = {
        "model_type": "parakeet_encoder", "hidden_act": "silu", "subsampling_conv_kernel_size": 3,
        "subsampling_conv_stride": 2,
    }  # fmt: skip
    check_settings(path, "encoder_config", encoder, expected)
    names = {
        "num_mels": "num_mel_bins", "dim": "hidden_size", "num_layers": "num_hidden_layers",
        "num_heads": "num_attention_heads", "feedforward_dim": "intermediate_size", "kernel_size": "conv_kernel_size",
        "subsampling_factor": "subsampling_factor", "subsampling_channels": "subsampling_conv_channels",
        "scale_input": "scale_input", "use_bias": "attention_bias", "convolution_bias": "convolution_bias",
        "dropout": "dropout", "input_dropout": "dropout", "position_dropout": "dropout_positions",
        "attention_dropout": "attention_dropout",
    }  # fmt: skip
    if missing := sorted(set(names.values()) - {"convolution_bias", *encoder}):
        raise UserError(f"{path}: encoder_config has no {', '.join(missing)}; expected a file that transformers wrote")
    # transformers 4 has no setting convolution_bias: the bias is always there.
    return Conformer(subsampling="dw_striding", **{ours: encoder.get(theirs, True) for ours, theirs in names.items()})


FORMATS = (
    Format("nemo", "NeMo (Conformer)", Conformer, claims_nemo, find, export_nemo, transducer=nemo_rows),
    Format(
        "huggingface",
        "Hugging Face (Parakeet)",
        Conformer,
        claims_huggingface,
        find,
        export_huggingface,
        transducer=huggingface_rows,
    ),
)


def _parakeet_front_end(path: Path) -> FrontEnd:
    num_mels = config_of(path)[0]["encoder_config"]["num_mel_bins"]
    expected = {
        "feature_extractor_type": "ParakeetFeatureExtractor", "feature_size": num_mels, "sampling_rate": 16000,
        "hop_length": 160, "win_length": 400, "n_fft": 512, "preemphasis": 0.97,
    }  # fmt: skip
    check_settings(path, "feature_extractor", front_end_settings(path), expected)
    return nemo(num_mels=num_mels)


def _parakeet_heads(path: Path) -> dict[str, HeadSettings]:
    found = model_type(path)
    if found in TRANSDUCERS:
        return {"transducer": parakeet_transducer(config_of(path)[0], path)}
    return {"ctc": CTC(dropout=0.0)} if found == CTC_MODEL else {}


def _parakeet_tokenizer(path: Path, given: Tokenizer | None) -> Tokenizer | None:
    """Returns the tokenizer with the blank of a transducer, which is not the padding token as that of CTC is."""
    if model_type(path) not in TRANSDUCERS or not isinstance(given, SentencePieceTokenizer):
        return given
    blank = config_of(path)[0]["blank_token_id"]
    return SentencePieceTokenizer.of_model(given.model, normaliser=given.normaliser, blank_id=blank)


CTC_MODEL, TRANSDUCERS = "parakeet_ctc", ("parakeet_rnnt", "parakeet_tdt")
DESCRIPTIONS = (
    Description(
        "ConformerEncoder", lambda path: nemo_encoder(path) == "ConformerEncoder", conformer_of, nemo_front_end,
        nemo_heads, others=OF_OTHER_HEADS,
    ),
    Description(
        CTC_MODEL, lambda path: isinstance(read_json(path / CONFIG).get("encoder_config"), Mapping)
        if (path / CONFIG).is_file() else False, conformer_of, _parakeet_front_end, _parakeet_heads,
        _parakeet_tokenizer,
    ),
)  # fmt: skip
