"""Settings of wav2vec 2.0 in checkpoints of fairseq (commit 3d262bb2) and NVIDIA (DeepLearningExamples, 729963dd)."""

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from asr_jax.audio.features import FrontEnd
from asr_jax.audio.presets import wav2vec2
from asr_jax.core.errors import UserError
from asr_jax.heads.base import HeadSettings
from asr_jax.heads.contrastive import Contrastive
from asr_jax.heads.ctc import CTC
from asr_jax.models.wav2vec2 import BASE_EXTRACTOR, Hourglass, Wav2Vec2
from asr_jax.nn.activations import ActivationName
from asr_jax.nn.wav2vec.quantizer import Quantizer
from asr_jax.nn.wav2vec.span_masks import SpanMask
from asr_jax.nn.wav2vec.waveform_convs import WaveformConv
from asr_jax.pretrained.base import Description, check_settings
from asr_jax.pretrained.torch_files import Stand, load_torch, state_dict
from asr_jax.text.tokenizers import Tokenizer
from asr_jax.text.vocabularies import FAIRSEQ_SPECIALS, fairseq_vocabulary

PREFIXES = r"^(module\.)?(w2v_encoder\.)?(w2v_model\.)?"
"""Prefixes of data parallelism and of fine-tuned models, which names of pre-trained models lack."""
SIZES = {"conv_feature_layers", "encoder_embed_dim"}
"""Settings of which the section of a wav2vec 2.0 has at least one."""
FAIRSEQ_EPS = 1e-5
"""Epsilon added to the variance of the samples: both systems normalise them with PyTorch's layer norm."""


ACTIVATIONS: dict[str, ActivationName] = {
    "gelu": "gelu",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "tanh": "tanh",
    "linear": "identity",
}
"""Activations by fairseq's names."""
Names = Mapping[str, tuple[str, Any]]
"""Names and defaults of fairseq's settings, by our fields."""
ENCODER: Names = {
    "extractor_bias": ("conv_bias", False),
    "quantized_input": ("quantize_input", False),
    "dim": ("encoder_embed_dim", 768),
    "num_layers": ("encoder_layers", 12),
    "num_heads": ("encoder_attention_heads", 12),
    "feedforward_dim": ("encoder_ffn_embed_dim", 3072),
    "norm_first": ("layer_norm_first", False),
    "position_kernel": ("conv_pos", 128),
    "position_groups": ("conv_pos_groups", 16),
    "channel_mask_first": ("mask_channel_before", False),
    "dropout": ("dropout", 0.1),
    "attention_dropout": ("attention_dropout", 0.1),
    "activation_dropout": ("activation_dropout", 0.0),
    "input_dropout": ("dropout_input", 0.0),
    "feature_dropout": ("dropout_features", 0.0),
    "layer_drop": ("encoder_layerdrop", 0.05),
    "extractor_gradient": ("feature_grad_mult", 1.0),
}
QUANTIZER: Names = {
    "groups": ("latent_groups", 2),
    "entries": ("latent_vars", 320),
    "depth": ("quantizer_depth", 1),
    "factor": ("quantizer_factor", 3),
}
CONTRASTIVE: Names = {
    "num_negatives": ("num_negatives", 100),
    "across_negatives": ("cross_sample_negatives", 0),
    "codebook_negatives": ("codebook_negatives", 0),
    "from_everywhere": ("negatives_from_everywhere", False),
    "gated_targets": ("target_glu", False),
    "temperature": ("logit_temp", 0.1),
}
OF_CTC: Names = {
    "dropout": ("final_dropout", 0.0),
    "blank_weight": ("blank_weight", 0.0),
    "blank_mode": ("blank_mode", "add"),
}


def of_mask(prefix: str, probability: float = 0.0) -> Names:
    """Returns the names of a mask's settings that begin with a prefix."""
    return {
        "probability": (f"{prefix}_prob", probability),
        "length": (f"{prefix}_length", 10),
        "selection": (f"{prefix}_selection", "static"),
        "other": (f"{prefix}_other", 0.0),
    }


OF_PRETRAINING = r"(quantizer|project_q|project_hid|final_proj|target_glu)\..*"
"""Names of weights that pre-trained models have and fine-tuned ones lack."""


class Settings(NamedTuple):
    """Settings of a model, read from a file."""

    encoder: Wav2Vec2
    contrastive: Contrastive | None
    """Settings of the pre-training head; None if the file has none."""
    normalise: bool | None
    """Whether samples are normalised; None if the file does not contain this setting."""
    ctc: CTC = CTC()
    """Settings of the CTC head of a fine-tuned model: its dropout rate and the weight of the blank."""


def settings_of_checkpoint(path: Path) -> Settings:
    """Returns the settings in a checkpoint (`.pt`) of a pre-trained or fine-tuned model.

    Raises:
        UserError: If the checkpoint does not describe a wav2vec 2.0, or if a setting is not supported.
    """
    config, settings = _stored(path)
    if not settings.keys() & SIZES:
        raise UserError(f"{path} contains no settings of its model: expected a wav2vec 2.0 of fairseq or NVIDIA")
    normalise = _plain(_plain(config).get("task")).get("normalize", settings.get("normalize"))
    try:
        return settings_of_fairseq(settings, path, normalise=normalise if isinstance(normalise, bool) else None)
    except (ValueError, TypeError, SyntaxError) as error:
        raise UserError(f"{path}: {error}; expected settings of a wav2vec 2.0 of fairseq or NVIDIA") from error


def _stored(path: Path) -> tuple[Any, dict[str, Any]]:
    """Returns the settings of a run in a checkpoint, and those of its model; empty if there are none."""
    loaded = load_torch(path)
    # Newer files of fairseq have `cfg`, older ones `args`. A fine-tuned model contains the pre-trained one's settings.
    config = (loaded.get("cfg") or loaded.get("args")) if isinstance(loaded, Mapping) else None
    outer = _model_of(config)
    inner = _model_of(outer.pop("w2v_args", None))
    return config, inner | {name: value for name, value in outer.items() if value is not None}


def _model_of(config: Any) -> dict[str, Any]:
    """Returns the settings of the model in the settings of a run."""
    plain = _plain(config)
    return _plain(plain["model"]) if _plain(plain.get("model")) else plain


def _plain(config: Any) -> dict[str, Any]:
    """Converts settings to a dict: a mapping, an object with attributes, or a stand-in for an OmegaConf node."""
    held = dict(config) if isinstance(config, Mapping) else dict(getattr(config, "__dict__", {}))
    if isinstance(nodes := held.get("_content"), Mapping):
        return {name: _value(node) for name, node in nodes.items()}
    return held


def _value(node: Any) -> Any:
    """Returns the value of an OmegaConf node, for an enumeration its value; mapping nodes are returned unchanged."""
    held = getattr(node, "__dict__", {})
    if isinstance(nodes := held.get("_content"), list):
        return [_value(each) for each in nodes]
    value = held.get("_val", node)
    return value.args[0] if isinstance(value, Stand) and hasattr(value, "args") else value


def settings_of_fairseq(config: Mapping[str, Any], path: Any, *, normalise: bool | None = None) -> Settings:
    """Returns the settings for a model section of fairseq or NVIDIA; missing settings have fairseq's defaults.

    Args:
        normalise: Whether samples are normalised; None if the file does not contain this setting.

    Raises:
        UserError: If a setting is not supported.
    """
    expected = {
        "extractor_mode": ("default", "layer_norm"),
        "activation_fn": tuple(ACTIVATIONS),
        "layer_type": "transformer",
        "pos_conv_depth": 1,
        "blank_mode": ("add", "set"),
        "attn_type": "",
        "pos_enc_type": "abs",
        "adp_num": (-1, None),
        "use_spectrogram_features": False,
        "hourglass_resample": ("naive", "linear"),
        "mha": ("fairseq", "pyt"),
    }
    check_settings(f"{path}: model", config, **expected)
    get = config.get
    layers = conv_layers(get("conv_feature_layers"), path)
    fields = read(config, ENCODER)
    dim, quantizes = fields["dim"], bool(fields["quantized_input"])
    contrastive = _contrastive(config, dim)
    encoder = Wav2Vec2(
        **{**fields, "quantized_input": quantizes},
        extractor=layers,
        extractor_norm="layer" if get("extractor_mode", "default") == "layer_norm" else "group",
        projected=quantizes or layers[-1].channels != dim,
        input_quantizer=_quantizer(config),
        input_codes_dim=get("latent_dim", 0) or (_final_dim(config, dim) if get("same_quantizer") else dim),
        activation=ACTIVATIONS[get("activation_fn", "gelu")],
        rotary=get("rotary_embeddings", False),
        hourglass=_hourglass(get("hourglass_transformer"), get("hourglass_resample", "naive")),
        time_mask=_mask(config, "mask", probability=0.65, min_spans=2),
        channel_mask=_mask(config, "mask_channel", probability=0.0, min_spans=0),
        taps=("features", "extractor"),
    )
    return Settings(encoder, contrastive, normalise, CTC(**read(config, OF_CTC)))


def read(config: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Returns the fields that settings contain, or the defaults of missing ones."""
    return {ours: config.get(theirs, default) for ours, (theirs, default) in names.items()}


def written(settings: Any, names: Names) -> dict[str, Any]:
    """Returns the fields of settings by fairseq's names."""
    return {theirs: getattr(settings, ours) for ours, (theirs, _) in names.items()}


def conv_layers(expression: str | None, path: Any) -> tuple[WaveformConv, ...]:
    """Returns the convolutions of fairseq's expression, such as "[(512, 10, 5)] + [(512, 3, 2)] * 4".

    None stands for the extractor of wav2vec 2.0 Base.

    Raises:
        UserError: If the text is not such an expression.
    """
    if expression is None:
        return BASE_EXTRACTOR
    try:
        return tuple(WaveformConv(*map(int, layer)) for layer in _evaluated(ast.parse(expression, mode="eval").body))
    except (SyntaxError, TypeError, ValueError) as error:
        raise UserError(
            f"{path}: conv_feature_layers is {expression!r}: expected lists of (channels, taps, stride), joined with + "
            "and repeated with *"
        ) from error


def _evaluated(node: ast.AST) -> Any:
    """Evaluates literals, + and * of a syntax tree, and runs no other code of the file."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _evaluated(node.left) + _evaluated(node.right)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _evaluated(node.left) * _evaluated(node.right)
    return ast.literal_eval(node)


def _hourglass(expression: str | None, resample: Any) -> Hourglass:
    """Returns the settings for NVIDIA's expression "[before, (middle, factor), after]"."""
    if not expression:
        return Hourglass()
    try:
        before, (middle, factor), after = ast.literal_eval(expression)
    except (ValueError, TypeError, SyntaxError) as error:
        raise ValueError(
            f"hourglass_transformer is {expression!r}, expected [before, (middle, factor), after]"
        ) from error
    return Hourglass(before=before, middle=middle, factor=factor, after=after, resample=resample)


def _mask(config: Mapping[str, Any], prefix: str, *, probability: float, min_spans: int) -> SpanMask:
    own = {}
    if prefix == "mask":
        own = read(config, {"same_count": ("require_same_masks", True), "dropout": ("mask_dropout", 0.0)})
    space = config.get(f"{prefix}_min_space", 1) if config.get(f"no_{prefix}_overlap", False) else None
    return SpanMask(min_spans=min_spans, min_space=space, **read(config, of_mask(prefix, probability)), **own)


def _final_dim(config: Mapping[str, Any], dim: int) -> int:
    """Returns the dimension in which targets and predictions are compared; `dim` is the width of the layers."""
    return config.get("final_dim", 0) or dim


def _quantizer(config: Mapping[str, Any]) -> Quantizer:
    """Returns the settings of the quantisers of targets and input, which are equal."""
    given = config.get("latent_temp", (2.0, 0.5, 0.999995))
    start, end, decay = ast.literal_eval(given) if isinstance(given, str) else given
    return Quantizer(**read(config, QUANTIZER), start_temperature=start, end_temperature=end, decay=decay)


def _contrastive(config: Mapping[str, Any], dim: int) -> Contrastive | None:
    if not config.get("quantize_targets", True):  # as in some fine-tuned models; the head does not exist without codes
        return None
    final = _final_dim(config, dim)
    return Contrastive(
        quantizer=_quantizer(config),
        codes_dim=config.get("latent_dim", 0) or final,
        same_quantizer=bool(config.get("quantize_input", False) and config.get("same_quantizer", False)),
        dim=final,
        **read(config, CONTRASTIVE),
    )


def unknown_of(settings: Settings) -> str:
    """Returns a message about the setting that `front_end_of` assumes; empty if the file contains it."""
    is_known = settings.normalise is not None
    return "" if is_known else "whether samples are normalised: --front-end wav2vec2 or wav2vec2_normalised"


def front_end_of(settings: Settings, *, eps: float) -> FrontEnd:
    """Returns the preset `wav2vec2`; without a setting `normalise`, models with pre-layer norms normalise samples."""
    normalises = settings.normalise if settings.normalise is not None else settings.encoder.norm_first
    return wav2vec2(normalise=normalises, eps=eps)


def _is_of(path: Path) -> bool:
    return path.suffix == ".pt" and path.is_file() and bool(_stored(path)[1].keys() & SIZES)


def _heads_of(path: Path) -> dict[str, HeadSettings]:
    names = {re.sub(PREFIXES, "", name) for name in state_dict(load_torch(path))}
    if "proj.weight" in names:
        return {"ctc": settings_of_checkpoint(path).ctc}
    if any(name.startswith("decoder.") for name in names):
        raise UserError(f"{path}: texts come from an attention decoder, which this package does not have: expected CTC")
    contrastive = settings_of_checkpoint(path).contrastive
    return {"pretrain": contrastive} if contrastive and "quantizer.vars" in names else {}


def _tokenizer_of(path: Path, given: Tokenizer | None) -> Tokenizer | None:
    """Returns the given tokenizer, or the one that newer files of both systems contain; None for older files.

    fairseq removes `</s>` from its texts, which NVIDIA does not: the text of this label is then empty.
    """
    loaded = load_torch(path)
    of_nvidia = "train_state" in loaded
    if given is None and of_nvidia and loaded.get("output_labels"):  # the text of a dict.ltr.txt
        given = fairseq_vocabulary(path, str(loaded["output_labels"]))
    dictionary = _plain(_plain(loaded.get("task_state")).get("target_dictionary"))
    if given is None and "symbols" in dictionary:
        symbols = dictionary["symbols"][dictionary.get("nspecial", len(FAIRSEQ_SPECIALS)) :]
        given = fairseq_vocabulary(path, "\n".join(f"{symbol} 1" for symbol in symbols))
    if given is None or of_nvidia:
        return given
    return replace(given, symbols=tuple("" if symbol == "</s>" else symbol for symbol in given.symbols))


DESCRIPTIONS = (
    Description(
        "fairseq's or NVIDIA's .pt",
        _is_of,
        lambda path: settings_of_checkpoint(path).encoder,
        lambda path: front_end_of(settings_of_checkpoint(path), eps=FAIRSEQ_EPS),
        _heads_of,
        _tokenizer_of,
        lambda path: unknown_of(settings_of_checkpoint(path)),
        OF_PRETRAINING,
        lambda path: settings_of_checkpoint(path).ctc,
    ),
)
